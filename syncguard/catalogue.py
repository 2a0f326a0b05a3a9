"""What there is, and what it means: conditions, checks, faults, engines and grids."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Final

from syncguard.checks import CHECKS, Check
from syncguard.conditions import CONDITIONS, Condition
from syncguard.errors import UsageError
from syncguard.faults import FAULTS, Fault
from syncguard.grids import GRIDS
from syncguard.hints import did_you_mean
from syncguard.runner import OBSERVABILITY

__all__ = ["KINDS", "Entry", "Explanation", "explain"]

Entry = Mapping[str, Any]
"""One thing, as JSON values; every kind has its own keys, ``name`` among them."""

_SHOWS: Final = MappingProxyType(
    {
        "C1": "Often not at all: a layer that stays in bf16 makes the divergence a little larger "
        "or smaller. A quantized head or embedding makes logits NaN, and every response as long "
        "as it may be.",
        "C2": "As a divergence from the learner that looks like quantization noise, or garbage "
        "where shards are swapped or scales do not belong to their elements.",
        "C3": "As the old policy that keeps answering, or garbage where new elements meet old "
        "scales. After a small step stale values are almost right: no tolerance sees them.",
        "C4": "As the old policy, and only where graphs are captured: eager runs look healthy.",
        "C5": "As one layer, shard or expert with left-over memory; the sync reports success.",
        "C6": "As NaN, rewards of 0, or responses that are all cut off. A moderate fault and "
        "healthy quantization give the same divergence, so it is an alarm of last resort.",
        "C7": "As a green run: a check that raised, hung or never ran is counted as a pass.",
        "C8": "As training that is off-policy by a version or more, or a served version that "
        "does not change.",
        "C9": "As answers to known prompts by the old policy until their cache entries go.",
        "C10": "As wrong results after a pause or a sync in what no sync carries: rotary tables, "
        "index caches, calibrated scales.",
        "C11": "As responses that mix two policies, or a half-loaded model that serves.",
        "C12": "As a divergence that grows with training while all bytes agree: the exporter "
        "sends what the trainer does not train.",
        "C13": "As memory, speed or results that change with a sync: another backend, device or "
        "placement of experts.",
    }
)
_TODO: Final = MappingProxyType(
    {
        "C1": "Compare the exclusion rules of both sides with the layers that the check names; "
        "match whole names, not substrings, and name fused parameters as the engine does.",
        "C2": "See the kind of difference in the evidence: swapped shards, a scale rule, a stale "
        "version, a source of another dtype; mend the exporter or the loader accordingly.",
        "C3": "Run the layer's post-processing after every sync, from canonical tensors, into the "
        "storage that kernels read.",
        "C4": "Copy into the old storage instead of assigning a new tensor, or capture again.",
        "C5": "End the session after the last bucket only, and count names, shards and experts, "
        "not elements.",
        "C6": "Look at the failures of C1 to C5 first: they name the layers.",
        "C7": "Mend the observation or the check; until then treat the sync as unchecked.",
        "C8": "Stamp every response with the version, and drop those of another.",
        "C9": "Reset every cache of activations when the weights change.",
        "C10": "Keep such state out of what a pause releases, or restore it; do not write it in a "
        "sync.",
        "C11": "Pause requests between begin and end, and let a failed sync not serve.",
        "C12": "Export from the tensors that the forward uses, after the optimizer step.",
        "C13": "Pin backend and placement, and compare them before and after.",
    }
)
_ENGINES: Final = (
    ("stub", "", "a small sampler in this process, with every layout and seam of real ones"),
    ("vllm", "vllm", "vLLM live on a CPU: in this process, its own, or as a server"),
    ("sglang", "sglang", "SGLang live on a CPU: in this process or its own"),
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a name means.

    Attributes:
        kind: ``condition``, ``check``, ``fault`` or ``report`` (of a published failure).
        name: The name.
        title: One line.
        parts: Labels and texts.
    """

    kind: str
    name: str
    title: str
    parts: tuple[tuple[str, str], ...]


def _conditions() -> Iterator[Entry]:
    for each in CONDITIONS.values():
        yield {
            "name": each.id,
            "title": each.name,
            "core": each.core,
            "statement": each.statement,
        }


def _checks() -> Iterator[Entry]:
    for each in CHECKS.values():
        yield {
            "name": each.name,
            "condition": each.condition,
            "reference": each.reference,
            "needs": list(each.needs),
            "summary": each.summary,
        }


def _faults() -> Iterator[Entry]:
    for each in FAULTS.values():
        yield {
            "name": each.name,
            "breaks": list(each.breaks),
            "claimed_by": list(each.claimed_by),
            "seam": each.seam,
            "met": list(each.met),
            "silent": each.silent,
            "summary": each.summary,
        }


def _engines() -> Iterator[Entry]:
    for name, module, summary in _ENGINES:
        yield {
            "name": name,
            "installed": not module or find_spec(module) is not None,
            "summary": summary,
        }


def _grids() -> Iterator[Entry]:
    for grid in GRIDS.values():
        yield {
            "name": grid.name,
            "bits": grid.bits_per_weight,
            "element": grid.element.name,
            "scale": grid.scale.name if grid.scale is not None else "",
            "block": grid.block_size if grid.scale is not None else 1,
        }


