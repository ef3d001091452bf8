from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import encode
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.analytics import run_analytics
from penaltybox.processors.analytics_pipeline import Limits
from penaltybox.processors.broker import TopicPlan, ensure_topics
from penaltybox.processors.ending import Ending
from penaltybox.sinks.clickhouse import queries
from penaltybox.sinks.clickhouse.client import ClickHouse
from tests.sinks.clickhouse.worlds import DAY_MS, T0_MS, decision, denial, letter, outcome, penalty
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator

    from penaltybox.contracts.events import Decision

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
PARTITIONS = 3


@pytest.fixture
async def settings(broker: Any, clickhouse_server: Any, fresh_prefix: str, fresh_database: str) -> Settings:
    made = Settings(
        kafka=broker.bootstrap,
        kafka_partitions=PARTITIONS,
        kafka_session_timeout_ms=2000,
        topic_prefix=fresh_prefix,
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_database,
        stop_timeout_s=6,
    )
    await set_up(made)
    return made


async def set_up(settings: Settings) -> None:
    await ensure_topics(Connection.of(settings), Topics.named(settings.topic_prefix), TopicPlan.of(settings))


@pytest.fixture
def clickhouse(settings: Settings) -> Iterator[ClickHouse]:
    made = ClickHouse.of(settings)
    yield made
    made.close()


@asynccontextmanager
async def running(settings: Settings, limits: Limits | None = None) -> AsyncIterator[Ending]:
    ending = Ending()
    task = asyncio.create_task(run_analytics(settings, ending=ending, limits=limits or Limits(linger_s=0.05)))
    try:
        yield ending
    finally:
        ending.request()
        await task


async def publish(settings: Settings, topic: str, values: Iterable[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, linger_ms=5)
    await producer.start()
    try:
        for number, value in enumerate(values):
            await producer.send(topic, value, key=b"k%d" % number)
        await producer.flush()
    finally:
        await producer.stop()


async def committed(settings: Settings, topic: str) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka, group_id=f"{settings.topic_prefix}-analytics", enable_auto_commit=False
    )
    await consumer.start()
    try:
        return sum([await consumer.committed(TopicPartition(topic, n)) or 0 for n in range(PARTITIONS)])
    finally:
        await consumer.stop()


async def count(clickhouse: ClickHouse, table: str = "decisions", final: str = "FINAL") -> int:
    sql = f"SELECT count() AS n, uniqExact(id) AS ids FROM {table} {final}"  # noqa: S608 - our own names
    try:
        (row,) = await asyncio.to_thread(clickhouse.rows, sql)
    except StoreUnavailable:  # the role has not made the tables yet
        return -1
    if final:
        assert row["n"] == row["ids"]
    return int(row["n"])


async def test_all_four_topics_become_rows(settings: Settings, clickhouse: ClickHouse) -> None:
    """Each topic fills its table, bad records are skipped, everything is committed at the end, queries answer."""
    topics = Topics.named(settings.topic_prefix)
    decisions = [encode(denial(n) if n % 5 == 0 else decision(n)) for n in range(3000)]
    await publish(settings, topics.decisions, [*decisions[:1000], b"no json", *decisions[1000:]])
    await publish(settings, topics.outcomes, [encode(outcome(1, "payment_ok", T0_MS, user="u1")), b"{}"])
    await publish(settings, topics.penalties, [encode(penalty(n, "device:d1", T0_MS + n)) for n in range(5)])
    await publish(settings, topics.dead_letters, [encode(letter(1))])
    async with running(settings):
        for table, number in (("decisions", 3000), ("outcomes", 1), ("penalties", 5), ("dead_letters", 1)):
            await wait_until(lambda t=table, n=number: is_count(clickhouse, t, n), deadline_s=30)  # type: ignore[misc]
    assert await committed(settings, topics.decisions) == 3001
    assert await committed(settings, topics.outcomes) == 2
    totals = queries.totals(clickhouse, T0_MS, T0_MS + DAY_MS)
    assert {(row["action"], row["decisions"]) for row in totals} == {("allow", 2400), ("deny", 600)}


async def is_count(clickhouse: ClickHouse, table: str, number: int) -> bool:
    return await count(clickhouse, table) == number


async def test_killed_in_mid_insert_again_and_again(settings: Settings, clickhouse: ClickHouse) -> None:
    """Processes die by SIGKILL inside an insert, at another one each time; in the end each decision is one row."""
    topic = Topics.named(settings.topic_prefix).decisions
    burst, bursts = 200, 8
    sent: list[Decision] = []
    for fatal in (1, 2, 3, 5, 7):
        async with process(settings, fatal) as dying:
            for _ in range(bursts):
                events = [mixed_months(n) for n in range(len(sent), len(sent) + burst)]
                await publish(settings, topic, [encode(event) for event in events])
                sent += events
                await stored_or_dead(clickhouse, dying, len(sent))
            assert await asyncio.wait_for(dying.wait(), 30) == -9
    assert await count(clickhouse) < len(sent)
    async with process(settings, 0) as last:
        await wait_until(lambda: is_count(clickhouse, "decisions", len(sent)), deadline_s=60)
        last.terminate()
        assert await asyncio.wait_for(last.wait(), 30) == 0
    rows = await asyncio.to_thread(
        clickhouse.rows, "SELECT id, toUnixTimestamp64Milli(ts) AS ts FROM decisions FINAL ORDER BY id"
    )
    assert [(row["id"], row["ts"]) for row in rows] == sorted((event.id, event.ts) for event in sent)
    assert await committed(settings, topic) == len(sent)


