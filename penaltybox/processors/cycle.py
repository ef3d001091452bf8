"""What is written together: the changed subjects of several runs, and the runs that are acknowledged after them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.processors.announcements import Message
    from penaltybox.processors.residents import Resident


class Record(Protocol):
    """A record as fetched."""

    offset: int
    timestamp: int
    value: bytes | None


class Run(NamedTuple):
    """A run of records of one partition, and how to acknowledge it."""

    topic: str
    partition: int
    records: Sequence[Any]
    ack: Callable[[], object]


class Cycle:
    """Subjects to write (each once), dead letters to send, runs to acknowledge when all of it is done.

    Attributes:
        records: how many records were stepped into it.
        dropped: it was called off; nothing of it is acknowledged.
    """

    __slots__ = ("dropped", "letters", "records", "residents", "runs")

    def __init__(self) -> None:
        self.residents: list[Resident] = []
        self.letters: list[Message] = []
        self.runs: list[Run] = []
        self.records = 0
        self.dropped = False

    def __bool__(self) -> bool:
        return bool(self.residents or self.letters or self.runs)

    def drop(self) -> None:
        """Call it off: what was stepped and not written is forgotten."""
        self.dropped = True
        for resident in self.residents:
            resident.queued = resident.dirty = resident.urgent = resident.renew = False
            resident.kept = ()
