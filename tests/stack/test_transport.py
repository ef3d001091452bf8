from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import psutil
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.contracts.settings import Settings
from penaltybox.processors.app import App, make_app, run_app
from penaltybox.processors.ending import Ending
from penaltybox.processors.transport import Consumer
from tests.waiting import wait_until

pytestmark = pytest.mark.stack

PARTITIONS = 4


class Member:
    """A worker in this process: what it got, and which runs it may acknowledge."""

    def __init__(self, settings: Settings, topic: str, *, hold: bool = False) -> None:
        self.app = make_app(settings, "test", commit_interval_s=0.2)
        self.got: list[bytes] = []
        self.runs = 0
        self.held: list[Any] = []
        self.hold = hold
        self.ending = Ending()
        channel = self.app.run_topic(topic)

        @self.app.agent(channel)
        async def agent(stream: Any) -> None:
            async for event in stream.noack().events():
                self.got += [record.value for record in event.value]
                self.runs += 1
                if self.hold:
                    self.held.append(event)
                else:
                    event.ack()


@asynccontextmanager
async def running(member: Member) -> AsyncIterator[Member]:
    task = asyncio.create_task(run_app(member.app, member.ending))
    try:
        yield member
    finally:
        member.ending.request()
        await task


@pytest.fixture
def settings(broker: Any, fresh_prefix: str) -> Settings:
    return Settings(kafka=broker.bootstrap, topic_prefix=fresh_prefix, kafka_session_timeout_ms=2000, stop_timeout_s=2)


async def publish(settings: Settings, topic: str, values: range) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka, linger_ms=5)
    await producer.start()
    try:
        for value in values:
            await producer.send(topic, b"%d" % value, key=b"k%d" % value)
        await producer.flush()
    finally:
        await producer.stop()


async def committed(settings: Settings, topic: str) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka, group_id=f"{settings.topic_prefix}-test", enable_auto_commit=False
    )
    await consumer.start()
    try:
        return sum([await consumer.committed(TopicPartition(topic, n)) or 0 for n in range(PARTITIONS)])
    finally:
        await consumer.stop()


Topic = Callable[..., Awaitable[str]]


async def test_runs_arrive_whole_and_are_committed(settings: Settings, fresh_topic: Topic) -> None:
    """Every record arrives once, many to a run, and exactly what was acknowledged is committed at the end."""
    topic = await fresh_topic(partitions=PARTITIONS)
    await publish(settings, topic, range(5000))
    async with running(Member(settings, topic)) as member:
        await wait_until(lambda: len(member.got) >= 5000, deadline_s=30)
    assert sorted(map(int, member.got)) == list(range(5000))
    assert member.runs < 500
    assert await committed(settings, topic) == 5000


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_senders_compress_as_they_like(codec: str, settings: Settings, fresh_topic: Topic) -> None:
    """A worker reads every codec of Kafka: one batch that it could not read would stop its partition for ever."""
    topic = await fresh_topic(partitions=1)
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka, compression_type=codec, linger_ms=5) as producer:
        for value in range(200):
            await producer.send(topic, b"%d" % value + b"." * 100)
    async with running(Member(settings, topic)) as member:
        await wait_until(lambda: len(member.got) >= 200, deadline_s=30)
    assert [int(value.rstrip(b".")) for value in member.got] == list(range(200))


async def test_what_is_not_acknowledged_is_not_committed(settings: Settings, fresh_topic: Topic) -> None:
    """A worker that leaves without acknowledging gives its records back: the next one gets all of them."""
    topic = await fresh_topic(partitions=PARTITIONS)
    await publish(settings, topic, range(500))
    async with running(Member(settings, topic, hold=True)) as first:
        await wait_until(lambda: len(first.got) >= 500, deadline_s=30)
    assert await committed(settings, topic) == 0
    async with running(Member(settings, topic)) as second:
        await wait_until(lambda: len(second.got) >= 500, deadline_s=30)
    assert sorted(map(int, second.got)) == list(range(500))


async def test_a_run_in_progress_holds_back_the_commits_behind_it(settings: Settings, fresh_topic: Topic) -> None:
    """With the first run of a partition unacknowledged, later acknowledged ones move no offset."""
    topic = await fresh_topic(partitions=1)
    async with running(Member(settings, topic, hold=True)) as member:
        await publish(settings, topic, range(10))
        await wait_until(lambda: member.got, deadline_s=30)
        first = len(member.held)
        await publish(settings, topic, range(10, 20))
        await wait_until(lambda: len(member.got) >= 20, deadline_s=30)
        assert len(member.held) > first
        for event in member.held[1:]:
            event.ack()
        await member.app.consumer.commit()
        assert member.app.consumer._committed_offset.get(member.held[0].message.tp) is None
        member.held[0].ack()
        await member.app.consumer.commit()
        assert member.app.consumer._committed_offset[member.held[0].message.tp] == 20


