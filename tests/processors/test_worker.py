from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.intake import RENEW_S
from penaltybox.processors.state import encode_state
from penaltybox.sinks.memory_store import MemoryKeys
from penaltybox.sinks.subject_store import Mark, Write
from tests.processors.engine_driver import Drive
from tests.processors.worker_driver import BLOCKING, POLICY, T0, Clock, RecordingSender, Rig, denial, denials, stored
from tests.waiting import wait_until

MINUTE = 60_000


async def test_a_step_is_stored_told_and_acknowledged() -> None:
    """Three denials make a warning: it is in the store, on both topics, and the outbox is empty again."""
    async with Rig().running() as rig:
        await rig.take(*denials(3))
        await rig.settled()
        (penalty,) = rig.sender.penalties()
        assert (penalty.subject, penalty.from_, penalty.to) == ("user:u1", "none", "warn")
        state = await stored(rig)
        assert (state.real.rung, state.outbox) == ("warn", [])
        (ladder,) = rig.sender.ladders()
        assert ladder is not None
        assert (ladder.rung, ladder.seq) == ("warn", penalty.seq)
        assert not await rig.store.pending(0)


async def test_a_block_is_written_with_its_end() -> None:
    """The block key has the rung and the absolute end, and goes by itself at that end."""
    async with Rig(policy=BLOCKING).running() as rig:
        await rig.take(*denials(3))
        await rig.settled()
        block = json.loads(rig.store.mark("user:u1", "block") or b"")
        assert (block["rung"], block["until"]) == ("5m", T0 + 3 + 5 * MINUTE)
        rig.clock.ms = block["until"]
        assert rig.store.mark("user:u1", "block") is None


async def test_nothing_is_acknowledged_before_it_is_told() -> None:
    """With Kafka away the state is written and the run stays unacknowledged; it is acknowledged when Kafka is back."""
    async with Rig(policy=BLOCKING).running() as rig:
        rig.sender.away = True
        await rig.take(*denials(3))
        await wait_until(lambda: rig.worker.waiting)
        assert rig.store.mark("user:u1", "block")
        assert rig.acked == []
        rig.sender.away = False
        await rig.settled()
        assert len(rig.sender.penalties()) == 1


async def test_an_outage_of_the_store_acknowledges_nothing_and_is_waited_out() -> None:
    """While the store is away nothing is told or acknowledged and the watchdog is exempt; then all of it is."""
    async with Rig().running() as rig:
        await rig.take(*denials(2))
        await rig.settled()
        rig.store.away = True
        await rig.take(*denials(1, start=3))
        await wait_until(lambda: rig.worker.waiting)
        assert (rig.acked, rig.sender.news()) == ([1], [])
        rig.store.away = False
        await rig.settled()
        assert [penalty.to for penalty in rig.sender.penalties()] == ["warn"]


async def test_a_write_whose_answer_got_lost_counts_once() -> None:
    """The store has written, the worker does not know: it sends the same write again, and one step comes of it."""
    async with Rig().running() as rig:
        rig.store.deaf = 1
        await rig.take(*denials(3))
        await rig.settled()
        assert [penalty.to for penalty in rig.sender.penalties()] == ["warn"]
        assert (await stored(rig)).real.rung == "warn"


async def test_a_lost_race_is_stepped_again_on_what_is_stored() -> None:
    """Two workers with the same subject: the one with the stale state steps its events again, none is lost."""
    keys = MemoryKeys()
    async with Rig(keys=keys).running() as one, Rig(keys=keys).running() as other:
        await one.take(denial(1))
        await one.settled()
        await other.take(denial(2))
        await other.settled()
        await one.take(denial(3))
        await one.settled()
        assert [penalty.to for penalty in one.sender.penalties()] == ["warn"]
        assert (await stored(one)).real.rung == "warn"


