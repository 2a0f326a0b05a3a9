"""A few small faults to run campaigns on; registered only while a test needs them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from syncguard.faults import FAULTS, World, fault
from syncguard.faults.registry import _FAULTS

__all__ = ["CRASH", "HANG", "IDLE", "MUTE", "SECOND", "STALE", "TAME", "planted"]

STALE: Final = "planted-stale"
MUTE: Final = "planted-mute"
TAME: Final = "planted-tame"
IDLE: Final = "planted-idle"
CRASH: Final = "planted-crash"
HANG: Final = "planted-hang"
SECOND: Final = "planted-second"


@contextlib.contextmanager
def planted(names: Sequence[str]) -> Iterator[None]:
    """Make these the only faults that there are."""
    held = dict(FAULTS)
    _FAULTS.clear()
    try:
        for name in names:
            arm, options = _PLANTS[name]
            fault(name, **options)(arm)
        yield
    finally:
        _FAULTS.clear()
        _FAULTS.update(held)


def _acting(
    world: World, seam: str, site: str, act: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Arm a seam with a function of the callable that was there and of its arguments."""
    return world.wrap(
        seam, site, lambda original: lambda *args, **kwargs: act(original, *args, **kwargs)
    )


def _stale(world: World, site: str) -> Iterator[None]:
    """The twin that the kernel reads is never <rebuilt> & stays as it was.

    Seen by <script>alert("nobody")</script>.
    """

    def skip(original: Callable[..., Any], *args: Any) -> None:
        world.fire()

    with _acting(world, "post_process", site, skip):
        yield


def _mute(world: World, site: str) -> Iterator[None]:
    """An observation raises."""

    def fail(original: Callable[..., Any]) -> None:
        world.fire()
        raise RuntimeError("no answer")

    with _acting(world, "observe", site, fail):
        yield


def _tame(world: World, site: str) -> Iterator[None]:
    """It says that it changed something, and did not."""

    def fire(original: Callable[..., Any], *args: Any) -> Any:
        world.fire()
        return original(*args)

    with _acting(world, "begin", site, fire):
        yield


def _idle(world: World, site: str) -> Iterator[None]:
    """It never fires."""
    yield


def _crash(world: World, site: str) -> Iterator[None]:
    """The process dies."""

    def die(original: Callable[..., Any], *args: Any) -> None:
        os.write(2, b"about to die")
        os._exit(9)

    with _acting(world, "begin", site, die):
        yield


def _hang(world: World, site: str) -> Iterator[None]:
    """The engine hangs."""

    def hang(original: Callable[..., Any], *args: Any) -> None:
        time.sleep(600)

    with _acting(world, "begin", site, hang):
        yield


def _second(world: World, site: str) -> Iterator[None]:
    """It fires at the second sync, and only the third one is wrong: it reports an old version."""
    asked: list[str] = []

    def commit(original: Callable[..., Any], version: str) -> None:
        asked.append(version)
        world.fire(len(asked) == 2)
        original("2" if len(asked) == 3 else version)

    with _acting(world, "version", site, commit):
        yield


_PLANTS: Final[dict[str, tuple[Any, dict[str, Any]]]] = {
    STALE: (
        _stale,
        {
            "breaks": "C3",
            "claimed_by": "exact-probe re-derivation",
            "seam": "post_process",
            "met": "F3 W14",
            "links": ("https://example.org/thread?a=1&b=2",),
            "topology": {"linear_kernel": "twin"},
            "sites": lambda site: "_proj" in site,
            "late": True,
        },
    ),
    MUTE: (
        _mute,
        {
            "breaks": "C7",
            "claimed_by": "observability",
            "seam": "observe",
            "sites": lambda site: site == "probe_exact",
        },
    ),
    TAME: (_tame, {"breaks": "C2", "claimed_by": "weight-bytes", "seam": "begin"}),
    IDLE: (_idle, {"breaks": "C2", "claimed_by": "weight-bytes", "seam": "begin"}),
    CRASH: (_crash, {"breaks": "C5", "claimed_by": "session", "seam": "begin", "silent": False}),
    HANG: (_hang, {"breaks": "C5", "claimed_by": "session", "seam": "begin", "silent": False}),
    SECOND: (
        _second,
        {
            "breaks": "C8",
            "claimed_by": "served-version",
            "seam": "version",
            "sites": lambda site: site == "commit",
        },
    ),
}
