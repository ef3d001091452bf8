"""What an application says about a request."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.http.testimony import MAX_COST, said_subjects, secret_name, whole_cost
from penaltybox.producers.limiter import Request


@pytest.mark.parametrize(
    ("cost", "counted"),
    [
        (0, 0), (1, 1), (7, 7), (True, 1), (-5, 0), (-0.5, 0), (0.2, 1), (2.0, 2), (2.01, 3), (Decimal("1.5"), 2),
        (Fraction(1, 3), 1), ("5", 5), (10**30, MAX_COST), (1e300, MAX_COST),
    ],
)  # fmt: skip
def test_a_cost_is_whole_and_never_free_by_rounding(cost: Any, counted: int) -> None:
    """Fractions are rounded up, nothing is below 0 or beyond what an event can say."""
    assert whole_cost(cost) == counted


@pytest.mark.parametrize("cost", [math.nan, math.inf, -math.inf, Decimal("NaN"), None, "much", "", "0.5", [], {}])
def test_what_is_no_number_is_no_cost(cost: Any) -> None:
    """It is one kind of error, whatever Python makes of it, with a sentence."""
    with pytest.raises(ValueError, match=r"cost: got .*, wanted a number"):
        whole_cost(cost)


@pytest.mark.parametrize("cost", [-1, 0.5, 1.5, math.nan, math.inf, "2", None])
def test_no_limiter_is_asked_about_a_cost_that_it_cannot_count(cost: Any) -> None:
    """Below 0 it would add quota; a fraction, or NaN, would be taken from some algorithms and from others not."""
    with pytest.raises(ConfigurationError, match="cost: got"):
        Request(id="r", ts_ms=1, scenario="s", subjects={"user": "u"}, cost=cost)


def test_subjects_of_any_type_are_texts_and_nobody_is_nobody() -> None:
    """Ids are often numbers; `request.user and request.user.id` is None, False or an empty text for nobody."""
    ignored: list[str] = []
    said = {
        "user": 17,
        "activity": 0,
        "device": None,
        "tenant": False,
        "shop": "",
        "api_key": "k",
        "ip": "::ffff:1.2.3.4",
    }
    assert said_subjects(said, {"device": "d"}, ignored) == {
        "device": "d", "user": "17", "activity": "0", "api_key": secret_name("k"), "ip": "1.2.3.4",
    }  # fmt: skip
    assert sorted(ignored) == ["device:empty", "shop:empty", "tenant:empty"]
