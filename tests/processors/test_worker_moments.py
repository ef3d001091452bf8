"""What happens in the moments while a worker waits for an answer: told beside writing, forgotten, tripped."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penaltybox.processors.state import decode_state
from tests.processors.worker_driver import FlakyStore, RecordingSender, Rig, denials
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.processors.announcements import Message
    from penaltybox.sinks.subject_store import Write, WriteResult


class GatedSender(RecordingSender):
    """Delivers when the gate is open, and remembers what was stored of each penalty when it was delivered."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def send(self, messages: Sequence[Message]) -> None:
        await self.gate.wait()
        await super().send(messages)


class GatedStore(FlakyStore):
    """Answers writes when the gate is open."""

    gate: asyncio.Event
    waiting = 0

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return await super().write(writes)


async def test_a_penalty_is_told_after_its_own_write_only() -> None:
    """A step made while the write before it is under way, and the news before it is told, waits for its own write.

    Told earlier it would carry another write's version, and be a phantom if its own write lost its race.
    """
    sender = GatedSender()
    rig = Rig(sender=sender)
    store = GatedStore(rig.clock)
    store.gate = asyncio.Event()
    store.gate.set()
    rig.store = rig.worker._store = rig.worker._writer._store = rig.worker.teller._store = store
    async with rig.running():
        await rig.take(*denials(3))  # a warn: written at once, its telling waits at the gate
        await wait_until(lambda: rig.worker.teller.taken == 1, what="the warn is stored")
        store.gate.clear()
        await rig.take(*denials(1, start=4))  # one more decision: its write waits at the gate
        await wait_until(lambda: store.waiting == 1, what="the next write is under way")
        sender.gate.set()
        await wait_until(lambda: len(sender.penalties()) == 1, what="the warn is told")
        await wait_until(lambda: rig.worker.teller.told == 1, what="the warn is confirmed")
        sender.gate.clear()
        await rig.take(*denials(3, start=5))  # the next rung, while that write is still under way
        told_before = rig.worker.teller.taken
        store.gate.set()
        store.gate.clear()
        await wait_until(lambda: store.waiting == 0 or rig.worker.teller.taken > told_before, what="the answer")
        store.gate.set()
        sender.gate.set()
        await rig.settled()
    assert [penalty.to for penalty in sender.penalties()] == ["warn", "5m"]
    (blob,) = await store.read(["user:u1"])
    first, second = sender.penalties()
    assert first.seq < second.seq <= decode_state(blob or b"").number
    told = [ladder.seq for ladder in sender.ladders() if ladder is not None]
    assert {first.seq, second.seq} == set(told)


async def test_states_that_are_forgotten_while_a_slice_is_being_read_end_no_worker() -> None:
    """A rebalance may forget all states in the moment between two slices of a run; the run is then given up."""
    rig = Rig(slice=1)
    worker = rig.worker

    class Forgetting(FlakyStore):
        async def read(self, subjects: Sequence[str]) -> list[bytes | None]:
            if self.reads == 1:  # the second slice is being read, the first is about to be stepped
                worker._epoch += 1  # as `forget` does before its first await
                worker._drop_cycles()
            return await super().read(subjects)

    worker._store = Forgetting(rig.clock)
    async with rig.running():
        await rig.take(*denials(1), *denials(1, start=2, user="u2"), *denials(1, start=3, user="u3"))
    assert rig.acked == []


async def test_a_look_at_the_pause_key_ends_no_pause_of_a_breaker_that_tripped_meanwhile() -> None:
    """The answer is older than the trip; taken for true it would let another whole quota of denials through."""
    rig = Rig()
    worker = rig.worker
    seen: list[str | None] = []

    class Slow(FlakyStore):
        async def pause_reason(self) -> str | None:
            answer = await super().pause_reason()
            if not seen:
                worker._trip("too many denials")
            seen.append(answer)
            return answer

        async def pause(self, reason: str, actor: str, at_ms: int) -> None:
            seen.append(f"local: {worker.paused}")
            await super().pause(reason, actor, at_ms)

    worker._store = Slow(rig.clock)
    async with rig.running():
        await wait_until(lambda: len(seen) >= 3, what="a second look")
    assert seen[:3] == [None, "local: too many denials", "too many denials"]
