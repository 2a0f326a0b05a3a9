"""A live vLLM in processes of its own, and other ways for weights to get there."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from syncguard.errors import UsageError
from syncguard.faults import FAULTS, World
from syncguard.verdict import Reason, Status
from tests.live.conftest import make_pair

pytestmark = [pytest.mark.live, pytest.mark.slow, pytest.mark.xdist_group("processes")]


@pytest.mark.parametrize(
    "options",
    [
        {"path": "extension"},
        {"process": "own"},
        {"process": "own", "path": "extension"},
        {"ranks": 2, "path": "extension"},
        {"process": "server"},
        {"process": "server", "path": "extension"},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_every_condition_passes(models: Path, options: dict[str, Any]) -> None:
    pair = make_pair(models, "tiny-qwen3", "mxfp8", **options)
    verdicts = pair.sync(poison=0xA5)
    pair.learner.step(1e-6)
    later = [pair.judge(poison=0x5A), pair.judge(same_weights=True)]
    pair.engine.close()
    counted = [v for v in verdicts.values() if v.reason is not Reason.NOT_APPLICABLE]
    assert {v.check: v.message for v in counted if v.status is not Status.PASS} == {}
    assert {v.condition for v in counted} >= {f"C{number}" for number in range(1, 8)}
    assert later == [{}, {}]


def test_a_weight_that_no_extension_finds_is_missed(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(models, "tiny-qwen3", "mxfp8", path="extension")
    weights = pair.learner.weights
    name = "model.layers.0.mlp.down_proj.weight"
    monkeypatch.setattr(
        pair.learner, "weights", lambda: (held for held in weights() if held[0] != name)
    )
    assert dict(pair.sync()["ledger"].evidence) == {name: "never arrived"}


@pytest.mark.parametrize("process", ["own", "server"])
def test_faults_are_armed_where_the_model_is(models: Path, process: str) -> None:
    pair = make_pair(models, "tiny-qwen3", "mxfp8", process=process)
    world = World(lambda: pair.learner, lambda: pair.engine)
    site = "model.layers.1.mlp.down_proj.weight_scale_swizzled"
    with FAULTS["derived-scale-byte"].armed(world, site):
        verdicts = pair.sync(poison=0xA5)
        assert world.fired
    later = pair.judge()
    pair.engine.close()
    assert set(dict(verdicts["re-derivation"].evidence)) == {site}
    assert verdicts["exact-probe"].status is Status.FAIL
    assert later == {}


def test_an_engine_starts_after_another_is_gone(models: Path) -> None:
    for process in ("own", "in", "own"):
        pair = make_pair(models, "tiny-qwen3", "none", process=process)
        assert pair.judge() == {}
        pair.engine.close()


def test_an_engine_of_another_kind_starts_after_one_was_closed(models: Path) -> None:
    """Both make process groups of torch, which are the process's."""
    if find_spec("sglang") is None:  # on a CPU it does not import by itself
        pytest.skip("SGLang is not installed")
    code = (
        "from pathlib import Path\n"
        "from tests.pairs import make_pair\n"
        f"folder = Path({str(models)!r})\n"
        "for engine in ('vllm', 'sglang'):\n"
        "    pair = make_pair(engine, 'tiny-qwen3', folder, 'none')\n"
        "    assert pair.judge() == {}\n"
        "    pair.engine.close()\n"
    )
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr


def test_tensors_do_not_cross_processes(models: Path) -> None:
    with pytest.raises(UsageError, match="take path 'transfer' or 'extension'"):
        make_pair(models, "tiny-qwen3", "none", process="own", path="reload")


@pytest.mark.parametrize(
    "killed", ["-m syncguard.engines.supervising", "-m vllm.entrypoints.openai.api_server"]
)
def test_a_server_that_is_killed_costs_its_verdicts_only(killed: str, models: Path) -> None:
    before = _descendants(os.getpid())
    pair = make_pair(models, "tiny-qwen3", "none", process="server")
    assert pair.judge() == {}
    now = _descendants(os.getpid())
    children = {pid: words for pid, words in now.items() if pid not in before}
    server = next(
        pid for pid, words in children.items() if words.partition(" ")[2].startswith(killed)
    )
    os.kill(server, signal.SIGKILL)
    verdicts = pair.sync()
    assert verdicts["session"].status is Status.NOT_RUN
    assert "killed by SIGKILL" in verdicts["session"].message
    pair.engine.close()
    left = _descendants(os.getpid())
    assert not [words for pid, words in children.items() if pid in left]
    assert not [pid for pid in children if "VLLM" in _words(pid)]


def test_a_bucket_that_the_server_refuses_fails_the_sync(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = make_pair(models, "tiny-qwen3", "none", process="server")
    weights = pair.learner.weights

    def sent() -> Any:
        yield from weights()
        yield "model.layers.9.mlp.down_proj.weight", torch.zeros(2, 2, dtype=torch.bfloat16)

    monkeypatch.setattr(pair.learner, "weights", sent)
    failed = pair.sync()["session"]
    monkeypatch.undo()
    later = pair.judge()
    pair.engine.close()
    assert failed.status is Status.FAIL
    assert "/update_weights: 500: " in failed.message
    assert later == {}


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except FileNotFoundError:
        return ""


def _descendants(root: int) -> dict[int, str]:
    """Processes below one, with the words that they were started with."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        parents[int(folder.name)] = int(fields[1])
    found: dict[int, str] = {}
    level = {root}
    while level:
        level = {pid for pid, parent in parents.items() if parent in level}
        found |= {pid: _words(pid) for pid in level}
    return found
