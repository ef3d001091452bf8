from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import encode
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.analytics_pipeline import Limits, Pipeline, weight
from penaltybox.processors.cycle import Run
from penaltybox.sinks.clickhouse.client import ClickHouse
from penaltybox.sinks.clickhouse.writer import Writer
from tests.sinks.clickhouse.worlds import Sent, decision
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    import pyarrow as pa

pytestmark = pytest.mark.stack
TOPIC = "penaltybox.decisions"
LONG_S = 600.0


class Gated(ClickHouse):
    """The real database, away while `away`; keeps the sizes of its inserts."""

    away = False
    refused = 0
    sizes: list[int]

    def insert(self, table: str, rows: pa.Table) -> None:
        if self.away:
            self.refused += 1
            raise StoreUnavailable("away")
        super().insert(table, rows)
        self.sizes.append(rows.num_rows)


@pytest.fixture
def clickhouse(clickhouse_server: Any, fresh_database: str) -> Iterator[Gated]:
    made = Gated(clickhouse_server.url, fresh_database)
    made.sizes = []
    yield made
    made.close()


@asynccontextmanager
async def running(clickhouse: Gated, incarnation: str = "i1", **limits: Any) -> AsyncIterator[Pipeline]:
    async def incarnations() -> dict[str, str]:
        return {TOPIC: incarnation}

    bounds = Limits(**{"first_retry_s": 0.01, "longest_retry_s": 0.02, **limits})
    writer = Writer(clickhouse, Canonicaliser())
    pipeline = Pipeline(clickhouse, writer, {TOPIC: "decisions"}, incarnations, limits=bounds)
    tasks = [asyncio.create_task(pipeline.prepare_batches()), asyncio.create_task(pipeline.store_batches())]
    try:
        yield pipeline
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pipeline.close()


class Source:
    """Makes runs of one partition and notes which were acknowledged."""

    def __init__(self, partition: int = 0) -> None:
        self.partition = partition
        self.acked: list[range] = []

    def run(self, offsets: range) -> Run:
        records = [Sent(n, decision(n).ts, encode(decision(n + 100_000 * self.partition))) for n in offsets]
        return Run(TOPIC, self.partition, records, lambda: self.acked.append(offsets))


async def ids(clickhouse: Gated) -> int:
    (row,) = await asyncio.to_thread(clickhouse.rows, "SELECT count() AS n FROM decisions FINAL")
    return int(row["n"])


async def test_runs_of_a_partition_share_an_insert(clickhouse: Gated) -> None:
    """Runs wait for company up to `rows`; partitions are never mixed in an insert."""
    source, other = Source(), Source(partition=1)
    async with running(clickhouse, rows=100, linger_s=LONG_S) as pipeline:
        await pipeline.take(other.run(range(30)))
        for start in range(0, 120, 40):
            await pipeline.take(source.run(range(start, start + 40)))
        await wait_until(lambda: len(source.acked) == 3)
        assert clickhouse.sizes == [120]
        assert other.acked == []
        assert pipeline.acknowledged == 120


async def test_a_lonely_run_lingers_and_goes(clickhouse: Gated) -> None:
    """A run that finds no company is stored after `linger_s`."""
    source = Source()
    async with running(clickhouse, linger_s=0.02) as pipeline:
        await pipeline.take(source.run(range(3)))
        await wait_until(lambda: source.acked)
    assert clickhouse.sizes == [3]


async def test_draining_stores_what_lingers(clickhouse: Gated) -> None:
    """Before partitions are given up everything held is stored and acknowledged, without waiting for company."""
    source = Source()
    async with running(clickhouse, linger_s=LONG_S) as pipeline:
        await pipeline.take(source.run(range(3)))
        await pipeline.drain(asyncio.get_running_loop().time() + 20)
        assert source.acked == [range(3)]


async def test_offsets_that_go_back_start_another_insert(clickhouse: Gated) -> None:
    """Read again from an earlier offset while the first runs wait: each decision is stored once, all is acked."""
    source = Source()
    async with running(clickhouse, linger_s=0.02, rows=15) as pipeline:
        for offsets in (range(10), range(4, 12), range(12, 16)):
            await pipeline.take(source.run(offsets))
        await wait_until(lambda: len(source.acked) == 3)
        assert await ids(clickhouse) == 16


async def test_an_outage_acknowledges_nothing_and_holds_a_bounded_amount(clickhouse: Gated) -> None:
    """While ClickHouse is away runs pile up to `held`, then taking waits; afterwards all is stored in order."""
    source = Source()
    async with running(clickhouse, linger_s=0.01, held=50) as pipeline:
        await pipeline.take(source.run(range(1)))
        await wait_until(lambda: source.acked)
        clickhouse.away = True
        for start in range(1, 61, 20):
            await pipeline.take(source.run(range(start, start + 20)))
        blocked = asyncio.create_task(pipeline.take(source.run(range(61, 70))))
        await wait_until(lambda: clickhouse.refused > 3)
        assert (source.acked, blocked.done(), pipeline.waiting) == ([range(1)], False, True)
        clickhouse.away = False
        await blocked
        await wait_until(lambda: len(source.acked) == 5)
        assert not pipeline.waiting
        assert await ids(clickhouse) == 70
    assert source.acked == sorted(source.acked, key=lambda offsets: offsets.start)


async def test_draining_in_an_outage_ends_at_its_deadline(clickhouse: Gated) -> None:
    """What cannot be stored in time is given up unacknowledged: whoever gets the partition reads it again."""
    source = Source()
    async with running(clickhouse, linger_s=0.01) as pipeline:
        clickhouse.away = True
        await pipeline.take(source.run(range(5)))
        await pipeline.drain(asyncio.get_running_loop().time() + 0.2)
        assert source.acked == []


async def test_skipped_records_are_counted_and_acknowledged(clickhouse: Gated) -> None:
    """A run of nothing but bad records is acknowledged; the counts say why."""
    acked: list[bool] = []
    bad = Run(TOPIC, 0, [Sent(0, 1, b"no json"), Sent(1, 1, None)], lambda: acked.append(True))
    async with running(clickhouse, linger_s=0.01) as pipeline:
        await pipeline.take(bad)
        await wait_until(lambda: acked)
        assert pipeline.skipped == {("decisions", "not_json"): 1, ("decisions", "empty"): 1}


def test_large_records_weigh_more() -> None:
    """Memory is bounded also when somebody fills a topic with records of a megabyte."""
    assert weight(Run(TOPIC, 0, [Sent(0, 1, b"x" * 400)] * 10, list)) == 10
    assert weight(Run(TOPIC, 0, [Sent(0, 1, b"x" * 1_048_576)], list)) == 1024
