"""A worker that leaves, and what stays the same however its input is cut."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.processors.state import decode_state
from tests.processors.engine_driver import Drive
from tests.processors.worker_driver import T0, Clock, Rig, denial, denials, stored
from tests.waiting import wait_until

MINUTE = 60_000


async def test_memory_is_bounded() -> None:
    """However many subjects come, only as many as allowed stay; those forgotten are read again and go on counting."""
    async with Rig(subjects=20, slice=5).running() as rig:
        for start in range(0, 200, 10):
            await rig.take(*[denial(n, user=f"u{n}") for n in range(start, start + 10)])
            await rig.settled()
        assert len(rig.worker.residents) <= 40
        await rig.take(*[denial(1000 + n, user=f"u{n}") for n in range(200)])
        await rig.take(*[denial(2000 + n, user=f"u{n}") for n in range(200)])
        await rig.settled()
        assert len({penalty.subject for penalty in rig.sender.penalties()}) == 200


async def test_leaving_finishes_what_is_open() -> None:
    """A drain writes, tells and acknowledges all that was taken, and forgets the states."""
    async with Rig(linger_s=60).running() as rig:
        await rig.take(*denials(3))
        assert rig.acked == []
        await rig.worker.drain(asyncio.get_running_loop().time() + 5)
        assert rig.acked == [1]
        assert rig.worker.idle
        assert len(rig.worker.residents) == 0
        assert (await stored(rig)).outbox == []


@pytest.mark.parametrize("why", ["paused", "outage"])
async def test_leaving_gives_up_what_cannot_be_finished(why: str) -> None:
    """In a pause or an outage a drain ends at its deadline, acknowledges nothing, and the worker can go on."""
    async with Rig().running() as rig:
        if why == "paused":
            await rig.store.pause("by hand", "alice", T0)
            await wait_until(lambda: rig.worker.paused)
        else:
            rig.store.away = True
        taking = asyncio.create_task(rig.take(*denials(3)))
        await wait_until(lambda: rig.worker.waiting and rig.worker._taking)
        await rig.worker.drain(asyncio.get_running_loop().time() + 0.1)
        await taking
        assert (rig.acked, rig.worker.idle) == ([], True)
        rig.store.away = False
        await rig.store.resume()
        await wait_until(lambda: not rig.worker.waiting)
        rig.runs = 0
        await rig.take(*denials(3))
        await rig.settled()
        assert len(rig.sender.penalties()) == 1


EVENTS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 40), st.integers(1, 400)), min_size=1, max_size=150)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(1, 9), st.integers(1, 30), st.booleans())
def test_any_cutting_into_runs_and_any_redelivery_equals_one_pass(
    events: list[tuple[int, int, int]], slice_size: int, run_size: int, twice: bool
) -> None:
    """States, penalties and their order equal the engine's, one event after the other, however the input is cut."""
    minute_of: dict[int, int] = {}  # an id names one event, which happened once
    decisions = [
        denial(n, user=f"u{user}", at=T0 + minute_of.setdefault(n, minutes) * MINUTE) for user, n, minutes in events
    ]
    ideal = Drive(Rig().policy)
    for decision in decisions:
        ideal.judge(decision, T0 + 500 * MINUTE)

    async def run() -> None:
        rig = Rig(clock=Clock(T0 + 500 * MINUTE), slice=slice_size)
        async with rig.running():
            for start in range(0, len(decisions), run_size):
                for _ in range(1 + twice):
                    await rig.take(*decisions[start : start + run_size])
            await rig.settled()
        for subject, state in ideal.states.items():
            (blob,) = await rig.store.read([subject])
            if blob is None:
                assert state.real.at == 0
            else:
                assert decode_state(blob).real == state.real
            told = [penalty.id for penalty in rig.sender.penalties() if penalty.subject == subject]
            assert told == [penalty.id for penalty in ideal.penalties if penalty.subject == subject]

    asyncio.run(run())
