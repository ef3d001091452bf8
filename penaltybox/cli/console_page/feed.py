"""Penalties as they happen: the penalties topic, followed without a group. The last ones are kept for newcomers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.contracts.events import Penalty
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.topic_log import end_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.contracts.settings import Settings

KEPT: Final = 100
_RETRY_S: Final = 2.0
_POLL_MS: Final = 500
_log = logging.getLogger("penaltybox.console")
_decode = msgspec.json.Decoder(Penalty).decode


class Feed:
    """The last penalties, newest first, and whoever wants to hear of new ones.

    Args:
        settings: where Kafka is.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._topic = Topics.named(settings.topic_prefix).penalties
        self._last: deque[Penalty] = deque(maxlen=KEPT)
        self._hearers: set[Callable[[list[Penalty]], None]] = set()
        self._positions: dict[TopicPartition, int] = {}

    @property
    def last(self) -> list[Penalty]:
        """The last penalties, newest first."""
        return list(self._last)

    def hear(self, hearer: Callable[[list[Penalty]], None]) -> Callable[[], None]:
        """From now on `hearer` gets new penalties, newest first, on the event loop; the answer ends that."""
        self._hearers.add(hearer)
        return lambda: self._hearers.discard(hearer)

    def take(self, penalties: Sequence[Penalty]) -> None:
        """New ones, of several partitions; told in the order of their times."""
        found = sorted(penalties, key=lambda one: (one.ts, one.seq))
        self._last.extendleft(found)
        for hearer in tuple(self._hearers):
            hearer(found[::-1][:KEPT])

    async def keep(self) -> None:
        """Follows the topic until it is cancelled; while Kafka is away it tries again."""
        told = False
        while True:
            try:
                await self._follow()
            except (PenaltyboxError, KafkaError, OSError) as error:
                if not told:
                    _log.warning("penalties are not followed: %s", error or repr(error))
                told = True
            await asyncio.sleep(_RETRY_S)

    async def _follow(self) -> None:
        consumer = AIOKafkaConsumer(
            **Connection.of(self._settings).client_options(), enable_auto_commit=False, auto_offset_reset="earliest"
        )
        try:
            await consumer.start()
            await self._begin(consumer)
            while True:
                fetched = await consumer.getmany(timeout_ms=_POLL_MS)
                if fetched:
                    self.take([one for records in fetched.values() for one in map(_read, records) if one is not None])
                    for tp, records in fetched.items():
                        self._positions[tp] = records[-1].offset + 1
        finally:
            await consumer.stop()

    async def _begin(self, consumer: AIOKafkaConsumer) -> None:
        """Where it left off; at first, and in a topic that is shorter than that, near the end."""
        metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 - to ask for a name may create the topic
        numbers = metadata.partitions_for_topic(self._topic) or ()
        if not numbers:
            raise ConfigurationError(f"Kafka has no topic {self._topic}; run `penaltybox setup` once")
        partitions = [TopicPartition(self._topic, number) for number in sorted(numbers)]
        ends = await end_offsets(consumer, partitions)
        firsts = await consumer.beginning_offsets(partitions)
        consumer.assign(partitions)
        for tp in partitions:
            kept = self._positions.get(tp, -1)
            begin = kept if firsts[tp] <= kept <= ends[tp] else max(firsts[tp], ends[tp] - KEPT)
            consumer.seek(tp, begin)


def _read(record: Any) -> Penalty | None:
    try:
        return _decode(record.value)
    except msgspec.MsgspecError:
        return None  # not ours; analytics counts it
