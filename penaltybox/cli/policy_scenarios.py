"""`penaltybox policy test`: recorded scenarios, played through a policy; what is expected must come, nothing else."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotation
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.markup import escape

from penaltybox.cli.console import AsJson, PolicyFile, err, out, print_json, settings
from penaltybox.cli.policy_source import read_file
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable

_MARKS = {"-": "[red]- expected[/red]", "+": "[green]+ came    [/green]"}


class Outcome(msgspec.Struct, frozen=True):
    """A scenario: its folder, and the lines that differ (``-`` expected and missing, ``+`` not expected)."""

    scenario: str
    differences: list[tuple[str, dict[str, Any]]]


def try_out(
    folders: Annotated[list[Path], typer.Argument(help="Scenario folders, or folders of them.", show_default=False)],
    *,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Play scenarios through a policy, and say what came otherwise than expected, and which rules nothing tests.

    A scenario is a folder with decisions.jsonl and expected.jsonl, and with its own policy.yaml if it is not about the
    policy of the option; docs/policy.md describes the lines. Exit code 1 when something differs, 2 when a folder is
    no scenario; the others are played all the same. Needs no server.

        penaltybox policy test scenarios/ --policy policy.yaml
    """
    from penaltybox.processors.scenario_folder import differences, play

    usual = read_file(policy_file, settings()).policy
    outcomes: list[Outcome] = []
    rules: dict[tuple[str, int], str] = {}
    fired: set[tuple[str, int]] = set()
    broken: list[str] = []
    for folder in _scenarios(folders):
        try:
            played = play(folder, usual)
        except ConfigurationError as error:  # the others are told all the same
            broken.append(str(error))
            continue
        outcomes.append(Outcome(folder.name, differences(played)))
        own = "" if not (folder / "policy.yaml").exists() else f" ({folder.name})"
        for rule in played.rules:
            rules.setdefault((rule.name, rule.key), f"{rule.name}{own}")
        fired |= played.fired
    uncovered = [name for place, name in rules.items() if place not in fired]
    failed = [one for one in outcomes if one.differences]
    if as_json:
        print_json({"scenarios": len(outcomes), "failed": failed, "rules": len(rules), "uncovered": uncovered,
                    "broken": broken})  # fmt: skip
    else:
        _show(outcomes, failed, len(rules), uncovered)
    for sentence in broken[:-1]:
        err.print(sentence, markup=False)
    if broken:
        raise ConfigurationError(broken[-1])
    if failed:
        raise typer.Exit(1)


def _scenarios(folders: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for folder in folders:
        inner = sorted(path.parent for path in folder.glob("*/decisions.jsonl"))
        here = [folder] if (folder / "decisions.jsonl").exists() else inner
        if not here:
            raise ConfigurationError(f"{folder}: got no decisions.jsonl, there or one folder below; wanted a scenario")
        found += here
    return found


def _show(outcomes: list[Outcome], failed: list[Outcome], rules: int, uncovered: list[str]) -> None:
    for one in failed:
        out.print(f"[bold]{escape(one.scenario)}[/bold]")
        for sign, line in one.differences:
            until = line["until"]
            marks = "".join(f", {name}" for name in ("shadow", "late") if line.get(name))
            said = (
                f"{line['t']:>8}  {line['subject']}  {line['rule']}: {line['from']} → {line['to']}, {line['action']}"
                f" until {until}{marks}"
            )
            out.print(f"  {_MARKS[sign]} {escape(said)}")
    passed = len(outcomes) - len(failed)
    out.print(f"{passed:,} of {len(outcomes):,} scenarios came as expected; {rules:,} rules, ", end="")
    out.print("each of which fired in one." if not uncovered else f"{len(uncovered):,} of which fired in none:")
    for name in uncovered:
        out.print(f"  {name}", markup=False)
