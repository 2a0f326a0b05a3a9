import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from syncguard.errors import UsageError
from syncguard.models import MODELS, resolve_model


@pytest.mark.parametrize("name", sorted(MODELS))
def test_named_model_is_made_with_the_same_bytes_anywhere(name: str, tmp_path: Path) -> None:
    one = resolve_model(name, tmp_path / "one", quantization="mxfp8")
    other = resolve_model(name, tmp_path / "other", quantization="mxfp8")
    assert one.name == name
    assert one.path != other.path
    for file in ("model.safetensors", "config.json"):
        assert (one.path / file).read_bytes() == (other.path / file).read_bytes()


def test_named_model_is_made_once(tmp_path: Path) -> None:
    made = resolve_model("tiny-qwen3", tmp_path).path / "model.safetensors"
    before = made.stat()
    again = resolve_model("tiny-qwen3", tmp_path).path / "model.safetensors"
    assert (again, again.stat().st_mtime_ns) == (made, before.st_mtime_ns)


def test_making_leaves_nothing_else_in_the_cache(tmp_path: Path) -> None:
    checkpoint = resolve_model("tiny-qwen3", tmp_path)
    assert list(tmp_path.iterdir()) == [checkpoint.path]


def test_damaged_model_in_the_cache_is_made_again(tmp_path: Path) -> None:
    weights = resolve_model("tiny-qwen3", tmp_path).path / "model.safetensors"
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1])
    assert resolve_model("tiny-qwen3", tmp_path).path == weights.parent
    assert weights.read_bytes() == intact
    assert list(tmp_path.iterdir()) == [weights.parent]


def test_tied_model_stores_no_head(tmp_path: Path) -> None:
    assert "lm_head.weight" in resolve_model("tiny-qwen3", tmp_path).tensors
    assert "lm_head.weight" not in resolve_model("tiny-qwen3-tied", tmp_path).tensors


def test_shards_of_a_fused_parameter_have_different_heights(tmp_path: Path) -> None:
    tensors = resolve_model("tiny-qwen3", tmp_path).tensors
    heights = [tensors[f"model.layers.0.self_attn.{part}_proj.weight"].shape[0] for part in "qkv"]
    assert heights == [128, 64, 64]


def test_no_weight_is_constant_or_repeated(tmp_path: Path) -> None:
    weights = load_file(resolve_model("tiny-qwen3", tmp_path).path / "model.safetensors")
    assert all(weight.float().std() > 0.01 for weight in weights.values())
    contents = {bytes(weight.flatten().view(torch.uint8).numpy()) for weight in weights.values()}
    assert len(contents) == len(weights)


def test_folder_is_taken_as_it_is(tmp_path: Path) -> None:
    made = resolve_model("tiny-qwen3", tmp_path)
    taken = resolve_model(str(made.path), tmp_path / "unused")
    assert (taken.path, taken.name) == (made.path, str(made.path))
    assert taken.tensors == made.tensors
    assert not (tmp_path / "unused").exists()


def test_misspelt_name_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        resolve_model("tiny-qwen", tmp_path)
    assert str(caught.value) == (
        "model 'tiny-qwen' is neither a folder nor a name that syncguard knows. Did you mean "
        "'tiny-qwen3'? Known names: tiny-glm4-moe, tiny-llama, tiny-qwen3, tiny-qwen3-moe, "
        "tiny-qwen3-moe-wide, tiny-qwen3-tied, tiny-qwen3-wide. Nothing is downloaded: for any "
        "other model give the folder of its checkpoint"
    )


def test_name_of_a_hub_gets_no_suggestion(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Nothing is downloaded") as caught:
        resolve_model("meta-llama/Llama-3.2-1B", tmp_path)
    assert "Did you mean" not in str(caught.value)


def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"cannot make it in the cache folder .*file/cache"):
        resolve_model("tiny-qwen3", tmp_path / "file" / "cache")


def test_import_is_light() -> None:
    code = (
        "import sys, syncguard.models, syncguard.learners\n"
        "raise SystemExit(str({'transformers', 'torchao'} & {*sys.modules} or ''))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""
