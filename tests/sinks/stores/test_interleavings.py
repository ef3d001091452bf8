"""Two writers in any order: the store in memory and the real ones give the same answers and hold the same things."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penaltybox.sinks.subject_store import Lost, Mark, Rewound, Written
from tests.sinks.stores.blobs import HOUR, version, write
from tests.sinks.stores.conftest import KINDS, MemoryRig, Rig, rig_of

if TYPE_CHECKING:
    from penaltybox.sinks.subject_store import SubjectStore, Write, WriteResult

SUBJECTS = 2
_examples = itertools.count()
_nonces = itertools.count(1 << 40)


class Step(NamedTuple):
    """One thing that happens: a writer reads or writes some subjects, or the store loses a subject's last writes."""

    what: str  # read, write, retry, rewind, lose
    who: int
    subjects: list[int]
    marks: tuple[tuple[str, bytes | None, int | None], ...] | None
    pending: bool


marks = st.none() | st.lists(
    st.tuples(
        st.sampled_from(["block", "challenge", "pass"]),
        st.sampled_from([None, b"1", b"2"]),
        st.sampled_from([None, -HOUR, HOUR]),
    ),
    max_size=3,
).map(tuple)
steps = st.builds(
    Step,
    st.sampled_from(["read", "write", "write", "write", "retry", "rewind", "lose"]),
    st.integers(0, 1),
    st.lists(st.integers(0, SUBJECTS - 1), min_size=1, max_size=4),
    marks,
    st.booleans(),
)


class World:
    """Two writers on one store, and what they remember."""

    def __init__(self, rig: Rig, writers: list[SubjectStore], names: list[str], now: int) -> None:
        self.rig, self.writers, self.names, self.now = rig, writers, names, now
        self.known = [[(0, 0)] * SUBJECTS, [(0, 0)] * SUBJECTS]
        self.last: list[list[Write]] = [[], []]
        self.old: list[bytes | None] = [None] * SUBJECTS

    async def take(self, step: Step, nonces: list[int]) -> list[object]:
        """What the step answers, without the numbers, which depend on the clock."""
        store, known = self.writers[step.who], self.known[step.who]
        if step.what == "read":
            blobs = await store.read([self.names[i] for i in step.subjects])
            for i, blob in zip(step.subjects, blobs, strict=True):
                known[i] = version(blob)
            return [version(blob)[1] for blob in blobs]
        if step.what == "rewind":
            await self.rig.put(self.names[step.subjects[0]], self.old[step.subjects[0]])
            return []
        if step.what == "lose":
            await self.rig.put(self.names[step.subjects[0]], None)
            return []
        if step.what == "write":
            for i in step.subjects:
                self.old[i] = (await store.read([self.names[i]]))[0]
            self.last[step.who] = [
                write(
                    self.names[i],
                    known[i],
                    nonce=nonce,
                    body=bytes([i]),
                    end=self.now + HOUR,
                    marks=self._marks(step),
                    pending=step.pending,
                )
                for i, nonce in zip(step.subjects, nonces, strict=False)
            ]
        results = await store.write(self.last[step.who])
        return [self._learn(known, sent, result) for sent, result in zip(self.last[step.who], results, strict=True)]

    def _marks(self, step: Step) -> tuple[Mark, ...] | None:
        if step.marks is None:
            return None
        return tuple(Mark(name, value, None if end is None else self.now + end) for name, value, end in step.marks)

    def _learn(self, known: list[tuple[int, int]], sent: Write, result: WriteResult) -> object:
        i = self.names.index(sent.subject)
        if isinstance(result, Written):
            known[i] = (result.number, version(sent.blob)[1])
            return "written"
        if isinstance(result, Lost):
            known[i] = version(result.current)
            return known[i][1]
        assert isinstance(result, Rewound)
        return ("rewound", result.number > 0)

    async def contents(self) -> list[object]:
        """Everything that is stored, without numbers."""
        blobs = await self.writers[0].read(self.names)
        # In a cluster each writer looks at once at what it indexed itself.
        found = [name for writer in self.writers for name in await writer.pending(-HOUR)]
        mine = {self.names.index(name) for name in found if name in self.names}
        seen: list[object] = [(version(blob)[1], (blob or b"")[20:]) for blob in blobs]
        for name in self.names:
            for mark in ("block", "challenge", "pass"):
                value = await self.rig.get(name, mark)
                end = None if value is None else await self.rig.end_of(name, mark)
                seen.append((mark, value, None if end is None else end - self.now))
        announced = [name for name in await self.rig.announced() if name in self.names]
        # Two nodes of a cluster announce in no common order.
        return [*seen, mine, sorted(announced)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("memory", "sentinel")])
def test_any_order_gives_the_same(kind: str, redis_by_kind: dict[str, Any]) -> None:
    """Reads, writes, repeated writes, rewinds and losses in any order answer alike in memory and in Redis."""
    with asyncio.Runner() as runner:

        async def rig() -> Rig:
            return rig_of(kind, redis_by_kind)

        real = runner.run(rig())
        real_writers = [real.store(), real.store()]

        @settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
        @given(st.lists(steps, min_size=5, max_size=40))
        def compare(run: list[Step]) -> None:
            runner.run(_compare(real, real_writers, run))

        try:
            compare()
        finally:
            runner.run(real.close())


async def _compare(real: Rig, real_writers: list[SubjectStore], run: list[Step]) -> None:
    example = next(_examples)
    names = [f"user:{example}.{i}" for i in range(SUBJECTS)]
    memory = MemoryRig()
    now = await real.now()
    one = World(memory, [memory.store(), memory.store()], names, now)
    two = World(real, real_writers, names, now)
    await real.announced()
    for step in run:
        nonces = [next(_nonces) for _ in step.subjects]
        assert await one.take(step, nonces) == await two.take(step, nonces), step
    assert await one.contents() == await two.contents()
