"""Runs a campaign: every fault at its sites, healthy runs beside, in child processes."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from syncguard._version import __version__
from syncguard.campaign.cell import Cell, CellSpec
from syncguard.campaign.healthy import HealthyRun, HealthySpec, run_healthy
from syncguard.campaign.live import LIVE
from syncguard.campaign.options import CampaignOptions
from syncguard.campaign.places import packages_of, prepare
from syncguard.campaign.planning import (
    Plan,
    chosen_checks,
    chosen_faults,
    find_sites,
    grouped,
    plan,
)
from syncguard.campaign.pool import Lost, run_jobs
from syncguard.campaign.result import CampaignResult
from syncguard.campaign.running import CellSettings, replay, run_cell
from syncguard.campaign.session import Session
from syncguard.distributions import versions_of
from syncguard.errors import UsageError
from syncguard.faults import FAULTS, Fault
from syncguard.profiles import PROFILES

__all__ = ["CampaignListener", "run_campaign"]

Spec = CellSpec | HealthySpec
Finished = Cell | HealthyRun


class CampaignListener(Protocol):
    """Hears how a campaign gets on."""

    def planned(self, total: int) -> None:
        """So many cells and healthy runs are to be run."""

    def finished(self, item: Finished, *, resumed: bool) -> None:
        """One of them is done, now or in an earlier try."""

    def waiting(self) -> None:
        """Nothing is new; comes several times a second."""


class _Silence:
    def planned(self, total: int) -> None:
        """Nothing."""

    def finished(self, item: Finished, *, resumed: bool) -> None:
        """Nothing."""

    def waiting(self) -> None:
        """Nothing."""


def run_campaign(
    options: CampaignOptions,
    listener: CampaignListener | None = None,
    *,
    session: Path | None = None,
    fresh: bool = False,
    write: Callable[[CampaignResult], None] = lambda _: None,
) -> CampaignResult:
    """Run a campaign, or what is left of it.

    Args:
        options: What to run.
        listener: Told of every cell.
        session: Where finished cells are kept until all are; none keeps nothing.
        fresh: Whether to forget what an earlier try has kept there.
        write: Writes the result where it is wanted; the session is kept if it cannot.

    Raises:
        UsageError: The options name nothing that can be run.
        KeyboardInterrupt: The user stopped it; the session holds what is finished.
    """
    listener = listener or _Silence()
    began = time.monotonic()
    _require_scipy()
    checks = chosen_checks(options)
    faults = chosen_faults(options)
    complete = False
    kept = Session(session, options, fresh) if session is not None else None
    try:
        with prepare(options.engine):
            laid_out = plan(options, _sites(options, faults))
            listener.planned(len(laid_out.cells) + len(laid_out.healthy))
            done = dict(_run(options, checks, laid_out, kept, listener))
        result = CampaignResult(
            engine=options.engine,
            profile=options.profile,
            checks=checks,
            cells=tuple(done[spec.key] for spec in laid_out.cells),
            healthy=tuple(done[spec.key] for spec in laid_out.healthy),
            skipped=laid_out.skipped,
            environment=_environment(options),
            seconds=time.monotonic() - began,
            resumed=0 if kept is None else len(kept.kept.keys() & done.keys()),
        )
        write(result)
        complete = True
    finally:
        if kept is not None:
            kept.close(complete)
    return result


def _run(
    options: CampaignOptions,
    checks: tuple[str, ...],
    laid_out: Plan,
    session: Session | None,
    listener: CampaignListener,
) -> Iterator[tuple[str, Any]]:
    """All cells and healthy runs by their keys, from the session or run now."""
    left: list[Spec] = []
    planned: list[Spec] = [*laid_out.cells, *laid_out.healthy]
    for spec in planned:
        if session is not None and spec.key in session.kept:
            found = _resumed(spec, session)
            listener.finished(found, resumed=True)
            yield spec.key, found
        else:
            left.append(spec)
    jobs = run_jobs(
        left,
        partial(_work, options, checks),
        workers=options.processes,
        timeout_s=options.cell_timeout_s,
        on_wait=listener.waiting,
    )
    with closing(jobs):
        for spec, outcome in jobs:
            value = _lost(spec, outcome, options) if isinstance(outcome, Lost) else outcome
            if session is not None:
                session.keep(spec.key, value)
            found = _read(spec, value)
            listener.finished(found, resumed=False)
            yield spec.key, found


def _work(options: CampaignOptions, checks: tuple[str, ...], spec: Spec) -> dict[str, Any]:
    """What a child does with one job."""
    import torch

    torch.set_num_threads(1)
    if isinstance(spec, HealthySpec):
        return run_healthy(spec, checks, options.replayed, options.profile, options.pins).to_dict()
    settings = CellSettings(
        checks, options.check_timeout_s, options.replayed, options.profile, options.pins
    )
    return run_cell(spec, settings).to_dict()


def _lost(spec: Spec, lost: Lost, options: CampaignOptions) -> dict[str, Any]:
    if isinstance(spec, HealthySpec):
        return HealthyRun(spec, error=lost.why, cost_s=lost.seconds).to_dict()
    fault = FAULTS[spec.fault]
    return Cell(
        spec,
        breaks=fault.breaks,
        claimed_by=PROFILES[options.profile].claims(fault.claimed_by),
        equivalent=fault.equivalent,
        error=lost.why,
        replay=replay(spec, options.replayed),
        cost_s=lost.seconds,
    ).to_dict()


def _read(spec: Spec, value: dict[str, Any]) -> Finished:
    read: type[Cell] | type[HealthyRun] = HealthyRun if isinstance(spec, HealthySpec) else Cell
    return read.from_dict(value)


def _resumed(spec: Spec, session: Session) -> Finished:
    """What an earlier try has kept of a cell or run.

    Raises:
        UsageError: It kept no such thing.
    """
    try:
        found = _read(spec, session.kept[spec.key])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise session.damaged(f"{spec.key}: {type(error).__name__}: {error}") from error
    if found.spec != spec:
        raise session.damaged(f"{spec.key}: {found.spec.key}")
    return found


def _sites(options: CampaignOptions, faults: list[Fault]) -> dict[str, list[str]]:
    """Where each fault can be armed; for live engines each is started in a child.

    Raises:
        UsageError: An engine cannot be what is asked for.
    """
    groups = grouped(options, faults)
    found: dict[str, list[str]] = {}
    if options.engine not in LIVE:
        for alike in groups:
            found |= find_sites(options, alike)
        return found
    jobs = run_jobs(
        groups,
        partial(_found_in, options),
        workers=options.processes,
        timeout_s=options.cell_timeout_s,
    )
    with closing(jobs):
        for _, answer in jobs:
            if isinstance(answer, Lost):
                raise UsageError(
                    f"the {options.engine} engine did not start and tell where faults can be "
                    f"armed\n"
                    f"  expected: an answer within {options.cell_timeout_s:g} s\n"
                    f"  got: {answer.why}\n"
                    "  what to do: look at what it wrote, or raise --timeout"
                )
            if refused := answer.get("refused"):
                raise UsageError(refused)
            found |= answer["sites"]
    return found


def _found_in(options: CampaignOptions, alike: list[Fault]) -> dict[str, Any]:
    try:
        return {"sites": find_sites(options, alike)}
    except UsageError as error:
        return {"refused": str(error)}


def _require_scipy() -> None:
    """Intervals come at the end: tell now what is missing for them.

    Raises:
        UsageError: It is not installed.
    """
    if find_spec("scipy") is None:
        raise UsageError(
            "a campaign needs scipy, for the intervals of its rates\n"
            "  what to do: pip install 'syncguard[campaign]'"
        )


def _environment(options: CampaignOptions) -> dict[str, str]:
    versions = versions_of(packages_of(options.engine))
    return {**options.pins.told(), "syncguard": __version__, **versions}
