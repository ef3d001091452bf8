"""A topic read from its beginning to where it ended when reading began: compacted or not, without a group.

Where a partition ends is what a fetch tells (the high watermark): the embedded broker answers ListOffsets(latest) with
the first offset of the last batch, and readers who believed that would miss the rest of it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.links.kafka import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from penaltybox.contracts.settings import Settings

POLL_MS: Final = 500
ANSWER_MS: Final = 8_000
"""Longest wait for an answer: to a person at a terminal, a broker that hangs should be a sentence soon."""
SILENCE_S: Final = 10.0
"""A broker that sends no record for so long, though more are to come, has gone."""


class Patience:
    """Ends a wait for records that do not come; whatever moves on is a new beginning."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._since_s = time.monotonic()

    def moved(self) -> None:
        """Something came."""
        self._since_s = time.monotonic()

    def check(self, waiting: Iterable[TopicPartition]) -> None:
        """Go on waiting for more of these partitions?

        Raises:
            StoreUnavailable: nothing has come for too long.
        """
        one = min(waiting, default=None)
        if one is None or time.monotonic() - self._since_s < SILENCE_S:
            return
        raise StoreUnavailable(
            f"Kafka at {self._where} has sent nothing for {SILENCE_S:.0f} s, though {one.topic}, partition "
            f"{one.partition} goes on. Look whether it hangs (`penaltybox doctor`), then try again."
        )


async def read_topic(settings: Settings, topic: str, newest: int | None = None) -> AsyncIterator[Any]:
    """Records in the order of each partition; nothing when there is no such topic.

    Args:
        settings: where Kafka is.
        topic: its name.
        newest: about so many from the end of each partition, not fewer; all when None.

    Raises:
        KafkaError: the broker cannot be reached, or does not answer within `ANSWER_MS`.
        StoreUnavailable: it sends no more, though there is more: for `SILENCE_S`.
    """
    consumer = AIOKafkaConsumer(
        **Connection.of(settings).client_options(),
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        request_timeout_ms=ANSWER_MS,
    )
    patience = Patience(settings.kafka)
    try:
        await consumer.start()
        await consumer._client.force_metadata_update()  # noqa: SLF001 - as `partitions_for_topic` asks of its caller
        numbers = consumer.partitions_for_topic(topic) or await _partitions(consumer, topic)
        partitions = [TopicPartition(topic, number) for number in sorted(numbers)]
        ends = {tp: end for tp, end in (await consumer.end_offsets(partitions)).items() if end > 0}
        if not ends:
            return
        consumer.assign(list(ends))
        await consumer.seek_to_beginning(*ends)
        if newest is not None:
            for tp, first in (await consumer.beginning_offsets(list(ends))).items():
                consumer.seek(tp, max(first, ends[tp] - newest))
        beginning = set(ends)
        while ends:
            fetched = await consumer.getmany(timeout_ms=POLL_MS)
            for tp in beginning & fetched.keys():
                beginning.discard(tp)
                ends[tp] = max(ends[tp], consumer.highwater(tp) or 0)
            for tp, records in fetched.items():
                for record in records:
                    if record.offset < ends.get(tp, 0):
                        yield record
            # The position passes the end although compaction may have taken the last record.
            left = {tp: end for tp, end in ends.items() if await consumer.position(tp) < end}
            if fetched or len(left) < len(ends):
                patience.moved()
            ends = left
            patience.check(ends)
    finally:
        await consumer.stop()


async def end_offsets(consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Where partitions end, truly. The consumer must be without a group; its assignment changes.

    Raises:
        KafkaError: the broker cannot be reached.
        StoreUnavailable: it does not tell for `SILENCE_S`.
    """
    patience = Patience(str(consumer._client._bootstrap_servers))  # noqa: SLF001 - told nowhere else
    ends: dict[TopicPartition, int] = await consumer.end_offsets(partitions)
    unsure = {tp for tp, end in ends.items() if end > 0}
    consumer.assign(list(unsure))
    for tp in unsure:
        consumer.seek(tp, ends[tp] - 1)
    while unsure:
        await consumer.getmany(timeout_ms=POLL_MS)
        for tp in [one for one in unsure if consumer.highwater(one) is not None]:
            ends[tp] = max(ends[tp], consumer.highwater(tp))
            unsure.discard(tp)
            patience.moved()
        patience.check(unsure)
    return ends


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 - a topic that was not subscribed to
    return set(metadata.partitions_for_topic(topic) or ())
