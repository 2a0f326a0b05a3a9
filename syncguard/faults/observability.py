"""Faults that break C7: a check, or what it looks at, gives no answer or no honest one."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from syncguard.checks.judgement import not_run, passed
from syncguard.faults.registry import Arm, fault, fault_table
from syncguard.faults.world import World
from syncguard.verdict import Coverage, Reason

__all__ = ["logger_silenced", "rank_silent"]

_HANGS_S: Final = 60.0
_NEVER_ASKED: Final = ("environment", "fetch_rows", "learner.state", "learner.dequantized")
_ANSWERED_EMPTY: Final = (
    "layers",
    "learner.layers",
    "learner.logprobs",
    "learner.prints",
    "learner.value_prints",
    "probe_exact",
    "probe_random",
    "weight_prints",
)


def _raises(answer: Any) -> Any:
    raise RuntimeError("the worker does not answer")


def _hangs(answer: Any) -> Any:
    until = time.monotonic() + _HANGS_S
    while time.monotonic() < until:
        time.sleep(0.05)
    return answer


def _empty(answer: Any) -> Any:
    return type(answer)()


def _without_first(answer: Any) -> Any:
    if isinstance(answer, Mapping):
        return dict(list(answer.items())[1:])
    return answer[1:]


def _not_a_number(answer: Any) -> Any:
    if isinstance(answer[0], np.ndarray):
        return [np.full_like(scores, np.nan) for scores in answer]
    return [replace(probe, output=np.full_like(probe.output, np.nan)) for probe in answer]


_OBSERVED: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "observation-raises": {
            "what": "An observation ends in an exception.",
            "change": _raises,
            "sites": lambda site: site not in _NEVER_ASKED,
        },
        "observation-hangs": {
            "what": "An observation does not return.",
            "change": _hangs,
            "sites": ("probe_random", "weight_prints", "learner.logprobs").__contains__,
        },
        "observation-empty": {
            "what": "An observation returns, and holds nothing.",
            "change": _empty,
            "sites": _ANSWERED_EMPTY.__contains__,
        },
        "scores-of-nan": {
            "what": "The learner's scores are NaN, which compare as neither more nor less.",
            "change": _not_a_number,
            "sites": "learner.logprobs".__eq__,
        },
        "probe-of-nan": {
            "what": "A probe's answer is NaN, which is neither more nor less than a bound.",
            "change": _not_a_number,
            "sites": "probe_random".__eq__,
            "claimed_by": "random-probe",
        },
        "metric-missing": {
            "what": "An observation leaves one weight out.",
            "change": _without_first,
            "sites": ("learner.prints", "learner.value_prints", "probe_exact").__contains__,
        },
    }
)


def _observing(change: Callable[[Any], Any]) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def observe(*args: Any, **kwargs: Any) -> Any:
                world.fire()
                return change(None if change is _raises else original(*args, **kwargs))

            return observe

        with world.wrap("observe", site, wrapper):
            yield

    return arm


fault_table(
    _OBSERVED,
    _observing,
    shows="The checks that need it must say so; silence is no pass.",
    breaks="C7",
    claimed_by="observability",
    seam="observe",
    silent=False,
)


@fault(
    "rank-silent",
    breaks="C7",
    claimed_by="ranks",
    seam="observe",
    topology={"ranks": 2, "layers": 1},
    sites=lambda site: site == "layers",
)
def rank_silent(world: World, site: str) -> Iterator[None]:
    """One of several ranks does not answer, and what the others say is taken for the whole.

    A weight that ranks share is then judged by a part of it. Ask who took part in the sync, and
    expect an answer from each.
    """

    def wrapper(original: Callable[[], Any]) -> Callable[[], Any]:
        def observe() -> Any:
            rows = original()
            kept = [row for row in rows if row.rank != 1]
            world.fire(len(kept) < len(rows))
            return kept

        return observe

    with world.wrap("observe", site, wrapper):
        yield


def _answers_none(**observations: Any) -> Any:
    del observations


def _exits(**observations: Any) -> Any:
    del observations
    raise SystemExit(0)


def _covers_nothing(**observations: Any) -> Any:
    del observations
    return passed("nothing was found", Coverage())


def _measures_nan(**observations: Any) -> Any:
    del observations
    return passed("within the bound", Coverage(1, 1), measured=float("nan"), bound=1.0)


def _exceeds_bound(**observations: Any) -> Any:
    del observations
    return passed("within the bound", Coverage(1, 1), measured=2.0, bound=1.0)


_JUDGED: Final[Mapping[str, dict[str, Any]]] = MappingProxyType(
    {
        "check-returns-nothing": {
            "judge": _answers_none,
            "what": "A check returns no judgement.",
        },
        "check-exits": {
            "judge": _exits,
            "what": "A check ends the process that runs it, with status 0.",
        },
        "check-covers-nothing": {
            "judge": _covers_nothing,
            "what": "A check passes without looking at anything.",
        },
        "check-measures-nan": {
            "judge": _measures_nan,
            "what": "A check passes with NaN as its measured value.",
        },
        "check-exceeds-bound": {
            "judge": _exceeds_bound,
            "what": "A check passes over its own bound.",
        },
    }
)


def _answering(judge: Callable[..., Any]) -> Arm:
    def arm(world: World, site: str) -> Iterator[None]:
        def wrapper(original: Callable[..., Any]) -> Callable[..., Any]:
            def ask(check: Any, view: Any) -> Any:
                world.fire()
                return original(replace(check, judge=judge), view)

            return ask

        with world.wrap("check", site, wrapper):
            yield

    return arm


fault_table(
    _JUDGED,
    _answering,
    shows="The runner must not take it for a pass.",
    breaks="C7",
    claimed_by="observability",
    seam="check",
    silent=False,
)


@fault("check-excuses-itself", breaks="C7", claimed_by="", seam="check")
def check_excuses_itself(world: World, site: str) -> Iterator[None]:
    """A check says that it does not apply, where it does.

    It is the one silence that worsens no report. No check can see it: a campaign does, which
    counts the checks that it reached, and a report shows the reason.
    """

    def excuse(**observations: Any) -> Any:
        del observations
        return not_run(Reason.NOT_APPLICABLE, "there is nothing to judge")

    yield from _answering(excuse)(world, site)


@fault(
    "logger-silenced",
    breaks="C7",
    claimed_by="",
    seam="begin",
    equivalent="verdicts do not pass through logging: they reach their file",
)
def logger_silenced(world: World, site: str) -> Iterator[None]:
    """A dependency raises the root logger's level, and with it hides every line of an audit.

    Write verdicts to a file; a log line is a courtesy.
    """
    del site
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL + 1)
    logging.disable(logging.CRITICAL)
    world.fire()
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        root.setLevel(level)
