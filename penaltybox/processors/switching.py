"""Which policy steps, and since which record of each partition: a switch happens between two runs.

The next policy begins when nothing that the last one stepped could be stepped again (after a lost race), so every
record is judged by one policy, and the control topic says from which offset on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.events import Control, encode
from penaltybox.contracts.ids import ulid
from penaltybox.processors.announcements import Message

if TYPE_CHECKING:
    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.cycle import Run
    from penaltybox.processors.engine import Engine


TURN_S: Final = 0.002


class PolicyInUse(msgspec.Struct, frozen=True):
    """Value of a control record of the kind ``policy_in_use``: from this offset on the version judges a partition."""

    version: str
    topic: str
    partition: int
    offset: int


class Turn:
    """The engine that waits for its turn, and what was told about the one that has it.

    Attributes:
        next: steps from the next run on; None when the current one stays.
    """

    def __init__(self, topics: Topics) -> None:
        self._topics = topics
        self._told: dict[tuple[str, int], str] = {}
        self.next: Engine | None = None

    def take(self) -> Engine:
        """The engine whose turn it is now.

        Raises:
            AssertionError: none waits.
        """
        engine, self.next = self.next, None
        assert engine is not None  # noqa: S101 - the caller has looked
        return engine

    def begin(self, run: Run, engine: Engine, now_ms: int) -> list[Message]:
        """What is to be told before this run is acknowledged: its policy, if the last run's was another."""
        place = (run.topic, run.partition)
        if not run.records or self._told.get(place) == engine.version:
            return []
        self._told[place] = engine.version
        offset = run.records[0].offset
        value = msgspec.json.encode(PolicyInUse(engine.version, *place, offset)).decode()
        # With the offset in its key none is compacted away: a version can be in force more than once.
        key = f"policy_in_use:{run.topic}:{run.partition}:{engine.version}:{offset}"
        record = Control(id=ulid(now_ms), ts=now_ms, key=key, kind="policy_in_use", value=value, actor="worker")
        return [Message(self._topics.control, key.encode(), encode(record))]

    def forget(self) -> None:
        """What was told may not have been sent, and the partitions may be others': tell it again."""
        self._told.clear()
