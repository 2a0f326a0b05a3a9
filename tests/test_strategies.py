"""What the strategies draw is valid, awkward, and healthy."""

from collections import Counter

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import find as find_example
from hypothesis import strategies as st

from syncguard.grids import quantize
from syncguard.programs import OPS, ProgramRun, run_program
from syncguard.strategies import (
    TRICKS,
    histories,
    partitions,
    programs,
    topologies,
    tricky_weights,
)
from syncguard.stubs import StubLearner, Topology, make_stub_engine
from syncguard.stubs.topology import CHOICES, weight_specs

SMALL = Topology(layers=1, hidden=32, vocab=32, intermediate=32)
_quick = settings(deadline=None, max_examples=25, derandomize=True)


@_quick
@given(topologies())
def test_topologies_are_valid(topology: Topology) -> None:
    assert weight_specs(topology)
    assert eval(str(topology)) == topology  # noqa: S307 - the text is a call


def test_topologies_reach_every_choice_and_the_odd_sizes() -> None:
    wanted = {(name, value) for name, values in CHOICES.items() for value in values}
    seen: Counter[tuple[str, object]] = Counter()
    odd: Counter[str] = Counter()

    @settings(deadline=None, max_examples=300, derandomize=True)
    @given(topologies())
    def draw(topology: Topology) -> None:
        seen.update((name, getattr(topology, name)) for name in CHOICES)
        odd["ranks that share a kv head"] += topology.ranks > topology.kv_heads
        odd["odd vocabulary"] += bool(topology.vocab % 2)
        odd["width of 96"] += topology.hidden == 96
        odd["experts on ranks"] += bool(topology.experts) and topology.ranks > 1
        odd["three query heads a kv head"] += topology.heads == 3 * topology.kv_heads
        odd["tied"] += topology.tied

    draw()
    assert wanted <= seen.keys()
    assert len(odd) == 6
    assert all(odd.values()), odd


@_quick
@given(topologies(ranks=2, experts=3, tied=True, attention="mla"))
def test_fixed_fields_are_kept_and_the_others_fit(topology: Topology) -> None:
    fixed = topology.ranks, topology.experts, topology.tied, topology.attention
    assert fixed == (2, 3, True, "mla")


def test_topologies_shrink_to_the_smallest() -> None:
    smallest = find_example(topologies(), lambda topology: topology.experts > 0)
    assert (smallest.layers, smallest.hidden, smallest.experts, smallest.ranks) == (1, 32, 1, 1)


def test_ties_and_the_value_just_above_are_where_scales_turn() -> None:
    block = torch.zeros(1, 32)
    exact = TRICKS["ties"](block[0], -12)[None].bfloat16()
    above = TRICKS["just above"](block[0], -12)[None].bfloat16()
    elements, scales = quantize(exact)
    assert int(scales) == 127 - 12
    assert float(elements.float().max()) == 448
    between = exact.float() / 2.0**-12
    assert torch.equal(between[:, :-1] * 16 % 2, torch.ones(1, 31))  # midway in steps of 1/8
    assert int(quantize(above)[1]) == int(scales) + 1


def test_zeros_keep_their_sign_and_subnormals_are_subnormal() -> None:
    block = torch.linspace(-1, 1, 32)
    negative = TRICKS["negative zeros"](block, 0).bfloat16()
    assert not negative.any()
    assert torch.signbit(negative).all()
    tiny = TRICKS["subnormal"](block, 3).bfloat16()
    assert tiny.any()
    assert tiny.abs().max() < torch.finfo(torch.bfloat16).tiny


@_quick
@given(st.data())
def test_weights_are_complete_and_some_are_awkward(data: st.DataObject) -> None:
    weights = data.draw(tricky_weights(SMALL))
    assert {name: tuple(t.shape) for name, t in weights.items()} == {
        spec.name: spec.shape for spec in weight_specs(SMALL)
    }
    assert all(tensor.isfinite().all() for tensor in weights.values())


def test_every_trick_reaches_some_weight() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, max_examples=60, derandomize=True)
    @given(tricky_weights(SMALL))
    def draw(weights: dict[str, torch.Tensor]) -> None:
        flat = torch.cat([weight.float().flatten() for weight in weights.values()])
        zero = flat == 0
        seen["zero"] += bool((zero & ~torch.signbit(flat)).any())
        seen["negative zero"] += bool((zero & torch.signbit(flat)).any())
        seen["subnormal"] += bool((~zero & (flat.abs() < torch.finfo(torch.bfloat16).tiny)).any())
        seen["tie"] += bool((flat.abs() * 2.0**12 == 448).any())

    draw()
    assert len(seen) == 4
    assert all(seen.values()), seen


@_quick
@given(st.data())
def test_partitions_hold_every_name_once(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text(), min_size=1, max_size=12, unique=True))
    parts = data.draw(partitions(names))
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert all(parts)


@_quick
@given(programs())
def test_programs_are_of_known_operations(program: list[object]) -> None:
    assert {getattr(op, "name", "") for op in program} <= set(OPS)


@settings(
    deadline=None, max_examples=5, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
@given(st.data())
def test_legal_histories_of_awkward_weights_raise_no_alarm(data: st.DataObject) -> None:
    topology = data.draw(topologies())
    weights = data.draw(tricky_weights(topology))
    program = data.draw(histories(2))
    run = ProgramRun(
        StubLearner(topology, weights=weights),
        make_stub_engine(topology),
        vocabulary=topology.vocab,
    )
    run_program(run, program)
    run.close()
    assert run.complaints == []
    assert run.syncs
    assert not any(sync.wrongs for sync in run.syncs)