async def test_a_member_that_joins_and_one_that_leaves_lose_nothing(settings: Settings, fresh_topic: Topic) -> None:
    """Across two rebalances under load every record is handled, and everything is committed in the end."""
    topic = await fresh_topic(partitions=PARTITIONS)
    first, second = Member(settings, topic), Member(settings, topic)
    feeding = asyncio.create_task(feed(settings, topic, 4000))
    async with running(first):
        await wait_until(lambda: first.got, deadline_s=30)
        async with running(second):
            await wait_until(lambda: second.got, deadline_s=40)
        await feeding
        await wait_until(lambda: len({*first.got, *second.got}) >= 4000, deadline_s=40)
    assert {*map(int, first.got), *map(int, second.got)} == set(range(4000))
    assert await committed(settings, topic) == 4000


async def feed(settings: Settings, topic: str, number: int) -> None:
    """Publish at a pace that outlasts two rebalances."""
    for start in range(0, number, 100):
        await publish(settings, topic, range(start, start + 100))
        await asyncio.sleep(0.25)


async def test_other_topics_arrive_record_by_record(settings: Settings, fresh_topic: Topic) -> None:
    """A topic that is not named as a run topic reaches its agent as stock Faust delivers it, and is committed too."""
    topic = await fresh_topic(partitions=PARTITIONS)
    await publish(settings, topic, range(50))
    app: App = make_app(settings, "test", commit_interval_s=0.2)
    ending, got = Ending(), []

    @app.agent(app.topic(topic, value_serializer="raw", key_serializer="raw"))
    async def agent(stream: Any) -> None:
        async for value in stream:
            got.append(int(value))  # noqa: PERF401 - one by one is what is tested

    task = asyncio.create_task(run_app(app, ending))
    await wait_until(lambda: len(got) >= 50, deadline_s=30)
    ending.request()
    await task
    assert sorted(got) == list(range(50))
    assert await committed(settings, topic) == 50


async def test_a_worker_opens_no_port(settings: Settings, fresh_topic: Topic) -> None:
    """Nothing in this process listens while a worker runs."""
    topic = await fresh_topic(partitions=PARTITIONS)
    async with running(Member(settings, topic)) as member:
        await publish(settings, topic, range(10))
        await wait_until(lambda: len(member.got) >= 10, deadline_s=30)
        listening = [c for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == []


async def test_an_agent_that_fails_ends_the_app_with_its_error(settings: Settings, fresh_topic: Topic) -> None:
    """`Ending.fail` is raised by `run_app`, so the process ends non-zero, and the run it had is not committed."""
    topic = await fresh_topic(partitions=PARTITIONS)
    await publish(settings, topic, range(10))
    app, ending = make_app(settings, "test"), Ending()

    @app.agent(app.run_topic(topic))
    async def agent(stream: Any) -> None:
        async for _event in stream.noack().events():
            ending.fail(ValueError("broken"))

    with suppress(TimeoutError), pytest.raises(ValueError, match="broken"):
        await asyncio.wait_for(run_app(app, ending), timeout=40)
    assert await committed(settings, topic) == 0


async def test_a_buffer_that_drains_is_filled_at_once(
    settings: Settings, fresh_topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What lies fetched is delivered when its buffer has room, though a call for a silent topic waits meanwhile."""
    busy, silent = await fresh_topic(partitions=1), await fresh_topic(partitions=1)

    async def very_patient(self: Any, active_partitions: Any, timeout: float) -> Any:  # noqa: ASYNC109 - as Faust
        assert timeout
        return await self._thread.getmany(active_partitions, 600.0)

    monkeypatch.setattr(Consumer, "_getmany", very_patient)
    app, ending, gate, got = make_app(settings, "test", buffered_runs=2), Ending(), asyncio.Event(), []

    @app.agent(app.run_topic(busy, silent))
    async def agent(stream: Any) -> None:
        async for event in stream.noack().events():
            await gate.wait()
            got.extend(int(record.value) for record in event.value)
            event.ack()

    task = asyncio.create_task(run_app(app, ending))
    sent = 0
    try:
        async with asyncio.timeout(60):
            while not (app.started and lies_fetched(app, busy)):
                await publish(settings, busy, range(sent, sent + 1))
                sent += 1
        gate.set()
        await wait_until(lambda: len(got) >= sent, deadline_s=30)
    finally:
        gate.set()
        ending.request()
        await task
    assert got == list(range(sent))


def lies_fetched(app: App, topic: str) -> bool:
    """Whether a partition's buffer is full, and more of it has been fetched."""
    consumer = app.consumer._thread._consumer
    return bool(app.consumer._buffered_partitions) and any(tp.topic == topic for tp in consumer._fetcher._records)
