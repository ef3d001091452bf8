"""A topic read from its beginning to where it ended when reading began: compacted or not, without a group.

Where a partition ends is what a fetch tells (the high watermark): the embedded broker answers ListOffsets(latest) with
the first offset of the last batch, and readers who believed that would miss the rest of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from penaltybox.links.kafka import Connection

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penaltybox.contracts.settings import Settings

POLL_MS = 500


async def read_topic(settings: Settings, topic: str, newest: int | None = None) -> AsyncIterator[Any]:
    """Records in the order of each partition; nothing when there is no such topic.

    Args:
        settings: where Kafka is.
        topic: its name.
        newest: about so many from the end of each partition, not fewer; all when None.

    Raises:
        KafkaError: the broker cannot be reached.
    """
    consumer = AIOKafkaConsumer(
        **Connection.of(settings).client_options(), enable_auto_commit=False, auto_offset_reset="earliest"
    )
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
            ends = {tp: end for tp, end in ends.items() if await consumer.position(tp) < end}
    finally:
        await consumer.stop()


async def end_offsets(consumer: AIOKafkaConsumer, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    """Where partitions end, truly. The consumer must be without a group; its assignment changes.

    Raises:
        KafkaError: the broker cannot be reached.
    """
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
    return ends


async def _partitions(consumer: AIOKafkaConsumer, topic: str) -> set[int]:
    metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 - a topic that was not subscribed to
    return set(metadata.partitions_for_topic(topic) or ())
