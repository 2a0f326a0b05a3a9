"""Listeners that write files: a report where ``--json`` says, a folder for ``--report-dir``.

Both check their paths when they are made, so that a run of minutes does not end at a typing error.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from syncguard.errors import UsageError
from syncguard.files import Recognizer, check_writable, unwritable, write_atomically
from syncguard.report import Report, is_report
from syncguard.reporting.ndjson import verdict_line
from syncguard.reporting.text import HEADING, plain_text
from syncguard.verdict import Verdict

__all__ = ["ReportFile", "ReportFolder"]


class ReportFile:
    """Writes the report as JSON when the run is over.

    Raises:
        UsageError: The path cannot be written, or holds something that is not a report.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        check_writable(path, is_report)

    def step(self, text: str, done: int, total: int) -> None:
        """Nothing."""

    def verdict(self, verdict: Verdict) -> None:
        """Nothing: the report holds them all."""

    def finished(self, report: Report) -> None:
        """Write the report."""
        report.write(self._path)


class ReportFolder:
    """Keeps a run in a folder: ``verdicts.ndjson`` as they come, ``report.json``, ``report.txt``.

    The folder is made if it is missing; files of an earlier run in it are replaced.

    Args:
        folder: The folder.
        strict: How the exit code in ``report.txt`` is found.

    Raises:
        UsageError: The folder cannot be written, or holds files of these names that are not ours.
    """

    def __init__(self, folder: Path, strict: bool = False) -> None:
        self._strict = strict
        self._json, self._text = folder / "report.json", folder / "report.txt"
        self._lines = folder / "verdicts.ndjson"
        self._stream: BinaryIO | None = None
        self._made = None if folder.exists() else folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(folder, error) from error
        try:
            for path, ours in self._files():
                check_writable(path, ours)
        except UsageError:
            self.close()
            raise

    def step(self, text: str, done: int, total: int) -> None:
        """Nothing."""

    def verdict(self, verdict: Verdict) -> None:
        """Append it to ``verdicts.ndjson``."""
        with _telling(self._lines):
            stream = self._begun()
            end = stream.tell()
            try:
                stream.write(verdict_line(verdict).encode())
            except OSError:
                stream.truncate(end)  # whole lines only
                raise

    def finished(self, report: Report) -> None:
        """Write the report, as JSON and as text."""
        with _telling(self._lines):
            self._begun()
        report.write(self._json)
        write_atomically(self._text, plain_text(report, self._strict), _is_text)
        self.close()

    def close(self) -> None:
        """Close the files; a folder that was made for the run and got no file goes again."""
        if self._stream is not None:
            self._stream.close()
        if self._made is not None:
            with contextlib.suppress(OSError):  # it is not empty
                self._made.rmdir()

    def _files(self) -> tuple[tuple[Path, Recognizer], ...]:
        return (self._json, is_report), (self._text, _is_text), (self._lines, _is_lines)

    def _begun(self) -> BinaryIO:
        if self._stream is None:
            # An earlier run's report must not stand beside the verdicts of this one.
            for path in (self._json, self._text):
                path.unlink(missing_ok=True)
            self._stream = self._lines.open("wb", buffering=0)
        return self._stream


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise unwritable(path, error) from error


def _is_text(text: str) -> bool:
    return text.startswith(HEADING)


def _is_lines(text: str) -> bool:
    try:
        first = json.loads(text.partition("\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and {"condition", "check", "status"} <= first.keys()
