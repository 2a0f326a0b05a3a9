"""Runs ``syncguard smoke`` in a process that has imported nothing yet."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from syncguard.errors import SyncguardError
from syncguard.processes import die_with_parent
from syncguard.report import ExitCode, Report
from syncguard.sides import PROCESSES
from syncguard.survey.cell import SurveyCell

__all__ = ["flags_of", "smoke_in_new_process"]

_FLAGS: Final[Mapping[str, str]] = {"draft": "--draft", "ranks": "--tp"}
_UNSET: Final = ("TORCHDYNAMO_DISABLE",)
_REPORTED: Final = (ExitCode.PASSED, ExitCode.VIOLATED, ExitCode.NOT_CHECKED)
_SHOWN: Final = 1000


def smoke_in_new_process(cell: SurveyCell) -> Report:
    """Run the smoke check of a cell, and give its report.

    Raises:
        SyncguardError: It ended without one; the text is what it wrote last.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _UNSET}
    with tempfile.TemporaryDirectory(prefix="syncguard-survey-") as folder:
        file = Path(folder, "report.json")
        ran = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-m", "syncguard", "smoke", *flags_of(cell), "--json", str(file)],
            env=kept,
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=die_with_parent,  # a cell that takes too long is killed
        )
        if ran.returncode not in _REPORTED:
            raise SyncguardError(
                f"syncguard smoke ended with {ran.returncode}: {ran.stderr.strip()[-_SHOWN:]}"
            )
        return Report.from_json(file.read_text("utf-8"))


def flags_of(cell: SurveyCell) -> list[str]:
    """The options of ``syncguard smoke`` that make it a cell's run."""
    given: list[tuple[str, Any]] = [
        ("--engine", cell.engine),
        ("--model", cell.model),
        ("--quantization", cell.weights),
        ("--path", cell.path),
        *((_FLAGS[name], value) for name, value in cell.settings.items() if name in _FLAGS),
    ]
    flags = [word for flag, value in given for word in (flag, str(value))]
    return [
        *flags,
        *(["--process", cell.process] if cell.process in PROCESSES else []),
        *(["--compile"] if cell.compiled == "compile" else []),
        *(["--fold"] if cell.settings.get("folded") else []),
    ]