async def test_two_workers_racing_skip_no_rung_and_lose_nothing() -> None:
    """One subject's denials spread over two workers at once: the rungs come in order, each penalty id once."""
    keys, sender, clock = MemoryKeys(), RecordingSender(), Clock()
    shared = {"keys": keys, "sender": sender, "clock": clock, "slice": 4}
    async with Rig(**shared).running() as one, Rig(**shared).running() as other:
        for start in range(1, 121, 6):
            at = T0 + start * 20 * MINUTE
            clock.ms = at + MINUTE
            events = denials(6, start=start, at=at)
            await asyncio.gather(one.take(*events[::2]), other.take(*events[1::2]))
            await asyncio.gather(one.settled(), other.settled())
    steps = sorted({penalty.id: penalty for penalty in sender.penalties()}.values(), key=lambda p: p.seq)
    rungs = ["none", "warn", "5m", "1h", "permanent"]
    assert steps
    for penalty in steps:
        assert rungs.index(penalty.to) - rungs.index(penalty.from_) <= 1
    for before, after in itertools.pairwise(steps):
        assert after.from_ == before.to
    assert (await stored(one)).real.rung == steps[-1].to


class CrashError(Exception):
    """A worker dies here."""


@pytest.mark.parametrize("seam", ["after_redis_write", "after_produce", "before_ack"])
@pytest.mark.parametrize("occurrence", [1, 2, 3])
async def test_a_crash_at_any_seam_loses_nothing_and_tells_nothing_twice(seam: str, occurrence: int) -> None:
    """What was not acknowledged is delivered again to a new worker: same states, same penalties, in order."""
    keys, clock = MemoryKeys(), Clock()
    seen = 0

    def crash(name: str) -> None:
        nonlocal seen
        seen += name == seam
        if name == seam and seen == occurrence:
            raise CrashError

    first = Rig(keys=keys, clock=clock, seam=crash)
    batches = [denials(4, start=n * 10, at=T0 + n * 120 * MINUTE) for n in range(4)]
    with pytest.raises(CrashError):
        await _feed(first, batches)
    second = Rig(keys=keys, clock=clock)
    async with second.running():
        for number, batch in enumerate(batches[len(first.acked) :], len(first.acked)):
            clock.ms = T0 + number * 120 * MINUTE + MINUTE
            await second.take(*batch)
            await second.settled()
        await wait_until(lambda: not keys.index, what="outboxes swept")
    ideal = Drive(second.policy)
    for number, batch in enumerate(batches):
        for event in batch:
            ideal.judge(event, T0 + number * 120 * MINUTE + MINUTE)
    told = {penalty.id: penalty for penalty in [*first.sender.penalties(), *second.sender.penalties()]}
    in_order = [penalty.id for penalty in sorted(told.values(), key=lambda penalty: penalty.seq)]
    assert in_order == [penalty.id for penalty in ideal.penalties]
    assert len(in_order) == 4
    assert (await stored(second)).real == ideal.states["user:u1"].real


async def _feed(rig: Rig, batches: list[list[Decision]]) -> None:
    """Take one batch after the other, until the worker dies of its seam."""
    writer = asyncio.create_task(rig.worker.write_cycles())
    for number, batch in enumerate(batches):
        rig.clock.ms = T0 + number * 120 * MINUTE + MINUTE
        await rig.take(*batch)
        await wait_until(lambda number=number: writer.done() or len(rig.acked) > number)  # type: ignore[misc]
        if writer.done():
            break
    await writer


async def test_an_outbox_that_a_crash_left_is_told_by_whoever_sweeps() -> None:
    """A penalty written by a worker that died before telling it reaches Kafka without any new event."""
    keys, clock = MemoryKeys(), Clock()
    dead = Rig(keys=keys, clock=clock)
    dead.sender.away = True
    async with dead.running():
        await dead.take(*denials(3))
        await wait_until(lambda: keys.index)
    async with Rig(keys=keys, clock=clock).running() as heir:
        await wait_until(lambda: heir.sender.penalties() and not keys.index)
        assert [penalty.to for penalty in heir.sender.penalties()] == ["warn"]
        assert (await stored(heir)).outbox == []


