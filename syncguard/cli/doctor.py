"""``syncguard doctor``."""

from typing import Annotated

import typer

from syncguard.cli.errors import exit_codes
from syncguard.doctor import can_smoke, examine, to_dict
from syncguard.report import ExitCode
from syncguard.reporting.doctor_table import doctor_table
from syncguard.reporting.terminal import standard_console

__all__ = ["doctor"]


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Say what this machine can check and what not, each with the reason and the next step.

    Exit codes: 0 if `syncguard smoke` without options can run here, 3 if not.
    """
    with exit_codes():
        findings = examine()
        if as_json:
            import json

            typer.echo(json.dumps(to_dict(findings), indent=2))
        else:
            standard_console().print(doctor_table(findings), highlight=False)
        raise typer.Exit(ExitCode.PASSED if can_smoke(findings) else ExitCode.NOT_CHECKED)
