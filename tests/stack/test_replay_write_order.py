"""Live and replay agree, also where a subject's events come through several partitions and workers.

Nobody fixes their order there; the versions of the writes tell it afterwards. The engine of `penaltybox replay`, given
each subject's events in that order, has to come to the penalties and the state that are there. One decision concerns
several subjects, each with an order of its own, and those can contradict each other: so each subject is replayed alone.

`PENALTYBOX_TEST_DECISIONS` is the number of decisions (default 6,000); without a switch it is 100,000 on Apache Kafka,
whatever is asked.
"""

from __future__ import annotations

from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.decoding import decode_decisions
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_versions import StoredPolicy, Switch
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine
from penaltybox.processors.replay.loop import Replay
from penaltybox.processors.replay.observer import CANDIDATE
from penaltybox.processors.replay.recorded import read_controls
from penaltybox.processors.replay.records import Refusals, Window
from penaltybox.processors.replay.world import World
from penaltybox.sinks.policy_versions import put_in_force
from penaltybox.sinks.untold import Untold
from tests.processors.replay.traffic import Recorder
from tests.stack.arena import Arena, counted_by_engine
from tests.stack.households import decisions
from tests.stack.journal import contested, write_order
from tests.stack.test_replay_agrees import NUMBER, OTHER, briefly, live_penalties, size_of
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.replay.records import Entry
    from penaltybox.processors.state import SubjectState
    from tests.stack.journal import Written

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]
RECORDS = 500
"""Entries in a slice."""


class Source(NamedTuple):
    """A record on the topic: its bytes, and the broker's time."""

    raw: bytes
    broker_ms: int


class WriteOrder:
    """A subject's events in the order in which its writes succeeded: what a replay reads, and which policy is where."""

    def __init__(
        self, writes: Sequence[Written], sources: Mapping[str, Source], policies: Mapping[str, Policy]
    ) -> None:
        self.title, self.unit, self.done, self.total = "write order", "records", 0, None
        self.refused, self.remarks = Refusals(), list[str]()
        canonicaliser = Canonicaliser()  # its names belong to one world
        self._engines = {version: Engine(policy, canonicaliser) for version, policy in policies.items()}
        self._policy_at = [write.policy for write in writes for _ in write.ids]
        found = [sources[one] for write in writes for one in write.ids]
        judged = decode_decisions([one.raw for one in found], [one.broker_ms for one in found], canonicaliser)
        self._entries: list[Entry] = []
        for position, (source, one) in enumerate(zip(found, judged, strict=True)):
            assert not isinstance(one, BadEvent)
            self._entries.append((position, 0, position, *one, source.broker_ms))
        self.versions = list(dict.fromkeys(self._policy_at))
        self.policies = [policies[version] for version in self.versions]

    async def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """As a source of a replay has them."""
        for start in range(0, len(self._entries), RECORDS):
            yield self._entries[start : start + RECORDS]

    def runs(self, entries: Sequence[Entry]) -> Iterable[tuple[Engine, Sequence[Entry]]]:
        """As a course of a replay: each event under the policy that stepped it live."""
        parts = groupby(entries, lambda entry: self._policy_at[entry[2]])
        return [(self._engines[version], list(part)) for version, part in parts]


async def replayed(
    subject: str, writes: Sequence[Written], sources: Mapping[str, Source], policies: Mapping[str, Policy]
) -> tuple[list[Penalty], SubjectState | None]:
    """The subject's penalties and its state after a replay of its events."""
    order, recorder = WriteOrder(writes, sources, policies), Recorder()
    world = World(order)
    await Replay(order, {CANDIDATE: world}, Window(), observer=recorder, may_be_empty=True).run()
    return [one for one in recorder.penalties[CANDIDATE] if one.subject == subject], world.states.get(subject)


def remembered(state: SubjectState) -> tuple[Any, ...]:
    """What must agree of a state: all of the real ladder, who was seen on an address, and the shadow ladders."""
    ladders = [(key, one.rung, one.at, one.end, one.deny, one.challenge) for key, one in state.shadows.items()]
    real = state.real
    held = (real.rung, real.rung_ms, real.at, real.end, real.deny, real.challenge, real.scores, real.outlasted)
    return held, counted_by_engine(state), state.shared, sorted(ladders)


async def check_agreement(arena: Arena, policies: Iterable[Policy], tell: Callable[[str], None]) -> list[Penalty]:
    """Replays all subjects over the write order and compares; the live penalties."""
    by_version = {policy.version: policy for policy in policies}
    sources = {}
    async for broker_ms, raw in arena.records(arena.topics.decisions):
        (one,) = decode_decisions([raw], [broker_ms], Canonicaliser())
        assert not isinstance(one, BadEvent)
        sources[one[0].id] = Source(raw, broker_ms)
    order = write_order(arena.journals)
    stored = (await arena.found(list(order))).states
    again: list[Penalty] = []
    for subject, writes in order.items():
        penalties, state = await replayed(subject, writes, sources, by_version)
        again += penalties
        assert state is not None, subject
        assert remembered(state) == remembered(stored[subject]), subject
    live = await live_penalties(arena)
    assert briefly(again) == briefly(live)
    shared = contested(arena.journals)
    assert shared > 0, "no subject was written by two workers"
    tell(f"{len(sources)} decisions, {len(order)} subjects, {shared} written by several workers; {len(live)} penalties")
    return live


async def test_a_replay_over_the_write_order(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, tell: Any, request: pytest.FixtureRequest
) -> None:
    """Three workers race for the same subjects; a replay in the order of their writes has the same penalties."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        for _ in range(3):
            await arena.start_worker(journal=True)
        await arena.publish(decisions(size_of(request), now_ms()), spread=True)
        await arena.finished()
        live = await check_agreement(arena, [arena.policy], tell)
        assert len(live) > 100


async def test_a_policy_switched_between_writes(
    broker: Any, redis_server: Any, fresh_prefix: str, tmp_path: Path, tell: Any
) -> None:
    """Two racing workers switch to another policy, each at its own time; every write agrees under the policy it had."""
    async with Arena(broker, redis_server, fresh_prefix, tmp_path) as arena:
        for _ in range(2):
            await arena.start_worker(journal=True)
        placed = decisions(NUMBER, now_ms())
        half = len(placed) // 2
        await arena.publish(placed[:half], spread=True)
        other = parse_policy(OTHER)
        stored = StoredPolicy(version=other.version, text=OTHER, actor="ann", reason="stricter", ts=now_ms())
        untold = Untold(arena.store.link, arena.settings.redis_prefix)
        await put_in_force(untold, stored, Switch(version=other.version, ts=now_ms(), actor="ann", reason="stricter"))
        rest = iter(placed[half:])

        async def switched() -> bool:
            await arena.publish(islice(rest, 20), spread=True)
            controls = [raw async for _, raw in arena.records(arena.topics.control)]
            return any(one.version == other.version for one in read_controls(controls)[0])

        await wait_until(switched, 30, "a worker's record of the other policy")
        await arena.publish(rest, spread=True)
        await arena.finished()
        live = await check_agreement(arena, [arena.policy, other], tell)
        assert {one.policy_version for one in live} == {arena.policy.version, other.version}
