"""The commands, and the one place where the process ends."""

import contextlib
import os
import sys
from typing import Annotated, NoReturn

import typer

from syncguard._version import __version__
from syncguard.cli.campaign import campaign
from syncguard.cli.catalogue import explain, list_things
from syncguard.cli.doctor import doctor
from syncguard.cli.smoke import smoke
from syncguard.cli.survey import survey

__all__ = ["app", "main"]

app = typer.Typer(
    name="syncguard",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(smoke)
app.command()(doctor)
app.command()(campaign)
app.command()(survey)
app.command("list")(list_things)
app.command()(explain)


@app.callback()
def _syncguard(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", is_eager=True, callback=lambda on: _version(on)
        ),
    ] = False,
) -> None:
    """Check that after a weight synchronization the sampler still computes the learner's policy."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"syncguard {__version__}")
        raise typer.Exit


_ENVIRONMENT = {
    # Threads that spin while they wait take the cores of the engine beside them.
    "OMP_WAIT_POLICY": "passive",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}


def main() -> NoReturn:
    """Run a command, and end the process with its exit code."""
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # read when torch is imported
    try:
        app(prog_name="syncguard")
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else int(end.code is not None))
    raise AssertionError("a typer application always exits")


def _leave(code: int) -> NoReturn:
    # An engine in this process leaves threads that a normal exit waits for, for seconds. Whoever
    # made files or engines has closed them by now; only the streams are still to be flushed.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # closed, or nobody reads
            stream.flush()
    if "vllm" in sys.modules:
        os._exit(code)
    sys.exit(code)
