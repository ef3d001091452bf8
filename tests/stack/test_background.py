"""The background publisher against real brokers: there, away, hanging, wiped."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.processors.topic_log import read_topic
from penaltybox.producers.background import BackgroundPublisher
from tests.servers import AnyBroker, fresh_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = pytest.mark.stack


def allowed(number: int) -> Decision:
    return Decision(v=1, id=f"a{number}", ts=1_000, source="t/1", action="allow", subjects={"user": f"u{number % 20}"})


def denied(number: int) -> Decision:
    return Decision(
        v=1, id=f"d{number}", ts=1_000 + number, source="t/1", action="deny", reason="over_limit",
        violated=("user:daily",), subjects={"user": f"u{number % 20}"},
    )  # fmt: skip


async def make_topics(settings: Settings) -> None:
    topics = Topics.named(settings.topic_prefix)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, 4, 1) for name in (topics.decisions, topics.outcomes)])
    await admin.close()


def settings_of(broker: AnyBroker, folder: Path, **more: Any) -> Settings:
    return Settings(kafka=broker.bootstrap, topic_prefix=fresh_name("bg"), spill_dir=str(folder / "spill"), **more)


async def arrived(settings: Settings) -> list[str]:
    """Ids on the decisions topic, by partition and offset."""
    topic = Topics.named(settings.topic_prefix).decisions
    return [msgspec.json.decode(record.value)["id"] async for record in read_topic(settings, topic)]


def balanced(publisher: BackgroundPublisher) -> bool:
    """Every offered record has its end: published, dropped, failed or spilled."""
    got = publisher.counters
    return got.offered == (got.published - got.resent) + got.dropped + got.failed + got.spilled


@pytest.fixture
async def publisher(broker: AnyBroker, tmp_path: Path) -> AsyncIterator[BackgroundPublisher]:
    """A publisher on the session's broker, topics made."""
    settings = settings_of(broker, tmp_path)
    await make_topics(settings)
    async with BackgroundPublisher(settings) as made:
        yield made


async def test_records_arrive(publisher: BackgroundPublisher) -> None:
    """Decisions and outcomes offered on an event loop arrive once each, those of one subject in order."""
    for number in range(500):
        publisher.offer(denied(number) if number % 3 else allowed(number))
    publisher.offer(Outcome(v=1, id="o", ts=1, label="payment_ok", subjects={"user": "u1"}))
    assert await asyncio.to_thread(publisher.flush)
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
    assert await asyncio.to_thread(publisher.flush)
    assert publisher.counters.published == publisher.counters.offered == 4000
    assert len(set(await arrived(publisher._settings))) == 4000


async def test_wrong_records_are_counted(publisher: BackgroundPublisher) -> None:
    """What is no record, has a forbidden subject, or is too large fails alone and quietly."""
    wrong: list[Any] = [
        "text", None, 7, msgspec.structs.replace(denied(1), subjects={"ip": "no address"}),
        msgspec.structs.replace(denied(1), attrs={"k": "x" * 5_000}), msgspec.structs.replace(denied(1), subjects={}),
    ]  # fmt: skip
    for one in (*wrong, denied(2)):
        publisher.offer(one)
    assert await asyncio.to_thread(publisher.flush)
    assert (publisher.counters.failed, publisher.counters.published) == (6, 1)
    assert balanced(publisher)
