"""Faults of SGLang itself that the checks found: see docs/findings."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syncguard.survey.findings import FINDINGS
from syncguard.verdict import Status
from tests.pairs import make_pair

GONE = ("sglang_stale_swizzled_scales",)  # since 0.5.21

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("sglang")]


def test_llama_drops_block_scales(models: Path) -> None:
    """Its loader renames ``weight_scale_inv`` to a name that no parameter has."""
    pair = make_pair("sglang", str(_tiny_llama(models)), models, "mxfp8")
    verdicts = pair.sync(poison=0xA5)
    assert verdicts["session"].status is Status.PASS
    fates = dict(verdicts["ledger"].evidence)
    dropped = {name for name, fate in fates.items() if fate == "arrived, but no loader took it"}
    assert len(dropped) == 7
    assert all(name.endswith(".weight_scale") for name in dropped)
    assert verdicts["weight-bytes"].status is Status.FAIL
    assert verdicts["exact-probe"].status is Status.FAIL


def test_weights_quantized_by_sglang_cannot_be_updated(models: Path) -> None:
    """A bf16 update is cast into the E4M3 parameter, and the quantizer then refuses E4M3."""
    pair = make_pair("sglang", "tiny-qwen3", models, "mxfp8-online")
    verdicts = pair.sync()
    assert verdicts["session"].status is Status.FAIL
    assert "got torch.float8_e4m3fn" in verdicts["session"].message
    assert verdicts["quantizer-canary"].status is Status.PASS
    assert verdicts["weight-bytes"].status is Status.FAIL


def test_a_refused_load_from_disk_rolls_back_to_the_new_weights(models: Path) -> None:
    """It names the original weights, and loads the folder again that it was told to load."""
    pair = make_pair("sglang", "tiny-qwen3", models, "none", path="disk")
    assert pair.judge() == {}
    pair.learner.perturb(1, scale=0.5)
    calls = []

    def fail_once(load: Any) -> Any:
        def loader(*args: Any, **kwargs: Any) -> None:
            calls.append(args)
            if len(calls) == 1:
                raise OSError("the network is down")
            load(*args, **kwargs)

        return loader

    with pair.seam("loader", "model.layers.1.self_attn.o_proj.weight").wrap(fail_once):
        verdicts = pair.sync()
    assert "Rolling back to original weights" in verdicts["session"].message
    assert pair.engine.version() == "1"
    held, learner = pair.engine.weight_prints(), pair.learner.prints()
    assert all((held[name].rows["values"] == learner[name].rows["values"]).all() for name in held)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FINDINGS if name.startswith("sglang_")])
def test_a_script_of_sglangs_own_interface_finds_its_fault(name: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(FINDINGS[name].script)
    command = [sys.executable, "-m", "syncguard.engines.sglang.scripts", str(script)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == (name not in GONE), ran.stderr
    assert "expected: " in ran.stdout
    assert "Traceback" not in ran.stderr


def _tiny_llama(folder: Path) -> Path:
    from syncguard._libraries import import_transformers, quiet

    transformers = import_transformers()
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        torch_dtype="bfloat16",
    )
    path = folder / "tiny-llama"
    with quiet():
        transformers.AutoModelForCausalLM.from_config(config).bfloat16().save_pretrained(path)
    return path
