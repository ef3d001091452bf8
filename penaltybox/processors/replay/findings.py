"""A report out of a comparison: what is small enough for a page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.labels import STANDINGS
from penaltybox.processors.replay import changes
from penaltybox.processors.replay.changes import Changes, differences, met
from penaltybox.processors.replay.comparison import SIDES, shared_address
from penaltybox.processors.replay.crowds import SHARED
from penaltybox.processors.replay.false_positives import false_positives, maturity_of
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.report import (
    Demand,
    Listed,
    Pair,
    Report,
    Shared,
    SharedAddress,
    Sighting,
    Split,
    Step,
    Stopped,
    Times,
    Top,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penaltybox.processors.replay.cases import Case
    from penaltybox.processors.replay.comparison import Comparison
    from penaltybox.processors.replay.histories import Course, History
    from penaltybox.processors.replay.observer import Side

TOP: Final = 20
_EXAMPLES: Final = 10


def report_of(comparison: Comparison, *, as_of_ms: int | None = None, top: int = TOP) -> Report:
    """The report.

    Args:
        comparison: after the replay.
        as_of_ms: until when outcomes are known; the end of the record unless given.
        top: how many subjects to show.
    """
    counted = Changes()
    for subject, history in comparison.histories.items():
        if history.courses:
            counted.add(subject, history)
    dimensions = _dimensions(comparison)
    maturity = maturity_of(comparison, comparison.last_ms + 1 if as_of_ms is None else as_of_ms)
    rules = [rule for policy in comparison.policies.values() for rule in policy.rules]
    return Report(
        first_ms=comparison.first_ms,
        last_ms=comparison.last_ms,
        decisions=comparison.decisions,
        outcomes=comparison.outcomes,
        requests=round(comparison.requests),
        subjects=_seen(comparison),
        total=counted.of(changes.TOTAL),
        permanent=counted.of(changes.PERMANENT),
        dimensions=counted.named("dimension", dimensions),
        rules=counted.named("rule", (rule.name for rule in rules if not rule.shadow)),
        rungs=counted.named("rung", _rungs(comparison)),
        actions=counted.named("action", ("warn", "challenge", "deny")),
        rows=counted.rows(),
        shadow=counted.of(changes.SHADOW),
        shadow_rules=counted.named("shadow_rule", (rule.name for rule in rules if rule.shadow)),
        maturity=maturity,
        rates=false_positives(comparison, maturity, dimensions),
        stopped=_stopped(comparison),
        demand=_demand(comparison),
        shared=_shared(comparison),
        allowlisted=_listed(comparison),
        top=_top(comparison, top),
        times=_times(comparison),
        remarks=_remarks(comparison),
    )


def _dimensions(comparison: Comparison) -> list[str]:
    """On which dimensions a rule may penalise."""
    return sorted({rule.on for policy in comparison.policies.values() for rule in policy.rules})


def _rungs(comparison: Comparison) -> list[str]:
    named = [rung.name for policy in comparison.policies.values() for rung in policy.ladder.rungs]
    return list(dict.fromkeys([*named, "challenge"]))


def _seen(comparison: Comparison) -> dict[str, int]:
    counts: dict[str, int] = {}
    for subject in comparison.seen:
        dimension = subject.partition(":")[0]
        counts[dimension] = counts.get(dimension, 0) + 1
    return dict(sorted(counts.items()))


def _pair(numbers: Mapping[Side, float]) -> Pair:
    return Pair(baseline=round(numbers.get(BASELINE, 0)), candidate=round(numbers.get(CANDIDATE, 0)))


def _stopped(comparison: Comparison) -> Stopped:
    sums = {side: dict.fromkeys(STANDINGS, 0.0) for side in SIDES}
    for history in comparison.histories.values():
        for side, requests in (history.stopped or {}).items():
            sums[side][history.standing] += requests
    splits = {
        side: Split(total=round(sum(mine.values())), **{standing: round(mine[standing]) for standing in STANDINGS})
        for side, mine in sums.items()
    }
    by_rule: dict[str, dict[Side, float]] = {}
    by_rung: dict[str, dict[Side, float]] = {}
    for stop, requests in comparison.stops.items():
        for found, name in ((by_rule, stop.rule), (by_rung, stop.rung)):
            mine = found.setdefault(name, dict.fromkeys(SIDES, 0.0))
            mine[stop.side] += requests
    return Stopped(
        baseline=splits[BASELINE],
        candidate=splits[CANDIDATE],
        by_rule={name: _pair(mine) for name, mine in sorted(by_rule.items())},
        by_rung={name: _pair(mine) for name, mine in sorted(by_rung.items())},
    )


def _demand(comparison: Comparison) -> Demand:
    still = comparison.blocklisted_stopped
    return Demand(
        blocklist=round(comparison.blocklisted),
        still_stopped=_pair(still),
        freed=_pair({side: comparison.blocklisted - still[side] for side in SIDES}),
        challenged=round(comparison.challenged),
    )


def _hit(course: Course | None) -> str:
    """The hardest thing that really happened to a subject: deny, challenge, or nothing."""
    actions = {cell.action for cell in course.stays if not cell.shadow} if course is not None else set()
    return "deny" if "deny" in actions else "challenge" if "challenge" in actions else ""


def _shared(comparison: Comparison) -> Shared:
    hits: dict[str, dict[Side, str]] = {}
    for subject, history in comparison.histories.items():
        address = shared_address(subject) if history.courses else ""
        crowd = comparison.crowds.get(address)
        if crowd is None or crowd.effective < SHARED:
            continue
        for side, course in history.courses.items():
            mine = hits.setdefault(address, {})
            mine[side] = min(mine.get(side, ""), _hit(course), key=("deny", "challenge", "").index)
    hits = {address: mine for address, mine in hits.items() if any(mine.values())}
    crowds = comparison.crowds

    def number(kept: Iterable[tuple[str, Side]]) -> Pair:
        sides = [side for _, side in kept]
        return Pair(baseline=sides.count(BASELINE), candidate=sides.count(CANDIDATE))

    met_by = [(address, side) for address, mine in hits.items() for side, hit in mine.items() if hit]
    rows = [
        SharedAddress(
            subject=address,
            effective_users=round(crowds[address].effective, 1),
            baseline=mine.get(BASELINE, ""),
            candidate=mine.get(CANDIDATE, ""),
            attributable=any(crowds[address].attributable(side) for side, hit in mine.items() if hit),
        )
        for address, mine in hits.items()
    ]
    rows.sort(key=lambda row: (row.baseline == row.candidate, -row.effective_users, row.subject))
    return Shared(
        hit=number(met_by),
        denied=number((address, side) for address, side in met_by if hits[address][side] == "deny"),
        attributable=number((address, side) for address, side in met_by if crowds[address].attributable(side)),
        addresses=rows[:_EXAMPLES],
    )


def _listed(comparison: Comparison) -> Listed:
    subjects = comparison.listed_subjects
    return Listed(
        subjects=_pair({side: len(subjects[side]) for side in SIDES}),
        requests=_pair(comparison.listed_requests),
        examples=sorted(subjects[CANDIDATE] | subjects[BASELINE])[:_EXAMPLES],
    )


def _top(comparison: Comparison, number: int) -> list[Top]:
    """The subjects that differ, those first that matter most."""
    found = []
    for subject, history in comparison.histories.items():
        if not history.courses:
            continue
        changed = _changed(subject, history)
        if changed:
            found.append((subject, changed))
    found.sort(key=lambda one: ([-part for part in comparison.rank(one[0])], one[0]))
    return [_subject(comparison, subject, changed) for subject, changed in found[:number]]


def _changed(subject: str, history: History) -> list[str]:
    """In what both sides differ for a subject; for shadow rules alone the words say so."""
    dimension = subject.partition(":")[0]
    sides = [met(history.courses.get(side), dimension) for side in SIDES]
    real = differences(*(side.get(changes.TOTAL) for side in sides))
    shadow = differences(*(side.get(changes.SHADOW) for side in sides))
    return real or [f"shadow {word}" for word in shadow]


def _subject(comparison: Comparison, subject: str, changed: list[str]) -> Top:
    history = comparison.histories[subject]
    denied = {
        side: sum(stay.held_ms for cell, stay in course.stays.items() if cell.action == "deny" and not cell.shadow)
        for side, course in history.courses.items()
    }
    return Top(
        subject=subject,
        change=changed,
        standing=history.standing,
        labels=sorted(history.labels) + (["abuse"] if history.abusive else []),
        stopped=_pair(history.stopped or {}),
        denied_ms=_pair(denied),
        steps=[_step(case) for case in comparison.cases.of(subject)],
    )


def _step(case: Case) -> Step:
    penalty = case.penalty
    return Step(
        side=case.side,
        ts=penalty.ts,
        rule=penalty.rule,
        from_=penalty.from_,
        to=penalty.to,
        action=penalty.action,
        until=penalty.until,
        shadow=penalty.shadow,
        evidence=penalty.evidence,
        decisions=[
            Sighting(
                ts=one.ts,
                id=one.id,
                action=one.action,
                reason=one.reason or "",
                scenario=one.scenario,
                route=one.route,
                violated=list(one.violated),
                subjects=one.subjects,
                count=one.count,
                trigger=one.id == penalty.trigger_id,
            )
            for one in case.decisions
        ],
    )


def _times(comparison: Comparison) -> Times:
    timeline = comparison.timeline
    return Times(
        start_ms=timeline.start_ms,
        bucket_ms=timeline.bucket_ms,
        penalties={side: timeline.values(f"penalties {side}") for side in SIDES},
        stopped={side: timeline.values(f"stopped {side}") for side in SIDES},
    )


def _remarks(comparison: Comparison) -> list[str]:
    """What a reader must know to read the figures right."""
    remarks = []
    if not comparison.outcomes:
        remarks.append("There are no outcomes in this period, so nobody is known to be legitimate or abusive.")
    if comparison.glimpses.sampled:
        remarks.append(
            "Allowed requests are sampled here: rules that see them saw too few. Legitimate subjects of whom no "
            "request was recorded count in the FPR by an estimate (legitimate_missed), rather too few of them than too "
            "many, so it is the true one or above it."
        )
    if comparison.blocklisted:
        remarks.append(
            f"{comparison.blocklisted:,.0f} recorded requests were denied by the blocklist of then. They count towards "
            "no rule, and what they would have met without it is unknown."
        )
    return remarks
