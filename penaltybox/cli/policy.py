"""`penaltybox policy`: look at policies, compare them, and change the one in force."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from rich.markup import escape

from penaltybox.cli.console import AsJson, instant, out, policy_path, print_json, settings, table
from penaltybox.cli.control import opened
from penaltybox.cli.policy_findings import warnings
from penaltybox.cli.policy_scenarios import try_out
from penaltybox.cli.policy_source import CURRENT, named_policy, read_file
from penaltybox.cli.policy_switch import apply, rollback
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_changes import changes
from penaltybox.contracts.policy_form import document

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.policy_changes import Change, FieldChange
    from penaltybox.contracts.policy_versions import Switch
    from penaltybox.contracts.settings import Settings

_WIDTH = 110
_SIGNS = {"added": "[green]+[/green]", "gone": "[red]-[/red]", "changed": "[yellow]~[/yellow]"}
app = typer.Typer(
    help="The rules: check, compare, try, put in force, take back. Workers and limiters follow within a second.",
    no_args_is_help=True,
)
_Named = Annotated[str, typer.Argument(help="A file, a version, or current: the one in force.")]


@app.command("check")
def check(
    file: Annotated[Path | None, typer.Argument(help="The policy file; else the one of the settings.")] = None,
    *,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 when there are warnings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Say whether a policy file is right, where it is not, and what in it is probably not meant. Needs no server.

    penaltybox policy check policy.yaml
    """
    values = settings()
    path = policy_path(file, values)
    try:
        policy = read_file(path, values).policy
    except ConfigurationError as error:
        if not as_json:
            raise
        print_json({"ok": False, "error": str(error)})
        raise typer.Exit(2) from error
    found = warnings(policy, now_ms())
    if as_json:
        print_json({"ok": True, "version": policy.version, "warnings": found})
    else:
        shadows = sum(rule.shadow for rule in policy.rules)
        rules = f"{len(policy.rules)} rules" + (f", {shadows} of them in shadow" if shadows else "")
        out.print(f"{path} is a policy: version {policy.version}, {rules}.", markup=False)
        for one in found:
            out.print(f"  [yellow]warning[/yellow] {escape(one.where)}: {escape(one.says)}")
    if strict and found:
        raise typer.Exit(1)


@app.command("show")
def show(
    policy: _Named = CURRENT,
    *,
    source: Annotated[bool, typer.Option("--source", help="The text as it was given, comments and all.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print a policy with every default written out; by default the one in force.

    What it prints is a policy file again, of the same version.

        penaltybox policy show
    """
    found = named_policy(policy, settings())
    form = document(found.policy)
    if as_json:
        print_json({"version": found.policy.version, "name": found.name, "policy": form})
        return
    out.print(f"# {found.name}, version {found.policy.version}", markup=False)
    text = found.text if source else yaml.safe_dump(form, sort_keys=False, default_flow_style=None, width=_WIDTH)
    if sys.stdout.isatty():
        out.print(text.rstrip("\n"), markup=False, soft_wrap=True)
    else:
        sys.stdout.write(text.rstrip("\n") + "\n")  # a file again: sign for sign


@app.command("diff")
def diff(
    before: _Named,
    after: Annotated[str, typer.Argument(help="The other one; alone, the first is compared with current.")] = "",
    *,
    as_json: AsJson = False,
) -> None:
    """Say what differs between two policies: limits, rules, rungs that were added, are gone, or changed.

    Comments, order and the way in which something is written make no difference.

        penaltybox policy diff current policy.yaml
    """
    values = settings()
    one, other = (before, after) if after else (CURRENT, before)
    old, new = named_policy(one, values), named_policy(other, values)
    found = changes(old.policy, new.policy)
    if as_json:
        print_json({"before": old.policy.version, "after": new.policy.version, "changes": found})
        return
    out.print(f"From {old.name} to {new.name}:", markup=False)
    show_changes(found)


def show_changes(found: Sequence[Change]) -> None:
    """Changes for people, by section."""
    if not found:
        out.print("  Nothing differs.")
    section = ""
    for one in found:
        if one.section != section:
            section = one.section
            out.print(f"[bold]{section}[/bold]")
        name = "" if one.name == section else escape(one.name)
        note = f"  [dim]({one.note})[/dim]" if one.note else ""
        out.print(f"  {_SIGNS[one.kind]} {name}{note}".rstrip())
        if one.kind == "changed":
            said = [f"{_named(field)}{_said(field.before)} → {_said(field.after)}" for field in one.fields]
        else:
            values = [(field, field.after if one.kind == "added" else field.before) for field in one.fields]
            said = [", ".join(f"{_named(field)}{_said(value)}" for field, value in values)]
        for line in said:
            out.print(f"      {escape(line)}")


def _named(field: FieldChange) -> str:
    return f"{field.field}: " if field.field else ""


def _said(value: object) -> str:
    if value is None:
        return "not said"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(_said, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_said(inner)}" for key, inner in value.items()) + "}"
    return str(value)


@app.command("history")
def history(*, as_json: AsJson = False) -> None:
    """Who put which version in force, when and why; the newest first.

    penaltybox policy history
    """
    switches = asyncio.run(_history(settings()))[::-1]
    if as_json:
        print_json({"switches": switches})
        return
    if not switches:
        out.print("Nothing was ever applied: each program uses its own file (PENALTYBOX_POLICY, --policy).")
        return
    rows = [
        (instant(one.ts), one.version, one.verb, one.actor, one.reason, "" if at else "in force")
        for at, one in enumerate(switches)
    ]
    out.print(table("Policies", ["when", "version", "by", "actor", "reason", ""], rows))


async def _history(values: Settings) -> list[Switch]:
    from penaltybox.sinks.policy_versions import history as read

    async with opened(values) as (link, _):
        return await read(link, values.redis_prefix)


app.command("apply")(apply)
app.command("rollback")(rollback)
app.command("test")(try_out)
