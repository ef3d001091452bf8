"""How far each partition may be committed: up to the oldest delivered message that is not acknowledged.

Faust's own tracker works with offsets and can commit past a record that is still being processed; this one
keeps the delivered messages themselves, in order, and looks at their `acked` flag.  Identity, not the offset,
decides: an acknowledgement that comes in late from before a rebalance cannot be taken for that of the same
offset delivered again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

P = TypeVar("P")


class Delivered(Protocol):
    """A delivered message: `offset` is that of its last record, `acked` turns true when it is done."""

    offset: int
    acked: bool


class Tracker(Generic[P]):
    """Delivered, unacknowledged messages per partition, oldest first."""

    __slots__ = ("_pending", "_reached")

    def __init__(self) -> None:
        self._pending: dict[P, deque[Delivered]] = {}
        self._reached: dict[P, int] = {}

    def deliver(self, partition: P, message: Delivered) -> None:
        """Remember a message, in the order of its partition, before it is handed to anyone."""
        pending = self._pending.get(partition)
        if pending is None:
            pending = self._pending[partition] = deque()
        pending.append(message)

    def reached(self, partition: P) -> int | None:
        """The offset to commit: one past the last message before the oldest unacknowledged one, None if none is."""
        pending = self._pending.get(partition)
        while pending and pending[0].acked:
            self._reached[partition] = pending.popleft().offset + 1
        return self._reached.get(partition)

    def unacknowledged(self) -> int:
        """Number of delivered messages that nobody has acknowledged yet, over all partitions."""
        for partition in self._pending:
            self.reached(partition)
        return sum(1 for pending in self._pending.values() for message in pending if not message.acked)

    def oldest(self, partition: P) -> Delivered | None:
        """The oldest delivered message of a partition that nobody has acknowledged yet; None if there is none."""
        self.reached(partition)
        pending = self._pending.get(partition)
        return pending[0] if pending else None

    def partitions(self) -> Iterator[P]:
        """Partitions in which anything was delivered since they were last forgotten."""
        return iter(tuple(self._pending))

    def forget(self, partitions: Iterable[P] | None = None) -> None:
        """Drop what was delivered (of all partitions when None): revoked, or about to be read again after a seek."""
        for partition in tuple(self._pending) if partitions is None else partitions:
            self._pending.pop(partition, None)
            self._reached.pop(partition, None)