KINDS: Final[Mapping[str, Callable[[], Iterator[Entry]]]] = MappingProxyType(
    {
        "conditions": _conditions,
        "checks": _checks,
        "faults": _faults,
        "engines": _engines,
        "grids": _grids,
    }
)
"""Kinds of things to what lists them."""


def explain(name: str) -> Explanation:
    """Say what a condition, a check, a fault or a published failure is.

    Args:
        name: ``C3`` or ``derived state``, ``exact-probe``, the name of a fault, ``F3`` or ``W14``;
            capitals do not matter.

    Raises:
        UsageError: There is no such name.
    """
    wanted = name.strip().lower()
    known = _known()
    if wanted not in known:
        meant = did_you_mean(wanted, known, most=3)
        raise UsageError(
            f"there is no condition, check or fault {name!r}{meant}\n"
            "  what to do: `syncguard list conditions`, `... checks` and `... faults` name them"
        )
    return known[wanted]()


def _known() -> dict[str, Callable[[], Explanation]]:
    """Names in small letters; of two things with one name the later one counts."""
    known: dict[str, Callable[[], Explanation]] = {}
    for condition in CONDITIONS.values():
        known[condition.name.lower()] = known[condition.id.lower()] = (
            lambda condition=condition: _condition(condition)  # type: ignore[misc]
        )
    for number in sorted({met for each in FAULTS.values() for met in each.met}):
        known[number.lower()] = lambda number=number: _report(number)  # type: ignore[misc]
    for fault in FAULTS.values():
        known[fault.name.lower()] = lambda fault=fault: _fault(fault)  # type: ignore[misc]
    for check in CHECKS.values():
        known[check.name.lower()] = lambda check=check: _check(check)  # type: ignore[misc]
    return known


def _condition(condition: Condition) -> Explanation:
    checks = [each.name for each in CHECKS.values() if each.condition == condition.id]
    if condition.id == "C7":
        checks.append(f"{OBSERVABILITY} (the runner's own)")
    faults = [each.name for each in FAULTS.values() if condition.id in each.breaks]
    return _explanation(
        "condition",
        condition.id,
        f"{condition.id} {condition.name}",
        [
            ("what it says", condition.statement),
            ("how it shows", _SHOWS[condition.id]),
            ("checked by", _joined(checks, "no check of its own yet")),
            ("broken by", _joined(faults)),
            ("what to do", _TODO[condition.id]),
        ],
    )


def _check(check: Check) -> Explanation:
    faults = [each.name for each in FAULTS.values() if check.name in each.claimed_by]
    condition = CONDITIONS[check.condition]
    only = "only campaigns run it, for comparison" if check.reference else ""
    return _explanation(
        "check",
        check.name,
        f"{check.name}, a check of {condition.id} {condition.name}",
        [
            ("what it asks", _flowing(check.explanation)),
            ("reference", only),
            ("judges", _joined(check.needs)),
            ("claims", _joined(faults)),
            ("what to do", f"where it fails: {_TODO[condition.id]}"),
        ],
    )


def _fault(fault: Fault) -> Explanation:
    silent = "silently: no error, and normal metrics" if fault.silent else "with an error"
    topology = ", ".join(f"{name}={value}" for name, value in fault.topology.items())
    breaks = [f"{id_} {CONDITIONS[id_].name}" for id_ in fault.breaks]
    return _explanation(
        "fault",
        fault.name,
        f"{fault.name}, a fault that breaks {' and '.join(fault.breaks)}",
        [
            ("what it is", _flowing(fault.explanation)),
            ("how it shows", silent),
            ("breaks", _joined(breaks)),
            ("seen by", _joined(fault.claimed_by, "no check claims it")),
            ("armed at", f"seam {fault.seam}" + (f", on {topology}" if topology else "")),
            ("equivalent", fault.equivalent),
            ("what to do", _TODO[fault.breaks[0]]),
            ("met as", _joined(fault.met)),
            ("threads", "\n".join(fault.links)),
        ],
    )


def _report(number: str) -> Explanation:
    faults = [each for each in FAULTS.values() if number in each.met]
    kind = "a published failure" if number.startswith("F") else "a fault met in the wild"
    return _explanation(
        "report",
        number,
        f"{number}, {kind}",
        [
            *((each.name, f"{each.summary} Breaks {', '.join(each.breaks)}.") for each in faults),
            ("threads", "\n".join(dict.fromkeys(link for each in faults for link in each.links))),
            ("more", "; ".join(f"syncguard explain {each.name}" for each in faults)),
        ],
    )


def _explanation(kind: str, name: str, title: str, parts: Sequence[tuple[str, str]]) -> Explanation:
    return Explanation(kind, name, title, tuple((label, text) for label, text in parts if text))


def _joined(names: Sequence[str], none: str = "") -> str:
    return ", ".join(names) or none


def _flowing(docstring: str) -> str:
    """Paragraphs without the line breaks of the source."""
    return "\n".join(" ".join(part.split()) for part in docstring.split("\n\n"))
