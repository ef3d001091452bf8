"""Rates with Wilson intervals."""

from __future__ import annotations

import pytest

from penaltybox.contracts.rates import nothing, rate, wilson


@pytest.mark.parametrize(
    ("part", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_is_the_published_one(part: int, n: int, low: float, high: float) -> None:
    """The four examples of R. G. Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3."""
    assert wilson(part / n, n) == pytest.approx((low, high), abs=5e-5)


def test_all_of_them_is_not_certain() -> None:
    """20 of 20: the mirror image of 0 of 20, and never above 1."""
    low, high = wilson(1.0, 20)
    assert (low, high) == pytest.approx((1 - 0.1611, 1.0), abs=5e-5)
    assert high <= 1


@pytest.mark.parametrize(
    ("n", "status"),
    [(0, "insufficient"), (29, "insufficient"), (30, "report only"), (99.9, "report only"), (100, "actionable")],
)
def test_too_few_have_no_percentage(n: float, status: str) -> None:
    """Under 30 there is no figure at all, under 100 one that nothing should act on."""
    found = rate(n / 2, n, n)
    assert found.status == status
    assert (found.value is None) == (status == "insufficient")


def test_without_labels_there_is_no_rate() -> None:
    """Nobody is known to be legitimate: that is no rate of 0."""
    assert rate(0, 50, 50, labelled=False).value is None
    assert rate(0, 50, 50, labelled=False).status == "unlabelled"


def test_nothing_limited_is_certainly_nothing() -> None:
    """A side that limits nobody has a rate of 0, without an interval."""
    assert (nothing(7).value, nothing(7).status, nothing(7).low) == (0.0, "none", None)
