"""Which cells a campaign has: faults, their sites, stages and seeds."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Final

from syncguard.campaign.cell import CellSpec
from syncguard.campaign.healthy import HealthySpec
from syncguard.campaign.live import LIVE
from syncguard.campaign.options import CampaignOptions
from syncguard.campaign.pins import Pins
from syncguard.campaign.places import kind, make_place, refusal
from syncguard.campaign.selecting import matching, select
from syncguard.checks import CHECKS
from syncguard.errors import UsageError
from syncguard.faults import FAULTS, Fault
from syncguard.profiles import PROFILES

__all__ = ["Plan", "chosen_checks", "chosen_faults", "find_sites", "grouped", "plan"]

_LISTED: Final = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What a campaign runs.

    Attributes:
        cells: The cells, fault by fault.
        healthy: The healthy runs.
        skipped: Name of a fault that cannot be armed here to the reason.
    """

    cells: tuple[CellSpec, ...]
    healthy: tuple[HealthySpec, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)


def chosen_faults(options: CampaignOptions) -> list[Fault]:
    """The faults that the options ask for.

    Raises:
        UsageError: A pattern matches none.
    """
    if options.no_faults:
        return []
    hint = "`syncguard list faults` names them all"
    return [FAULTS[name] for name in select("--faults", options.faults, FAULTS.keys(), hint)]


def chosen_checks(options: CampaignOptions) -> tuple[str, ...]:
    """The names of the checks that the options ask for.

    Raises:
        UsageError: A pattern matches none.
    """
    known = PROFILES[options.profile].checks or tuple(CHECKS)
    hint = "`syncguard list checks` names them all"
    return tuple(select("--checks", options.checks, known, hint))


def grouped(options: CampaignOptions, faults: Iterable[Fault]) -> list[list[Fault]]:
    """Faults that can be armed in one and the same engine together; without those in none.

    Where a user fixes the engine, there is a group for it, though no fault may be chosen: whether
    it starts at all is to be found out before healthy runs take that for an alarm.
    """
    groups: dict[str, list[Fault]] = {}
    if options.engine in LIVE and options.pins != Pins():
        groups[kind(options.engine, {}, options.pins)] = []
    for each in faults:
        if not refusal(options.engine, each.topology, options.pins):
            key = kind(options.engine, each.topology, options.pins)
            groups.setdefault(key, []).append(each)
    return list(groups.values())


def find_sites(options: CampaignOptions, alike: Sequence[Fault]) -> dict[str, list[str]]:
    """Where faults can be armed that are alike: starts one engine.

    Returns:
        Name of a fault to its sites.

    Raises:
        UsageError: It cannot be started as the user fixes it.
    """
    topology = alike[0].topology if alike else {}
    world = make_place(options.engine, topology, 0, options.pins).world
    with closing(world.engine):
        return {each.name: each.sites_in(world) for each in alike}


def plan(options: CampaignOptions, sites: Mapping[str, Sequence[str]]) -> Plan:
    """Lay out the cells.

    Args:
        options: What to run.
        sites: Name of each chosen fault to where it can be armed.

    Raises:
        UsageError: No site matches.
    """
    faults = chosen_faults(options)
    _require_sites(options, sites)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    cells: list[CellSpec] = []
    skipped: dict[str, str] = {}
    for each in faults:
        found = sites.get(each.name, ())
        if not found:
            why = refusal(options.engine, each.topology, options.pins)
            skipped[each.name] = why or f"the {options.engine} engine has no site for it"
        wanted = matching(options.sites, found)
        stages = [stage for stage in options.stages if stage == "load" or each.late]
        cells += [
            CellSpec(each.name, site, stage, options.engine, seed)
            for site in (wanted if options.all_sites else _spread(wanted))
            for stage in stages
            for seed in seeds
        ]
    first = options.first_seed
    healthy = [HealthySpec(options.engine, first + number) for number in range(options.healthy)]
    if not cells and not options.no_faults:
        told = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        why = f"none of these faults is armed at --stages {', '.join(options.stages)}"
        raise UsageError(
            f"there is nothing to run on engine {options.engine!r}: {told or why}"
            "\n  what to do: name other faults, or run healthy ones alone with --no-faults"
        )
    return Plan(tuple(cells), tuple(healthy), skipped)


def _spread(sites: Sequence[str]) -> list[str]:
    """The first, one amid and the last."""
    chosen = {0, len(sites) // 2, len(sites) - 1}
    return [site for number, site in enumerate(sites) if number in chosen]


def _require_sites(options: CampaignOptions, sites: Mapping[str, Sequence[str]]) -> None:
    names = list(dict.fromkeys(site for found in sites.values() for site in found))
    if names and options.sites != ("*",):
        shown = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
        select("--sites", options.sites, names, f"name a site of these faults: {shown}")
