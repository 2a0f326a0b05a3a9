"""The markers: which conditions a test checks, and which hardware it needs."""

from collections.abc import Sequence

import pytest

from syncguard.conditions import CONDITIONS
from syncguard.hints import did_you_mean

__all__ = ["check_markers", "conditions_of", "fail_if_wrong", "skip_without_hardware"]


def conditions_of(item: pytest.Item) -> tuple[str, ...]:
    """Identifiers of the conditions that a test asks for, of all its markers; empty for all."""
    wanted = [name for marker in item.iter_markers("syncguard") for name in _conditions(marker)]
    return tuple(dict.fromkeys(wanted))


def check_markers(items: Sequence[pytest.Item]) -> None:
    """Look whether the markers of all tests can be followed.

    Raises:
        pytest.UsageError: One cannot.
    """
    for item in items:
        try:
            unknown = [name for name in conditions_of(item) if name not in CONDITIONS]
            for marker in item.iter_markers("syncguard_hw"):
                _min_sm(marker)
        except (TypeError, ValueError) as error:
            raise pytest.UsageError(f"{item.nodeid}: {error}") from None
        if unknown:
            hint = did_you_mean(unknown[0].upper(), CONDITIONS, cutoff=0.5, quoted=False)
            raise pytest.UsageError(
                f"{item.nodeid}: marker syncguard: there is no condition {unknown[0]!r}{hint} "
                f"Known: {', '.join(CONDITIONS)}"
            )


def fail_if_wrong(item: pytest.Item) -> None:
    """Fail a test whose markers cannot be followed; a worker has no other way to say it."""
    try:
        check_markers([item])
    except pytest.UsageError as error:
        pytest.fail(str(error), pytrace=False)


def skip_without_hardware(item: pytest.Item) -> None:
    """Skip a test whose marker asks for a newer GPU than there is."""
    wanted = max(_min_sm(marker) for marker in item.iter_markers("syncguard_hw"))
    found = _newest_sm()
    if found is None:
        pytest.skip(f"needs an NVIDIA GPU of SM {wanted} or newer: there is none")
    if found < wanted:
        pytest.skip(f"needs an NVIDIA GPU of SM {wanted} or newer: there is SM {found}")


def _conditions(marker: pytest.Mark) -> list[str]:
    given = marker.args[0] if marker.args else marker.kwargs.get("conditions", "")
    if len(marker.args) > 1 or marker.kwargs.keys() - {"conditions"}:
        raise TypeError("marker syncguard takes one argument, conditions='C1 C3'")
    return given.replace(",", " ").split() if isinstance(given, str) else list(given)


def _min_sm(marker: pytest.Mark) -> int:
    given = marker.args[0] if marker.args else marker.kwargs.get("min_sm")
    if not isinstance(given, int) or given < 10:
        raise ValueError(
            "marker syncguard_hw takes the compute capability as a whole number, such as "
            f"min_sm=100 for 10.0, got {given!r}"
        )
    return given


def _newest_sm() -> int | None:
    import torch

    if not torch.cuda.is_available():
        return None
    found = (
        torch.cuda.get_device_capability(device) for device in range(torch.cuda.device_count())
    )
    return max((10 * major + minor for major, minor in found), default=None)
