"""A few small faults to run campaigns on; registered only while a test needs them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from syncguard.faults import FAULTS, World, fault
from syncguard.faults.registry import _FAULTS

__all__ = ["NAMES", "planted"]

Wrapped = Callable[..., Any]

NAMES: Final = (
    "planted-stale",
    "planted-mute",
    "planted-tame",
    "planted-idle",
    "planted-crash",
    "planted-hang",
    "planted-late",
)


@contextlib.contextmanager
def planted(only: Sequence[str] = NAMES) -> Iterator[None]:
    """Make these the only faults that there are."""
    held = dict(FAULTS)
    _FAULTS.clear()
    try:
        _register()
        for name in NAMES:
            if name not in only:
                del _FAULTS[name]
        yield
    finally:
        _FAULTS.clear()
        _FAULTS.update(held)


def _instead(world: World, name: str, site: str, act: Callable[..., Any]) -> Any:
    """Arm a seam with a function of the callable and of its arguments."""

    def wrapper(original: Wrapped) -> Wrapped:
        return lambda *args, **kwargs: act(original, *args, **kwargs)

    return world.wrap(name, site, wrapper)


def _register() -> None:
    @fault(
        "planted-stale",
        breaks="C3",
        claimed_by="exact-probe re-derivation",
        seam="post_process",
        met="F3",
        links=("https://example.org/thread/1?a=1&b=2",),
        sites=lambda site: "_proj" in site,
        late=True,
    )
    def _stale(world: World, site: str) -> Iterator[None]:
        """The scales that the kernel reads are never <rebuilt>."""

        def skip(original: Wrapped, *args: Any) -> None:
            world.fire()

        with _instead(world, "post_process", site, skip):
            yield

    @fault(
        "planted-mute",
        breaks="C7",
        claimed_by="observability",
        seam="observe",
        sites=lambda site: site == "probe_exact",
    )
    def _mute(world: World, site: str) -> Iterator[None]:
        """An observation raises."""

        def fail(original: Wrapped) -> None:
            world.fire()
            raise RuntimeError("no answer")

        with _instead(world, "observe", site, fail):
            yield

    @fault("planted-tame", breaks="C2", claimed_by="weight-bytes", seam="begin")
    def _tame(world: World, site: str) -> Iterator[None]:
        """It says that it changed something, and did not."""

        def fire(original: Wrapped, *args: Any) -> Any:
            world.fire()
            return original(*args)

        with _instead(world, "begin", site, fire):
            yield

    @fault("planted-idle", breaks="C2", claimed_by="weight-bytes", seam="begin")
    def _idle(world: World, site: str) -> Iterator[None]:
        """It never fires."""
        yield

    @fault("planted-crash", breaks="C5", claimed_by="session", seam="begin", silent=False)
    def _crash(world: World, site: str) -> Iterator[None]:
        """The process dies."""

        def die(original: Wrapped, *args: Any) -> None:
            print("about to die", flush=True)
            os._exit(9)

        with _instead(world, "begin", site, die):
            yield

    @fault("planted-hang", breaks="C5", claimed_by="session", seam="begin", silent=False)
    def _hang(world: World, site: str) -> Iterator[None]:
        """The engine hangs."""

        def hang(original: Wrapped, *args: Any) -> None:
            time.sleep(600)

        with _instead(world, "begin", site, hang):
            yield

    @fault("planted-late", breaks="C8", claimed_by="served-version", seam="version",
           sites=lambda site: site == "commit")  # fmt: skip
    def _late(world: World, site: str) -> Iterator[None]:
        """The second version is never committed, and the third one is said to be the second."""
        versions: list[str] = []

        def commit(original: Wrapped, version: str) -> None:
            versions.append(version)
            if len(versions) == 2:
                world.fire()  # a tame firing: nothing is wrong yet
            original("2" if len(versions) == 3 else version)

        with _instead(world, "version", site, commit):
            yield
