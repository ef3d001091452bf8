"""What another worker stored meanwhile, or stored and did not live to tell."""

from __future__ import annotations

from penaltybox.processors.engine import Handling
from penaltybox.processors.residents import Resident
from penaltybox.processors.state import SubjectState, decode_state, encode_state
from penaltybox.sinks.subject_store import Write
from tests.processors.worker_driver import Rig, denial, denials


async def test_what_is_listed_twice_is_not_lost_in_a_race() -> None:
    """Its decisions are stepped again on what the other worker stored, although it was listed twice."""
    rig = Rig()
    engine = rig.worker._engine
    theirs, ours = SubjectState.fresh("user:u1"), Resident(SubjectState.fresh("user:u1"), 0.0)
    ours.kept = []
    for number in range(3):
        event, handling = denial(number), Handling(rig.clock())
        ((subject, plan),) = engine.touches(event)
        assert subject == "user:u1"
        if number == 0:
            engine.apply(theirs, plan, event, handling)
        else:
            engine.apply(ours.state, plan, event, handling)
            ours.kept.append((plan, event, handling, None))
            ours.dirty = True
    nonce = 1 << 33
    await rig.store.write([Write("user:u1", 0, 0, encode_state(theirs, nonce), None, (), False)])
    await rig.worker._writer.settle([ours, ours])
    (blob,) = await rig.store.read(["user:u1"])
    assert decode_state(blob or b"").real.rung == "warn"
    assert rig.worker.teller.taken == 1


async def test_who_comes_next_tells_the_ladder_of_a_dead_worker_too() -> None:
    """A worker stored a step and died: whoever writes the subject next tells the penalty and the ladder."""
    rig = Rig()
    engine = rig.worker._engine
    theirs = SubjectState.fresh("user:u1")
    for event in denials(3):
        ((_, plan),) = engine.touches(event)
        engine.apply(theirs, plan, event, Handling(rig.clock()))
    assert len(theirs.outbox) == 1
    await rig.store.write([Write("user:u1", 0, 0, encode_state(theirs, 1 << 33), None, (), True)])
    async with rig.running():
        await rig.take(denial(9))
        await rig.settled()
    assert [penalty.to for penalty in rig.sender.penalties()] == ["warn"]
    assert [ladder.rung for ladder in rig.sender.ladders() if ladder] == ["warn"]
