"""Which generation of the store is the right one: the control topic says.

A worker that starts, or finds another generation than it knew, must not take an empty or a strange store for its own:
ladders would be forgotten.  The record with key ``generation`` names the one that the last start from nothing, or the
last restore, has begun.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiokafka.errors import KafkaError

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Control, encode
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.topics import Topics
from penaltybox.processors.announcements import Message
from penaltybox.processors.topic_log import read_topic

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.announcements import Sender
    from penaltybox.sinks.subject_store import SubjectStore

log = logging.getLogger(__name__)
KEY: Final = "generation"


async def recorded_generation(settings: Settings) -> str | None:
    """The generation that the control topic names; None when it names none (a first start, a broker that forgot).

    Raises:
        StoreUnavailable: the broker does not answer.
    """
    found = None
    try:
        async for record in read_topic(settings, Topics.named(settings.topic_prefix).control):
            if record.key == KEY.encode() and record.value is not None:
                found = read_control(record) or found
    except KafkaError as error:
        raise StoreUnavailable(f"Kafka did not tell which generation of the store is right: {error!r}") from error
    return found.value if found else None


def read_control(record: Any) -> Control | None:
    """A record of the control topic; None, and logged, when it is no control: a newer release's, or somebody else's."""
    try:
        return msgspec.json.decode(record.value, type=Control)
    except (msgspec.MsgspecError, RecursionError) as error:
        log.warning("Partition %d, offset %d: no control, left out: %s", record.partition, record.offset, error)
        return None


async def record_generation(
    sender: Sender, topics: Topics, generation: str, now_ms: int, *, actor: str, reason: str
) -> None:
    """Name a generation in the control topic."""
    control = Control(id=ulid(now_ms), ts=now_ms, key=KEY, kind="restore", value=generation, actor=actor, reason=reason)
    await sender.send([Message(topics.control, KEY.encode(), encode(control))])


async def join(store: SubjectStore, sender: Sender, settings: Settings, now_ms: int) -> str:
    """Join the store's generation if it is the right one; begin one where neither store nor control topic know any.

    Raises:
        GenerationMismatch: the store is empty or strange, and not what the control topic names.
        StoreUnavailable: the store, or the broker, does not answer.
    """
    known = await recorded_generation(settings)
    generation = await store.join_generation(known)
    if known is None:
        topics = Topics.named(settings.topic_prefix)
        await record_generation(sender, topics, generation, now_ms, actor="worker", reason="first start")
    return generation
