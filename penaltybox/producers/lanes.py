"""Sealed records on their way: one lane per partition, so that a partition without a leader holds up no other.

A lane has one batch in flight. While a batch is unanswered for longer than `SECURE_S`, what must be kept of the lane is
handed back at once: it is safe on disk then, whatever follows. A lane whose batch failed takes nothing for a while but
one record that tries it.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokafka.errors import MessageSizeTooLargeError, UnknownTopicOrPartitionError
from aiokafka.partitioner import murmur2

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.producers.sealed import Sealed

SECURE_S: Final = 1.0
FIRST_REST_S: Final = 1.0
LONGEST_REST_S: Final = 10.0
MAX_PLACES: Final = 20_000


class Ledger(Protocol):
    """Whoever answers for the records."""

    def confirmed(self, count: int) -> None:
        """Kafka has so many more."""

    def unsent(self, records: Sequence[Sealed]) -> None:
        """These are not with Kafka for all we know, and the lane has let go of them."""

    def refused(self, count: int, error: BaseException) -> None:
        """Kafka never takes these: each alone is too large for it."""

    def stuck(self, error: BaseException, *, alone: bool) -> None:
        """A batch failed; `alone` if another lane's was confirmed meanwhile, so Kafka is there."""


class _Lane:
    """The records of one partition."""

    __slots__ = ("confirmed_before", "flying", "pending", "place", "rest_s", "since", "size", "slow", "task", "until")

    def __init__(self, place: tuple[str, int]) -> None:
        self.place = place
        self.pending: deque[Sealed] = deque()
        self.flying: list[Sealed] = []
        self.task: asyncio.Task[int] | None = None
        self.since = 0.0
        self.size = self.confirmed_before = 0
        self.slow = False
        self.until: float | None = None
        self.rest_s = FIRST_REST_S


