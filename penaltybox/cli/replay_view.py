"""What a replay found, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.markup import escape

from penaltybox.cli.console import instant, out, table

if TYPE_CHECKING:
    from penaltybox.processors.replay.loop import Result
    from penaltybox.processors.replay.tally import SideResult

_SHOWN = 12


def show_result(result: Result) -> None:
    """Numbers of both sides, side by side."""
    read = result.decisions + result.warm_up_decisions
    rate = f" ({read / result.seconds:,.0f} decisions/s)" if result.seconds else ""
    out.print(
        f"{escape(result.source)}: {result.decisions:,} decisions and {result.outcomes:,} outcomes from "
        f"{instant(result.first_ms)} to {instant(result.last_ms)}{rate}."
    )
    if result.warm_up_decisions:
        out.print(f"{result.warm_up_decisions:,} decisions before that warmed it up and are left out.")
    for remark in result.remarks:
        out.print(escape(remark))
    if result.refused:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in result.refused.items())
        out.print(f"Could not be judged: {escape(reasons)}.")
    if result.recorded_blocklist:
        out.print(
            f"{result.recorded_blocklist:,} recorded denials came from the blocklist of then: what else they would "
            "have asked for is unknown."
        )
    out.print()
    _show_sides(result)
    out.print(f"\nresult_hash {result.result_hash}", style="dim")


def _show_sides(result: Result) -> None:
    sides: list[tuple[str, SideResult]] = [("candidate", result.candidate)]
    if result.baseline is not None:
        sides.insert(0, ("baseline", result.baseline))
    names = [name for name, _ in sides]
    rows: list[list[object]] = [
        ["policy", *(", ".join(side.policy_versions) for _, side in sides)],
        ["penalties", *(side.penalties - side.shadow for _, side in sides)],
        ["subjects penalised", *(side.subjects_penalised for _, side in sides)],
        ["shadow penalties", *(side.shadow for _, side in sides)],
    ]
    out.print(table("What it would have done", ["", *names], rows, right=names))
    for title, counts in (
        ("By rule", [side.by_rule for _, side in sides]),
        ("By rung", [side.by_rung for _, side in sides]),
        ("By dimension", [side.by_dimension for _, side in sides]),
    ):
        keys = list(dict.fromkeys(key for one in reversed(counts) for key in one))[:_SHOWN]
        if keys:
            out.print()
            shown = [[key, *(one.get(key, 0) for one in counts)] for key in keys]
            out.print(table(title, ["", *names], shown, right=names))
