"""Exceptions become exit codes and texts here, and nowhere else."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import typer

from syncguard.errors import EngineLost, UsageError
from syncguard.files import FULL
from syncguard.report import ExitCode

__all__ = ["TRACEBACK", "exit_codes"]

_BROKEN_PIPE: Final = 128 + 13

TRACEBACK: Final = "SYNCGUARD_TRACEBACK"
"""Environment variable that asks for the traceback of an internal error."""


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """Meanwhile a SIGTERM, which schedulers and time limits send, interrupts as Ctrl-C does."""
    usual = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def exit_codes() -> Iterator[None]:
    """Turn what goes wrong inside into a text on stderr and an exit code.

    Raises:
        typer.Exit: With 2 for a `UsageError` or a full disk, 3 if there is no engine to check any
            more, 141 if nobody reads on, 130 for Ctrl-C, 4 for anything unexpected.
    """
    try:
        with _ended_as_by_ctrl_c():
            yield
    except typer.Exit:
        raise
    except UsageError as error:
        typer.echo(f"syncguard: {error}", err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    except EngineLost as error:
        typer.echo(f"syncguard: {error}", err=True)
        raise typer.Exit(ExitCode.NOT_CHECKED) from None
    except KeyboardInterrupt:
        typer.echo("syncguard: interrupted", err=True)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:  # nobody reads on; as a shell tells it of any program
        raise typer.Exit(_BROKEN_PIPE) from None
    except OSError as error:
        if error.filename is not None or error.errno not in FULL:
            _tell_internal(error)
            raise typer.Exit(ExitCode.INTERNAL) from None
        typer.echo(f"syncguard: {error.strerror}\n  what to do: free some space", err=True)
        raise typer.Exit(ExitCode.USAGE) from None
    # Any defect must end as 4, never as 1; and code that exits must not choose our exit code.
    except (Exception, SystemExit) as error:  # noqa: BLE001
        _tell_internal(error)
        raise typer.Exit(ExitCode.INTERNAL) from None


def _tell_internal(error: BaseException) -> None:
    if os.environ.get(TRACEBACK, "0") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    typer.echo(
        f"syncguard: internal error: {type(error).__name__}: {error}\n"
        f"This is a defect of syncguard, or of a library that it runs, and no verdict on the sync. "
        f"Set {TRACEBACK}=1 to see where it comes from, look at `syncguard doctor`, and report it "
        f"with both outputs in the project's issue tracker.",
        err=True,
    )
