"""Runs checks: one verdict for every check, whatever happens."""

import math
import time
from collections.abc import Callable, Iterable
from typing import Final

from syncguard.checks import CHECKS, Check, Judgement
from syncguard.conditions import CONDITIONS
from syncguard.errors import Unsupported
from syncguard.observing import View
from syncguard.timelimit import TimeLimitExceeded, time_limit
from syncguard.verdict import Reason, Status, Verdict, explain

__all__ = ["OBSERVABILITY", "ask", "run_checks"]

OBSERVABILITY: Final = "observability"
"""Name of the runner's own verdict, on the other verdicts."""


def run_checks(
    view: View,
    *,
    checks: Iterable[Check] | None = None,
    timeout_s: float = 300.0,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Judge one sync.

    An exception, a time-out, an answer without content or a pass with a measured value that is not
    finite becomes a ``not_run`` verdict with the reason: never a pass, and never silence.

    Args:
        view: The observations of the sync.
        checks: The checks to run; by default all registered ones but references.
        timeout_s: Limit for each check with the observations that it is the first to need.
        on_verdict: Told of each verdict as it comes.

    Returns:
        A verdict for every check, in order, and at the end the one on observability (C7).
    """
    order = list(CONDITIONS)
    wanted = sorted(
        (c for c in CHECKS.values() if not c.reference) if checks is None else checks,
        key=lambda c: order.index(c.condition),
    )
    verdicts: list[Verdict] = []
    complaints: list[str] = []
    for check in wanted:
        started = time.perf_counter()
        judgement, complaint = _judge(check, view, timeout_s)
        if complaint:
            complaints.append(complaint)
        verdict = Verdict(
            condition=check.condition,
            check=check.name,
            status=judgement.status,
            message=judgement.message,
            reason=judgement.reason,
            subject=judgement.subject,
            measured=judgement.measured,
            bound=judgement.bound,
            coverage=judgement.coverage,
            cost_s=time.perf_counter() - started,
            sync=view.context.record.number,
            evidence=judgement.evidence,
        )
        verdicts.append(verdict)
        on_verdict(verdict)
    final = _observability(wanted, verdicts, complaints, view.context.record.number)
    on_verdict(final)
    return [*verdicts, final]


def ask(check: Check, view: View) -> Judgement:
    """Ask one check; a seam, where a fault can put words into its mouth."""
    return check.judge(**{name: view.get(name) for name in check.needs})


def _judge(check: Check, view: View, timeout_s: float) -> tuple[Judgement, str]:
    """The answer of a check, and what is wrong with it, if it cannot be taken at its word."""
    try:
        with time_limit(timeout_s):
            judgement = ask(check, view)
        fault = _fault(judgement)
    except Unsupported as error:
        return _silent(Reason.UNSUPPORTED, str(error)), ""
    except TimeLimitExceeded as error:
        return _silent(Reason.TIMEOUT, str(error)), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what a check raises is its answer
        text = f"{type(error).__name__}: {error}".strip().rstrip(":")
        return _silent(Reason.ERROR, text), ""
    if fault:
        return _silent(Reason.ERROR, fault), f"{check.name}: {fault}"
    return judgement, ""


def _silent(reason: Reason, text: str) -> Judgement:
    return Judgement(
        Status.NOT_RUN,
        explain("the check gave no answer", got=text, todo=_TODO[reason]),
        reason=reason,
    )


_TODO: Final = {
    Reason.UNSUPPORTED: "ask the engine's adapter for this observation, or check it elsewhere",
    Reason.TIMEOUT: "see whether the engine hangs; raise the time limit if it is only slow",
    Reason.ERROR: "treat the sync as unchecked; mend the observation or the check",
}


def _fault(judgement: object) -> str:
    """Why an answer cannot be taken at its word; empty if it can."""
    if not isinstance(judgement, Judgement):
        return f"the check returned {type(judgement).__name__}, not a judgement"
    if (judgement.status is Status.NOT_RUN) != (judgement.reason is not None):
        return f"the check answered {judgement.status} with reason {judgement.reason}"
    if judgement.status is Status.PASS:
        return _false_pass(judgement)
    return ""


def _false_pass(judgement: Judgement) -> str:
    """Why a pass is none; empty if it is one."""
    if not judgement.coverage.layers_checked:
        return "the check passed without covering anything"
    numbers = [n for n in (judgement.measured, judgement.bound) if n is not None]
    if not all(math.isfinite(number) for number in numbers):
        told = " and a bound of ".join(f"{number:g}" for number in numbers)
        return f"the check passed with a measured value of {told}"
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        return f"the check passed with {numbers[0]:g} measured over a bound of {numbers[1]:g}"
    return ""


def _observability(
    wanted: list[Check], verdicts: list[Verdict], complaints: list[str], sync: int
) -> Verdict:
    silent = [verdict for verdict in verdicts if verdict.reason is not None]
    if not wanted:
        return Verdict(
            "C7",
            OBSERVABILITY,
            Status.NOT_RUN,
            "no check was asked for",
            Reason.MISSING_INPUT,
            sync=sync,
        )
    if complaints:
        return Verdict(
            "C7",
            OBSERVABILITY,
            Status.FAIL,
            explain(
                "answers of checks cannot be taken at their word",
                where=", ".join(text.partition(":")[0] for text in complaints),
                expected="a judgement with finite numbers that covers something",
                got="; ".join(complaints),
                cause="a metric is missing or NaN, or the check looked at nothing",
                todo="mend the observation; until then the condition counts as unchecked",
            ),
            measured=len(complaints),
            bound=0,
            sync=sync,
        )
    return Verdict(
        "C7",
        OBSERVABILITY,
        Status.PASS,
        f"{len(wanted) - len(silent)} of {len(wanted)} checks answered"
        + (", the others say why not" if silent else ""),
        measured=0,
        bound=0,
        sync=sync,
        evidence=tuple((verdict.check, str(verdict.reason)) for verdict in silent),
    )
