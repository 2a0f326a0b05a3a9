"""vLLM 0.32 packs unquantized experts for its CPU kernel once, and never again after a reload."""

from pathlib import Path

import pytest
import torch

from syncguard.engines.vllm.kernel import kernel_of
from syncguard.engines.vllm.packed import packed_product
from syncguard.observations import Unreadable
from syncguard.probes import exact_prints
from syncguard.verdict import Status
from tests.live.conftest import clear_cache, make_pair
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("moe-bf16")]

EXPERTS = "model.layers.1.mlp.experts.routed_experts"


@pytest.fixture(scope="session")
def _plain(models: Path) -> Pair:
    return make_pair(models, "tiny-qwen3-moe", "none")


@pytest.fixture
def plain(_plain: Pair) -> Pair:
    """A bf16 engine with experts that has just been synchronized."""
    clear_cache(_plain)
    _plain.sync()
    return _plain


def pack(pair: Pair) -> None:
    """What the reload leaves out, in place."""
    from vllm import _custom_ops

    layer = pair.model.get_submodule(EXPERTS)
    for matrix in (layer.w13_weight.data, layer.w2_weight.data):
        matrix.copy_(_custom_ops.cpu_prepack_moe_weight(matrix, kernel_of(layer).isa))


def test_each_expert_is_served_unpacked_after_a_sync(plain: Pair) -> None:
    verdicts = {verdict.check: verdict for verdict in plain.guard.judge()}
    names = {
        f"model.layers.1.mlp.experts.{expert}.{part}_proj.weight"
        for expert in range(4)
        for part in ("gate", "up", "down")
    }
    assert set(dict(verdicts["exact-probe"].evidence)) == names
    assert verdicts["paired-logprobs"].status is Status.FAIL
    assert verdicts["ledger"].status is Status.PASS
    layer = plain.model.get_submodule(EXPERTS)
    down = plain.learner.dequantized("model.layers.1.mlp.experts.0.down_proj.weight")
    assert torch.equal(layer.w2_weight[0], down), "the parameter is as in the checkpoint: unpacked"


def test_packing_after_the_sync_mends_it(plain: Pair) -> None:
    """The control: with the step that is missing, the same checks pass."""
    pack(plain)
    verdicts = plain.guard.judge()
    wrong = {v.check: v.message for v in verdicts if v.status is Status.FAIL}
    assert wrong == {}
    probe = {verdict.check: verdict for verdict in verdicts}["exact-probe"]
    assert (probe.status, probe.coverage.layers_checked) == (Status.PASS, 26)


def test_bytes_of_packed_experts_are_not_taken_for_canonical(plain: Pair) -> None:
    held = plain.engine.weight_prints()["model.layers.1.mlp.experts.0.down_proj.weight"]
    assert isinstance(held, Unreadable)
    assert "reads w2_weight in an order of its own" in held.why


@pytest.mark.parametrize("matrix", ["w13_weight", "w2_weight"])
def test_probe_of_the_fused_kernel_is_exact(plain: Pair, matrix: str) -> None:
    from syncguard.fingerprint import value_print

    pack(plain)
    layer = plain.model.get_submodule(EXPERTS)
    parts = ("gate", "up") if matrix == "w13_weight" else ("down",)
    path = "model.layers.1.mlp.experts.2"
    weight = torch.cat([plain.learner.dequantized(f"{path}.{p}_proj.weight") for p in parts])
    serve = packed_product(kernel_of(layer), layer, matrix, 2)
    assert (exact_prints(serve, weight.shape[1], weight.dtype) == value_print(weight)).all()
    x = torch.randn(9, weight.shape[1], generator=torch.Generator().manual_seed(0)).bfloat16()
    torch.testing.assert_close(
        serve(x).float(), x.float() @ weight.float().T, rtol=2.0**-7, atol=1e-3
    )
