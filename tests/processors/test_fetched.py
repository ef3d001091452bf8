"""Records of a run topic come as they were parsed, whole batches at a time, and none too many or too few."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import FetchResult, PartitionRecords
from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from penaltybox.processors.fetched import FetchedRecords

TP = TopicPartition("decisions", 0)


def batch(*values: bytes, first: int) -> bytearray:
    """A batch as a broker sends it; its first record has this offset."""
    builder = DefaultRecordBatchBuilder(
        magic=2, compression_type=0, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=0,
        batch_size=1 << 16,
    )  # fmt: skip
    for number, value in enumerate(values):
        builder.append(number, 1_766_400_000_000 + number, None, value, [])
    built = bytearray(builder.build())
    built[:8] = first.to_bytes(8, "big")
    return built


def fetched(raw: bytes, position: int, *, isolation: int = 0) -> tuple[Any, Any]:
    """(fetch result, state of its partition) of these bytes, fetched from `position` on."""
    state = SimpleNamespace(paused=False, position=position)
    state.consumed_to = lambda offset: setattr(state, "position", offset)
    assignment = SimpleNamespace(active=True, state_value=lambda _: state)
    records = PartitionRecords(TP, MemoryRecords(bytes(raw)), [], position, None, None, True, isolation)
    result = FetchResult(TP, assignment=assignment, partition_records=records, backoff=0)
    store = FetchedRecords(frozenset({"decisions"}))
    store[TP] = result
    return store[TP], state


@pytest.mark.parametrize("isolation", [0, 1])
def test_a_fetch_that_begins_within_a_batch(isolation: int) -> None:
    """Records before the position are left out; the position is behind the last batch; nothing is left."""
    result, state = fetched(batch(b"a", b"b", b"c", first=5) + batch(b"d", first=9), 6, isolation=isolation)
    assert [(one.offset, one.value) for one in result.getall()] == [(6, b"b"), (7, b"c"), (9, b"d")]
    assert state.position == 10
    assert not result.has_more()


def test_a_few_at_a_time() -> None:
    """Who asks for at most so many gets them, and the rest with the next call."""
    result, state = fetched(batch(b"a", b"b", b"c", first=0), 0)
    assert [one.value for one in result.getall(2)] == [b"a", b"b"]
    assert (state.position, result.has_more()) == (2, True)


def test_a_damaged_batch() -> None:
    """What lies before it is handed over; when it is the first it is an error, and the position stays."""
    damaged = batch(b"bad", first=1)
    damaged[-2] ^= 1
    result, state = fetched(batch(b"good", first=0) + damaged, 0)
    assert [one.value for one in result.getall()] == [b"good"]
    assert state.position == 1
    result, state = fetched(damaged, 1)
    with pytest.raises(CorruptRecordException):
        result.getall()
    assert state.position == 1
    assert not result.has_more()


def test_what_was_fetched_before_a_seek_is_nothing() -> None:
    """The position has gone elsewhere: the fetch is dropped."""
    result, state = fetched(batch(b"a", first=0), 0)
    state.position = 7
    assert result.getall() == []
    assert state.position == 7


@pytest.mark.parametrize("read", [True, False])
def test_a_fetch_is_freed_without_the_collector(*, read: bool) -> None:
    """Read or dropped, nothing of a fetch waits for a collector that comes once an hour."""
    gc.disable()
    try:
        result, _ = fetched(batch(b"a", first=0), 0)
        held = [weakref.ref(result), weakref.ref(result._partition_records)]
        if read:
            assert len(result.getall()) == 1
        del result
        assert [one() for one in held] == [None, None]
    finally:
        gc.enable()
