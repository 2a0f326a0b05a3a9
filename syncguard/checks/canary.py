"""C2: both sides quantize by the same rule, told by one small tensor once per engine start."""

import torch

from syncguard.checks.judgement import Judgement, failed, not_run, passed
from syncguard.checks.registry import check
from syncguard.grids import SCALE_RULES, canary, quantize
from syncguard.observations import QuantizedCanary
from syncguard.verdict import Coverage, Reason, explain

__all__ = ["quantizer_canary"]


@check("quantizer-canary", "C2")
def quantizer_canary(
    first_sync: bool,
    canary_learner: QuantizedCanary | None,
    canary_engine: QuantizedCanary | None,
) -> Judgement:
    """Push the canary through the learner's quantizer, the engine's quantizer and its kernel.

    A weight meets a scale rule only where its maxima happen to fall. The canary holds every
    positive bf16 maximum, all ties, zeros and subnormals, so a backend whose rule differs is
    named before it matters. Blocks whose maximum is at most 448 x 2^-127 (scale byte 0) may
    differ: several quantizers flush them to zero, and no weight of a model that trains is there.
    """
    if not first_sync:
        return not_run(Reason.NOT_APPLICABLE, "the quantizers were compared at the first sync")
    if canary_learner is None or canary_engine is None:
        side = "learner" if canary_learner is None else "engine"
        return not_run(Reason.NOT_APPLICABLE, f"the {side} quantizes no weights")
    blocks = canary_learner.scales.numel()
    nbytes = canary_learner.elements.numel() + blocks
    coverage = Coverage(1, 1, nbytes, nbytes)
    instruments = {
        "the engine's quantizer": _differing(canary_learner, canary_engine),
        "the engine's kernel": _kernel_differing(canary_learner, canary_engine),
    }
    wrong = {name: mask for name, mask in instruments.items() if mask.any()}
    tiny = int((canary_learner.scales == 0).sum())
    asked = canary_learner.served is not None and canary_engine.served is not None
    if not wrong:
        return passed(
            f"learner, engine{' and kernel' if asked else ''} agree on {blocks - tiny} blocks; "
            f"{tiny} blocks of the smallest scale were not compared",
            coverage,
            measured=0,
            bound=0,
        )
    name, mask = next(iter(wrong.items()))
    count = int(mask.sum())
    return failed(
        explain(
            "learner and engine quantize by different rules",
            where=name,
            expected="the learner's elements and scales of every block of the canary",
            got=f"{count} of {blocks} blocks differ{_rule(canary_learner, canary_engine)}",
            cause="another scale rule (floor, even or nearest instead of round-up), another "
            "rounding of elements, or an approximate logarithm or reciprocal in a kernel",
            todo="use the learner's quantizer in the engine, or send serialized weights",
        ),
        coverage,
        subject=name,
        measured=count,
        bound=0,
        evidence=[(name, f"{int(mask.sum())} blocks") for name, mask in wrong.items()],
    )


def _differing(learner: QuantizedCanary, engine: QuantizedCanary) -> torch.Tensor:
    """Blocks whose bytes differ, those of scale 0 left out: bool [blocks]."""
    elements = _octets(learner.elements) != _octets(engine.elements)
    scales = learner.scales.flatten() != engine.scales.flatten()
    return (elements.reshape(scales.numel(), -1).any(1) | scales) & _lasting(learner)


def _kernel_differing(learner: QuantizedCanary, engine: QuantizedCanary) -> torch.Tensor:
    """Blocks of the rows that the kernel computes with otherwise than the learner's grid says."""
    if engine.served is None or learner.served is None:
        return torch.zeros_like(_lasting(learner))
    # Products in bf16 flush subnormals on several devices.
    smallest = torch.finfo(learner.served.dtype).smallest_normal
    served, wanted = (
        torch.where(values.abs() < smallest, torch.zeros_like(values), values)
        for values in (engine.served, learner.served)
    )
    # The largest maxima round up to infinity, and zero times infinity spoils a product's row.
    differing = torch.ne(served, wanted) & learner.served.isfinite().all(1, keepdim=True)
    blocks = differing.reshape(learner.scales.numel(), -1).any(1)
    return blocks & _lasting(learner)


def _lasting(learner: QuantizedCanary) -> torch.Tensor:
    return learner.scales.flatten() != 0


def _rule(learner: QuantizedCanary, engine: QuantizedCanary) -> str:
    """Which known rule each side follows, as far as one fits."""
    weight = canary()
    fits = {}
    for side, held in (("the learner", learner), ("the engine", engine)):
        for rule in SCALE_RULES:
            _, scales = quantize(weight, rule=rule)
            if torch.equal(scales[scales > 0], held.scales[scales > 0]):
                fits[side] = rule
    named = [f"{side} follows {rule}" for side, rule in fits.items()]
    return f" ({'; '.join(named)})" if named else ""


def _octets(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.uint8)
