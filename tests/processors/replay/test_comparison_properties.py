"""What holds for a comparison of any two policies over any traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from hypothesis import given

from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay.changes import empty
from penaltybox.processors.replay.comparison import Comparison
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.metrics import CHANGES, metrics_of
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from tests.processors.campaigns import campaigns, policies, usual
from tests.processors.engine_driver import Drive

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.replay.observer import Side
    from penaltybox.processors.replay.report import Change, Report
    from tests.processors.campaigns import Delivery

OPPOSITE = {"new": "gone", "earlier": "later", "longer": "shorter"}
OPPOSITE |= {value: key for key, value in OPPOSITE.items()}


def compared(baseline: Policy, candidate: Policy, deliveries: list[Delivery]) -> Report:
    """The report of two engines over the same events."""
    drives: dict[Side, Drive] = {BASELINE: Drive(baseline), CANDIDATE: Drive(candidate)}
    canonicaliser = Canonicaliser()
    comparison = Comparison({BASELINE: baseline, CANDIDATE: candidate}, canonicaliser)
    for event, broker_ms, late in deliveries:
        if isinstance(event, Decision):
            comparison.decision(event, canonicaliser.names(event.subjects), {}, True)
        else:
            assert isinstance(event, Outcome)
            comparison.outcome(event, True)
        for side, drive in drives.items():
            before = len(drive.penalties)
            drive.judge(event, broker_ms, late=late)
            for penalty in drive.penalties[before:]:
                comparison.penalty(side, penalty, True)
    return report_of(comparison)


def all_changes(report: Report) -> dict[str, Change]:
    """Every change in a report, by where it stands."""
    found = {"total": report.total, "permanent": report.permanent, "shadow": report.shadow}
    for kind in ("dimensions", "rules", "rungs", "actions", "shadow_rules"):
        found |= {f"{kind} {name}": change for name, change in getattr(report, kind).items()}
    return found | {f"{r.dimension} {r.rule} {r.rung} {r.action} {r.shadow}": r.change for r in report.rows}


@usual
@given(policies(), campaigns())
def test_a_policy_does_not_differ_from_itself(policy: Policy, deliveries: list[Delivery]) -> None:
    """No subject is new, gone, earlier, later, longer or shorter; both sides have the same rates; nobody is shown."""
    report = compared(policy, policy, deliveries)
    for change in all_changes(report).values():
        assert change.baseline == change.candidate
        assert change.penalties.baseline == change.penalties.candidate
        for name in CHANGES:
            assert getattr(change, name) == empty().new
    assert all(rates.baseline == rates.candidate for rates in report.rates.values())
    assert report.top == []


@usual
@given(policies(), policies(), campaigns())
def test_swapping_the_sides_mirrors_the_report(one: Policy, other: Policy, deliveries: list[Delivery]) -> None:
    """What is new is gone seen from the other side, earlier is later, longer is shorter."""
    there, back = compared(one, other, deliveries), compared(other, one, deliveries)
    forth, mirrored = all_changes(there), all_changes(back)
    assert forth.keys() == mirrored.keys()
    for where, change in forth.items():
        mirror = mirrored[where]
        assert (change.baseline, change.candidate) == (mirror.candidate, mirror.baseline)
        for name in CHANGES:
            assert getattr(change, name) == getattr(mirror, OPPOSITE[name]), (where, name)
        assert change.new.total - change.gone.total == change.candidate.total - change.baseline.total
    for dimension, rates in there.rates.items():
        assert (rates.baseline, rates.candidate) == (back.rates[dimension].candidate, back.rates[dimension].baseline)
    assert {top.subject for top in there.top} == {top.subject for top in back.top}


@usual
@given(policies(), policies(), campaigns())
def test_a_report_survives_json_and_its_figures_have_names(
    one: Policy, other: Policy, deliveries: list[Delivery]
) -> None:
    """What is printed is what was found; labels add up to totals; every figure can be asked for."""
    report = compared(one, other, deliveries)
    assert msgspec.json.decode(msgspec.json.encode(report), type=type(report)) == report
    for change in all_changes(report).values():
        for name in (*CHANGES, "baseline", "candidate"):
            split = getattr(change, name)
            assert split.total == split.legitimate + split.abusive + split.unknown
    metrics = metrics_of(report)
    assert metrics["new.total"] == report.total.new.total
    # A name that is known before the replay is known after it.
    assert metrics_of(report_of(Comparison({BASELINE: one, CANDIDATE: other}))).keys() <= metrics.keys()
