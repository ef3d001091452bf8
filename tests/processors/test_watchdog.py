from __future__ import annotations

import asyncio

import pytest

from penaltybox.processors.watchdog import Stall, StalledError, watch


def test_no_progress_with_lag_is_a_stall_after_the_limit() -> None:
    """Only an unbroken stretch without progress, with lag, that reaches the limit counts."""
    stall = Stall(limit_s=10)
    assert stall.look(0, progress=5, lag=3, exempt=False) is None
    assert stall.look(9, progress=5, lag=3, exempt=False) is None
    assert stall.look(10, progress=5, lag=3, exempt=False) == 10


@pytest.mark.parametrize(
    ("progress", "lag", "exempt"), [(6, 3, False), (5, 0, False), (5, 3, True)], ids=["progress", "no lag", "exempt"]
)
def test_progress_no_lag_or_a_meant_wait_start_the_clock_again(progress: int, lag: int, exempt: bool) -> None:
    """A look that finds one of the three moves the beginning of the stretch to itself."""
    stall = Stall(limit_s=10)
    stall.look(0, progress=5, lag=3, exempt=False)
    assert stall.look(9, progress, lag, exempt=exempt) is None
    assert stall.look(18, progress, 3, exempt=False) is None
    assert stall.look(19, progress, 3, exempt=False) == 10


async def test_a_stall_raises_with_figures() -> None:
    """The watch ends with an error that says for how long and how much waits."""

    async def lag() -> int:
        return 7

    with pytest.raises(StalledError, match=r"at least 7 records"):
        await asyncio.wait_for(watch(0.05, progress=lambda: 1, lag=lag, exempt=lambda: False), timeout=5)
