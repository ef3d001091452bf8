"""The report of a comparison on a terminal; every line fits into 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.markup import escape
from rich.padding import Padding

from penaltybox.cli.console import instant, left, one_line, table
from penaltybox.cli.replay_words import (
    headline,
    pair_text,
    rate_text,
    rung_text,
    sighting_text,
    split_text,
    step_text,
    top_text,
)
from penaltybox.processors.replay.metrics import CHANGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from penaltybox.processors.replay.conditions import Failure
    from penaltybox.processors.replay.report import Change, Report, Row

_ROWS: Final = 20
_TOP: Final = 5
_EXPLAINED: Final = 2


def report_view(report: Report, failures: Sequence[Failure] = ()) -> RenderableType:
    """The report for people."""
    parts: list[RenderableType] = [
        "\n".join(f"[bold]{escape(line)}[/bold]" for line in headline(report)),
        _subjects(report),
        _rows(report),
        _rates(report),
        _stopped(report),
        _special(report),
    ]
    if report.top:
        parts.append(_top(report))
    if report.remarks:
        parts.append(Group(*(Padding(escape(remark), (0, 0, 0, 2)) for remark in report.remarks)))
    if failures:
        parts.append(failures_view(failures))
    return Group(*(line for part in parts for line in (part, "")))


def failures_view(failures: Sequence[Failure]) -> RenderableType:
    """Which conditions failed, and why."""
    lines = [f"[red]Failed:[/red] {escape(one_line(f'{one.condition}: {one.sentence}'))}" for one in failures]
    return "\n".join(lines)


def _counts(change: Change) -> list[str]:
    splits = {name: getattr(change, name) for name in CHANGES}
    return [
        f"{change.baseline.total:,} → {change.candidate.total:,}",
        split_text(splits["new"]),
        split_text(splits["gone"]),
        f"{splits['earlier'].total:,}/{splits['later'].total:,}",
        f"{splits['longer'].total:,}/{splits['shorter'].total:,}",
    ]


_COUNTS: Final = ["was → is", "new", "gone", "sooner/later", "longer/shorter"]


def _subjects(report: Report) -> RenderableType:
    rows = [["all", *_counts(report.total)], ["permanent", *_counts(report.permanent)]]
    rows += [[name, *_counts(change)] for name, change in report.dimensions.items()]
    return Group(
        table("Penalised subjects", ["dimension", *_COUNTS], rows, right=_COUNTS),
        "  in brackets: legitimate/abusive/unknown by outcomes",
    )


def _rows(report: Report) -> RenderableType:
    several = {row.rule for row in report.rows for other in report.rows if _differ(row, other)}
    rows = [
        [
            f"{one_line(row.rule)}{f' on {row.dimension}' if row.rule in several else ''} → {rung_text(row)}",
            *_counts(row.change),
        ]
        for row in report.rows[:_ROWS]
    ]
    if not rows:
        return "No rule penalises anybody, on either side."
    more = len(report.rows) - len(rows)
    columns = ["rule → rung", "was → is", "new", "gone", "early/late", "long/short"]
    shown = table("By rule and rung (subjects)", columns, rows, right=columns[1:])
    return Group(shown, f"  and {more:,} more (--json, --html)") if more else shown


def _differ(row: Row, other: Row) -> bool:
    """Whether a rule (a score's threshold, say) has rows on several dimensions."""
    return row.rule == other.rule and row.dimension != other.dimension


def _rates(report: Report) -> RenderableType:
    rows = [
        [
            name,
            f"{one.baseline.episodes:,} → {one.candidate.episodes:,}",
            rate_text(one.baseline.fdr),
            rate_text(one.candidate.fdr),
            rate_text(one.baseline.fpr),
            rate_text(one.candidate.fpr),
        ]
        for name, one in report.rates.items()
    ]
    columns = ["dimension", "episodes", "FDR was at least", "FDR is at least", "FPR was", "FPR is"]
    young = {name: one.candidate.immature for name, one in report.rates.items() if one.candidate.immature}
    said = ["  FDR: of what rules limit, the share that is legitimate (unlabelled: not)."]
    said.append("  FPR: of the legitimate seen, the share that is limited. (Wilson 95 %.)")
    if young:
        listed = ", ".join(f"{count:,} on {name}" for name, count in young.items())
        wait = left(report.maturity.longest_ms)
        said.append(f"  Episodes not mature yet (their labels may take {wait}): {listed}.")
    return Group(table("False positives by rules", columns, rows, right=columns[1:]), *map(escape, said))


def _stopped(report: Report) -> RenderableType:
    stopped, demand = report.stopped, report.demand
    rows = [
        [side, split.total, split.legitimate, split.abusive, split.unknown]
        for side, split in (("baseline", stopped.baseline), ("candidate", stopped.candidate))
    ]
    columns = ["side", "requests", "legitimate", "abusive", "unknown"]
    shown: list[RenderableType] = [table("Requests stopped by a deny in force", columns, rows, right=columns[1:])]
    if stopped.by_rule:
        rules = ", ".join(f"{one_line(name)} {pair_text(pair)}" for name, pair in stopped.by_rule.items())
        shown.append(Padding(escape(f"by rule: {rules}"), (0, 0, 0, 2)))
    if demand.blocklist:
        shown.append(
            Padding(
                f"Beside them {demand.blocklist:,} recorded blocklist denials; still stopped "
                f"{pair_text(demand.still_stopped)}, set free {pair_text(demand.freed)}: their demand is unknown.",
                (0, 0, 0, 2),
            )
        )
    return Group(*shown)


def _special(report: Report) -> RenderableType:
    shared, listed = report.shared, report.allowlisted
    hit, denied, size = (pair_text(one) for one in (shared.hit, shared.denied, shared.attributable))
    said = [f"Addresses that people share (N_eff ≥ 3), hit by a rule: {hit}, denied {denied}, for their size {size}."]
    said += [
        f"  {one.subject}: at least {one.effective_users:.1f} users, "
        f"{one.baseline or 'nothing'} → {one.candidate or 'nothing'}"
        for one in shared.addresses[:_TOP]
    ]
    if listed.subjects.baseline or listed.subjects.candidate or listed.requests.baseline or listed.requests.candidate:
        said.append(
            f"Allowlisted (by either policy): subjects penalised {pair_text(listed.subjects)}, requests with one of "
            f"them stopped {pair_text(listed.requests)}."
        )
        said += [f"  {subject}" for subject in listed.examples[:_TOP]]
    return "\n".join(escape(one_line(line)) for line in said)


def _top(report: Report) -> RenderableType:
    shown: list[RenderableType] = ["[bold]Subjects that differ most[/bold]"]
    for place, top in enumerate(report.top[:_TOP]):
        shown.append(f"[bold]{escape(top.subject)}[/bold]: {escape(top_text(top))}")
        if place >= _EXPLAINED:
            continue
        for step in top.steps[:2]:
            shown.append(Padding(escape(step_text(step)), (0, 0, 0, 2)))
            shown += [Padding(escape(sighting_text(one)), (0, 0, 0, 4)) for one in step.decisions]
    if len(report.top) > _TOP:
        shown.append(f"  and {len(report.top) - _TOP:,} more (--json, --html)")
    return Group(*shown)


def period(report: Report) -> str:
    """What was compared."""
    return (
        f"{report.decisions:,} decisions ({report.requests:,} requests), {report.outcomes:,} outcomes, "
        f"{instant(report.first_ms)} to {instant(report.last_ms)}"
    )
