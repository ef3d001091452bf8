"""Hand-made runs, each figure of whose report can be computed by hand."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.report import Pair, Split
from tests.processors.replay.runs import HOUR_MS, MINUTE_MS, T0_MS, Run, hold

if TYPE_CHECKING:
    from penaltybox.processors.replay.report import Row


def row(rows: list[Row], **wanted: Any) -> Row:
    (found,) = [one for one in rows if all(getattr(one, key) == value for key, value in wanted.items())]
    return found


def test_new_and_gone_are_counted_by_rule_rung_and_label() -> None:
    """u1 (paid) and u2 are new, u3 (abusive) is gone, u4 is on both sides and changes nothing."""
    run = Run()
    for user in ("u1", "u2", "u3", "u4"):
        run.denial(subjects={"user": user})
        for side in (BASELINE, CANDIDATE):
            if (side, user) not in {(BASELINE, "u1"), (BASELINE, "u2"), (CANDIDATE, "u3")}:
                run.penalty(side, f"user:{user}")
    run.outcome("payment_ok", 10, user="u1")
    run.outcome("confirmed_abuse", 10, user="u3")
    report = report_of(run.comparison)
    for change in (
        report.total,
        report.dimensions["user"],
        report.rules["r"],
        report.rungs["5m"],
        report.rows[0].change,
    ):
        assert change.new == Split(total=2, legitimate=1, unknown=1)
        assert change.gone == Split(total=1, abusive=1)
        assert change.penalties == Pair(baseline=2, candidate=3)
        assert (change.earlier.total, change.later.total, change.longer.total, change.shorter.total) == (0, 0, 0, 0)
    assert report.permanent.new.total == 0


def test_earlier_and_longer_are_told_apart() -> None:
    """u1 is blocked a minute earlier; u2 for an hour instead of five minutes, u3 the other way round."""
    run = Run()
    run.denial()
    run.penalty(CANDIDATE, "user:u1", 4)
    run.penalty(BASELINE, "user:u1", 5)
    run.penalty(BASELINE, "user:u2", 5)
    run.penalty(CANDIDATE, "user:u2", 5, to="1h")
    run.penalty(BASELINE, "user:u3", 5, to="1h")
    run.penalty(CANDIDATE, "user:u3", 5)
    report = report_of(run.comparison)
    total = report.total
    assert (total.new.total, total.gone.total) == (0, 0)
    assert (total.earlier.total, total.later.total, total.longer.total, total.shorter.total) == (1, 0, 1, 1)
    assert report.rungs["1h"].new.total == report.rungs["1h"].gone.total == 1


def test_overlapping_blocks_are_not_added_up() -> None:
    """5 minutes from 0 and again from 3 hold for 8 minutes; 5 minutes from 0 and from 5 for 10."""
    run = Run()
    run.denial()
    for side, second in ((BASELINE, 3), (CANDIDATE, 5)):
        run.penalty(side, "user:u1", 0)
        run.penalty(side, "user:u1", second, trigger_id=side)
    report = report_of(run.comparison)
    assert report.total.longer.total == 1
    assert report.top[0].denied_ms == Pair(baseline=8 * MINUTE_MS, candidate=10 * MINUTE_MS)


def test_a_lift_ends_what_it_lifts() -> None:
    """A softened block and an unban by hand count until then only; a passed challenge leaves the block alone."""
    run = Run()
    run.denial()
    run.penalty(BASELINE, "ip:203.0.113.7", 0, to="1h")
    run.penalty(CANDIDATE, "ip:203.0.113.7", 0, to="1h")
    run.penalty(BASELINE, "ip:203.0.113.7", 10, action="challenge", from_="1h", to="1h", rule="shared_ip",
                evidence={"softens": "p"}, trigger_id="x")  # fmt: skip
    run.penalty(CANDIDATE, "ip:203.0.113.7", 5, action="lift", rule="challenge_passed", trigger_id="y")
    run.penalty(CANDIDATE, "ip:203.0.113.7", 20, action="lift", rule="by hand", origin="hand", trigger_id="z")
    (top,) = report_of(run.comparison).top
    assert top.denied_ms == Pair(baseline=10 * MINUTE_MS, candidate=20 * MINUTE_MS)


def test_permanent_is_counted_apart() -> None:
    """Only a deny without an end is permanent; it is longer than any other."""
    run = Run()
    run.denial()
    run.penalty(BASELINE, "user:u1", 0, to="1h")
    run.penalty(CANDIDATE, "user:u1", 0, to="permanent")
    report = report_of(run.comparison)
    assert report.permanent.new.total == 1
    assert report.total.longer.total == 1
    assert report.total.new.total == 0


def test_shadow_rules_are_in_rows_and_in_no_total() -> None:
    """A would-be penalty is marked, and nobody is newly penalised by it."""
    run = Run()
    run.denial()
    run.penalty(CANDIDATE, "user:u1", 0, shadow=True, rule="tried")
    report = report_of(run.comparison)
    assert report.total.candidate.total == 0
    assert row(report.rows, rule="tried").shadow
    assert report.shadow.new.total == report.shadow_rules["tried"].new.total == 1
    assert "tried" not in report.rules
    assert report.top[0].change == ["shadow new"]
    assert sum(report.times.penalties[CANDIDATE]) == 0


def test_what_is_done_by_hand_is_no_rules_doing() -> None:
    """A ban by hand is on neither side's account."""
    run = Run()
    run.denial()
    run.penalty(BASELINE, "user:u1", 0, origin="hand", rule="by hand")
    report = report_of(run.comparison)
    assert report.total.gone.total == 0
    assert report.rows == []


