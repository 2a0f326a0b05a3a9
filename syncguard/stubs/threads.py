"""One thread for small work.

The operations of a stub are so small that further threads gain nothing, and where cores are
shared each of them waits for a thread that is not scheduled.
"""

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["inference", "single_thread"]


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Compute on the calling thread; also a decorator."""
    threads = torch.get_num_threads()
    if threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def inference() -> Iterator[None]:
    """The same, without gradients; also a decorator."""
    with single_thread(), torch.no_grad():
        yield
