"""The false positive rate where allowed requests are sampled, in worlds whose truth is known."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.glimpses import Glimpses, missed
from penaltybox.processors.replay.observer import CANDIDATE
from tests.processors.replay.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.processors.replay.report import SideRates

USERS, LIMITED = 2000, 100
"""All of them pay; so many are denied by a rule: the truth is 5 %."""
TRUTH = LIMITED / USERS


def replayed(requests: Callable[[random.Random], int], share: float, seed: int) -> SideRates:
    """The user's rates of a world where each makes so many requests, of which this share is recorded."""
    chance, run = random.Random(seed), Run(matures_ms=0)
    for n in range(USERS):
        subjects = {"user": f"u{n}"}
        for _ in range(requests(chance)):
            if chance.random() < share:
                run.decision(1, subjects=subjects, sample_rate=share)
        if n < LIMITED:
            run.denial(2, subjects=subjects)
            run.penalty(CANDIDATE, f"user:u{n}", 2)
        run.outcome("payment_ok", 3, user=f"u{n}")
    run.decision(10, subjects={"device": "last"})
    return report_of(run.comparison).rates["user"].candidate


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("requests", "share"), [(5, 0.2), (3, 0.5), (20, 0.1)])
def test_who_was_missed_counts(requests: int, share: float, seed: int) -> None:
    """Where all ask equally often, the rate is the true one: without the missed it would be up to half above it."""
    found = replayed(lambda _: requests, share, seed)
    recorded = found.legitimate_seen - found.legitimate_missed
    assert found.legitimate_limited / recorded > TRUTH * 1.06
    assert found.fpr.value == pytest.approx(TRUTH, rel=0.05)
    assert found.legitimate_seen == pytest.approx(0.9 * USERS, rel=0.05)
    assert found.fpr.low is not None
    assert found.fpr.high is not None
    assert found.fpr.low < TRUTH < found.fpr.high


@pytest.mark.parametrize("seed", range(3))
def test_where_some_ask_more_often_it_is_never_too_low(seed: int) -> None:
    """Nine in ten ask once or twice, the rest forty times: closer to the truth than without, and above it."""
    found = replayed(lambda chance: 40 if chance.random() < 0.1 else chance.choice((1, 2)), 0.1, seed)
    recorded = found.legitimate_seen - found.legitimate_missed
    assert found.fpr.value is not None
    assert TRUTH * 0.97 < found.fpr.value < found.legitimate_limited / recorded


def test_a_whole_record_misses_nobody() -> None:
    """A share of 1 is no sample: nothing is estimated, and there is no remark about it."""
    run = Run(matures_ms=0)
    for n in range(40):
        run.decision(1, subjects={"user": f"u{n}"}, sample_rate=1.0)
        run.outcome("payment_ok", 3, user=f"u{n}")
    run.outcome("payment_ok", 3, user="never-seen")
    run.decision(10)
    report = report_of(run.comparison)
    assert (report.rates["user"].candidate.legitimate_missed, report.rates["user"].candidate.legitimate_seen) == (
        0,
        pytest.approx(36),
    )
    assert not any("sampled" in remark for remark in report.remarks)


def test_a_record_that_could_not_be_missed_makes_certain() -> None:
    """In whatever order records come: before, between or after the sampled ones."""
    names = Canonicaliser().names
    for before, after in ((True, False), (False, True), (False, False)):
        glimpses, seen = Glimpses(), set()
        if before:
            glimpses.see(names({"user": "u1"}), seen, share=None)
            seen.add("user:u1")
        for _ in range(3):
            glimpses.see(names({"user": "u1"}), seen, share=0.1)
            seen.add("user:u1")
        if after:
            glimpses.see(names({"user": "u1"}), seen, share=None)
        assert glimpses.of("user:u1") == (0 if before or after else 3)


def test_no_more_are_missed_than_have_a_label() -> None:
    """The estimate is bounded by those who are labelled and in no record."""
    assert missed(100, 10, 50) == 50
    assert missed(100, 10, 5000) == pytest.approx(450)
    assert missed(1, 0, 100) == 0
