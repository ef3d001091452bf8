"""The analytics role's other task: roll-ups of what has become quiet are built, over and over, beside the storing.

Nothing waits for it and nothing is lost with it: what has no roll-up is read from the rows.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.sinks.clickhouse import rollups

if TYPE_CHECKING:
    from penaltybox.sinks.clickhouse.client import ClickHouse

log = logging.getLogger(__name__)
EVERY_S: Final = 15.0
TIDY_EVERY: Final = 240
"""Rounds between two looks for rows of builds that are not in use."""


async def keep_rollups(clickhouse: ClickHouse, every_s: float = EVERY_S, quiet_s: int = rollups.QUIET_S) -> None:
    """Build roll-ups for ever.

    Args:
        clickhouse: a connection of its own: calls of one are serialised, and a build takes seconds where there is much.
        every_s: pause between two rounds.
        quiet_s: how long nothing was written to a slot before it is built.
    """
    rounds = 0
    while True:
        await asyncio.sleep(every_s)
        rounds += 1
        try:
            built = await _round(clickhouse, quiet_s)
            if built:
                log.info("Roll-ups built: %d slots of ten minutes", built)
            if rounds % TIDY_EVERY == 0:
                await asyncio.to_thread(rollups.tidy, clickhouse, now_ms())
        except StoreUnavailable as error:
            log.warning("Roll-ups wait, queries read rows instead: %s", error)


async def _round(clickhouse: ClickHouse, quiet_s: int) -> int:
    slots = await asyncio.to_thread(rollups.stale_slots, clickhouse, quiet_s)
    for group in rollups.by_hour(slots):
        await asyncio.to_thread(rollups.build, clickhouse, group, now_ms())
    return len(slots)
