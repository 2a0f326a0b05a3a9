"""Reports for tests: Hypothesis strategies, and a few by hand."""

import json
from importlib import resources
from typing import Any, Final

from hypothesis import strategies as st

from syncguard.conditions import CONDITIONS, CORE_CONDITIONS
from syncguard.observations import StepReport
from syncguard.report import Report, SyncSummary
from syncguard.verdict import Coverage, Reason, Status, Verdict, explain

SCHEMA: Final[dict[str, Any]] = json.loads(
    resources.files("syncguard").joinpath("schemas/report-1.json").read_text("utf-8")
)
COVERAGE = Coverage(15, 15, 589_824, 589_824)

STALE = Verdict(
    "C3",
    "exact probe",
    Status.FAIL,
    explain(
        "the serving path computes with old weights",
        where="lm_head.weight [512, 128], rank 0",
        expected="the values of version 2",
        got="those of version 1",
        cause="a prepacked copy that was not rebuilt",
        todo="rebuild it after the last bucket, or restart the engine until it is",
    ),
    subject="lm_head.weight",
    measured=65536,
    bound=0,
    coverage=COVERAGE,
    cost_s=0.25,
    sync=2,
    evidence=(("first difference", "row 3"),),
)
ERRED = Verdict("C6", "kl", Status.NOT_RUN, "ValueError: [1]", Reason.ERROR, sync=1)

texts = st.text(max_size=20)
counts = st.integers(0, 2**53)
# NaN is not equal to itself, so a round trip is compared on a report without it.
reals = st.floats(allow_nan=False)
environments = st.recursive(
    st.dictionaries(texts, texts, max_size=3),
    lambda inner: st.dictionaries(texts, texts | inner, max_size=3),
    max_leaves=5,
)


@st.composite
def coverages(draw: st.DrawFn) -> Coverage:
    layers, nbytes = draw(counts), draw(counts)
    return Coverage(draw(st.integers(0, layers)), layers, draw(st.integers(0, nbytes)), nbytes)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    status = draw(st.sampled_from(Status))
    return Verdict(
        draw(st.sampled_from(sorted(CONDITIONS))),
        draw(texts),
        status,
        draw(texts),
        draw(st.sampled_from(Reason)) if status is Status.NOT_RUN else None,
        draw(texts),
        draw(st.none() | reals),
        draw(st.none() | reals),
        draw(coverages()),
        draw(st.floats(0, 1e6)),
        draw(counts),
        tuple(draw(st.lists(st.tuples(texts, texts), max_size=2))),
    )


steps = st.builds(StepReport, *[reals] * 5)
syncs = st.builds(
    SyncSummary, counts, texts, texts, texts, counts, counts, counts, reals, reals, texts,
    st.none() | steps,
)  # fmt: skip
reports = st.builds(
    Report,
    environments,
    st.lists(syncs, max_size=2).map(tuple),
    st.lists(verdicts(), max_size=3).map(tuple),
    st.booleans(),
    st.lists(texts, max_size=2).map(tuple),
    st.lists(st.sampled_from(sorted(CONDITIONS)), max_size=3, unique=True).map(tuple),
)


def a_pass(condition: str = "C2", check: str = "bytes", **fields: object) -> Verdict:
    return Verdict(condition, check, Status.PASS, **{"coverage": COVERAGE, **fields})  # type: ignore[arg-type]


def a_report(*instead: Verdict, without: str = "") -> Report:
    """A report on which every core condition passes, but for the given verdicts."""
    told = {verdict.condition for verdict in instead}
    passed = [
        a_pass(condition.id, sync=1)
        for condition in CORE_CONDITIONS
        if condition.id not in told and condition.id != without
    ]
    sync = SyncSummary(1, "1", "1", "the learner's weights", 3, 25, 1_234_567, 0.013)
    return Report({"engine": "stub 1"}, (sync,), (*passed, *instead))
