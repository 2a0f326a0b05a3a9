"""The plugin's options, checked once at the start of a run."""

import os
from dataclasses import dataclass
from typing import Any, Final

import pytest

from syncguard.errors import UsageError
from syncguard.files import check_writable
from syncguard.report import is_report

__all__ = ["Options", "checked_options"]

_DEFAULTS: Final[dict[str, Any]] = {
    "engine": "stub",
    "model": "",
    "quantization": "mxfp8",
    "path": "",
    "seed": 0,
    "report": "",
    "not_run": "fail",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    Attributes:
        engine: ``stub``, a name of `syncguard.sides.ENGINES`, or ``MODULE:FACTORY``.
        model: As for `syncguard.models.resolve_model`, or a stub's topology; empty for the
            engine's default.
        quantization: ``mxfp8``, ``none``, or another one that the engine knows.
        path: How a sync reaches the engine; empty for the engine's first.
        seed: Of everything random.
        report: Where the report goes, absolute; empty for nowhere.
        not_run: ``fail`` or ``warn``.
    """

    engine: str
    model: str
    quantization: str
    path: str
    seed: int
    report: str
    not_run: str

    def __str__(self) -> str:
        """One line for the head of a run."""
        model = f" of {self.model}" if self.model else ""
        return f"syncguard: engine {self.engine}{model}, seed {self.seed}"


def checked_options(config: pytest.Config) -> Options:
    """Read the options, and look whether they can be followed.

    Raises:
        pytest.UsageError: One cannot be followed; the text says what to do.
    """
    given = {name: config.getoption(f"syncguard_{name}") for name in _DEFAULTS}
    chosen = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
    if chosen["report"]:
        chosen["report"] = os.path.join(config.invocation_params.dir, chosen["report"])
    options = Options(**chosen)
    try:
        if options.report and not hasattr(config, "workerinput"):
            check_writable(options.report, is_report)
        _check_sides(options)
    except UsageError as error:
        raise pytest.UsageError(f"syncguard: {error}") from None
    return options


def _check_sides(options: Options) -> None:
    if options.engine == _DEFAULTS["engine"] and not options.model:
        return  # what cannot be wrong need not be imported: it brings torch
    from syncguard.plugin.sides import check

    check(options)
