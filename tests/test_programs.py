"""Programs of syncs, held against what is legal."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from syncguard.errors import UsageError
from syncguard.programs import OPS, Op, ProgramRun, format_program, parse_program, run_program
from syncguard.stubs import Topology, make_stub_engine, make_stub_learner

SMALL = Topology(layers=1, hidden=32, vocab=32, intermediate=32)
EXPERTS = Topology(layers=1, hidden=32, vocab=32, experts=3, redundant_experts=1, ranks=2)
SYNC = "open; last; finish"


def running(topology: Topology = SMALL) -> ProgramRun:
    learner, engine = make_stub_learner(topology), make_stub_engine(topology)
    return ProgramRun(learner, engine, vocabulary=topology.vocab)


def run(text: str, topology: Topology = SMALL) -> ProgramRun:
    program = running(topology)
    for op in parse_program(text):
        program.do(op)
        program.check_refusal()
    program.close()
    return program


@pytest.mark.parametrize(
    "text",
    [
        SYNC,
        "open 165; send 1; reorder 3; send 2; last; finish",
        f"{SYNC}; train 1; open 90; last; finish; serve",
        f"{SYNC}; {SYNC}; serve; serve",
        f"{SYNC}; finalize; finalize; serve; {SYNC}",
        f"{SYNC}; capture; train; serve; {SYNC}; serve",
        f"{SYNC}; sleep 1; wake; serve; {SYNC}; serve",
        f"{SYNC}; sleep 2; wake; serve; {SYNC}; serve",
        f"{SYNC}; rebalance 5; serve; {SYNC}; serve",
        f"open; send 3; fail; serve; {SYNC}; serve",
        f"open; send 2; serve; last; finish; train 2; sleep 1; train 3; wake; {SYNC}",
    ],
)
def test_legal_programs_pass(text: str) -> None:
    program = run(text, EXPERTS if "rebalance" in text else SMALL)
    assert program.complaints == []
    legal = [sync for sync in program.syncs if not sync.wrongs]
    assert legal
    assert not any(sync.failed or sync.silent for sync in legal)


@pytest.mark.parametrize(
    ("text", "wrong", "found"),
    [
        ("open; drop 1; last; finish", "model.embed_tokens.weight never came", "ledger"),
        ("open; send 1; finish", "model.layers.0.input_layernorm.weight never came", "ledger"),
        ("open; send 2; resend 1; last; finish", "came twice", "ledger"),
        ("open; send 4; resend 2; drop 1; last; finish", "came twice", "ledger"),
        ("open; send 3; fail", "it was given up", "session"),
        ("open; fail", "it was given up", "session"),
        (f"{SYNC}; open; send 3; train 1; last; finish", "of another version", "weight-bytes"),
    ],
)
def test_illegal_syncs_are_found(text: str, wrong: str, found: str) -> None:
    program = run(text)
    assert program.complaints == []
    assert any(wrong in each for each in program.syncs[-1].wrongs)
    assert found in program.syncs[-1].failed


def test_a_sync_that_brings_nothing_is_no_pass() -> None:
    """The engine holds the weights already, so only the ledger can tell."""
    program = run(f"{SYNC}; open; finish")
    assert program.complaints == []
    assert program.syncs[-1].wrongs
    assert "ledger" in {*program.syncs[-1].failed, *program.syncs[-1].silent}


def test_a_step_too_small_to_change_what_was_sent_is_legal() -> None:
    program = run(f"{SYNC}; open; send 1; train; last; finish")
    assert program.complaints == []


@contextmanager
def broken(
    program: ProgramRun, seam: str, site: str, wrapper: Callable[..., Any]
) -> Iterator[None]:
    with program.engine.seams()[seam][site].wrap(wrapper):
        yield


def nothing(original: Any) -> Callable[..., None]:
    return lambda *args, **kwargs: None


@pytest.mark.parametrize(
    ("seam", "site", "text", "complaint"),
    [
        ("admit", "engine", "open; serve", "served although a sync is open"),
        ("admit", "engine", f"{SYNC}; open; fail; serve", "served although sync 2 was given up"),
        ("admit", "engine", f"{SYNC}; sleep 1; serve", "served although the engine is paused"),
        (
            "admit",
            "engine",
            f"{SYNC}; sleep 2; wake; serve",
            "served although its weights were released and none came since",
        ),
        ("post_process", "lm_head", SYNC, "sync 1 was legal, and exact-probe gave fail: "),
    ],
)
def test_an_engine_that_breaks_the_rules_is_told_apart(
    seam: str, site: str, text: str, complaint: str
) -> None:
    program = running()
    with broken(program, seam, site, nothing):
        run_program(program, parse_program(text))
    program.close()
    assert any(each.startswith(complaint) for each in program.complaints)


def test_answers_of_old_prefixes_are_noticed() -> None:
    program = running()
    sites = [site for site in program.engine.seams()["cache"] if site.endswith("reset")]
    with broken(program, "cache", sites[0], nothing):
        run_program(program, parse_program(f"{SYNC}; serve; train 1; {SYNC}"))
    assert any("nats a token from the learner's" in each for each in program.complaints)


def test_a_pause_that_forgets_a_weight_is_noticed() -> None:
    program = running()
    with broken(program, "backup", "engine", lambda _: lambda path, _: "norm" not in path):
        run_program(program, parse_program(f"{SYNC}; sleep 1; wake; serve"))
    assert program.complaints == ["answers changed after sync 1 without a sync"]


def test_an_engine_that_refuses_without_a_reason_is_noticed() -> None:
    def refuse(*arguments: Any) -> None:
        raise RuntimeError("not today")

    program = run_program(running(), parse_program(SYNC))
    with broken(program, "admit", "engine", lambda original: refuse):
        program.do(Op("serve"))
    assert program.complaints == ["refused to serve: RuntimeError: not today"]


def test_a_check_that_passes_everything_is_a_miss() -> None:
    topology = SMALL
    learner, engine = make_stub_learner(topology), make_stub_engine(topology)
    from syncguard.checks import CHECKS

    blind = ProgramRun(learner, engine, vocabulary=32, checks=[CHECKS["layer-set"]])
    run_program(blind, parse_program("open; drop 1; last; finish"))
    assert blind.complaints == [
        "sync 1 was illegal (model.embed_tokens.weight never came), and every check passed"
    ]


def test_what_makes_no_sense_is_refused_or_left_out() -> None:
    program = running()
    with pytest.raises(ValueError, match=r"'last' makes no sense after the start"):
        program.do(Op("last"))
    run_program(program, parse_program("finish; open; open; last; send 1; finish; wake; fail"))
    assert format_program(program.program) == "open; last; finish"


def test_programs_as_text() -> None:
    text = "open 165; send 3; reorder 7; last; finish"
    assert format_program(parse_program(text)) == text
    assert set(OPS) >= {op.name for op in parse_program(text)}
    with pytest.raises(
        UsageError, match=r"no operation 'sned'; did you mean 'send'\? Known: open,"
    ):
        parse_program("sned 3")
    with pytest.raises(UsageError, match="must be a whole number, got 'many'"):
        parse_program("send many")
