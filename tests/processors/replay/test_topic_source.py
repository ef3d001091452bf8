"""What a replay takes from its consumer, and when."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from aiokafka import TopicPartition

from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay import merge
from penaltybox.processors.replay.merge import Lane, released
from penaltybox.processors.replay.records import Window
from penaltybox.processors.replay.sources.kafka import TopicSource
from tests.processors.worker_driver import Raw

if TYPE_CHECKING:
    from collections.abc import Sequence

TPS = [TopicPartition("decisions", number) for number in range(3)]
EACH = 10


class Consumer:
    """Fetches two to four records of each partition, and while any of them are not taken no more without need."""

    def __init__(self) -> None:
        self.sent = dict.fromkeys(TPS, 0)
        self.fetched: dict[TopicPartition, list[Raw]] = {}
        self.fetches = 0
        self.asked: list[set[TopicPartition]] = []

    async def getmany(self, *wanted: TopicPartition, timeout_ms: int) -> dict[TopicPartition, list[Raw]]:
        self.asked.append(set(wanted))
        found = {tp: self.fetched.pop(tp) for tp in wanted if tp in self.fetched}
        if not self.fetched or (timeout_ms and not found):  # after a while it gives up waiting
            self.fetches += 1
            for tp in TPS:
                if tp in self.fetched:
                    continue
                first = self.sent[tp]
                self.sent[tp] = last = min(EACH, first + 2 + tp.partition)
                if last > first:
                    self.fetched[tp] = [Raw(at, 100 * at + tp.partition, b"{}") for at in range(first, last)]
        return found

    async def position(self, tp: TopicPartition) -> int:
        return self.sent[tp] - len(self.fetched.get(tp, ()))


def source() -> TopicSource:
    """A source that has begun, of three partitions."""
    made = TopicSource(Settings(), Canonicaliser(), Window())
    made._lanes = {tp: Lane(tp.partition) for tp in TPS}
    made._ends = dict.fromkeys(TPS, EACH)
    return made


async def read(made: TopicSource, consumer: Any) -> Sequence[tuple[int, int, int, Any]]:
    """All that it releases, and that no lane ever holds much more than it should."""
    found = []
    lanes = list(made._lanes.values())
    while any(not lane.done or lane.records for lane in lanes):
        await made._fill(consumer)
        assert all(len(lane.records) < merge.MOST_WAITING + 4 for lane in lanes)
        found += released(lanes)
    return found


@pytest.mark.parametrize("most", [1, 3, 4000])
def test_what_was_fetched_is_taken(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of partitions that block nothing, for the next records wait for it, but not of those far ahead."""
    monkeypatch.setattr(merge, "MOST_WAITING", most)
    consumer, made = Consumer(), source()
    found = asyncio.run(read(made, consumer))
    assert [one[:3] for one in found] == [(100 * at + rank, rank, at) for at in range(EACH) for rank in range(3)]
    assert made.done == 3 * EACH
    if most > EACH:
        assert consumer.asked[:3] == [set(TPS)] * 3
        assert consumer.fetches <= EACH // 2 + 2
