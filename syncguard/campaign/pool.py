"""Runs jobs in forked processes: one that dies or hangs costs one job, not the campaign.

Each job has a process of its own, which inherits what the parent has imported. A fork costs some
20 ms, and buys that no job sees what another has left behind.
"""

import contextlib
import faulthandler
import gc
import json
import os
import selectors
import signal
import sys
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, Generic, NoReturn, TypeVar

from syncguard.campaign.threads import end_threads
from syncguard.processes import die_with_parent, ended

__all__ = ["Lost", "run_jobs"]

_TICK_S: Final = 0.1
_SHOWN: Final = 1000

_leave = os._exit  # the real one: whatever replaces it later would send a child into our callers

Job = TypeVar("Job")
Work = Callable[[Any], dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Lost:
    """A job without a result.

    Attributes:
        why: What became of its process, with the last lines that it wrote.
        seconds: How long it had been running.
    """

    why: str
    seconds: float


@dataclass
class _Child(Generic[Job]):
    job: Job
    pid: int
    pipe: int
    output: BinaryIO
    began: float = field(default_factory=time.monotonic)
    received: bytes = b""
    closed: bool = False

    @property
    def whole(self) -> bool:
        """Whether all of its result has come."""
        return self.received.endswith(b"\n")


def run_jobs(
    jobs: Sequence[Job],
    work: Work,
    *,
    workers: int,
    timeout_s: float,
    on_wait: Callable[[], None] = lambda: None,
) -> Generator[tuple[Job, dict[str, Any] | Lost], None, None]:
    """Run jobs, and yield each with its result as it comes.

    Closing the generator ends the children. A child that is killed cannot remove its temporary
    files: those of all are in one folder, which is removed at the end.

    Args:
        jobs: The jobs.
        work: Runs one of them in a child; its result must be JSON.
        workers: Children at a time.
        timeout_s: Limit for a job; its child is killed then.
        on_wait: Called several times a second.
    """
    waiting = deque(jobs)
    children: dict[int, _Child[Job]] = {}
    selector = selectors.DefaultSelector()
    held = gc.get_freeze_count()
    gc.collect()
    gc.freeze()  # else a collection in a child would copy the pages of everything imported
    scratch = tempfile.TemporaryDirectory(prefix="syncguard-", ignore_cleanup_errors=True)
    try:
        while waiting or children:
            while waiting and len(children) < workers:
                child = _fork(waiting.popleft(), work, list(children), scratch.name)
                children[child.pipe] = child
                selector.register(child.pipe, selectors.EVENT_READ)
            for key, _ in selector.select(_TICK_S):
                _read(children[key.fd])
            for child in list(children.values()):
                late = time.monotonic() - child.began > timeout_s
                if late or child.whole or child.closed:
                    selector.unregister(child.pipe)
                    del children[child.pipe]
                    yield child.job, _outcome(child, timeout_s)
            on_wait()
    finally:
        for child in children.values():
            _end(child)
        scratch.cleanup()
        selector.close()
        if not held:  # else what somebody has frozen before would thaw too
            gc.unfreeze()


def _read(child: "_Child[Job]") -> None:
    data = os.read(child.pipe, 1 << 16)
    child.received += data
    child.closed = not data


def _outcome(child: "_Child[Job]", timeout_s: float) -> dict[str, Any] | Lost:
    """What a child leaves: a whole line, or nothing that counts."""
    if not child.closed:
        os.kill(child.pid, signal.SIGKILL)  # it is late, or has no more to say
    _, status = os.waitpid(child.pid, 0)
    _kill_group(child)
    os.close(child.pipe)
    with child.output as output:
        if child.whole:
            result: dict[str, Any] = json.loads(child.received)
            return result
        output.seek(0)
        wrote = _shortened(output.read().decode(errors="replace").strip())
    why = (
        ended(os.waitstatus_to_exitcode(status))
        if child.closed
        else f"no result within {timeout_s:g} s"
    )
    return Lost(why + (f"; it wrote: {wrote}" if wrote else ""), time.monotonic() - child.began)


def _shortened(text: str) -> str:
    return text if len(text) <= 2 * _SHOWN else f"{text[:_SHOWN]} ... {text[-_SHOWN:]}"


def _end(child: "_Child[Job]") -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(child.pid, 0)
    _kill_group(child)
    os.close(child.pipe)
    child.output.close()


def _kill_group(child: "_Child[Job]") -> None:
    """End what a child has started and left behind, such as the processes of its engine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _fork(job: Job, work: Work, pipes: Sequence[int], scratch: str) -> "_Child[Job]":
    reading, writing = os.pipe()
    output = tempfile.TemporaryFile()  # noqa: SIM115 - the parent reads it when the child is dead
    parent = os.getpid()
    end_threads()
    # Ctrl-C is held back meanwhile: the hooks that run at a fork would swallow what it raises.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        with warnings.catch_warnings():
            # Of threads: those of libraries are idle, and a child uses none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if not pid:
            os.environ["TMPDIR"] = tempfile.tempdir = scratch
            _live(parent, output, [reading, *pipes], lambda: _write(writing, work(job)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    with contextlib.suppress(OSError):  # it may have done so itself, or have ended
        os.setpgid(pid, pid)
    os.close(writing)
    return _Child(job, pid, reading, output)


def _live(
    parent: int, output: BinaryIO, pipes: Sequence[int], work: Callable[[], None]
) -> NoReturn:
    """The whole life of a child; whatever happens, it ends here and runs none of the parent's."""
    code = 1
    try:
        _settle(parent, output, pipes)
        work()
        code = 0
    except BrokenPipeError:
        pass  # the parent is gone
    except BaseException:  # noqa: BLE001 - the parent tells it
        import traceback

        traceback.print_exc()
    finally:
        # Not even handlers at exit: they belong to the parent. An engine's threads would wait.
        with contextlib.suppress(BaseException):
            sys.stderr.flush()
        _leave(code)


def _settle(parent: int, output: BinaryIO, pipes: Sequence[int]) -> None:
    os.setpgid(0, 0)  # so that all it starts can be ended with it
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
    sys.stdout = sys.stderr = open(2, "w", errors="replace", closefd=False)  # noqa: SIM115
    faulthandler.enable(sys.stderr)
    # A library's handler would answer a Ctrl-C; the parent ends its children itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    if os.getppid() != parent:
        raise BrokenPipeError
    for pipe in pipes:  # else a brother's writes would succeed without a reader
        os.close(pipe)


def _write(pipe: int, result: dict[str, Any]) -> None:
    view = memoryview(json.dumps(result).encode() + b"\n")
    while view:
        view = view[os.write(pipe, view) :]
