"""Steps by hand are versioned writes of the same engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import NoAnswerInTime, StoreUnavailable
from penaltybox.contracts.events import Command
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.engine import Engine
from penaltybox.processors.hand import CHUNK, UNDER_WAY, execute, execute_all
from penaltybox.processors.state import decode_state, encode_state
from penaltybox.processors.writer import next_nonce
from penaltybox.sinks.memory_store import MemorySubjectStore
from penaltybox.sinks.subject_store import Write
from tests.processors.worker_driver import T0, Rig, denials
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penaltybox.sinks.subject_store import WriteResult


def unban(at: int, **fields: object) -> Command:
    given = {"verb": "unban", "subject": "user:u1", "actor": "alice", "reason": "ticket 4711", **fields}
    return Command(id=f"c{at}", ts=at, **given)  # type: ignore[arg-type]


BLOCKING = """
rules:
  abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}
"""


async def test_a_lift_takes_the_block_and_is_told_by_the_worker() -> None:
    """The key is gone at once; the worker finds the lift in the outbox and sends it, with who and why."""
    async with Rig(policy=BLOCKING).running() as rig:
        await rig.take(*denials(3))
        await rig.settled()
        assert rig.store.mark("user:u1", "block")
        engine = rig.worker._engine
        (penalty,) = await execute(engine, rig.store, unban(rig.clock.ms, grace_ms=60_000), rig.clock.ms)
        assert (penalty.action, penalty.to, penalty.actor) == ("lift", "none", "alice")
        assert penalty.evidence["lifts"] == [rig.sender.penalties()[0].id]
        assert rig.store.mark("user:u1", "block") is None
        await wait_until(lambda: any(one.action == "lift" for one in rig.sender.penalties()))
        told = rig.sender.penalties()[-1]
        assert (told.note, told.origin) == ("ticket 4711", "hand")


class Contended(MemorySubjectStore):
    """Another writer is always a moment faster."""

    async def read(self, subjects: object) -> list[bytes | None]:
        blobs = await super().read(subjects)  # type: ignore[arg-type]
        for blob in blobs:
            if blob is not None:
                state = decode_state(blob)
                new = encode_state(state, next_nonce())
                await super().write([Write(state.subject, state.number, state.nonce, new, None, None, pending=False)])
        return blobs


async def test_a_lift_that_loses_every_race_says_so() -> None:
    """It never overwrites what it has not read, and ends with a sentence."""
    engine = Rig(policy=BLOCKING).worker._engine
    store = Contended(lambda: T0)
    await store.join_generation()
    await execute(engine, store, unban(T0), T0)
    with pytest.raises(StoreUnavailable, match="written too often"):
        await execute(engine, store, unban(T0 + 1, verb="pardon"), T0 + 1)


async def test_a_lift_of_nothing_says_so() -> None:
    """A typing error in the subject frees nobody; the record tells it apart from a lift of something."""
    rig = Rig(policy=BLOCKING)
    (penalty,) = await execute(rig.worker._engine, rig.store, unban(rig.clock.ms), rig.clock.ms)
    assert penalty.action == "lift"
    assert "lifts" not in penalty.evidence


class SlowStore(MemorySubjectStore):
    """Does what it is asked, and answers some of the writes too late."""

    def __init__(self, late: int) -> None:
        super().__init__(lambda: T0)
        self.late = late

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        done = await super().write(writes)
        if self.late:
            self.late -= 1
            raise NoAnswerInTime("Redis at 127.0.0.1:1 did not answer within 2 s.")
        return done


async def test_many_steps_outlast_a_slow_store() -> None:
    """A store that is slow for a moment is asked again, and nobody is banned twice; one that stays slow ends it."""
    bans = [
        Command(id=f"b{n}", ts=T0, verb="ban", subject=f"user:u{n}", actor="alice", reason="list", level="5m")
        for n in range(30)
    ]
    engine = Engine(parse_policy(BLOCKING))
    store = SlowStore(3)
    done = await execute_all(engine, store, bans, lambda: T0)
    assert done.written + done.kept == 30
    blobs = await store.read([one.subject for one in bans])
    states = [decode_state(blob, one.subject) for blob, one in zip(blobs, bans, strict=True) if blob is not None]
    assert [len(state.outbox) for state in states] == [1] * 30
    with pytest.raises(NoAnswerInTime):
        await execute_all(engine, SlowStore(4), bans, lambda: T0)


class BreakingStore(MemorySubjectStore):
    """Refuses one write, by its number, and takes its time with all."""

    def __init__(self, fails: int) -> None:
        super().__init__(lambda: T0)
        self.fails, self.calls = fails, 0

    async def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        self.calls += 1
        if self.calls == self.fails:
            raise StoreUnavailable("Redis at 127.0.0.1:1 is gone.")
        await asyncio.sleep(0)
        return await super().write(writes)


async def test_many_steps_are_drawn_as_they_are_needed() -> None:
    """When a chunk fails, those under way are finished and counted, and nothing is begun, or drawn, after that."""
    drawn = 0

    def bans() -> Iterator[Command]:
        nonlocal drawn
        for drawn in range(1, 20 * CHUNK + 1):
            yield Command(
                id=f"b{drawn}", ts=T0, verb="ban", subject=f"user:u{drawn}", actor="alice", reason="list", level="5m"
            )

    engine, store, told = Engine(parse_policy(BLOCKING)), BreakingStore(fails=5), list[int]()
    with pytest.raises(StoreUnavailable, match="is gone"):
        await execute_all(engine, store, bans(), lambda: T0, progress=told.append)
    assert drawn <= (5 + UNDER_WAY) * CHUNK
    assert told == sorted(set(told))
    blobs = await store.read([f"user:u{n}" for n in range(1, drawn + 1)])
    stored = told[-1]
    assert sum(blob is not None for blob in blobs) == stored >= 4 * CHUNK
    again = await execute_all(engine, store, bans(), lambda: T0, unless=lambda state, _: state.real.deny is not None)
    assert again == (20 * CHUNK - stored, stored)
