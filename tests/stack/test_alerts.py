"""The role `alerts` on a real broker and Redis: a webhook that fails delays no block, and each alert comes once."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Penalty, encode
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.processors.alert_delivery import Timing
from penaltybox.processors.alerts import run_alerts
from penaltybox.processors.ending import Ending
from penaltybox.processors.penalties import run_penalties
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.processors.worker_driver import denial
from tests.receiver import Receiver, receiving
from tests.stack.stack_settings import settings_on, written
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.contracts.settings import Settings

pytestmark = pytest.mark.stack
ROOT = Path(__file__).parents[2]
POLICY = "rules: {abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}}\nlimits: {}\n"
QUICK = Timing(first_retry_s=0.05, longest_retry_s=0.2)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as made:
        yield made


@pytest.fixture
async def settings(broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, receiver: Receiver) -> Settings:
    return await settings_on(
        broker,
        fresh_prefix,
        redis=redis_server,
        policy=written(POLICY, tmp_path),
        alert_webhook_url=receiver.url,
        alert_webhook_secret="key",  # noqa: S106 - of this test
    )


@asynccontextmanager
async def running(settings: Settings, *, penalties: bool = False) -> AsyncIterator[None]:
    endings = [Ending()]
    tasks = [asyncio.create_task(run_alerts(settings, ending=endings[0], timing=QUICK))]
    if penalties:
        endings.append(Ending())
        tasks.append(asyncio.create_task(run_penalties(settings, ending=endings[1])))
    try:
        yield
    finally:
        for ending in endings:
            ending.request()
        await asyncio.gather(*tasks)


async def publish(settings: Settings, topic: str, values: list[bytes]) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    try:
        for value in values:
            await producer.send_and_wait(topic, value, key=b"user:u")
    finally:
        await producer.stop()


def penalty(number: int) -> bytes:
    """A deny of now."""
    return encode(
        Penalty(
            id=f"p{number}",
            ts=now_ms(),
            subject="user:u",
            from_="none",
            to="1h",
            action="deny",
            until=now_ms() + 3_600_000,
            rule="abuse",
            policy_version="v",
            trigger_id=f"t{number}",
        )
    )


async def committed(settings: Settings) -> int:
    consumer = AIOKafkaConsumer(
        bootstrap_servers=settings.kafka, group_id=f"{settings.topic_prefix}-alerts", enable_auto_commit=False
    )
    await consumer.start()
    try:
        topic = Topics.named(settings.topic_prefix).penalties
        return sum([await consumer.committed(TopicPartition(topic, number)) or 0 for number in range(2)])
    finally:
        await consumer.stop()


async def test_a_hanging_webhook_delays_no_block(settings: Settings, receiver: Receiver) -> None:
    """While the webhook hangs and fails, the block is in Redis; then the alert comes, once, and is committed."""
    receiver.script = ["hang", 500, 503]
    link = open_link(endpoint_of(settings))
    blocks = Blocklist(link, settings.redis_prefix)
    try:
        async with running(settings, penalties=True):
            topic = Topics.named(settings.topic_prefix).decisions
            await publish(settings, topic, [encode(denial(n, at=now_ms() - 1000, user="u")) for n in range(3)])

            async def denied() -> bool:
                (block,) = await blocks.lookup(["user:u"])
                return block is not None

            await wait_until(denied, deadline_s=30, what="the block is in Redis")
            await wait_until(lambda: bool(receiver.requests), deadline_s=30, what="the webhook was asked")
            assert receiver.accepted == []
            await wait_until(lambda: bool(receiver.accepted), deadline_s=30, what="the alert arrived")
            (body,) = receiver.accepted
            assert (body["penalty"]["subject"], body["shadow"]) == ("user:u", False)
            identities = {headers["X-Penaltybox-Id"] for headers, _, _ in receiver.requests}
            assert identities == {body["id"]}
        assert await committed(settings) == 1
    finally:
        await link.close()


async def test_once_across_a_kill(settings: Settings, receiver: Receiver) -> None:
    """A process is killed while the webhook fails: another delivers; what was delivered is not delivered again."""
    topic = Topics.named(settings.topic_prefix).penalties
    arguments = (sys.executable, "-m", "penaltybox", "run", "alerts")
    process = await asyncio.create_subprocess_exec(*arguments, cwd=ROOT, env={**os.environ, **environment_of(settings)})
    try:
        await publish(settings, topic, [penalty(1)])
        await wait_until(lambda: len(receiver.accepted) == 1, deadline_s=30, what="the first alert")
        receiver.script = [500] * 1000
        await publish(settings, topic, [penalty(1), penalty(2)])
        await wait_until(lambda: receiver.requests[-1][2] == 500, deadline_s=30, what="the second fails")
    finally:
        process.kill()
        await process.wait()
    receiver.script = []
    async with running(settings):
        await publish(settings, topic, [penalty(3)])
        await wait_until(lambda: len(receiver.accepted) >= 3, deadline_s=30, what="the others")
    assert [body["id"] for body in receiver.accepted] == ["p1", "p2", "p3"]


async def test_a_pause_alerts(settings: Settings, receiver: Receiver) -> None:
    """New blocks are paused: the webhook is told."""
    store = RedisSubjectStore(open_link(endpoint_of(settings)), settings.redis_prefix)
    try:
        async with running(msgspec.structs.replace(settings)):
            await store.pause("too many", "breaker", now_ms())
            await wait_until(lambda: bool(receiver.accepted), deadline_s=30, what="the alert arrived")
        assert receiver.accepted[0]["title"] == "penaltybox: new blocks are paused: too many"
    finally:
        await store.close()
