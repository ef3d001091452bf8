"""What the tests of the background publisher offer, and where it arrives."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from penaltybox.contracts.events import Decision
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import Topics
from penaltybox.processors.topic_log import read_topic
from tests.servers import AnyBroker, fresh_name

if TYPE_CHECKING:
    from penaltybox.producers.background import BackgroundPublisher

PARTITIONS = 4
SUBJECTS = 20


def allowed(number: int) -> Decision:
    """An allowed request of one of twenty users."""
    return Decision(
        v=1, id=f"a{number}", ts=1_000, source="t/1", action="allow", subjects={"user": f"u{number % SUBJECTS}"}
    )


def denied(number: int) -> Decision:
    """A denied one."""
    return Decision(
        v=1, id=f"d{number}", ts=1_000, source="t/1", action="deny", reason="over_limit",
        violated=("user:daily",), subjects={"user": f"u{number % SUBJECTS}"},
    )  # fmt: skip


def settings_for(broker: AnyBroker, folder: Path, **more: Any) -> Settings:
    """Settings of a test: a topic prefix and a spill of its own."""
    return Settings(kafka=broker.bootstrap, topic_prefix=fresh_name("bg"), spill_dir=str(folder / "spill"), **more)


async def make_topics(settings: Settings) -> None:
    """The two topics that a publisher writes."""
    topics = Topics.named(settings.topic_prefix)
    admin = AIOKafkaAdminClient(bootstrap_servers=settings.kafka)
    await admin.start()
    await admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (topics.decisions, topics.outcomes)])
    await admin.close()


async def arrived(settings: Settings) -> list[str]:
    """Ids on the decisions topic, by partition and offset."""
    topic = Topics.named(settings.topic_prefix).decisions
    return [msgspec.json.decode(record.value)["id"] async for record in read_topic(settings, topic)]


def of_subject(ids: list[str], subject: int) -> list[int]:
    """The numbers of one user's refusals, in their order, first occurrences only."""
    return list(dict.fromkeys(int(name[1:]) for name in ids if name[0] == "d" and int(name[1:]) % SUBJECTS == subject))


def balanced(publisher: BackgroundPublisher) -> bool:
    """Every offered record has had its end: published, dropped, failed or spilled."""
    got = publisher.counters
    return got.offered == (got.published - got.resent) + got.dropped + got.failed + got.spilled


def segments(settings: Settings) -> list[Path]:
    """Files of the spill that wait."""
    return sorted((Path(settings.spill_dir) / settings.topic_prefix).glob("*.jsonl"))
