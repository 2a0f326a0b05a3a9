"""Seams: the callables where a fault can be armed, the same ones on stub and live engines."""

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["SEAM_NAMES", "STAND_IN", "Seam", "Seams", "merged_seams"]

SEAM_NAMES: Final = (
    "admit",  # may the engine serve now
    "backend",  # which kernel a module gets (build)
    "backup",  # which tensors a pause keeps aside
    "begin",  # open a session
    "cache",  # find, keep and reset, of each of the engine's caches
    "check",  # one check is asked
    "exclusion",  # is a module left unquantized (build)
    "export",  # the learner's iterator of weights
    "finish",  # close a session
    "flush",  # complete what is staged
    "fold",  # put fresh parameters back into the storage that graphs read
    "generate",  # serve requests
    "graph",  # capture
    "init",  # the learner takes a checkpoint (build)
    "kernel",  # one product of the serving path
    "level",  # second-level scales, before anything is derived from them
    "load",  # one rank takes one weight
    "loader",  # write one shard into its parameter
    "observe",  # each observation
    "placement",  # which slots hold an expert
    "post_process",  # the kernel's work on freshly loaded weights
    "process",  # the method's: quantize, then the kernel's
    "quantizer",  # from the model's dtype to the grid
    "receive",  # one rank takes one bucket
    "route",  # which parameters a name goes to, on one rank
    "send",  # one bucket
    "sleep",  # release memory
    "stage",  # where incoming shards are written
    "step",  # the learner's optimizer step
    "storage",  # keep one derived tensor
    "version",  # commit a version, and report it
    "wake",  # take memory again
)
"""Names of seams that an engine or a learner may offer; sites are named after what they serve."""

STAND_IN: Final = "syncguard_stand_in"
"""Attribute of a function that stands in for another: what it holds is no state of an engine."""

_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Seam:
    """One callable that can be replaced for a while.

    Attributes:
        owner: The object that the callable is looked up on at every call.
        attribute: Its name there.
        applies: Limits the seam to calls for whose arguments this is true; none for all calls.
        build: Whether it is only called while an engine or learner is built, so that a fault
            must restart it after wrapping.
    """

    owner: Any
    attribute: str
    applies: Callable[..., bool] | None = None
    build: bool = False

    @contextlib.contextmanager
    def wrap(
        self, make_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> Iterator[None]:
        """Replace the callable until the context is left.

        Contexts on one callable must be left in the reverse order of entry.

        Args:
            make_wrapper: Takes the callable as it is now, bound, and gives its replacement.
        """
        original = getattr(self.owner, self.attribute)
        replacement = self._limited(original, make_wrapper(original))
        if isinstance(replacement, types.FunctionType):
            functools.update_wrapper(replacement, original)
            vars(replacement)[STAND_IN] = True
        held = vars(self.owner).get(self.attribute, _MISSING)
        setattr(self.owner, self.attribute, replacement)
        try:
            yield
        finally:
            if held is _MISSING:
                delattr(self.owner, self.attribute)
            else:
                setattr(self.owner, self.attribute, held)

    def _limited(
        self, original: Callable[..., Any], replacement: Callable[..., Any]
    ) -> Callable[..., Any]:
        applies = self.applies
        if applies is None:
            return replacement

        def limited(*args: Any, **kwargs: Any) -> Any:
            chosen = replacement if applies(*args, **kwargs) else original
            return chosen(*args, **kwargs)

        return limited


Seams = dict[str, dict[str, Seam]]
"""Seam name to its sites."""


def merged_seams(*offered: Seams) -> Seams:
    """All sites of all seams; of two of one name the later counts."""
    merged: Seams = {}
    for seams in offered:
        for name, sites in seams.items():
            merged.setdefault(name, {}).update(sites)
    return merged
