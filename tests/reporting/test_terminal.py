import io
import re

import pytest
from rich.console import Console

from syncguard.report import Report
from syncguard.reporting import Terminal
from syncguard.verdict import Status
from tests.reports import ERRED, STALE, a_report

ESCAPE = "\x1b["


def shown(
    report: Report, *, width: int = 80, terminal: bool = False, colours: bool = False
) -> tuple[str, str]:
    """What goes to the report's console and to the progress console."""
    out, progress = (
        Console(
            file=io.StringIO(),
            width=width,
            force_terminal=terminal,
            color_system="standard" if colours else None,
            legacy_windows=False,
        )
        for _ in range(2)
    )
    listener = Terminal(out, progress)
    for number, text in enumerate(["starting the engine", "sync 1 of 1 [bold]"]):
        listener.step(text, number, 2)
    for verdict in report.verdicts:
        listener.verdict(verdict)
    listener.finished(report)
    assert isinstance(out.file, io.StringIO)
    assert isinstance(progress.file, io.StringIO)
    return out.file.getvalue(), progress.file.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    out, _ = shown(a_report(STALE, ERRED), width=width)
    assert max(map(len, out.splitlines())) <= width


def test_at_80_columns_no_row_of_the_table_is_cut_or_wrapped() -> None:
    out, _ = shown(a_report(STALE, ERRED))
    assert len(re.findall(r"^C\d .* \d+\.\d+ s *$", out, flags=re.MULTILINE)) == 7
    assert "…" not in out


def test_progress_without_a_terminal_is_a_line_a_step() -> None:
    out, progress = shown(a_report())
    assert re.fullmatch(
        r"\[1/2\] starting the engine \(0\.\d\d s\)\n\[2/2\] sync 1 of 1 \[bold\] \(0\.\d\d s\)\n",
        progress,
    )
    assert "starting" not in out


def test_progress_of_unknown_length_has_no_count() -> None:
    console = Console(file=io.StringIO(), width=80)
    Terminal(console, console).step("importing", 0, 0)
    assert isinstance(console.file, io.StringIO)
    assert re.fullmatch(r"importing \(0\.\d\d s\)\n", console.file.getvalue())


def test_progress_on_a_terminal_is_a_bar_that_goes_away() -> None:
    _, progress = shown(a_report(), terminal=True)
    assert "sync 1 of 1 [bold]" in progress
    assert "1/2" in progress
    assert progress.rstrip().endswith(f"{ESCAPE}2K")  # the line was erased


def test_colours_say_nothing_that_words_do_not() -> None:
    report = a_report(STALE, ERRED)
    coloured, _ = shown(report, terminal=True, colours=True)
    plain, _ = shown(report)
    assert f"{ESCAPE}1;31mFAIL" in coloured
    assert ESCAPE not in plain
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == plain
    for status in ("pass", "FAIL", "not run"):
        assert status in plain
    assert len(Status) == 3


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    coloured, _ = shown(a_report(STALE), terminal=True, colours=True)
    assert not re.search(r"\x1b\[[\d;]*3[0-7]", coloured)
    assert "FAIL" in coloured
