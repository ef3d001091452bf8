"""A worker gets another policy while it works: each record is judged by one, and the control topic says from where."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from penaltybox.contracts.events import Control
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.engine import Engine
from penaltybox.processors.switching import PolicyInUse
from penaltybox.sinks.memory_store import MemoryKeys
from tests.processors.worker_driver import POLICY, Rig, denials
from tests.waiting import wait_until

STRICT = POLICY.replace("count: 3", "count: 2")
CHANGED = POLICY.replace("forgive: 8h", "forgive: 9h")


def in_use(rig: Rig) -> list[tuple[str, int]]:
    """(version, offset) as told."""
    found = [m for m in rig.sender.messages if m.topic == TOPICS.control]
    values = [
        msgspec.json.decode(msgspec.json.decode(m.value or b"", type=Control).value, type=PolicyInUse) for m in found
    ]
    assert {(one.topic, one.partition) for one in values} <= {(TOPICS.decisions, 0)}
    assert len({m.key for m in found}) == len(found)
    return [(one.version, one.offset) for one in values]


async def test_the_next_run_is_judged_by_the_new_policy() -> None:
    """Two denials are too few for the old policy; under the new one two of its own lead to a penalty."""
    async with Rig().running() as rig:
        await rig.take(*denials(2))
        engine = Engine(parse_policy(STRICT))
        rig.worker.replace_engine(engine)
        await rig.take(*denials(1, start=3))
        await rig.settled()
        assert rig.sender.penalties() == []
        await rig.take(*denials(1, start=4))
        await rig.settled()
        assert [one.policy_version for one in rig.sender.penalties()] == [engine.version]
        assert in_use(rig) == [(rig.policy.version, 0), (engine.version, 0)]


async def test_counters_of_an_unchanged_rule_go_on() -> None:
    """A policy that changes something else finds what the rule has counted."""
    async with Rig().running() as rig:
        await rig.take(*denials(2))
        rig.worker.replace_engine(Engine(parse_policy(CHANGED)))
        await rig.take(*denials(1, start=3))
        await rig.settled()
        assert [one.to for one in rig.sender.penalties()] == ["warn"]


async def test_a_race_that_is_lost_after_the_switch_is_stepped_by_the_old_policy() -> None:
    """The new policy waits until what the old one stepped is written, so the two never judge one record together."""
    keys = MemoryKeys()
    async with Rig(keys=keys).running() as rig, Rig(keys=keys).running() as other:
        await rig.take(*denials(1))
        await rig.settled()
        await other.take(*denials(1, start=2))
        await other.settled()
        rig.store.away = True
        await rig.take(*denials(1, start=3))  # will lose: the other one has written
        engine = Engine(parse_policy(STRICT))
        rig.worker.replace_engine(engine)
        next_run = asyncio.create_task(rig.take(*denials(1, start=4)))
        await wait_until(lambda: rig.worker.waiting)
        assert not next_run.done()
        rig.store.away = False
        await next_run
        await rig.settled()
        assert [(one.to, one.policy_version) for one in rig.sender.penalties()] == [("warn", rig.policy.version)]


async def test_a_bad_rule_is_corrected_during_the_pause() -> None:
    """The breaker has put a run back: after the pause all of it is judged by the corrected policy."""
    eager = POLICY.replace("count: 3", "count: 1").replace("then: step", "then: {level: 5m}")
    policy = eager + "breaker: {denials: 5, share: 1}\n"
    async with Rig(policy=policy).running() as rig:
        run = rig.run([one for number in range(50) for one in denials(1, start=number, user=f"u{number}")])
        taking = asyncio.create_task(rig.worker.take(run))
        await wait_until(lambda: rig.store.keys.paused)
        engine = Engine(parse_policy(POLICY))
        rig.worker.replace_engine(engine)
        await rig.store.resume()
        await taking
        await rig.settled()
        assert rig.sender.penalties() == []
        assert in_use(rig)[-1] == (engine.version, 0)


async def test_partitions_that_were_given_up_are_told_again() -> None:
    """Whoever gets a partition says by which policy it goes on."""
    async with Rig().running() as rig:
        await rig.take(*denials(1))
        await rig.settled()
        await rig.worker.forget()
        await rig.take(*denials(1, start=2))
        await rig.settled()
        told: list[Any] = in_use_with_repeats(rig)
        assert told == [rig.policy.version] * 2


def in_use_with_repeats(rig: Rig) -> list[str]:
    found = [m for m in rig.sender.messages if m.topic == TOPICS.control]
    return [msgspec.json.decode(msgspec.json.decode(m.value or b"", type=Control).value)["version"] for m in found]