def test_the_warm_up_counts_for_nothing() -> None:
    """Neither its decisions nor its penalties nor its labels; abuse is known for good."""
    run = Run()
    run.decision(counted=False, subjects={"user": "u1"})
    run.penalty(CANDIDATE, "user:u1", 0, counted=False)
    run.outcome("payment_ok", 0, counted=False, user="u2")
    run.outcome("chargeback", 0, counted=False, user="u3")
    run.denial(5, subjects={"user": "u2"})
    for user in ("u2", "u3"):
        run.penalty(CANDIDATE, f"user:{user}", 5)
    report = report_of(run.comparison)
    assert report.decisions == 1
    assert report.total.new == Split(total=2, abusive=1, unknown=1)


def test_stopped_requests_and_the_demand_nobody_knows() -> None:
    """Requests weigh by count and sampling; recorded blocklist denials are counted apart, dry runs not at all."""
    run = Run()
    both = {BASELINE: hold(), CANDIDATE: hold("tight", "1h")}
    run.decision(stopped={CANDIDATE: hold("tight", "1h")}, count=3)
    run.decision(stopped=both, sample_rate=0.1)
    run.decision(action="deny", reason="blocklist", count=7, stopped={BASELINE: hold()})
    run.decision(action="deny", reason="blocklist", count=2)
    run.decision(action="challenge", reason="challenged")
    run.decision(stopped=both, enforced=False)
    run.outcome("payment_ok", 1, user="u1")
    report = report_of(run.comparison)
    assert report.requests == 3 + 10 + 7 + 2 + 1
    assert report.stopped.baseline == Split(total=10, legitimate=10)
    assert report.stopped.candidate == Split(total=13, legitimate=13)
    assert report.stopped.by_rule == {"r": Pair(baseline=10), "tight": Pair(candidate=13)}
    assert report.stopped.by_rung == {"1h": Pair(candidate=13), "5m": Pair(baseline=10)}
    assert (report.demand.blocklist, report.demand.challenged) == (9, 1)
    assert report.demand.still_stopped == Pair(baseline=7)
    assert report.demand.freed == Pair(baseline=2, candidate=9)
    assert any("blocklist of then" in remark for remark in report.remarks)
    assert any("sampled" in remark for remark in report.remarks)


def test_rates_count_mature_episodes() -> None:
    """30 addresses, 3 of people who pay (weight 0.9): FDR 2.7/30. Two penalties in 9 minutes are one episode."""
    run = Run()
    for n in range(30):
        run.denial(0, subjects={"ip": f"10.0.0.{n}"})
        run.penalty(CANDIDATE, f"ip:10.0.0.{n}", 0)
        run.penalty(CANDIDATE, f"ip:10.0.0.{n}", 9, trigger_id="again")
    for n in range(3):
        run.outcome("payment_ok", 60, ip=f"10.0.0.{n}")
    for n in range(30, 60):
        run.decision(0, subjects={"ip": f"10.0.0.{n}"})
        run.outcome("payment_ok", 60, ip=f"10.0.0.{n}")
    run.denial(24 * 60 + 10, subjects={"ip": "10.0.1.1"})
    run.penalty(CANDIDATE, "ip:10.0.1.1", 24 * 60 + 10)
    rates = report_of(run.comparison).rates["ip"]
    fdr, fpr = rates.candidate.fdr, rates.candidate.fpr
    assert (rates.candidate.episodes, rates.candidate.labelled, rates.candidate.immature) == (30, 3, 1)
    assert (fdr.value, fdr.status) == (pytest.approx(0.09), "report only")
    assert (fdr.low, fdr.high) == (pytest.approx(0.0295, abs=1e-4), pytest.approx(0.2436, abs=1e-4))
    assert fpr.n == pytest.approx(33)
    assert fpr.value == pytest.approx(3 / 33)
    assert (rates.baseline.fdr.value, rates.baseline.fdr.status) == (0.0, "none")


def test_too_few_episodes_have_no_rate() -> None:
    """29 mature episodes are not enough."""
    run = Run(matures_ms=0)
    for n in range(29):
        run.denial(0, subjects={"user": f"u{n}"})
        run.penalty(CANDIDATE, f"user:u{n}", 0)
    run.outcome("payment_ok", 0, user="u1")
    run.decision(1)
    rates = report_of(run.comparison).rates["user"].candidate
    assert (rates.episodes, rates.fdr.status, rates.fdr.value) == (29, "insufficient", None)


