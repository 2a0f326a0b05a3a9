"""``syncguard survey``."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from syncguard.cli.errors import exit_codes
from syncguard.errors import UsageError
from syncguard.reporting.terminal import standard_console

__all__ = ["survey"]


def survey(
    engine: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Whose table; all by default. May be repeated."),
    ] = None,
    only: Annotated[
        str,
        typer.Option(
            metavar="WORD[,WORD]",
            help="Cells whose name has one of the words, such as moe or reload, or matches a "
            "pattern; core for the short survey.",
            show_default=False,
        ),
    ] = "",
    workers: Annotated[
        int,
        typer.Option("-n", "--workers", min=0, metavar="N", help="Cells at a time; 2 by default."),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=1, metavar="S", help="Limit for a cell, in seconds.")
    ] = 180.0,
    cells: Annotated[bool, typer.Option("--cells", help="Only list the cells.")] = False,
    repro: Annotated[
        str,
        typer.Option(
            metavar="CELL",
            help="Print a script that reproduces what is known to fail in a cell, with the "
            "engine's own interface alone.",
            show_default=False,
        ),
    ] = "",
    json: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PATH", help="Write the matrix as one HTML file."),
    ] = None,
) -> None:
    """Try every way in which a live engine holds, receives and serves weights.

    Each cell is a model, how its weights are held, how they travel, and where the engine runs; it
    has a process of its own.

    Exit codes: 0 every cell passed; 1 a condition is violated in some cell; 2 wrong usage; 3 a
    cell could not be run; 4 internal error; 130 interrupted.
    """
    with exit_codes(), contextlib.ExitStack() as closing:
        from syncguard.files import check_writable
        from syncguard.reporting.survey_html import is_survey_page, write_survey_page
        from syncguard.reporting.survey_progress import SurveyProgress
        from syncguard.reporting.survey_table import render_survey
        from syncguard.survey import SurveyOptions, cells_of, run_survey
        from syncguard.survey.repro import script_of
        from syncguard.survey.result import is_survey

        words = tuple(word.strip() for word in only.split(",") if word.strip())
        options = SurveyOptions(only=words, workers=workers, timeout_s=timeout)
        table = cells_of(engine or ())
        if repro:
            typer.echo(script_of(repro, table), nl=False)
            return
        chosen = options.chosen(table)
        if cells and (json or html):
            raise UsageError("--cells runs nothing that --json or --html could write")
        if cells:
            for cell in chosen:
                typer.echo(cell.name)
            return
        for path, ours in ((json, is_survey), (html, is_survey_page)):
            if path is not None:
                check_writable(path, ours)
        progress = SurveyProgress(standard_console(stderr=True))
        closing.callback(progress.close)
        result = run_survey(chosen, options, progress.planned, progress.cell, progress.waiting)
        progress.close()
        standard_console().print(render_survey(result), highlight=False)
        if json is not None:
            result.write(json)
        if html is not None:
            write_survey_page(result, html)
        raise typer.Exit(result.exit_code)