async def test_many_outboxes_are_told_one_sweep_after_the_other() -> None:
    """What a bulk import leaves does not wait a second for every part of it: one look is enough for all of it."""
    keys, clock = MemoryKeys(), Clock()
    dead = Rig(keys=keys, clock=clock)
    dead.sender.away = True
    async with dead.running():
        for user in range(25):
            await dead.take(*denials(3, user=f"u{user}"))
        await wait_until(lambda: len(keys.index) == 25)
    async with Rig(keys=keys, clock=clock, sweep=4).running(pause_every_s=3600) as heir:
        heir.worker._sweep_due = True
        heir.worker._work.set()
        await wait_until(lambda: not keys.index)
        assert sorted(penalty.subject for penalty in heir.sender.penalties()) == sorted(f"user:u{n}" for n in range(25))


async def test_bad_records_become_dead_letters_and_the_worker_goes_on() -> None:
    """Garbage between good records is told with its raw bytes and place; the good ones count."""
    async with Rig().running() as rig:
        await rig.take(denial(1), b"not json", denial(2), b"", b'{"v":1}', denial(3))
        await rig.settled()
        assert [letter["offset"] for letter in rig.sender.letters()] == [1, 3, 4]
        assert base64.b64decode(rig.sender.letters()[0]["raw"]) == b"not json"
        assert [penalty.to for penalty in rig.sender.penalties()] == ["warn"]


@settings(max_examples=50)
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=20))
def test_no_bytes_end_a_worker(values: list[bytes]) -> None:
    """Whatever bytes come, each ends as a dead letter or as an event, and the run is acknowledged."""

    async def run() -> None:
        async with Rig().running() as rig:
            await rig.take(*values)
            await rig.settled()
            assert len(rig.sender.letters()) == len(values)

    asyncio.run(run())


async def test_a_pause_holds_the_input_and_a_resume_goes_on() -> None:
    """Paused: nothing is stepped or acknowledged; resumed: it goes on where it was, late where it is due."""
    async with Rig().running() as rig:
        await rig.store.pause("by hand", "alice", T0)
        await wait_until(lambda: rig.worker.paused)
        taking = asyncio.create_task(rig.take(*denials(3)))
        await wait_until(lambda: rig.worker.waiting)
        assert (rig.worker.stepped, rig.acked) == (0, [])
        rig.clock.ms += 60 * MINUTE
        await rig.store.resume()
        await taking
        await rig.settled()
        assert [(penalty.to, penalty.late) for penalty in rig.sender.penalties()] == [("warn", True)]


async def test_the_breaker_pauses_before_too_many_are_blocked() -> None:
    """A rule that would deny everybody: at most the allowed number is written, the rest waits for a person."""
    policy = BLOCKING.replace("count: 3", "count: 1") + "breaker: {denials: 10, share: 50}\n"
    async with Rig(policy=policy, slice=5).running() as rig:
        taking = asyncio.create_task(rig.take(*[denial(n, user=f"u{n}") for n in range(100)]))
        await wait_until(lambda: rig.store.keys.paused)
        assert "the breaker allows 10 or 50 %" in str(await rig.store.pause_reason())
        assert 1 <= len(list(rig.store.marks("block"))) <= 10
        assert rig.acked == []
        taking.cancel()


async def test_a_resume_after_the_breaker_steps_what_was_put_back() -> None:
    """What the breaker held back is stepped after a resume, with the policy of then, and nothing is lost."""
    policy = BLOCKING.replace("count: 3", "count: 1") + "breaker: {denials: 10, share: 50}\n"
    async with Rig(policy=policy, slice=5).running() as rig:
        taking = asyncio.create_task(rig.take(*[denial(n, user=f"u{n}") for n in range(30)]))
        await wait_until(lambda: rig.store.keys.paused)
        mild = Rig(policy=POLICY.replace("count: 3", "count: 1"))
        rig.worker.replace_engine(mild.worker._engine)
        await rig.store.resume()
        await taking
        await rig.settled()
        assert len({penalty.subject for penalty in rig.sender.penalties()}) == 30


