"""How a replay's report is put into words, for the terminal and the page alike."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.cli.console import instant, left, one_line
from penaltybox.processors.replay.histories import ENDLESS_MS
from penaltybox.processors.replay.report import Pair

if TYPE_CHECKING:
    from penaltybox.contracts.rates import Rate
    from penaltybox.processors.replay.report import Report, Row, Sighting, Split, Step, Top

SMALL: Final = 0.1


def split_text(split: Split) -> str:
    """``12 (2/1/9)``: total (legitimate/abusive/unknown); the bracket only where a label is known."""
    if not split.legitimate and not split.abusive:
        return f"{split.total:,}"
    return f"{split.total:,} ({split.legitimate:,}/{split.abusive:,}/{split.unknown:,})"


def pair_text(pair: Pair) -> str:
    """``3 → 5``: baseline, candidate."""
    return f"{pair.baseline:,} → {pair.candidate:,}"


def rung_text(row: Row) -> str:
    """Where a rule leads: ``5m``, ``challenge``, ``1h as challenge``; a shadow rule's is marked."""
    text = row.rung if row.action != "challenge" or row.rung == "challenge" else f"{row.rung} as challenge"
    return f"{text} (shadow)" if row.shadow else text


def rate_text(rate: Rate) -> str:
    """``2.1% (0.8-4.3)``: the rate and its 95 % interval; or why there is none."""
    if rate.status == "none":
        return "none limited"
    if rate.value is None or rate.low is None or rate.high is None:
        return rate.status
    return f"{rate.value * 100:.1f}% ({_percent(rate.low)}-{_percent(rate.high)})"


def _percent(share: float) -> str:
    return f"{share * 100:.1f}" if share < SMALL else f"{share * 100:.0f}"


def headline(report: Report) -> list[str]:
    """What to read if one reads nothing else."""
    total, permanent = report.total, report.permanent
    said = [f"{total.new.total:,} subjects would be newly penalised, {total.gone.total:,} no longer."]
    harmed = total.new.legitimate
    if harmed:
        said.append(f"Of the newly penalised, outcomes call {harmed:,} legitimate.")
    said.append(f"{permanent.new.total:,} would newly be blocked for good, {permanent.gone.total:,} no longer.")
    said.append(f"Requests stopped by a deny: {pair_text(stopped_pair(report))}.")
    shadow = Pair(baseline=report.shadow.baseline.total, candidate=report.shadow.candidate.total)
    if shadow.baseline or shadow.candidate:
        said.append(f"Shadow rules would penalise {pair_text(shadow)} subjects; no other figure counts them.")
    return said


def stopped_pair(report: Report) -> Pair:
    """Requests stopped on both sides."""
    return Pair(baseline=report.stopped.baseline.total, candidate=report.stopped.candidate.total)


def held_text(ms: int) -> str:
    """A duration; a hundred years are permanent."""
    return "permanent" if ms >= ENDLESS_MS else left(ms) if ms else "never"


def top_text(top: Top) -> str:
    """What differs for a subject, in a line."""
    standing = f"{top.standing} ({', '.join(top.labels)})" if top.labels else top.standing
    parts = [", ".join(top.change), standing]
    if top.denied_ms.baseline or top.denied_ms.candidate:
        parts.append(f"denied {held_text(top.denied_ms.baseline)} → {held_text(top.denied_ms.candidate)}")
    if top.stopped.baseline or top.stopped.candidate:
        parts.append(f"stopped {pair_text(top.stopped)}")
    return "; ".join(parts)


def step_text(step: Step) -> str:
    """A penalty in a line: side, time, rule, rungs, until."""
    shadow = " (shadow)" if step.shadow else ""
    end = f"until {instant(step.until)}" if step.until is not None else "permanent"
    return (
        f"{step.side}: {instant(step.ts)} {one_line(step.rule)}{shadow}: {step.from_} → {step.to}, {step.action}, {end}"
    )


def sighting_text(one: Sighting) -> str:
    """A decision in a line."""
    times = f" x{one.count:,}" if one.count > 1 else ""
    reason = f"/{one.reason}" if one.reason else ""
    what = " ".join(part for part in (one.scenario, one.route, *one.violated) if part)
    who = " ".join(f"{dimension}={value}" for dimension, value in one.subjects.items())
    return one_line(f"{instant(one.ts)} {one.action}{reason}{times} {what} {who}")
