"""How `penaltybox explain` prints: in force, ways out, arithmetic, rules, timeline. Readable at 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich.markup import escape

from penaltybox.cli.console import instant, left, out, settings, table
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Command, Decision, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.cli.explanation import Explanation, InForce
    from penaltybox.cli.timeline import Timeline
    from penaltybox.cli.ways_out import WayOut
    from penaltybox.contracts.events import Penalty
    from penaltybox.processors.retelling.story import Moment, Step

_EARLIER: Final = 10
_SUBJECTS: Final = ("user", "device", "ip", "api_key")
_SLOW_MS: Final = 60_000


def show(
    one: Explanation, ways: Sequence[WayOut], timeline: Timeline | None, earlier: Sequence[Penalty], missing: str
) -> None:
    """All of it.

    Args:
        one: what is in force and remembered.
        ways: what ends or lifts it.
        timeline: bounded already; None without ClickHouse.
        earlier: penalties before the timeline, newest first.
        missing: why there is no timeline.
    """
    _show_now(one)
    _show_ways(ways)
    _show_why(one)
    if timeline is None:
        out.print(f"\nPenalties and decisions are not shown: {missing}", markup=False)
        return
    _show_timeline(timeline)
    if earlier:
        out.print(f"\n[bold]Before that[/bold] ({len(earlier)} penalties, newest first)")
    for penalty in earlier[:_EARLIER]:
        _show_penalty(penalty, "")


def _show_now(one: Explanation) -> None:
    out.print(f"[bold]{one.subject}[/bold]")
    if one.paused:
        out.print(f"  new blocks are paused for everybody: {one.paused}", markup=False)
    for text in one.banned_ranges:
        out.print(f"  within a range that is banned by hand: {text}", markup=False)
    for entry in one.listed_by:
        out.print(f"  allowlist entry {entry}", markup=False)
    if one.allowlisted:
        out.print("  allowlisted: nothing happens to it; a block that still runs comes back when the listing ends")
    for hold in one.strays:
        by = f", rule {hold.rule}" if hold.rule else ""
        out.print(f"  {_held(hold)}{escape(by)}: no worker wrote that, its state has none")
    if not one.known:
        out.print("  nothing is stored: never seen by a rule, or forgotten")
        return
    for hold in one.in_force:
        out.print(f"  {_held(hold)}, rung {escape(hold.rung)}, by rule {escape(hold.rule)}")
    if not (one.in_force or one.strays or one.allowlisted):
        out.print("  neither denied nor challenged now")
    _show_standing(one)


def _held(hold: InForce) -> str:
    verb = f"[bold red]{'denied' if hold.action == 'deny' else 'challenged'}[/bold red]"
    if hold.left_ms is None:
        return f"{verb} permanently"
    rest = left(hold.left_ms)
    return f"{verb} for {rest}" if hold.until is None else f"{verb} until {instant(hold.until)} ({rest} left)"


def _show_standing(one: Explanation) -> None:
    """What is remembered of the subject beside a block: ladder, trust, risk, exemptions."""
    if one.last_rung != "none":
        ended = one.last_ends is not None and one.last_ends <= now_ms()
        out.print(f"  last rung {one.last_rung}, which {'ended' if ended else 'ends'} {instant(one.last_ends)}")
    if one.last_step_at:
        out.print(f"  decisions up to {instant(one.last_step_at)} are history: they count no more")
    if one.established or one.quota_percent != 100:  # noqa: PLR2004 - percent
        out.print(f"  trusted: {'established, ' if one.established else ''}quota {one.quota_percent} %")
    if one.established_users:
        out.print(f"  {one.established_users} established users seen on it lately{', shared' if one.shared_ip else ''}")
    if one.risk:
        out.print(f"  risk score {one.risk}")
    for name, until in (("grace", one.grace_until), ("passed a challenge, exempt", one.pass_until)):
        if until > now_ms():
            out.print(f"  {name} until {instant(until)}")


def _show_ways(ways: Sequence[WayOut]) -> None:
    if ways:
        out.print("\n[bold]What lifts it[/bold]")
    for way in ways:
        if way.command:
            out.print(f"  {way.command}", markup=False, soft_wrap=True)
            out.print(f"    {way.says}", markup=False)
        else:
            out.print(f"  {way.says}{f', {instant(way.at)}' if way.at else ''}", markup=False)
    if any(way.command for way in ways) and not settings().actor:
        out.print("  Each wants --actor NAME, too, or PENALTYBOX_ACTOR in the environment.")


def _show_why(one: Explanation) -> None:
    if one.known:
        out.print("\n[bold]Arithmetic[/bold]")
        for sentence in one.arithmetic:
            out.print(f"  {sentence}", markup=False)
    if one.rules:
        rows = [
            (f"{rule.rule}{' (shadow)' if rule.shadow else ''}", f"{rule.seen} of {rule.threshold}", rule.says)
            for rule in one.rules
        ]
        out.print()
        out.print(table("Rules on it now", ["rule", "seen", "says"], rows))


def _show_timeline(timeline: Timeline) -> None:
    out.print(f"\n[bold]Timeline[/bold] since {instant(timeline.since)}, policy {timeline.policy_version}")
    for at, version in timeline.policies if len(timeline.policies) > 1 else ():
        out.print(f"  from {instant(at)} under policy {version}", markup=False)
    if timeline.older_left_out:
        out.print("  the range has more events than are read: only the newest are told; try a later --since")
    if timeline.other_versions:
        versions = ", ".join(timeline.other_versions)
        out.print(f"  penalties in it were made under policy {versions}: verdicts may differ", markup=False)
    if not timeline.moments:
        out.print("  no decision, outcome or penalty of it is recorded in this range")
        return
    counts = ", ".join(f"{number:,} {verdict}" for verdict, number in timeline.verdicts.items())
    out.print(f"  {counts}", markup=False)
    for place, moment in enumerate(timeline.moments):
        if place == timeline.left_out_after:
            out.print(f"  … {timeline.left_out:,} more without a penalty (--limit shows more)")
        _show_moment(moment)
    for sentence in timeline.differences:
        out.print(f"  differs: {sentence}", markup=False)
    if timeline.differences:
        out.print(
            "  Live workers may have seen its events in another order (several partitions),\n"
            "  or ClickHouse may lack some still; what is recorded is what happened."
        )


def _show_moment(moment: Moment) -> None:
    marks = f"{' [shadow rule]' if moment.shadow else ''}"
    if moment.came_after_ms >= _SLOW_MS:
        marks += f" [came {left(moment.came_after_ms)} late]"
    out.print(f"  {moment.verdict:<10} {instant(moment.at)} {_about(moment)}{marks}", markup=False)
    until = "" if moment.until == 0 else f" until {instant(moment.until)}"
    seen = ", ".join(f"{rule.rule} {rule.seen} of {rule.threshold}" for rule in moment.rules)
    parts = [f"{moment.why}{until}"] if moment.verdict != "counted" else []
    parts += [seen] if seen and moment.verdict == "counted" else []
    parts += [f"risk {moment.risk}"] if moment.risk else []
    parts += [f"{moment.established_users} established users"] if moment.established_users else []
    if parts:
        out.print(f"             {'; '.join(parts)}", markup=False)
    for step in moment.steps:
        _show_penalty(step.penalty, _told(step))


def _about(moment: Moment) -> str:
    record = moment.record
    if isinstance(record, Decision):
        reason = f" {record.reason}" if record.reason else ""
        violated = f" {','.join(record.violated)}" if record.violated else ""
        times = f" x{record.count}" if record.count > 1 else ""
        shown = " ".join(f"{name}={record.subjects[name]}" for name in _SUBJECTS if name in record.subjects)
        return f"{record.action}{times}{reason}{violated} {record.scenario} {shown}"
    if isinstance(record, Outcome):
        return record.label
    return f"by hand: {record.verb}" if isinstance(record, Command) else "penalty"


def _told(step: Step) -> str:
    return {"both": "", "recorded": " [not in the re-run]", "rerun": " [in the re-run only]"}[step.told]


def _show_penalty(penalty: Penalty, told: str) -> None:
    marks = "".join(f" [{name}]" for name in ("shadow", "late") if getattr(penalty, name))
    by = f"by hand ({penalty.actor}: {penalty.note})" if penalty.origin == "hand" else f"by {penalty.rule}"
    until = f", until {instant(penalty.until)}" if penalty.action in ("deny", "challenge", "warn") else ""
    verb = "would " + penalty.action if penalty.shadow else penalty.action
    out.print(f"{instant(penalty.ts)}  {verb}  {penalty.from_} → {penalty.to}{until}, {by}{marks}{told}", markup=False)
    out.print(f"  why: {_why(penalty)}", markup=False)


def _why(penalty: Penalty) -> str:
    """The evidence in words: what each rule had, what was forgiven, capped, softened; and the policy."""
    evidence = penalty.evidence
    rules = evidence.get("rules", [])
    said = [f"{name}: {evidence[name]}" for name in rules if name in evidence] if isinstance(rules, list) else []
    words = {
        "forgiven": "forgiven {} rungs",
        "cap": "held down: {}",
        "softened": "a challenge, not a denial: {}",
        "softens": "softens {}",
        "lifts": "lifts {}",
        "established_users": "{} established users seen",
        "grace": "grace {}",
        "points": "{} points of trust",
    }
    said += [form.format(_plain(evidence[name])) for name, form in words.items() if evidence.get(name)]
    return "; ".join([*said, f"policy {penalty.policy_version}"])


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
