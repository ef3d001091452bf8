"""Subjects whose events come through several partitions and workers, in an order that no one fixes.

What is promised then: no rung skipped, nothing lost, nothing twice, always released; and what came out is what the
oracle makes of each subject's events in the order in which its writes succeeded (every worker keeps a journal of them).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.clock import now_ms
from tests.oracle.judge import Oracle
from tests.stack.arena import Arena, Found
from tests.stack.journal import contested, write_order
from tests.stack.test_effectively_once import parts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.households import Placed

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]
RUNGS = ["none", "warn", "5m", "1h", "permanent"]


def replayed(arena: Arena, placed: list[Placed]) -> Oracle:
    """The oracle over the recorded order of writes."""
    events = {decision.id: decision for _, decision in placed}
    oracle = Oracle(arena.policy)
    for subject, writes in write_order(arena.journals).items():
        for one in writes:
            for event in one.ids:
                oracle.apply(subject, events[event], now_ms())
    return oracle


def check_invariants(found: Found) -> None:
    """No rung skipped by a step, each ladder a chain, nothing without an end but permanent."""
    for subject, told in found.penalties.items():
        real = sorted((one for one in told if not one.shadow), key=lambda one: one.seq)
        for one in real:
            assert one.until is not None or (one.to, one.action) == ("permanent", "deny"), subject
            if one.rule in {"user_abuse", "device_burst", "ip_route"}:
                assert RUNGS.index(one.to) <= RUNGS.index(one.from_) + 1, subject


@pytest.mark.parametrize("workers", [2, 3])
async def test_spread_over_partitions(
    workers: int, broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Workers step the same subjects at the same time; every lost race is stepped again, nothing counts twice."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        for _ in range(workers):
            await arena.start_worker(journal=True)
        (placed,) = parts(1)
        await arena.publish(placed, spread=True)
        await arena.finished()
        found = await arena.check(replayed(arena, placed))
        check_invariants(found)
        shared = contested(arena.journals)
        assert shared > 0, "no subject was written by two workers"
        subjects = len(found.states)
        tell(f"{subjects} subjects, {shared} written by several workers; penalties sent twice: {found.told_twice}")
