from __future__ import annotations

import pytest

from penaltybox.cli.forget import _summary
from penaltybox.processors.erasure import Traces

MANY = [f"user+device:u{n}+d" for n in range(1_200)]


@pytest.mark.parametrize(
    ("traces", "rows", "says"),
    [
        (Traces(["user:a"], ["k"], listed=False), {"decisions": 1}, "1 state, 1 other key, 1 row of decisions"),
        (Traces([], [], listed=True), {"decisions": 0}, "0 states, 0 other keys, its entry in the allowlist"),
        (Traces(MANY, ["k", "l"], listed=False), {"outcomes": 2}, "1,200 states, 2 other keys, 2 rows of outcomes"),
    ],
    ids=["one of each", "nothing stored", "many"],
)
def test_what_is_erased_is_counted_in_words(traces: Traces, rows: dict[str, int], says: str) -> None:
    """One of a thing is no plural, and tables without rows are not named."""
    assert _summary(traces, rows) == says
