"""`penaltybox doctor`: is everything there, as it must be, and if not, what to do."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from penaltybox.cli.checks import Finding, check_clickhouse, check_kafka, check_policy, check_redis
from penaltybox.cli.console import AsJson, out, print_json, settings, table
from penaltybox.contracts.settings import PREFIX, Settings

_MARKS = {"ok": "[green]ok[/green]", "warning": "[yellow]warning[/yellow]", "wrong": "[red]wrong[/red]"}


def doctor(
    *,
    show_settings: Annotated[bool, typer.Option("--settings", help="Also every setting, secrets masked.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check policy, Kafka, Redis and ClickHouse, and say what to do about what is wrong.

    Reads only; exit code 1 when something is wrong.
    """
    values = settings()
    findings = asyncio.run(_look(values))
    if as_json:
        document: dict[str, Any] = {"findings": findings}
        if show_settings:
            document["settings"] = values.masked()
        print_json(document)
    else:
        _show(findings)
        if show_settings:
            rows = [(f"{PREFIX}{name.upper()}", str(value)) for name, value in values.masked().items()]
            out.print()
            out.print(table("Settings", ["name", "value"], rows))
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(1)


async def _look(values: Settings) -> list[Finding]:
    parts = await asyncio.gather(check_kafka(values), check_redis(values), asyncio.to_thread(check_clickhouse, values))
    return [*check_policy(values), *(finding for part in parts for finding in part)]


def _show(findings: list[Finding]) -> None:
    for finding in findings:
        out.print(f"{_MARKS[finding.state]:>8} {finding.part}: ", end="")
        out.print(finding.says, markup=False)
        if finding.advice:
            out.print(f"        → {finding.advice}", markup=False)
