"""A worker on a store in memory, fed by hand: what a test of the pipeline needs, without Faust and Kafka."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Decision, Ladder, Outcome, Penalty, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.cycle import Run
from penaltybox.processors.engine import Engine
from penaltybox.processors.limits import Limits
from penaltybox.processors.seams import no_seam
from penaltybox.processors.state import SubjectState, decode_state
from penaltybox.processors.worker import Worker
from penaltybox.sinks.memory_store import MemoryKeys, MemorySubjectStore
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Sequence

    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.announcements import Message
    from penaltybox.sinks.subject_store import Write, WriteResult

T0 = 1_766_400_000_000
POLICY = """
limits: {}
rules:
  abuse: {on: user, count: 3, window: 10m, then: step}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h}
"""
BLOCKING = POLICY.replace("then: step", "then: {level: 5m}")


class Raw(NamedTuple):
    """A record as fetched."""

    offset: int
    timestamp: int
    value: bytes | None


class RecordingSender:
    """Keeps what was sent; can be away."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.away = False

    async def send(self, messages: Sequence[Message]) -> None:
        if self.away:
            raise StoreUnavailable("the broker of this test is away")
        self.messages += messages

    def news(self) -> list[Message]:
        """All but the control topic's."""
        return [message for message in self.messages if message.topic != TOPICS.control]

    def penalties(self) -> list[Penalty]:
        return [msgspec.json.decode(m.value, type=Penalty) for m in self.messages if m.topic == TOPICS.penalties]

    def ladders(self) -> list[Ladder | None]:
        return [
            None if m.value is None else msgspec.json.decode(m.value, type=Ladder)
            for m in self.messages
            if m.topic == TOPICS.ladders
        ]

    def letters(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(m.value or b"") for m in self.messages if m.topic == TOPICS.dead_letters]


class FlakyStore(MemorySubjectStore):
    """A store in memory that can be away, or lose its answers."""

    away = False
    deaf = 0
    """So many writes happen although their caller hears nothing."""
    reads = 0

    async def read(self, subjects: Sequence[str]) -> list[bytes | None]:
        self.reads += 1
        await self._answer()
        return await super().read(subjects)

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        await self._answer()
        results = await super().write(writes)
        if self.deaf:
            self.deaf -= 1
            raise StoreUnavailable("the answer got lost")
        return results

    async def pause_reason(self) -> str | None:
        await self._answer()
        return await super().pause_reason()

    async def _answer(self) -> None:
        await asyncio.sleep(0)
        if self.away:
            raise StoreUnavailable("the store of this test is away")


class Clock:
    """A wall clock that stands until it is moved."""

    def __init__(self, ms: int = T0 + 60_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


class Rig:
    """A worker and what it works with."""

    def __init__(
        self,
        *,
        policy: Policy | str = POLICY,
        keys: MemoryKeys | None = None,
        sender: RecordingSender | None = None,
        clock: Clock | None = None,
        seam: Callable[[Any], None] = no_seam,
        **limits: Any,
    ) -> None:
        self.clock = clock or Clock()
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self.store = FlakyStore(self.clock, keys)
        self.sender = sender or RecordingSender()
        self.acked: list[int] = []
        self.runs = 0
        self.worker = Worker(
            Engine(self.policy),
            self.store,
            self.sender,
            TOPICS,
            wall_ms=self.clock,
            limits=Limits(**{"linger_s": 0.001, "sweep_age_ms": 0, **limits}),
            seam=seam,
        )

    async def take(self, *events: Decision | Outcome | bytes, topic: str = TOPICS.decisions) -> int:
        """Step events as one run; its number."""
        run = self.run(events, topic)
        await self.worker.take(run)
        return self.runs

    def run(self, events: Iterable[Decision | Outcome | bytes], topic: str = TOPICS.decisions) -> Run:
        self.runs += 1
        number = self.runs
        records = [
            Raw(offset, self.clock.ms, event if isinstance(event, bytes) else encode(event))
            for offset, event in enumerate(events)
        ]
        return Run(topic, 0, records, lambda: self.acked.append(number))

    async def settled(self) -> None:
        """Everything that was taken is acknowledged and nothing is open."""
        await wait_until(lambda: self.worker.idle and len(self.acked) == self.runs, what="worker idle")

    @asynccontextmanager
    async def running(self, pause_every_s: float = 0.01) -> AsyncIterator[Rig]:
        tasks = [
            asyncio.create_task(self.worker.write_cycles()),
            asyncio.create_task(self.worker.watch_pause(pause_every_s)),
        ]
        try:
            yield self
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task


def denial(number: int, *, user: str = "u1", at: int = T0, **fields: Any) -> Decision:
    """A coupon claim that was denied, over the user's limit."""
    return Decision(
        v=1,
        id=f"d{number}",
        ts=at + number,
        source="test/1",
        scenario="coupon_claim",
        action="deny",
        reason="over_limit",
        violated=("user:daily",),
        **{"subjects": {"user": user}, **fields},
    )


def denials(count: int, start: int = 1, **fields: Any) -> list[Decision]:
    return [denial(number, **fields) for number in range(start, start + count)]


async def stored(rig: Rig, subject: str = "user:u1") -> SubjectState:
    (blob,) = await rig.store.read([subject])
    assert blob is not None
    return decode_state(blob)
