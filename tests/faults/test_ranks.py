"""Faults are armed in the process of the rank whose seams they need, and counted from here."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from syncguard.errors import EngineLost, Unsupported
from syncguard.faults import FAULTS, World
from syncguard.faults.ranks import RankSeam, seams_of_ranks
from syncguard.guard import Guard
from syncguard.reporting import Broadcast
from syncguard.seams import Seams
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner
from syncguard.verdict import Status

CALLS = ("begin", "finish", "generate", "observe", "send", "version")
OF_RANKS = (
    "fold",
    "kernel",
    "load",
    "loader",
    "post_process",
    "process",
    "quantizer",
    "receive",
    "stage",
    "storage",
)
INSIDE = (
    "activations-by-another-rule",
    "block-maximum-clamped",
    "derived-scale-byte",
    "kernel-chosen-again",
    "written-into-a-copy",
    "rank-deaf",
    "read-before-written",
    "scales-padded-in-place",
)
"""One for each seam of a rank."""

QKV = "model.layers.0.self_attn.qkv_proj"


class Rank:
    """One rank as its process sees it: only its own seams, by their names there."""

    def __init__(self, engine: Any, rank: int) -> None:
        self._engine, self.rank, self.prefix = engine, rank, f"rank{rank}:"

    def seams(self) -> Seams:
        found: Seams = {}
        offered = self._engine.seams()
        for name in OF_RANKS:
            for site, seam in offered[name].items():
                if site == f"rank{self.rank}":
                    found.setdefault(name, {})["engine"] = seam
                elif site.startswith(self.prefix):
                    found.setdefault(name, {})[site.removeprefix(self.prefix)] = seam
        return found


class Away:
    """A stub whose ranks are, as it seems, in other processes."""

    def __init__(self, engine: Any, ranks: int = 2) -> None:
        self.engine = engine
        self.ranks = [Rank(engine, number) for number in range(ranks)]
        self.lost = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def seams(self) -> Seams:
        return {name: sites for name, sites in self.engine.seams().items() if name in CALLS}

    def ranks_apart(self) -> bool:
        return True

    def on_ranks(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        if self.lost:
            raise EngineLost("the engine is gone")
        return [function(rank, *arguments) for rank in self.ranks]


@pytest.fixture
def world() -> World:
    topology = Topology(ranks=2)
    return World(
        lambda: make_stub_learner(topology, seed=0),
        lambda: Away(make_stub_engine(topology, seed=0)),
    )


def failed(world: World) -> set[str]:
    sides, heard = (world.learner, world.engine), Broadcast([])
    guard = Guard(*sides, heard, vocabulary=world.engine.topology.vocab)
    _, verdicts = guard.sync(bucket_bytes=1 << 13, poison=0xA5)
    return {verdict.check for verdict in verdicts if verdict.status is Status.FAIL}


def test_sites_are_named_as_where_they_can_be_reached(world: World) -> None:
    near, far = world.engine.engine.seams(), seams_of_ranks(world.engine)
    for name, sites in far.items():
        assert set(sites) == {site for site in near[name] if site.startswith("rank")}
    assert far["storage"][f"rank1:{QKV}.weight_scale_swizzled"].rank == 1  # type: ignore[attr-defined]
    assert set(far["receive"]) == {"rank0", "rank1"}
    assert not set(far) & set(CALLS)


def test_one_rank_has_no_number(world: World) -> None:
    rank = world.engine.ranks[0]
    rank.prefix = ""
    rank.seams = lambda: {"load": {"engine": None}, "kernel": {"lm_head": None}}
    world.engine.ranks = [rank]
    far = seams_of_ranks(world.engine)
    assert {name: list(sites) for name, sites in far.items()} == {
        "load": ["engine"],
        "kernel": ["lm_head"],
    }


def test_ranks_in_this_process_have_no_other_seams() -> None:
    assert seams_of_ranks(object()) == {}
    assert seams_of_ranks(make_stub_engine(Topology(ranks=2), seed=0)) == {}


@pytest.mark.parametrize("name", INSIDE)
def test_a_fault_on_one_rank_is_found_and_undone(world: World, name: str) -> None:
    fault = FAULTS[name]
    site = next(site for site in fault.sites_in(world)[::-1] if site.startswith("rank"))
    seams = world.engine.ranks[int(site[4])].seams()[fault.seam].values()
    before = [getattr(seam.owner, seam.attribute) for seam in seams]
    with fault.armed(world, site):
        found = failed(world)
        fired = world.fired
    assert fired > 0
    assert set(fault.claimed_by) <= found
    assert world.fired == fired
    assert [getattr(seam.owner, seam.attribute) for seam in seams] == before


def test_no_other_rank_is_touched(world: World) -> None:
    untouched = world.engine.ranks[0].seams()["receive"]["engine"]
    before = getattr(untouched.owner, untouched.attribute)
    with FAULTS["rank-deaf"].armed(world, "rank1"):
        assert getattr(untouched.owner, untouched.attribute) == before
        assert "ranks" in failed(world)


def test_two_faults_can_be_armed_on_one_rank(world: World) -> None:
    site = f"rank1:{QKV}.weight_scale_swizzled"
    with FAULTS["derived-scale-byte"].armed(world, site):
        with FAULTS["rank-deaf"].armed(world, "rank1"):
            assert "ranks" in failed(world)
        found = failed(world)
        assert "ranks" not in found
        assert "re-derivation" in found
    assert failed(world) == set()


def test_firings_outlive_the_process_of_the_rank(world: World) -> None:
    with FAULTS["rank-deaf"].armed(world, "rank0"):
        assert world.fired == 0
        failed(world)
        here = world.fired
        world.engine.lost = True
    assert here > 0
    assert world.fired == here
    world.fired = 0
    assert world.fired == 0


def test_a_fault_is_armed_where_all_of_its_seams_are(world: World) -> None:
    for name in ("session-per-bucket", "hook-not-run-on-direct-path", "completed-only-at-the-end"):
        assert FAULTS[name].beside
        assert FAULTS[name].sites_in(world) == []
        near = World(lambda: world.learner, lambda: world.engine.engine)
        assert FAULTS[name].sites_in(near) != []


def test_a_wrapper_cannot_get_there(world: World) -> None:
    with (
        pytest.raises(Unsupported, match=r"seam 'load' at 'engine' is in the process of rank 1"),
        world.wrap("load", "rank1", lambda original: original),
    ):
        pass


def test_what_needs_the_learner_says_so(tmp_path: Path, world: World) -> None:
    seam = world.seams()["load"]["rank0"]
    assert isinstance(seam, RankSeam)
    with (
        pytest.raises(AttributeError, match=f"process {os.getpid()} of a rank has no learner"),
        seam.armed("buffer-reused-too-early", tmp_path / "fired"),
    ):
        pass


def test_every_fault_of_a_rank_can_be_armed_there(world: World) -> None:
    armed = {}
    for name, fault in FAULTS.items():
        seams = world.seams().get(fault.seam, {})
        for site in fault.sites_in(world)[-1:]:
            if isinstance(seams.get(site), RankSeam):
                with fault.armed(world, site):
                    armed[name] = site
    assert len(armed) > 30
