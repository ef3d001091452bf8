"""The background publisher against real brokers: there, away, hanging, wiped, never there."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.contracts.events import Outcome
from penaltybox.producers.background import BackgroundPublisher
from tests.stack.offers import (
    allowed,
    arrived,
    balanced,
    denied,
    make_topics,
    of_subject,
    segments,
    settings_for,
)
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.servers import AnyBroker

pytestmark = pytest.mark.stack
PATIENCE_S = 60


@pytest.fixture
async def publisher(broker: AnyBroker, tmp_path: Path) -> AsyncIterator[BackgroundPublisher]:
    """A publisher on the session's broker, topics made."""
    settings = settings_for(broker, tmp_path)
    await make_topics(settings)
    async with BackgroundPublisher(settings) as made:
        yield made


async def flushed(publisher: BackgroundPublisher, deadline_s: float = 20) -> bool:
    return await asyncio.to_thread(publisher.flush, deadline_s)


async def test_records_arrive(publisher: BackgroundPublisher) -> None:
    """Decisions and outcomes offered on an event loop arrive once each, those of one subject in order."""
    for number in range(500):
        publisher.offer(denied(number) if number % 3 else allowed(number))
    publisher.offer(Outcome(v=1, id="o", ts=1, label="payment_ok", subjects={"user": "u1"}))
    assert await flushed(publisher)
    assert publisher.counters.published == publisher.counters.offered == 501
    ids = await arrived(publisher._settings)
    assert len(ids) == len(set(ids)) == 500
    assert [name for name in ids if int(name[1:]) % 20 == 7] == [
        f"{'d' if number % 3 else 'a'}{number}" for number in range(7, 500, 20)
    ]


async def test_from_many_threads(publisher: BackgroundPublisher) -> None:
    """Eight threads offer at once; nothing is lost and the count is exact."""

    def work(base: int) -> None:
        for number in range(base, base + 500):
            publisher.offer(denied(number))

    threads = [threading.Thread(target=work, args=(base,)) for base in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)
    assert await flushed(publisher)
    assert publisher.counters.published == publisher.counters.offered == 4000
    assert len(set(await arrived(publisher._settings))) == 4000


async def test_wrong_records_are_counted(publisher: BackgroundPublisher, caplog: pytest.LogCaptureFixture) -> None:
    """What is no record, has a forbidden subject, or is too large fails alone, with one line for all of them."""
    wrong: list[Any] = [
        "text", None, 7, msgspec.structs.replace(denied(1), subjects={"ip": "no address"}),
        msgspec.structs.replace(denied(1), attrs={"k": "x" * 5_000}), msgspec.structs.replace(denied(1), subjects={}),
    ]  # fmt: skip
    for one in (*wrong, denied(2)):
        publisher.offer(one)
    assert await flushed(publisher)
    assert (publisher.counters.failed, publisher.counters.published) == (6, 1)
    assert balanced(publisher)
    assert len(caplog.records) == 1