class Lanes:
    """Sends through one producer. All methods belong to its loop.

    Args:
        producer: a started AIOKafkaProducer.
        ledger: gets each record back: confirmed, unsent or refused.
        room: records in all lanes at most; one lane may take half.
    """

    def __init__(self, producer: Any, ledger: Ledger, room: int) -> None:
        self._producer = producer
        self._ledger = ledger
        self._room = room
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._places: dict[bytes, int] = {}
        self._confirmed = 0
        self.held = 0
        """Records in the lanes."""

    def put(self, records: Iterable[Sealed]) -> None:
        """`hold` and `go`."""
        self.hold(records)
        self.go()

    def hold(self, records: Iterable[Sealed]) -> None:
        """Takes records; those that cannot wait here are given back as unsent at once. They leave when `go` says so."""
        unsent = []
        counts: dict[str, int] = {}
        for record in records:
            lane = self._lane(record, counts)
            if lane is None or not self._has_room(lane, record):
                unsent.append(record)
                continue
            lane.pending.append(record)
            self.held += 1
        if unsent:
            self._ledger.unsent(unsent)

    def go(self) -> None:
        """Sends what is held, but for lanes whose last batch is still under way: theirs leaves after it."""
        for lane in self._lanes.values():
            if lane.pending and lane.task is None:
                self._launch(lane)

    def sweep(self) -> None:
        """To be called a few times a second: hands back what must be kept of lanes that have waited too long."""
        now = time.monotonic()
        for lane in self._lanes.values():
            if lane.task is not None and now - lane.since > SECURE_S:
                self._secure(lane)

    async def deliver(self, records: Iterable[Sealed]) -> tuple[int, list[Sealed]]:
        """Sends records beside the lanes and waits; how many Kafka confirmed, and those that may be sent again.

        Nothing goes to the ledger but what is refused for good.
        """
        groups: dict[tuple[str, int], deque[Sealed]] = {}
        left = []
        counts: dict[str, int] = {}
        for record in records:
            place = self._place(record, counts)
            if place is None:
                left.append(record)
            else:
                groups.setdefault(place, deque()).append(record)

        confirmed = 0
        for count, unsent in await asyncio.gather(*(self._deliver(place, group) for place, group in groups.items())):
            confirmed += count
            left += unsent
        return confirmed, left

    def abandon(self) -> list[Sealed]:
        """Lets go of everything; what was not confirmed."""
        left: list[Sealed] = []
        for lane in self._lanes.values():
            if lane.task is not None:
                lane.task.cancel()
            left += lane.flying
            left += lane.pending
        self._lanes.clear()
        self.held = 0
        return left

    def _lane(self, record: Sealed, counts: dict[str, int]) -> _Lane | None:
        place = self._place(record, counts)
        if place is None:
            self._ledger.stuck(UnknownTopicOrPartitionError(), alone=False)
            return None
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _Lane(place)
        return lane

    def _has_room(self, lane: _Lane, record: Sealed) -> bool:
        if lane.until is not None:
            now = time.monotonic()
            if now < lane.until:
                return False
            lane.rest_s = min(2 * lane.rest_s, LONGEST_REST_S)
            lane.until = now + lane.rest_s
        if record.kept and lane.slow:
            return False
        return self.held < self._room and len(lane.pending) < self._room // 2

    def _place(self, record: Sealed, counts: dict[str, int]) -> tuple[str, int] | None:
        """Topic and partition; `counts` remembers how many partitions the topics have, for one run of records."""
        count = counts.get(record.topic)
        if count is None:
            known = self._producer.client.cluster.partitions_for_topic(record.topic)
            count = counts[record.topic] = len(known or ())
        if not count:
            return None
        place = self._places.get(record.key)
        if place is None:
            if len(self._places) >= MAX_PLACES:
                self._places.clear()
            place = self._places[record.key] = murmur2(record.key) & 0x7FFFFFFF
        return record.topic, place % count

    def _launch(self, lane: _Lane) -> None:
        batch, lane.flying = self._batch(lane.pending)
        lane.size, lane.confirmed_before, lane.since = len(lane.flying), self._confirmed, time.monotonic()
        lane.task = asyncio.get_running_loop().create_task(self._send(lane.place, batch, lane.flying))
        lane.task.add_done_callback(functools.partial(self._landed, lane))

    def _landed(self, lane: _Lane, task: asyncio.Task[int]) -> None:
        lane.task = None
        if task.cancelled():  # whoever cancelled it took the records
            return
        error = task.exception()
        if error is None:
            self._answered(lane, refused=lane.size - task.result())
        else:
            self._failed(lane, error, alone=self._confirmed != lane.confirmed_before)
        if lane.pending:
            self._launch(lane)

    def _secure(self, lane: _Lane) -> None:
        lane.slow = True
        kept = [record for record in (*lane.flying, *lane.pending) if record.kept]
        lane.flying = [record for record in lane.flying if not record.kept]
        lane.pending = deque(record for record in lane.pending if not record.kept)
        self.held -= len(kept)
        if kept:
            self._ledger.unsent(kept)

    def _answered(self, lane: _Lane, refused: int) -> None:
        lane.slow, lane.until, lane.rest_s = False, None, FIRST_REST_S
        self.held -= len(lane.flying)
        self._confirmed += 1
        self._ledger.confirmed(max(0, len(lane.flying) - refused))
        lane.flying = []

    def _failed(self, lane: _Lane, error: BaseException, *, alone: bool) -> None:
        """What was not given back yet goes back, and with it what waits behind it."""
        left = [*lane.flying, *lane.pending]
        lane.flying = []
        lane.pending.clear()
        self.held -= len(left)
        lane.slow, lane.until = False, time.monotonic() + lane.rest_s
        self._ledger.unsent(left)
        self._ledger.stuck(error, alone=alone)

    async def _deliver(self, place: tuple[str, int], records: deque[Sealed]) -> tuple[int, list[Sealed]]:
        """As `deliver`, records of one partition."""
        confirmed = 0
        while records:
            batch, flying = self._batch(records)
            try:
                confirmed += await self._send(place, batch, flying)
            except Exception:  # noqa: BLE001 - whatever it is, they are not with Kafka for all we know
                return confirmed, [*flying, *records]
        return confirmed, []

    def _batch(self, records: deque[Sealed]) -> tuple[Any, list[Sealed]]:
        """The first records, taken away, in a batch; at least one."""
        batch, flying = self._producer.create_batch(), []
        while records:
            record = records[0]
            if batch.append(timestamp=None, key=record.key, value=record.value) is None:
                break
            flying.append(records.popleft())
        batch.close()
        return batch, flying

    async def _send(self, place: tuple[str, int], batch: Any, records: Sequence[Sealed]) -> int:
        """How many Kafka has confirmed: all. If the topic takes less at once, halves, down to a single record."""
        try:
            await (await self._producer.send_batch(batch, place[0], partition=place[1]))
        except MessageSizeTooLargeError as error:
            if len(records) == 1:
                self._ledger.refused(1, error)
                return 0
            middle = len(records) // 2
            halves = (records[:middle], records[middle:])
            return sum([await self._send(place, self._batch(deque(half))[0], half) for half in halves])
        return len(records)
