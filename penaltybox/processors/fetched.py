"""Records of Kafka as they were parsed, without aiokafka's wrapping: several hundred thousand a second."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from functools import partial
from typing import Any

from aiokafka.consumer.fetcher import READ_COMMITTED, FetchResult
from aiokafka.errors import CorruptRecordException


class FetchedRecords(OrderedDict[Any, Any]):
    """aiokafka's store of fetch results, in which those of run topics yield bare records.

    A bare record is what the parser made; aiokafka would put an 11-field frozen dataclass around each, which costs
    more than parsing it, and hand them over through two generators, which costs as much again. Its cycles are broken:
    a fetch has megabytes, and a worker's collector is off. Only `getall` works on such results.
    """

    def __init__(self, run_topics: frozenset[str]) -> None:
        super().__init__()
        self._run_topics = run_topics

    def __setitem__(self, partition: Any, result: Any) -> None:
        if type(result) is FetchResult and partition.topic in self._run_topics:
            parsed = result._partition_records  # noqa: SLF001 - no public way, tested
            parsed._consumer_record = bare_record  # noqa: SLF001 - as above
            parsed._records_iterator = None  # noqa: SLF001 - as above
            result.getall = partial(whole_batches, weakref.proxy(result))
        super().__setitem__(partition, result)


def bare_record(_partition: object, record: Any) -> Any:
    """Stand-in for aiokafka's wrapping: the record as it was parsed."""
    return record


def whole_batches(result: Any, max_records: int | None = None) -> list[Any]:
    """All records of a fetch result, as `FetchResult.getall` gives them, batch by batch instead of one by one.

    Raises:
        CorruptRecordException: the first batch is damaged. Behind good ones a damaged batch is fetched again.
    """
    parsed = result._partition_records  # noqa: SLF001 - no public way
    if max_records is not None:
        if parsed is not None and parsed._records_iterator is None:  # noqa: SLF001 - as above
            parsed._records_iterator = parsed._unpack_records()  # noqa: SLF001 - as above
        return list(FetchResult.getall(result, max_records))
    if not result.check_assignment(result._topic_partition) or not result.has_more():  # noqa: SLF001 - no public way
        return []
    batches, first = parsed._records, parsed.next_fetch_offset  # noqa: SLF001 - as above
    found: list[Any] = []
    try:
        while batches.has_next():
            batch = batches.next_batch()
            if parsed._check_crcs and not batch.validate_crc():  # noqa: SLF001 - as above
                if not found:
                    raise CorruptRecordException(f"Invalid CRC - {result._topic_partition}")  # noqa: SLF001
                break
            if not (_aborted(parsed, batch) or batch.is_control_batch):
                records = list(batch)
                if records and records[0].offset < first:  # a fetch may begin within a batch
                    records = [record for record in records if record.offset >= first]
                found += records
            parsed.next_fetch_offset = batch.next_offset
        result._update_position()  # noqa: SLF001 - as above
    finally:
        result._partition_records = None  # noqa: SLF001 - as above
    return found


def _aborted(parsed: Any, batch: Any) -> bool:
    """Whether a batch is of a transaction that was aborted, as far as that matters; in the order of batches."""
    if parsed._isolation_level != READ_COMMITTED or batch.producer_id is None:  # noqa: SLF001 - no public way
        return False
    parsed._consume_aborted_up_to(batch.base_offset)  # noqa: SLF001 - as above
    if batch.is_control_batch and parsed._contains_abort_marker(batch):  # noqa: SLF001 - as above
        parsed._aborted_producers.discard(batch.producer_id)  # noqa: SLF001 - as above
    return batch.is_transactional and batch.producer_id in parsed._aborted_producers  # noqa: SLF001 - as above
