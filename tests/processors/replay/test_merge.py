"""Partitions merged into one order."""

from __future__ import annotations

import random
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penaltybox.processors.replay.merge import Lane, released


class Raw(NamedTuple):
    """A record as fetched."""

    offset: int
    timestamp: int


PARTITIONS = st.lists(st.lists(st.integers(1, 40), max_size=30), min_size=1, max_size=4)


def merged(partitions: list[list[int]], seed: int, until_ms: int | None = None) -> list[tuple[int, int, int]]:
    """Partitions (their timestamps) read in chunks that chance has cut, in an order that chance has chosen."""
    chance = random.Random(seed)
    lanes = [Lane(rank, until_ms=until_ms) for rank in range(len(partitions))]
    left = [[Raw(offset, ms) for offset, ms in enumerate(stamps)] for stamps in partitions]
    found = []
    while any(not lane.done or lane.records for lane in lanes):
        while blocking := [lane for lane in lanes if lane.blocking]:
            lane = chance.choice(blocking)
            size = chance.randrange(1, 5)
            lane.take(left[lane.rank][:size])
            left[lane.rank] = left[lane.rank][size:]
            lane.done = lane.done or not left[lane.rank]
        found += [one[:3] for one in released(lanes)]
    return found


@given(PARTITIONS, st.integers(0, 5))
def test_the_order_does_not_depend_on_the_fetches(partitions: list[list[int]], seed: int) -> None:
    """However the records arrive: by the partition's clock, then its rank, then the offset."""
    expected = []
    for rank, stamps in enumerate(partitions):
        clock = 0
        for offset, ms in enumerate(stamps):
            clock = max(clock, ms)
            expected.append((clock, rank, offset))
    assert merged(partitions, seed) == sorted(expected)


@given(PARTITIONS, st.integers(0, 5), st.integers(1, 40))
def test_a_partition_ends_at_a_time(partitions: list[list[int]], seed: int, until_ms: int) -> None:
    """What the clock says is not before the end is left out, and nothing else."""
    everything = merged(partitions, seed)
    assert merged(partitions, seed, until_ms) == [one for one in everything if one[0] < until_ms]
