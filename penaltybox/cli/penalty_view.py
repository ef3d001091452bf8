"""The penalties topic, followed: counts, and whom they block or challenge at an event time."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from penaltybox.cli.offline import rung_label
from penaltybox.contracts.events import Penalty
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.topic_log import end_offsets
from penaltybox.producers.limiter import Listed

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.limiter import Request

_decode = msgspec.json.Decoder(Penalty).decode


class PenaltyView:
    """What the real ladder has done so far. A blocklist in event time, where Redis' own is in wall time."""

    def __init__(self, settings: Settings) -> None:
        self._options: dict[str, Any] = Connection.of(settings).client_options()
        self._topic = Topics.named(settings.topic_prefix).penalties
        self._partitions = settings.kafka_partitions
        self._canonical = Canonicaliser(settings.ipv6_prefix, settings.hashed_dimensions).subject
        self._consumer: AIOKafkaConsumer | None = None
        self._looker: AIOKafkaConsumer | None = None
        self._denied: dict[str, int | None] = {}
        self._challenged: dict[str, int | None] = {}
        self.by_rung: Counter[str] = Counter()
        self.by_rule: Counter[str] = Counter()
        self.subjects: set[str] = set()

    async def start(self) -> None:
        """Connects; follows from the topic's beginning."""
        self._consumer = AIOKafkaConsumer(**self._options, auto_offset_reset="earliest", enable_auto_commit=False)
        self._looker = AIOKafkaConsumer(**self._options, enable_auto_commit=False)
        await self._consumer.start()
        await self._looker.start()
        self._consumer.assign([TopicPartition(self._topic, partition) for partition in range(self._partitions)])

    async def stop(self) -> None:
        """Disconnects."""
        for consumer in (self._consumer, self._looker):
            if consumer is not None:
                await consumer.stop()

    async def catch_up(self) -> None:
        """Takes in all that is in the topic now."""
        consumer, looker = self._consumer, self._looker
        if consumer is None or looker is None:
            return
        ends = await end_offsets(looker, list(consumer.assignment()))
        while any([await consumer.position(partition) < end for partition, end in ends.items()]):
            for records in (await consumer.getmany(timeout_ms=100)).values():
                for record in records:
                    self._take(_decode(record.value))

    def _take(self, penalty: Penalty) -> None:
        if penalty.shadow:
            return
        self.by_rung[rung_label(penalty)] += 1
        self.by_rule[penalty.rule] += 1
        self.subjects.add(penalty.subject)
        if penalty.action == "deny":
            self._denied[penalty.subject] = penalty.until
        elif penalty.action == "challenge":
            self._challenged[penalty.subject] = penalty.until
        elif penalty.action == "lift":
            self._challenged.pop(penalty.subject, None)

    def listed(self, request: Request) -> Listed | None:
        """The block, else the challenge, in force against one of a request's subjects at the request's time."""
        subjects = [self._canonical(dimension, value) for dimension, value in request.subjects.items()]
        for action, table in (("deny", self._denied), ("challenge", self._challenged)):
            for subject in subjects:
                if subject in table:
                    until = table[subject]
                    if until is None or until > request.ts_ms:
                        return Listed("deny" if action == "deny" else "challenge", until)
        return None