async def test_a_block_that_was_lifted_elsewhere_suppresses_nothing() -> None:
    """A cached block is verified: after a lift by hand in the store, decisions count again."""
    async with Rig(policy=BLOCKING).running() as rig:
        await rig.take(*denials(3))
        await rig.settled()
        state = await stored(rig)
        state.real.deny = None
        state.real.end = T0 + 10
        await rig.store.write(
            [
                Write(
                    "user:u1",
                    state.number,
                    state.nonce,
                    encode_state(state, 1 << 40 | 7),
                    None,
                    (Mark("block", None, None),),
                    False,
                )
            ]
        )
        rig.worker.residents.young["user:u1"].verified_s -= 2
        await rig.take(*denials(3, start=20))
        await rig.settled()
        assert len(rig.sender.penalties()) == 2
        assert rig.store.mark("user:u1", "block")


async def test_suppressed_decisions_cost_one_look_a_second() -> None:
    """Decisions under a block that was verified just now neither read nor write."""
    async with Rig(policy=BLOCKING).running(pause_every_s=60) as rig:
        await rig.take(*denials(3))
        await rig.settled()
        state, reads = await stored(rig), rig.store.reads
        await rig.take(*denials(50, start=10))
        await rig.settled()
        assert rig.store.reads - reads <= 1
        assert (await stored(rig)).number == state.number


async def test_a_block_that_is_leant_on_is_verified_before_it_is_too_old() -> None:
    """At three quarters of the age to which a version is trusted it is read again, once for all who lean on it."""
    async with Rig(policy=BLOCKING).running(pause_every_s=60) as rig:
        await rig.take(*denials(3))
        await rig.settled()
        reads, before_s = rig.store.reads, time.monotonic()
        resident = rig.worker.residents.young["user:u1"]
        resident.verified_s = before_s - RENEW_S
        await rig.take(*denials(5, start=10))
        await rig.settled()
        assert rig.store.reads - reads == 1
        assert resident.verified_s > before_s
        assert not resident.busy


async def test_a_store_that_lost_its_last_writes_gets_them_again() -> None:
    """After a failover to an older copy, the worker's next write restores its own state and the block beside it."""
    async with Rig(policy=BLOCKING).running() as rig:
        await rig.take(*denials(3))
        await rig.settled()
        rig.store.keys.values.clear()
        rig.worker.residents.young["user:u1"].verified_s -= 2
        await rig.take(*denials(1, start=20))
        await rig.settled()
        assert (await stored(rig)).real.rung == "5m"
        assert rig.store.mark("user:u1", "block")


async def test_a_wiped_store_stops_the_worker_until_it_is_restored() -> None:
    """Another generation: nothing is written or acknowledged, until a restore has begun a new one."""
    async with Rig().running() as rig:
        await rig.take(*denials(2))
        await rig.settled()
        rig.store.keys.generation = "strange"
        await rig.take(*denials(1, start=3))
        await wait_until(lambda: rig.worker.waiting)
        assert rig.acked == [1]
        rig.store.keys.generation = "restored-1"
        await rig.settled()
        assert [penalty.to for penalty in rig.sender.penalties()] == ["warn"]


async def test_outcomes_reach_the_engine() -> None:
    """A passed challenge leaves a pass beside the user's state."""
    async with Rig().running() as rig:
        outcome = Outcome(v=1, id="o1", ts=T0, label="challenge_passed", subjects={"user": "u1"})
        await rig.take(outcome, topic=TOPICS.outcomes)
        await rig.settled()
        assert rig.store.mark("user:u1", "pass")
