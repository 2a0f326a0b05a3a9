"""Many calls in threads: for functions that leave the interpreter's lock most of the time."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import torch

__all__ = ["each"]

_BYTES_PER_THREAD: Final = 8 << 20
"""Half a millisecond of reading; less is not worth a thread."""

Item = TypeVar("Item")
Result = TypeVar("Result")


def each(function: Callable[[Item], Result], items: Sequence[Item], nbytes: int) -> list[Result]:
    """Call a function on each of many items, in as many threads as torch may use.

    Threads end with the call, so that a process may fork afterwards.

    Args:
        function: Called with one item, in any thread.
        items: The items.
        nbytes: What all calls read together; little is read in this thread.

    Returns:
        The results, in the order of the items.
    """
    threads = min(torch.get_num_threads(), nbytes // _BYTES_PER_THREAD, len(items))
    if threads <= 1:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))
