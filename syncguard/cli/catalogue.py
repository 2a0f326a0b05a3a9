"""``syncguard list`` and ``syncguard explain``."""

from typing import Annotated, Literal

import typer

from syncguard.cli.errors import exit_codes
from syncguard.reporting.terminal import standard_console

__all__ = ["explain", "list_things"]


def list_things(
    kind: Annotated[
        Literal["conditions", "checks", "faults", "engines", "grids"],
        typer.Argument(help="What to list.", metavar="conditions|checks|faults|engines|grids"),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List what there is; `syncguard explain NAME` tells more of conditions, checks and faults."""
    with exit_codes():
        from syncguard.catalogue import KINDS

        entries = list(KINDS[kind]())
        if as_json:
            import json

            typer.echo(json.dumps({"schema": "syncguard.list/1", kind: entries}, indent=2))
        else:
            from syncguard.reporting.catalogue_table import entry_table

            standard_console().print(entry_table(entries), highlight=False)


def explain(
    name: Annotated[
        str, typer.Argument(help="Such as C3, exact-probe, a fault, or F3 of a published failure.")
    ],
) -> None:
    """Say what a condition, a check or a fault is, how it shows, and what to do about it."""
    with exit_codes():
        from syncguard import catalogue
        from syncguard.reporting.catalogue_table import explained

        standard_console().print(explained(catalogue.explain(name)), highlight=False)