def test_an_address_that_people_share_is_named() -> None:
    """Four established users with equal shares are N_eff 4; it is attributable until a user there goes over a limit."""
    run = Run()
    for address in ("203.0.113.7", "203.0.113.8", "203.0.113.9"):
        for n in range(4):
            if address != "203.0.113.9" or n < 2:
                run.decision(subjects={"user": f"{address}u{n}", "ip": address}, established=True)
        run.penalty(CANDIDATE, f"ip:{address}")
    run.penalty(BASELINE, "ip:203.0.113.8", action="challenge", to="none")
    run.denial(subjects={"user": "mallory", "ip": "203.0.113.8"}, violated=("user:daily",))
    shared = report_of(run.comparison).shared
    assert (shared.hit, shared.denied) == (Pair(baseline=1, candidate=2), Pair(candidate=2))
    assert shared.attributable == Pair(candidate=1)
    assert [(one.subject, one.effective_users, one.baseline, one.candidate) for one in shared.addresses] == [
        ("ip:203.0.113.7", 4.0, "", "deny"),
        ("ip:203.0.113.8", 4.0, "challenge", "deny"),
    ]


def test_a_user_punished_there_makes_an_address_guilty_on_that_side_only() -> None:
    """The candidate denies a user for what happened on the address: there it is not its size alone."""
    run = Run()
    for n in range(4):
        run.decision(subjects={"user": f"u{n}", "ip": "203.0.113.7"}, established=True)
    run.penalty(CANDIDATE, "user:u3")
    for side in (BASELINE, CANDIDATE):
        run.penalty(side, "ip:203.0.113.7")
    assert report_of(run.comparison).shared.attributable == Pair(baseline=1)


def test_the_decisions_that_led_to_a_difference_are_shown() -> None:
    """The trigger and the three before it, of the side that differs; a penalty that both have is no difference."""
    run = Run()
    for minute in range(6):
        run.denial(minute)
    run.penalty(BASELINE, "user:u1", 5)
    run.penalty(CANDIDATE, "user:u1", 5)
    run.denial(6)
    run.penalty(CANDIDATE, "user:u1", 11, to="1h")
    (top,) = report_of(run.comparison).top
    (step,) = top.steps
    assert (step.side, step.to) == (CANDIDATE, "1h")
    assert [one.id for one in step.decisions] == ["e4", "e5", "e6", "e7"]
    assert [one.trigger for one in step.decisions] == [False, False, False, True]
    assert top.change == ["longer"]


def test_only_the_first_differences_of_a_subject_are_kept() -> None:
    """Three per side; what both sides do later is no difference, although there was no room for it."""
    run = Run()
    for n in range(5):
        run.denial(10 * n)
        run.penalty(CANDIDATE, "user:u1", 10 * n)
    run.denial(60)
    run.penalty(CANDIDATE, "user:u1", 60)
    run.penalty(BASELINE, "user:u1", 60)
    (top,) = report_of(run.comparison).top
    assert [(step.side, step.ts) for step in top.steps] == [(CANDIDATE, T0_MS + n * 10 * MINUTE_MS) for n in range(3)]


def test_time_is_in_equal_buckets_however_long_it_is() -> None:
    """Penalties over 40 days fit into 120 buckets, and none is lost."""
    run = Run()
    for day in range(40):
        run.denial(24 * 60 * day)
        run.penalty(CANDIDATE, f"user:u{day}", 24 * 60 * day)
    times = report_of(run.comparison).times
    assert sum(times.penalties[CANDIDATE]) == 40
    assert len(times.penalties[CANDIDATE]) == len(times.stopped[BASELINE]) <= 120
    assert times.bucket_ms * len(times.penalties[CANDIDATE]) >= 39 * 24 * HOUR_MS


def test_memory_is_flat_in_the_length_of_the_record() -> None:
    """Twenty thousand more decisions about the same subjects, blocked all the while, add next to nothing."""
    run = Run()

    def hour(number: int) -> None:
        for n in range(2_000):
            subjects = {"user": f"u{n % 50}", "ip": f"203.0.113.{n % 20}"}
            run.denial(60 * number + n / 40, subjects=subjects, established=True, stopped={BASELINE: hold()})
            if n % 40 == 0:  # every five minutes or so, which is one long episode
                run.penalty(BASELINE, f"user:u{n % 50}", 60 * number + n / 40, to="1h")
        run.outcome("payment_ok", 60 * number, user="u1")

    for number in range(3):
        hour(number)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(3, 13):
        hour(number)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert report_of(run.comparison).decisions == 26_000
    # The timeline and the last decisions of each subject are replaced, not added to.
    assert grown < 300_000, grown
