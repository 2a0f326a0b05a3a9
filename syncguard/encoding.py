"""Verdicts as JSON values, and back.

JSON has no NaN and no infinities, and a measured NaN is news that must not get lost: real numbers
that are not finite are written as the strings ``"nan"``, ``"inf"`` and ``"-inf"``.
"""

import math
from collections.abc import Mapping
from typing import Any

from syncguard.verdict import Coverage, Reason, Status, Verdict

__all__ = ["real_from_json", "real_to_json", "verdict_from_json", "verdict_to_json"]


def real_to_json(value: float | None) -> float | str | None:
    """A real number as JSON can hold it; ``None`` stays ``None``."""
    if value is None:
        return None
    real = float(value)  # also numpy's scalars, which the encoder does not know
    return real if math.isfinite(real) else str(real)


def real_from_json(value: float | str | None) -> float | None:
    """The inverse of `real_to_json`."""
    return None if value is None else float(value)


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as an object of the report's schema (``$defs/verdict``)."""
    coverage = verdict.coverage
    return {
        "condition": verdict.condition,
        "check": verdict.check,
        "status": verdict.status.value,
        "reason": verdict.reason and verdict.reason.value,
        "subject": verdict.subject,
        "measured": real_to_json(verdict.measured),
        "bound": real_to_json(verdict.bound),
        "coverage": {
            "layers_checked": int(coverage.layers_checked),
            "layers_total": int(coverage.layers_total),
            "bytes_checked": int(coverage.bytes_checked),
            "bytes_total": int(coverage.bytes_total),
        },
        "cost_s": real_to_json(verdict.cost_s),
        "sync": int(verdict.sync),
        "message": verdict.message,
        "evidence": [{"name": name, "value": value} for name, value in verdict.evidence],
    }


def verdict_from_json(value: Mapping[str, Any]) -> Verdict:
    """The inverse of `verdict_to_json`, for an object that satisfies the schema.

    Raises:
        ValueError: The object says what no verdict can, such as a pass with a reason.
    """
    coverage = value["coverage"]
    return Verdict(
        condition=value["condition"],
        check=value["check"],
        status=Status(value["status"]),
        message=value["message"],
        reason=None if value["reason"] is None else Reason(value["reason"]),
        subject=value["subject"],
        measured=real_from_json(value["measured"]),
        bound=real_from_json(value["bound"]),
        coverage=Coverage(
            coverage["layers_checked"],
            coverage["layers_total"],
            coverage["bytes_checked"],
            coverage["bytes_total"],
        ),
        cost_s=float(value["cost_s"]),
        sync=value["sync"],
        evidence=tuple((item["name"], item["value"]) for item in value["evidence"]),
    )
