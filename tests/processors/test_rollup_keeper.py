from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penaltybox.processors.rollup_keeper import keep_rollups
from penaltybox.sinks.clickhouse import rollups
from penaltybox.sinks.clickhouse.client import ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.worlds import batch, decision
from tests.waiting import wait_until

if TYPE_CHECKING:
    from penaltybox.embedded.clickhouse_server import ClickHouseServer

pytestmark = pytest.mark.stack


async def test_roll_ups_are_built_beside_the_storing(clickhouse_server: ClickHouseServer, fresh_database: str) -> None:
    """A keeper that starts before there are tables waits for them, and then builds what has become quiet."""
    clickhouse = ClickHouse(clickhouse_server.url, fresh_database)
    keeping = asyncio.create_task(keep_rollups(clickhouse, every_s=0.05, quiet_s=0))
    other = ClickHouse(clickhouse_server.url, fresh_database)
    await asyncio.to_thread(migrate, other)
    writer = new_writer(other)
    writer.store(writer.prepare(batch("decisions", [decision(n) for n in range(20)])))

    async def built() -> bool:
        return not await asyncio.to_thread(rollups.stale_slots, other, 0)

    await wait_until(built, deadline_s=60)
    (row,) = other.rows("SELECT sum(decisions) AS n FROM decisions_1m")
    assert row["n"] == 20
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    clickhouse.close()
    other.close()
