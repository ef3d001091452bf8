"""Effectively once, on real servers: whatever dies whenever, states, blocks and penalties are the naive oracle's.

All of a subject's events share a partition here. `PENALTYBOX_TEST_DECISIONS` is the number of decisions of each test
(default 6,000); full size is 200,000, which the ten random kills have on Apache Kafka whatever is asked for.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.processors.announcements import kafka_sender
from penaltybox.processors.penalties import make_engine
from penaltybox.processors.restore import restore
from tests.oracle.judge import Oracle
from tests.stack.arena import Arena
from tests.stack.households import decisions
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.stack.households import Placed

    Tell = Callable[[str], None]

NUMBER = int(os.environ.get("PENALTYBOX_TEST_DECISIONS", "6000"))
FULL = 200_000
OUTAGE_S = 30 if NUMBER >= FULL else 4
pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]


def parts(number: int, size: int = NUMBER) -> list[list[Placed]]:
    """The workload in that many parts."""
    placed = decisions(size, now_ms())
    each = -(-len(placed) // number)
    return [placed[start : start + each] for start in range(0, len(placed), each)]


async def test_killed_at_ten_random_points(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, tell: Tell, request: pytest.FixtureRequest
) -> None:
    """One of two workers dies by SIGKILL ten times, each time with uncommitted work; nothing is lost or doubled."""
    chance = random.Random(7)
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        workers = [await arena.start_worker(), await arena.start_worker()]
        in_flight = []
        size = FULL if request.config.getoption("--kafka") else NUMBER
        for part in parts(10, size):
            sent = chance.randrange(1, len(part))
            await arena.publish(part[:sent])
            victim = chance.randrange(2)
            await arena.kill(workers[victim])
            in_flight.append(await arena.lag())
            await arena.publish(part[sent:])
            workers[victim] = await arena.start_worker()
        await arena.finished()
        found = await arena.check(await arena.oracle())
        tell(f"{size} decisions, in flight at the kills: {in_flight}; penalties sent twice: {found.told_twice}")
        assert all(in_flight), "a kill met no work in flight"


@pytest.mark.parametrize("seam", ["after_redis_write", "after_produce", "before_ack", "before_commit"])
async def test_killed_at_a_seam(
    seam: str, broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, tell: Tell
) -> None:
    """A worker kills itself between two steps of its work, again and again, at a later time each time."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        for times, part in zip((1, 2, 3), parts(3), strict=True):
            doomed = await arena.start_worker(f"{seam}:{times}")
            size = -(-len(part) // 8)
            for start in range(0, len(part), size):
                await arena.publish(part[start : start + size])
                await arena.alive_until(doomed, 1.2)  # a commit's interval, and some
            await arena.died(doomed)
        await arena.finished()
        found = await arena.check(await arena.oracle())
        tell(f"penalties sent twice: {found.told_twice}")


async def test_workers_join_and_leave(broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path) -> None:
    """A worker joins in the middle and leaves again in good order; partitions move, ladders go on."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        first, second, third = parts(3)
        await arena.publish(first)
        guest = await arena.start_worker()
        await arena.publish(second)
        await arena.stop(guest)
        await arena.publish(third)
        await arena.finished()
        await arena.check(await arena.oracle())


async def test_each_decision_delivered_twice(broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path) -> None:
    """A producer that sends everything twice, and a file ingested twice, punish nobody more."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        (placed,) = parts(1)
        await arena.publish(placed, copies=2)
        await arena.finished()
        once = await arena.check(await arena.oracle())
        await arena.publish(placed)
        await arena.finished()
        again = await arena.check(await arena.oracle())
        assert again.penalties.keys() == once.penalties.keys()


async def test_redis_away(broker: Any, private_redis: Any, fresh_prefix: str, tmp_path: Path) -> None:
    """Redis stops for a while in the middle: workers stand still, acknowledge nothing, and go on."""
    async with Arena(broker, private_redis, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        first, second = parts(2)
        await arena.publish(first)
        await asyncio.to_thread(private_redis.stop)
        publishing = asyncio.create_task(arena.publish(second))
        back = time.monotonic() + OUTAGE_S
        await wait_until(lambda: time.monotonic() > back, OUTAGE_S + 5)
        await publishing
        assert await arena.lag() > 0
        await asyncio.to_thread(private_redis.start)
        await arena.finished()
        await arena.check(await arena.oracle())


async def test_redis_hangs(broker: Any, private_redis: Any, fresh_prefix: str, tmp_path: Path) -> None:
    """Redis keeps its connections and answers nothing for a while; writes that it did or didn't see count once."""
    async with Arena(broker, private_redis, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        first, second = parts(2)
        publishing = asyncio.create_task(arena.publish(first))
        await asyncio.wait([publishing], timeout=0.2)
        private_redis.pause()
        back = time.monotonic() + OUTAGE_S
        await wait_until(lambda: time.monotonic() > back, OUTAGE_S + 5)
        private_redis.resume()
        await publishing
        await arena.publish(second)
        await arena.finished()
        await arena.check(await arena.oracle())


async def test_redis_wiped_and_restored(
    broker: Any, private_redis: Any, fresh_prefix: str, tmp_path: Path, tell: Tell
) -> None:
    """Redis loses everything; after `restore` every ladder and block is back, and goes on from where it was."""
    async with Arena(broker, private_redis, fresh_prefix, tmp_path) as arena:
        worker = await arena.start_worker()
        first, second = parts(2)
        await arena.publish(first)
        await arena.finished()
        await arena.stop(worker)
        await arena.store.link.exchange([("FLUSHALL",)])
        await arena.publish(second)
        await arena.start_worker(wait=False)
        sender = kafka_sender(arena.settings)
        await sender.start()
        try:
            engine = make_engine(arena.settings)
            await restore(arena.settings, arena.store, sender, engine, now_ms(), actor="test", reason="wiped")
        finally:
            await sender.stop()
        await arena.finished()
        oracle = Oracle(arena.policy)
        for part in (first, second):
            for _, decision in part:
                oracle.judge(decision, now_ms())
            if part is first:
                for person in oracle.people.values():
                    person.real.counted.clear()
                    person.real.risk.clear()
                    person.shadows.clear()
        addresses = [subject for subject in oracle.people if subject.startswith("ip:")]
        await arena.check(oracle, addresses)
        tell(f"NOT CHECKED: {len(addresses)} addresses, for who was seen behind them since their last step is lost")


async def test_redis_loses_the_last_writes(
    broker: Any, private_redis: Any, fresh_prefix: str, tmp_path: Path, tell: Tell
) -> None:
    """A failover brings older states back under the workers; what they know newer is written again."""
    async with Arena(broker, private_redis, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        first, second, third = parts(3)
        await arena.publish(first)
        await arena.finished()
        keys = await arena.keys()
        dumps = await arena.store.link.exchange([("DUMP", key) for key in keys])
        old = dict(zip(keys, dumps, strict=True))
        await arena.publish(second)
        await arena.finished()
        lost = [key for key in await arena.keys() if hash_of(key) % 3 == 0]
        back = [("RESTORE", key, "0", old[key], "REPLACE") if old.get(key) else ("DEL", key) for key in lost]
        await arena.store.link.exchange(back)
        lost_at_ms = now_ms()
        await arena.publish(third)
        await arena.finished()
        oracle = await arena.oracle()
        states = (await arena.found(list(oracle.people))).states
        subjects = {key.split(b"{")[1].split(b"}")[0].decode() for key in lost}
        untouched = {one for one in subjects if one not in states or states[one].number < lost_at_ms}
        await arena.check(oracle, untouched)
        sentence = f"{len(untouched)} of {len(subjects)} subjects that met nothing later"
        tell(f"{len(lost)} keys lost; NOT CHECKED: {sentence}")
        assert len(untouched) < len(subjects)


def hash_of(key: bytes) -> int:
    """All keys of one subject share it, as they share a server."""
    return zlib.crc32(key.split(b"}")[0])


async def test_broker_hangs(private_broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path) -> None:
    """The broker answers nothing for longer than the session timeout; workers join again and go on."""
    async with Arena(private_broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        first, second = parts(2)
        await arena.publish(first)
        private_broker.pause()
        back = time.monotonic() + 4
        await wait_until(lambda: time.monotonic() > back, 10)
        private_broker.resume()
        await wait_until(lambda: asyncio.to_thread(private_broker.answers), 30, "the broker's answer")
        await arena.publish(second)
        await arena.finished()
        await arena.check(await arena.oracle())


@pytest.mark.apache_kafka
async def test_broker_restarts(private_broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path) -> None:
    """The broker is killed in the middle and comes back with what it had; workers go on or are started anew."""
    async with Arena(private_broker, redis_server, fresh_prefix, tmp_path) as arena:
        await arena.start_worker()
        await arena.start_worker()
        first, second = parts(2)
        await arena.publish(first)
        await asyncio.to_thread(private_broker.kill)
        await asyncio.to_thread(private_broker.start)
        await arena.publish(second)
        while len(arena.workers) < 2 or not all(worker.running for worker in arena.workers):
            arena.workers = [worker for worker in arena.workers if worker.running]
            await arena.start_worker()
        await arena.finished()
        await arena.check(await arena.oracle())
