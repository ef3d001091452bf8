"""A replay whose subjects are shared out: this process reads and watches, others step (`replay_shard`).

There is one reader and one order, so it works for every source, and nothing of the result depends on how many step.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.cli.replay_shard import Start, Then
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.processors.replay.frames import (
    LENGTH,
    Failed,
    Found,
    Last,
    framed,
    limits_of,
    read_answer,
    slice_frame,
    stepped_of,
)
from penaltybox.processors.replay.loop import Done
from penaltybox.processors.replay.stepped import Stepped, together

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import AsyncIterator, Sequence

    from penaltybox.cli.replay_job import Job, Prepared
    from penaltybox.processors.replay.frames import Answer
    from penaltybox.processors.replay.observer import Side
    from penaltybox.processors.replay.records import Entry

DEPTH: Final = 16
"""Slices that are under way: memory is bounded by them, and nobody waits for a slow one among many."""
_PIPE: Final = asyncio.subprocess.PIPE
_DIED: Final = "a process of the replay died; try again, or with --processes 1"


class Share(NamedTuple):
    """What a process steps: these sides, the shard `number` of `of`."""

    sides: tuple[Side, ...]
    number: int
    of: int


def shares(sides: Sequence[Side], whole: Sequence[Side], processes: int) -> list[Share]:
    """What each of at most so many processes steps.

    Args:
        sides: of the replay.
        whole: those of them that cannot be shared out, for their limits are asked about whole requests.
        processes: how many there may be; fewer are used where there is nothing to share.
    """
    rest = tuple(side for side in sides if side not in whole)
    alone = [Share((side,), 0, 1) for side in whole]
    number = processes - len(alone)
    if not rest:
        return alone if number >= 0 else [Share(tuple(whole), 0, 1)]
    if number < 1:
        return [Share(tuple(sides), 0, 1)]
    return alone + [Share(rest, one, number) for one in range(number)]


class Crew:
    """The other processes; see `loop.Crew`.

    Args:
        hands: started.
        made: the replay; its worlds stay empty, and get the counts of their limits at the end.
        starts: what each hand is told first; made when reading has begun.
    """

    def __init__(self, hands: Sequence[_Hand], made: Prepared, starts: Sequence[Start]) -> None:
        self._hands, self._made, self._starts = hands, made, starts
        self._under_way: deque[tuple[Sequence[Entry], bool]] = deque()
        self._begun = False

    async def give(self, entries: Sequence[Entry], *, counted: bool) -> Sequence[Done]:
        """See `loop.Crew.give`."""
        if not self._begun:
            self._begun = True
            places = list(getattr(self._made.reading, "places", ()))
            for hand, start in zip(self._hands, self._starts, strict=True):
                await hand.send(framed(msgspec.structs.replace(start, places=places)))
        frame = slice_frame(entries, counted=counted)
        self._under_way.append((entries, counted))
        for hand in self._hands:
            await hand.send(frame)
        done = []
        while len(self._under_way) > DEPTH or (self._under_way and all(hand.answers for hand in self._hands)):
            done.append(await self._next())
        return done

    async def rest(self) -> Sequence[Done]:
        """See `loop.Crew.rest`."""
        return [await self._next() for _ in range(len(self._under_way))]

    async def _next(self) -> Done:
        found: dict[Side, list[Stepped]] = {}
        for hand in self._hands:
            answer = await hand.answer()
            if not isinstance(answer, Found):
                raise StoreUnavailable(_DIED)
            for side, stepped in stepped_of(answer).items():
                found.setdefault(side, []).append(stepped)
        entries, counted = self._under_way.popleft()
        return Done(entries, counted, {side: together(found[side]) for side in self._made.worlds})

    async def end(self) -> None:
        """All slices were given: learn what limits answered."""
        for hand in self._hands if self._begun else ():
            hand.close()
        for hand in self._hands if self._begun else ():
            answer = await hand.answer()
            if isinstance(answer, Last):
                for side, counts in limits_of(answer).items():
                    limiter = self._made.worlds[side].limiter
                    if limiter is not None:
                        limiter.counts.update(counts)


class _Hand:
    """One process."""

    def __init__(self, process: Process) -> None:
        self.answers: deque[Answer] = deque()
        self._process = process
        self._came = asyncio.Event()
        self._ended = False
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None  # noqa: S101 - it is a pipe
        with suppress(asyncio.IncompleteReadError):
            while True:
                length = await stream.readexactly(LENGTH)
                self.answers.append(read_answer(await stream.readexactly(int.from_bytes(length, "little"))))
                self._came.set()
        self._ended = True
        self._came.set()

    async def send(self, frame: bytes) -> None:
        stream = self._process.stdin
        assert stream is not None  # noqa: S101 - it is a pipe
        with suppress(ConnectionError):  # the answers tell why
            stream.write(frame)
            await stream.drain()

    async def answer(self) -> Answer:
        """The next one.

        Raises:
            ConfigurationError: the process says that it cannot go on.
            StoreUnavailable: it died.
        """
        while not self.answers:
            if self._ended:
                raise StoreUnavailable(_DIED)
            self._came.clear()
            await self._came.wait()
        answer = self.answers.popleft()
        if isinstance(answer, Failed):
            raise ConfigurationError(answer.sentence)
        return answer

    def close(self) -> None:
        """Nothing more will be sent."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()

    async def kill(self) -> None:
        self._reading.cancel()
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
        await self._process.wait()
        await asyncio.gather(self._reading, return_exceptions=True)


@asynccontextmanager
async def crew_of(job: Job, made: Prepared, plan: Sequence[Share], *, watched: bool) -> AsyncIterator[Crew]:
    """Processes for a replay that is prepared; they end with the block."""
    then = None
    if made.recorded is not None:
        late = sorted(made.recorded.late)
        then = Then(dict(made.recorded.policies), list(made.recorded.markers), late, made.recorded.last)
    starts = [Start(job, list(one.sides), one.number, one.of, watched, [], then) for one in plan]
    hands: list[_Hand] = []
    try:
        for _ in plan:
            command = [sys.executable, "-m", "penaltybox.cli.replay_shard"]
            # A session of its own: what the terminal sends ends us, and that ends it.
            process = asyncio.create_subprocess_exec(*command, stdin=_PIPE, stdout=_PIPE, start_new_session=True)
            hands.append(_Hand(await process))
        yield Crew(hands, made, starts)
    finally:
        for hand in hands:
            await hand.kill()
