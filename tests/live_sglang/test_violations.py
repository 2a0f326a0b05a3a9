"""A live MXFP8 engine of SGLang: each injected fault is found and named."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from syncguard.verdict import Reason, Status
from tests.pairs import Pair

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("sglang")]

QKV = "model.layers.0.self_attn.qkv_proj"
SWIZZLED = f"{QKV}.weight_scale_inv_swizzled"
Q, K, V = (f"model.layers.0.self_attn.{letter}_proj.weight" for letter in "qkv")

Wire = Iterator[tuple[str, torch.Tensor]]


@pytest.fixture
def on_wire(mxfp8: Pair, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Sync once with a changed wire."""

    def sync(change: Callable[[Wire], Wire], **options: Any) -> dict[str, Any]:
        weights = mxfp8.learner.weights
        with monkeypatch.context() as patch:
            patch.setattr(mxfp8.learner, "weights", lambda: change(weights()))
            return mxfp8.sync(**options)

    return sync


def test_stale_derived_scales_fail_c3_only(mxfp8: Pair) -> None:
    """F3: fresh elements meet old scales."""
    mxfp8.learner.perturb(1, scale=0.5)
    with mxfp8.seam("post_process", QKV).wrap(lambda _: lambda *args, **kwargs: None):
        found = mxfp8.judge()
    assert found["exact-probe"].startswith("fail model.layers.0.self_attn.")
    assert found["re-derivation"].startswith("fail model.layers.0.self_attn.")
    assert not {"weight-bytes", "weight-values", "layer-set", "ledger"} & found.keys()


def test_one_derived_scale_byte_is_found(mxfp8: Pair) -> None:
    derived = mxfp8.model.get_parameter(SWIZZLED).data
    derived[0] += 1
    probe = mxfp8.engine.probe_exact()
    rederived = {r.path: r.differing for r in mxfp8.engine.rederive() if r.differing}
    derived[0] -= 1
    values = mxfp8.learner.value_prints()
    assert {
        name for name, held in probe.items() if (held.rows["values"] != values[name]).any()
    } == {Q}
    assert rederived == {SWIZZLED: 1}


@pytest.mark.parametrize("bit", [0, 7])
def test_one_flipped_element_bit_is_found_by_row(mxfp8: Pair, bit: int) -> None:
    weight = mxfp8.model.get_submodule(QKV).weight.data.view(torch.uint8)
    q_rows = 128
    weight[q_rows + 5, 77] ^= 1 << bit
    prints, probe = mxfp8.engine.weight_prints(), mxfp8.engine.probe_exact()
    weight[q_rows + 5, 77] ^= 1 << bit
    expected, values = mxfp8.learner.prints(), mxfp8.learner.value_prints()
    in_bytes = prints[K].rows["elements"] != expected[K].rows["elements"]
    assert in_bytes.nonzero()[0].tolist() == [5]
    assert (probe[K].rows["values"] != values[K]).nonzero()[0].tolist() == [5]
    assert (probe[Q].rows["values"] == values[Q]).all()


def test_rebound_derived_storage_fails_c4(mxfp8: Pair) -> None:
    """F6: post-processing binds a new tensor; a captured graph keeps the old one."""

    def rebind(_: Any) -> Any:
        def bind(module: Any, name: str, value: torch.Tensor) -> None:
            setattr(module, name, torch.nn.Parameter(value, requires_grad=False))

        return bind

    with mxfp8.seam("storage", SWIZZLED).wrap(rebind):
        found = mxfp8.judge()
    assert found == {"storage-identity": f"fail {SWIZZLED}"}


def test_a_weight_that_was_never_sent(on_wire: Callable[..., dict[str, Any]]) -> None:
    """SGLang counts nothing and reports success."""
    verdicts = on_wire(
        lambda weights: ((name, x) for name, x in weights if not name.startswith(K)), poison=0xA5
    )
    assert verdicts["session"].status is Status.PASS
    assert (verdicts["ledger"].status, verdicts["ledger"].subject) == (Status.FAIL, K)
    assert f"{K}: never arrived" in verdicts["ledger"].message
    assert verdicts["weight-bytes"].subject == K
    assert verdicts["poison-coverage"].subject == K


def test_scales_that_were_never_sent(on_wire: Callable[..., dict[str, Any]]) -> None:
    verdicts = on_wire(
        lambda weights: ((name, x) for name, x in weights if name != f"{K}_scale"), poison=0xA5
    )
    assert verdicts["session"].status is Status.PASS
    assert verdicts["ledger"].subject == f"{K}_scale"
    assert verdicts["weight-bytes"].status is Status.FAIL


def test_a_shard_sent_twice_in_place_of_another(on_wire: Callable[..., dict[str, Any]]) -> None:
    """The number of elements is right."""
    verdicts = on_wire(
        lambda weights: ((V if name == K else name, x) for name, x in weights), poison=0xA5
    )
    ledger = dict(verdicts["ledger"].evidence)
    assert (ledger[K], ledger[V]) == ("never arrived", "arrived 2 times")
    assert verdicts["weight-bytes"].status is Status.FAIL


def test_an_unknown_name_is_no_error_of_sglang_but_found(
    on_wire: Callable[..., dict[str, Any]],
) -> None:
    def renamed(weights: Wire) -> Wire:
        return ((name.replace("model.norm", "model.norms"), x) for name, x in weights)

    verdicts = on_wire(renamed, poison=0xA5)
    assert verdicts["session"].status is Status.PASS
    ledger = dict(verdicts["ledger"].evidence)
    assert ledger["model.norm.weight"] == "never arrived"
    assert "no such weight" in ledger["model.norms.weight"]


def test_a_bucket_that_raises_is_a_failure_and_a_full_sync_repairs_it(
    mxfp8: Pair, on_wire: Callable[..., dict[str, Any]]
) -> None:
    """The session stays open in SGLang, which would refuse another one."""

    def unknown(weights: Wire) -> Wire:
        yield from weights
        yield f"{Q}_other", torch.zeros(2, 2)

    verdicts = on_wire(unknown)
    assert verdicts["session"].status is Status.FAIL
    assert "KeyError" in verdicts["session"].message
    assert verdicts["finite"].reason is Reason.UNSUPPORTED
    assert mxfp8.judge() == {}


def test_a_second_open_session_is_refused(mxfp8: Pair) -> None:
    mxfp8.engine._session.begin()
    try:
        with pytest.raises(RuntimeError, match=r"SGLang refused begin_weight_update: .* open"):
            mxfp8.engine._session.begin()
    finally:
        mxfp8.engine._session.end()
