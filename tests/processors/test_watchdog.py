from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from penaltybox.processors.watchdog import Stall, StalledError, check_membership, watch


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


async def test_a_consumer_that_left_its_group_for_good_ends_the_process() -> None:
    """It holds no partitions and so has no lag; aiokafka's routine has ended with an error, and nobody would notice."""

    async def fails() -> None:
        raise RuntimeError("Did we not perform bootstrap?")

    def consumer(routine: asyncio.Task[None]) -> SimpleNamespace:
        client = SimpleNamespace(_coordinator=SimpleNamespace(_coordination_task=routine))
        return SimpleNamespace(_thread=SimpleNamespace(_consumer=client))

    ended, runs = asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(60))
    await asyncio.wait([ended])
    check_membership(SimpleNamespace())  # not started yet
    check_membership(consumer(runs))
    with pytest.raises(StalledError, match="Did we not perform bootstrap"):
        check_membership(consumer(ended))
    runs.cancel()
