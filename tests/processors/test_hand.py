"""Steps by hand are versioned writes of the same engine."""

from __future__ import annotations

import pytest

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Command
from penaltybox.processors.hand import execute
from penaltybox.processors.state import decode_state, encode_state
from penaltybox.processors.writer import next_nonce
from penaltybox.sinks.memory_store import MemorySubjectStore
from penaltybox.sinks.subject_store import Write
from tests.processors.worker_driver import T0, Rig, denials
from tests.waiting import wait_until


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
