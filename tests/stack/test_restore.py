from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka import AIOKafkaProducer

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Control, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import StoredPolicy, Switch
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.policies import read_in_force
from penaltybox.processors.announcements import kafka_sender
from penaltybox.processors.ending import Ending
from penaltybox.processors.generations import recorded_generation
from penaltybox.processors.penalties import make_engine, run_penalties
from penaltybox.processors.restore import restore
from penaltybox.processors.untold import tell_untold
from penaltybox.sinks.customer_plans import CustomerPlan, CustomerPlans
from penaltybox.sinks.policy_versions import put_in_force
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.untold import Untold
from tests.processors.worker_driver import denial
from tests.stack.stack_settings import settings_on, written
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penaltybox.contracts.settings import Settings

pytestmark = pytest.mark.stack

POLICY = """
limits: {}
rules:
  abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h}
"""


@pytest.fixture
async def stack(broker: Any, private_redis: Any, fresh_prefix: str, tmp_path: Path) -> Settings:
    policy = written(POLICY, tmp_path)
    return await settings_on(broker, fresh_prefix, policy=policy, redis_url=private_redis.url)


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[RedisSubjectStore]:
    store = RedisSubjectStore(open_link(endpoint_of(settings)), settings.redis_prefix)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def running(settings: Settings) -> AsyncIterator[Ending]:
    ending = Ending()
    task = asyncio.create_task(run_penalties(settings, ending=ending))
    try:
        yield ending
    finally:
        ending.request()
        await task


async def deny(settings: Settings, user: str, first: int = 0) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=settings.kafka)
    await producer.start()
    try:
        for number in range(first, first + 3):
            value = encode(denial(number, user=user, at=now_ms()))
            await producer.send_and_wait(Topics.named(settings.topic_prefix).decisions, value, key=user.encode())
    finally:
        await producer.stop()


async def block(store: RedisSubjectStore, user: str) -> Any:
    (value,) = await store.link.exchange([("GET", f"pbx:{{user:{user}}}:block")])
    return value and msgspec.json.decode(value)


async def test_a_wiped_store_stops_the_worker_and_a_restore_brings_the_blocks_back(stack: Settings) -> None:
    """Wiped under a running worker: it writes nothing; restored, old blocks hold and new ones come."""
    async with opened(stack) as store, running(stack):
        await deny(stack, "before")
        before = await wait_until(lambda: block(store, "before"), deadline_s=30)
        await store.link.exchange([("FLUSHALL",)])
        await deny(stack, "meanwhile")
        with pytest.raises(AssertionError):
            await wait_until(lambda: block(store, "meanwhile"), deadline_s=2)
        sender = kafka_sender(stack)
        await sender.start()
        try:
            done = await restore(
                stack, store, sender, make_engine(stack), now_ms(), actor="alice", reason="Redis was wiped"
            )
        finally:
            await sender.stop()
        assert (done.ladders, done.blocked, done.kept) == (1, 1, 0)
        assert await block(store, "before") == before
        await wait_until(lambda: block(store, "meanwhile"), deadline_s=30)
        assert await recorded_generation(stack) == done.generation == await store.generation()


async def test_a_worker_that_starts_on_a_wiped_store_waits_for_a_restore(stack: Settings) -> None:
    """The control topic remembers the generation: an empty store is not taken for a new installation."""
    async with opened(stack) as store:
        async with running(stack):
            await deny(stack, "before")
            await wait_until(lambda: block(store, "before"), deadline_s=30)
        await store.link.exchange([("FLUSHALL",)])
        task = asyncio.create_task(run_penalties(stack, ending=(ending := Ending())))
        await deny(stack, "meanwhile")
        with pytest.raises(AssertionError):
            await wait_until(store.generation, deadline_s=2)
        sender = kafka_sender(stack)
        await sender.start()
        await restore(stack, store, sender, make_engine(stack), now_ms(), actor="alice", reason="Redis was wiped")
        await sender.stop()
        await wait_until(lambda: block(store, "meanwhile"), deadline_s=30)
        assert await block(store, "before")
        ending.request()
        await task


async def test_a_restore_brings_policy_and_plans_back(stack: Settings) -> None:
    """Also those that Kafka was not told of before: the wiped store has again what was in force, junk is left out."""
    text = POLICY.replace("count: 3", "count: 2")
    stored = StoredPolicy(version=parse_policy(text).version, text=text, actor="alice", reason="stricter", ts=now_ms())
    switch = Switch(version=stored.version, ts=now_ms(), actor="alice", reason="stricter")
    sender = kafka_sender(stack)
    await sender.start()
    async with opened(stack) as store:
        await store.join_generation()
        untold, plans = Untold(store.link), CustomerPlans(store.link)
        await put_in_force(untold, stored, switch)
        pro = CustomerPlan("pro", {"s/user:daily": 5})
        value = msgspec.json.encode(pro).decode()
        told = [Control(id=f"{key}1", ts=1, key=key, kind="override", value=value) for key in ("plan:user:a", "plan:x")]
        await untold.commit([], [*told, Control(id="2", ts=1, key="policy:junk", kind="policy", value="junk")])
        await tell_untold(untold, sender, Topics.named(stack.topic_prefix))
        await store.link.exchange([("FLUSHALL",)])
        done = await restore(stack, store, sender, make_engine(stack), now_ms(), actor="alice", reason="wiped")
        assert (done.policy, done.plans) == (stored.version, 1)
        assert await plans.read("user:a") == pro
        found = await read_in_force(store.link)
        assert found is not None
        assert (found.stored, found.switch.verb, found.switch.actor) == (stored, "restore", "alice")
    await sender.stop()