async def test_a_broker_that_is_not_there_yet(
    private_broker: AnyBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Down at the start: refusals wait on disk, allows are dropped, one line is logged; then all refusals arrive."""
    settings = settings_for(private_broker, tmp_path)
    await asyncio.to_thread(private_broker.stop)
    async with BackgroundPublisher(settings) as publisher:
        for number in range(300):
            publisher.offer(denied(number))
            publisher.offer(allowed(number))
        assert await flushed(publisher)
        got = publisher.counters
        assert (got.offered, got.spilled, got.dropped, got.published) == (600, 300, 300, 0)
        assert got.spilled_bytes == sum(path.stat().st_size for path in segments(settings)) > 0
        assert len(caplog.records) == 1
        assert "does not take records" in caplog.text
        await asyncio.to_thread(private_broker.start)
        await make_topics(settings)
        await wait_until(lambda: publisher.counters.resent == 300, PATIENCE_S)
        publisher.offer(allowed(1000))
        await wait_until(lambda: publisher.counters.published == 301, PATIENCE_S)
        assert balanced(publisher)
        await wait_until(lambda: publisher.counters.spilled_bytes == 0)
    ids = await arrived(settings)
    assert all(of_subject(ids, subject) == list(range(subject, 300, 20)) for subject in range(20))
    assert not list((tmp_path / "spill").rglob("*.*")), "nothing waits, so nothing is left"


async def test_a_broker_that_hangs(private_broker: AnyBroker, tmp_path: Path) -> None:
    """Stopped in mid-run (SIGSTOP): offers stay quick, refusals are on disk within seconds, all arrive afterwards."""
    settings = settings_for(private_broker, tmp_path)
    await make_topics(settings)
    async with BackgroundPublisher(settings) as publisher:
        publisher.offer(allowed(0))
        assert await flushed(publisher)
        await asyncio.to_thread(private_broker.pause)
        slowest = 0.0
        for number in range(400):
            start = time.perf_counter()
            publisher.offer(denied(number))
            publisher.offer(allowed(number))
            slowest = max(slowest, time.perf_counter() - start)
            await asyncio.sleep(0)
        await wait_until(lambda: publisher.counters.spilled == 400, PATIENCE_S)
        assert slowest < 0.25  # seconds; an answer of the broker would have taken until its timeout
        await asyncio.to_thread(private_broker.resume)
        await wait_until(lambda: publisher.counters.resent == 400, PATIENCE_S)
        assert await flushed(publisher)
        assert balanced(publisher)
    ids = await arrived(settings)
    assert {f"d{number}" for number in range(400)} <= set(ids)


async def test_a_broker_that_comes_back_empty(private_broker: AnyBroker, tmp_path: Path) -> None:
    """Killed and started anew in mid-run, topics made again: what was not confirmed arrives in the new topic."""
    settings = settings_for(private_broker, tmp_path)
    await make_topics(settings)
    async with BackgroundPublisher(settings) as publisher:
        for number in range(100):
            publisher.offer(denied(number))
        assert await flushed(publisher)
        await asyncio.to_thread(private_broker.kill)
        for number in range(100, 200):
            publisher.offer(denied(number))
        await wait_until(lambda: publisher.counters.spilled == 100, PATIENCE_S)
        await asyncio.to_thread(private_broker.start)
        await make_topics(settings)
        await wait_until(lambda: publisher.counters.resent == 100, PATIENCE_S)
        publisher.offer(allowed(1))
        assert await flushed(publisher)
        assert balanced(publisher)
    assert {f"d{number}" for number in range(100, 200)} <= set(await arrived(settings))


async def test_no_topic(broker: AnyBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No such topic: said once with the command that makes it, then tried again until somebody has."""
    settings = settings_for(broker, tmp_path)
    async with BackgroundPublisher(settings) as publisher:
        publisher.offer(denied(1))
        await wait_until(lambda: publisher.counters.spilled == 1, PATIENCE_S)
        assert "run `penaltybox setup` once" in caplog.text
        await make_topics(settings)
        await wait_until(lambda: publisher.counters.resent == 1, PATIENCE_S)
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1
    assert len(caplog.records) == 1


async def test_refused_credentials(broker: AnyBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that does not let us in: nothing fails, refusals wait, one line without the password."""
    settings = settings_for(
        broker,
        tmp_path,
        kafka_security_protocol="SASL_PLAINTEXT",
        kafka_username="u",
        kafka_password="secret-Zv",  # noqa: S106 - made up
    )
    async with BackgroundPublisher(settings) as publisher:
        publisher.offer(denied(1))
        publisher.offer(allowed(1))
        await wait_until(lambda: publisher.counters.spilled == 1, PATIENCE_S)
        assert publisher.counters.dropped == 1
    assert "refuses us" in caplog.text
    assert "secret-Zv" not in caplog.text
    assert len(caplog.records) == 1
    assert len(segments(settings)) == 1


async def test_memory_is_bounded(private_broker: AnyBroker, tmp_path: Path) -> None:
    """A hanging broker and more records than fit: what is over is dropped, or spilled up to the bound of the disk."""
    settings = settings_for(private_broker, tmp_path, publisher_buffer=200, spill_max_mb=1)
    await make_topics(settings)
    async with BackgroundPublisher(settings, linger_ms=1) as publisher:
        publisher.offer(allowed(0))
        assert await flushed(publisher)
        await asyncio.to_thread(private_broker.pause)
        for number in range(20_000):
            publisher.offer(denied(number) if number % 2 else allowed(number))
            assert len(publisher._queue) <= 400
            if number % 100 == 0:
                await asyncio.sleep(0.005)
        assert await flushed(publisher)
        got = publisher.counters
        assert got.offered == 20_001
        assert balanced(publisher)
        assert 0 < got.spilled_bytes <= 1 << 20
        assert got.dropped > 10_000
        await asyncio.to_thread(private_broker.resume)
        await wait_until(lambda: publisher.counters.spilled_bytes == 0, PATIENCE_S)