def mixed_months(number: int) -> Decision:
    """A decision, every third one in another month, so that most batches are more than one insert."""
    return decision(number, ts=T0_MS + number + (40 * DAY_MS if number % 3 == 0 else 0))


async def stored_or_dead(clickhouse: ClickHouse, process: asyncio.subprocess.Process, number: int) -> None:
    async def reached() -> bool:
        return process.returncode is not None or await count(clickhouse) == number

    await wait_until(reached, deadline_s=60)


@asynccontextmanager
async def process(settings: Settings, fatal: int) -> AsyncIterator[asyncio.subprocess.Process]:
    text = msgspec.json.encode(settings).decode()
    command = [sys.executable, "-m", "tests.stack.analytics_process", text, str(fatal)]
    started = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def test_a_worker_that_joins_and_one_that_leaves(settings: Settings, clickhouse: ClickHouse) -> None:
    """Across two rebalances under load each decision is one row, and everything is committed."""
    topic = Topics.named(settings.topic_prefix).decisions
    total = 6000

    async def feeding() -> None:
        for start in range(0, total, 100):
            await publish(settings, topic, [encode(mixed_months(n)) for n in range(start, start + 100)])
            await asyncio.sleep(0.1)

    feeder = asyncio.create_task(feeding())
    async with running(settings):
        await wait_until(lambda: is_more(clickhouse, 0), deadline_s=30)
        async with process(settings, 0) as second:
            await feeder
            await wait_until(lambda: is_count(clickhouse, "decisions", total), deadline_s=60)
            second.terminate()
            assert await asyncio.wait_for(second.wait(), 30) == 0
        await publish(settings, topic, [encode(mixed_months(n)) for n in range(total, total + 100)])
        await wait_until(lambda: is_count(clickhouse, "decisions", total + 100), deadline_s=60)
    assert await committed(settings, topic) == total + 100


async def is_more(clickhouse: ClickHouse, number: int) -> bool:
    return await count(clickhouse) > number


async def test_clickhouse_down_is_waited_out(settings: Settings, private_clickhouse: Any) -> None:
    """While ClickHouse is away nothing is acknowledged; when it is back everything is stored, each decision once."""
    settings = msgspec.structs.replace(settings, clickhouse_url=private_clickhouse.url)
    topic = Topics.named(settings.topic_prefix).decisions
    clickhouse = ClickHouse.of(settings)
    limits = Limits(linger_s=0.05, first_retry_s=0.05, longest_retry_s=0.2)
    async with running(settings, limits):
        await publish(settings, topic, [encode(decision(n)) for n in range(500)])
        await wait_until(lambda: is_count(clickhouse, "decisions", 500), deadline_s=30)
        await wait_until(lambda: is_committed(settings, topic, 500), deadline_s=30)
        await asyncio.to_thread(private_clickhouse.kill)
        await publish(settings, topic, [encode(decision(n)) for n in range(500, 1200)])
        await seen_outage(clickhouse)
        assert await committed(settings, topic) == 500
        await asyncio.to_thread(private_clickhouse.start)
        await wait_until(lambda: is_count(clickhouse, "decisions", 1200), deadline_s=30)
    clickhouse.close()
    assert await committed(settings, topic) == 1200


async def seen_outage(clickhouse: ClickHouse) -> None:
    def away() -> bool:
        try:
            clickhouse.version()
        except StoreUnavailable:
            return True
        return False

    await wait_until(lambda: asyncio.to_thread(away))


async def is_committed(settings: Settings, topic: str, number: int) -> bool:
    return await committed(settings, topic) == number


async def test_a_new_broker_counts_from_zero_again(
    private_broker: Any, clickhouse_server: Any, fresh_prefix: str, fresh_database: str
) -> None:
    """After the broker has lost all and offsets start at 0, new decisions are stored and old ones stay single."""
    settings = Settings(
        kafka=private_broker.bootstrap,
        kafka_partitions=PARTITIONS,
        kafka_session_timeout_ms=2000,
        topic_prefix=fresh_prefix,
        clickhouse_url=clickhouse_server.url,
        clickhouse_database=fresh_database,
        stop_timeout_s=6,
    )
    topic = Topics.named(fresh_prefix).decisions
    clickhouse = ClickHouse.of(settings)
    lives = [range(400), range(200, 900)]
    for life in lives:
        await set_up(settings)
        await publish(settings, topic, [encode(decision(n)) for n in life])
        async with running(settings):
            await wait_until(lambda life=life: is_count(clickhouse, "decisions", life.stop), deadline_s=40)  # type: ignore[misc]
        await asyncio.to_thread(private_broker.restart)
        settings = msgspec.structs.replace(settings, kafka=private_broker.bootstrap)
    clickhouse.close()
