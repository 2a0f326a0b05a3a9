import json
import random
from dataclasses import replace

import pytest

from syncguard.campaign import HealthyRun, HealthySpec, random_topology, run_healthy
from syncguard.stubs import StubEngine, Topology
from syncguard.stubs.topology import CHOICES
from tests.campaign.conftest import Plant

SEEDS = (1, 5)


def test_topologies_cover_every_choice() -> None:
    drawn = [random_topology(random.Random(seed)) for seed in range(300)]
    for name, values in CHOICES.items():
        assert {getattr(topology, name) for topology in drawn} == set(values)
    for name in ("tied", "bias", "graph", "expert_parallel", "shared_expert", "sinks"):
        assert {getattr(topology, name) for topology in drawn} == {False, True}
    assert {topology.ranks for topology in drawn} >= {1, 2, 3}
    assert {topology.replicas for topology in drawn} == {1, 2}
    assert any(topology.experts and topology.ranks > 1 for topology in drawn)


def test_a_seed_gives_one_topology() -> None:
    assert random_topology(random.Random(4)) == random_topology(random.Random(4))


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_alarms(seed: int) -> None:
    ran = run_healthy(HealthySpec("stub", seed))
    assert (ran.alarms, ran.error) == ((), "")
    assert not ran.alarmed
    assert ran.topology == str(random_topology(random.Random(seed)))
    assert ran.replay == (
        f"syncguard campaign --engine stub --no-faults --healthy 1 --seeds-from {seed}"
    )


def test_a_verdict_that_is_no_pass_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StubEngine, "commit", lambda engine, version: None)
    ran = run_healthy(HealthySpec("stub", 1), checks=("served-version",))
    assert ran.alarmed
    first = ran.alarms[0]
    assert (first.check, first.sync, first.status) == ("served-version", 1, "fail")
    assert "another version" in first.message


def test_a_run_that_breaks_off_is_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(engine: StubEngine, topology: Topology, *, seed: int) -> None:
        raise RuntimeError("no engine today")

    monkeypatch.setattr(StubEngine, "__init__", refuse)
    ran = run_healthy(HealthySpec("stub", 0))
    assert ran.error == "RuntimeError: no engine today"
    assert ran.alarmed


def test_the_order_of_weights_is_drawn_too(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    orders: list[list[str]] = []
    send = StubEngine.send

    def noting(engine: StubEngine, bucket: list[tuple[str, object]]) -> None:
        orders.append([name for name, _ in bucket])
        send(engine, bucket)  # type: ignore[arg-type]

    monkeypatch.setattr(StubEngine, "send", noting)
    run_healthy(HealthySpec("stub", 0), checks=("session",))
    flat = [name for names in orders for name in names]
    assert flat
    assert flat != sorted(flat, key=flat.index)[: len(set(flat))] * (len(flat) // len(set(flat)))


def test_a_run_survives_json() -> None:
    ran = run_healthy(HealthySpec("stub", 1), checks=("session",))
    assert HealthyRun.from_dict(json.loads(json.dumps(ran.to_dict()))) == ran
    assert replace(ran, cost_s=0.0).to_dict()["cost_s"] == 0
