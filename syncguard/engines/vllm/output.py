"""What vLLM's worker processes write: kept in a file, and told if they do not start."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from syncguard.errors import UsageError

__all__ = ["output_of_workers"]

_STREAMS: Final = (1, 2)
_CAUSE: Final = re.compile(r"^.*?((?:\w+\.)*\w*(?:Error|Exception): .*)$", re.MULTILINE)


@contextlib.contextmanager
def output_of_workers(log: Path) -> Iterator[None]:
    """Let processes that are started meanwhile write to a file, for all of their lives.

    Args:
        log: The file.

    Raises:
        UsageError: Whatever went wrong inside, with the first cause that the file tells.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    kept = [os.dup(number) for number in _STREAMS]
    try:
        with open(log, "wb") as file:
            for number in _STREAMS:
                os.dup2(file.fileno(), number)
        yield
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            "vLLM cannot start this model in processes of its own\n"
            f"  got: {_first_cause(log) or error}\n"
            "  what to do: if it speaks of sizes, give a model whose heads and widths divide among "
            "ranks, in whole blocks of 32 if it is quantized, or fewer ranks"
        ) from error
    finally:
        for number, copy in zip(_STREAMS, kept, strict=True):
            os.dup2(copy, number)
            os.close(copy)


def _first_cause(log: Path) -> str:
    """The first error in a log that is not about another one."""
    found = _CAUSE.search(log.read_text(errors="replace"))
    return found.group(1) if found else ""
