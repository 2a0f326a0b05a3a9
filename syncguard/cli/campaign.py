"""``syncguard campaign``."""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from syncguard.cli.errors import exit_codes
from syncguard.cli.naming import naming
from syncguard.errors import UsageError
from syncguard.report import ExitCode
from syncguard.reporting.terminal import standard_console

__all__ = ["campaign"]

_GLOB = "NAME|GLOB"


def campaign(
    engine: Annotated[
        str, typer.Option(metavar="stub|sglang|vllm", help="Where the faults are armed.")
    ] = "stub",
    model: Annotated[
        str | None,
        naming("NAME|PATH", "The model of every cell, as for smoke; by default each fault's."),
    ] = None,
    quantization: Annotated[
        str | None,
        naming(
            "NAME",
            "How weights are held in every cell, as for smoke; by default mxfp8, or what a "
            "fault needs.",
        ),
    ] = None,
    path: Annotated[
        str | None,
        naming("NAME", "How weights reach the engine, as for smoke."),
    ] = None,
    tp: Annotated[
        int | None,
        typer.Option(
            "--tp",
            min=1,
            metavar="N",
            help="Tensor-parallel ranks; faults are armed on one of them.",
            show_default=False,
        ),
    ] = None,
    process: Annotated[
        str | None,
        naming(
            "in|own|server",
            "Where the engine runs, as for smoke; faults are armed where its model is.",
        ),
    ] = None,
    profile: Annotated[
        str, typer.Option(metavar="smoke|production", help="Which checks run, and how deep.")
    ] = "smoke",
    faults: Annotated[
        list[str] | None,
        typer.Option(metavar=_GLOB, help="The faults; all by default. May be repeated."),
    ] = None,
    checks: Annotated[
        list[str] | None,
        typer.Option(metavar=_GLOB, help="The checks; all by default. May be repeated."),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option(metavar=_GLOB, help="Sites of the faults. May be repeated."),
    ] = None,
    all_sites: Annotated[
        bool,
        typer.Option(
            "--all-sites", help="Arm at every site, not at the first, one amid and the last."
        ),
    ] = False,
    stages: Annotated[
        list[str] | None,
        typer.Option(
            metavar="load|late",
            help="Arm before the first sync, or after a healthy one and before a step of 1e-6.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="Seeds for each fault, site and stage.")
    ] = 1,
    seeds_from: Annotated[
        int, typer.Option(min=0, max=2**30, metavar="N", help="The first seed.")
    ] = 0,
    healthy: Annotated[
        int,
        typer.Option(
            min=0, metavar="N", help="Runs of random topologies without a fault: none may alarm."
        ),
    ] = 20,
    no_faults: Annotated[bool, typer.Option("--no-faults", help="Only the healthy runs.")] = False,
    workers: Annotated[
        int,
        typer.Option(
            "-n", "--workers", min=0, metavar="N", help="Processes; one a core by default."
        ),
    ] = 0,
    timeout: Annotated[
        float, typer.Option(min=0, metavar="S", help="Limit for a cell, in seconds.")
    ] = 0.0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="PATH", help="Write the result as JSON.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="PATH", help="Write the matrix as one HTML file."),
    ] = None,
    session: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where finished cells are kept until all are."),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, whatever an earlier try has finished.")
    ] = False,
) -> None:
    """Arm every fault at its sites and show which checks detect it, and at which sync.

    A campaign that was stopped goes on where it was when it is started again with the same options.

    In the production profile, which probes layers in turn, a fault is found in time if it is found
    before every layer had its turn.

    Exit codes: 0 every claimed fault was detected at the first sync; 1 one survived, or a healthy
    run alarmed; 2 wrong usage; 4 cells that prove nothing: a fault fired on nothing, a claimed
    check was never reached, a process died, or an internal error; 130 interrupted.
    """
    with exit_codes(), contextlib.ExitStack() as closing:
        from syncguard.campaign import STAGES, CampaignOptions, Pins, run_campaign
        from syncguard.campaign.result import CampaignResult, is_campaign
        from syncguard.campaign.session import default_path
        from syncguard.files import check_writable
        from syncguard.reporting.campaign_progress import CampaignProgress
        from syncguard.reporting.campaign_table import render_campaign
        from syncguard.reporting.html import is_page, write_page

        options = CampaignOptions(
            engine=engine,
            profile=profile,
            faults=_patterns(faults),
            checks=_patterns(checks),
            sites=_patterns(sites),
            stages=tuple(stages or STAGES),
            seeds=seeds,
            first_seed=seeds_from,
            healthy=healthy,
            all_sites=all_sites,
            no_faults=no_faults,
            workers=workers,
            timeout_s=timeout,
            pins=Pins(model or "", quantization or "", path or "", tp or 0, process or ""),
        )
        if json is not None and html is not None and json.resolve() == html.resolve():
            raise UsageError(f"--json and --html both name {str(json)!r}; give two paths")
        for file, ours in ((json, is_campaign), (html, is_page)):
            if file is not None:
                check_writable(file, ours)

        def write(result: CampaignResult) -> None:
            if json is not None:
                result.write(json)
            if html is not None:
                write_page(result, html)

        progress = CampaignProgress(standard_console(stderr=True))
        closing.callback(progress.close)
        try:
            kept = session or default_path(options)
            result = run_campaign(options, progress, session=kept, fresh=fresh, write=write)
        except KeyboardInterrupt:
            progress.close()
            typer.echo(
                "syncguard: interrupted; what is finished is kept: the same command goes on from "
                "there, with --fresh it begins anew",
                err=True,
            )
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        progress.close()
        standard_console().print(render_campaign(result), highlight=False, crop=False)
        raise typer.Exit(result.exit_code)


def _patterns(given: Sequence[str] | None) -> tuple[str, ...]:
    return tuple(given or ("*",))
