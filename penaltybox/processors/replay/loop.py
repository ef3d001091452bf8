"""The loop of a replay: slices from a source, through the worlds of both sides, into numbers and to an observer."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.recognition import Sighting
from penaltybox.processors.huge_pages import advise
from penaltybox.processors.replay.listed import ListChange
from penaltybox.processors.replay.records import CLOCK, EVENT, Window
from penaltybox.processors.replay.tally import SideResult, Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penaltybox.contracts.events import Hold
    from penaltybox.processors.replay.observer import Observer, Side
    from penaltybox.processors.replay.records import Entry, Reading
    from penaltybox.processors.replay.stepped import Stepped
    from penaltybox.processors.replay.world import World

_raw = attrgetter("raw")
_BLOCKLIST: Final = b'"reason":"blocklist"'
ADVISED: Final = frozenset(100 * 3**power for power in range(12))
"""Slices before which large pages are asked for: less and less often, as the states fill the memory."""
_STEP_S: Final = 0.2
"""With pacing: recorded time is let go in steps of so much real time."""


class NothingThereError(ConfigurationError):
    """There is nothing in the window; `where`: in which source."""

    def __init__(self, sentence: str, where: str) -> None:
        super().__init__(sentence)
        self.where = where


class Done(NamedTuple):
    """A slice that was stepped, or a part of one; `counted` False in the warm-up."""

    entries: Sequence[Entry]
    counted: bool
    stepped: Mapping[Side, Stepped]


class Crew(Protocol):
    """Other processes that step the slices of a replay, in the place of its worlds."""

    async def give(self, entries: Sequence[Entry], *, counted: bool) -> Sequence[Done]:
        """Hand over a slice; what has been stepped since, in order.

        Raises:
            ConfigurationError: a process cannot step it.
            StoreUnavailable: a process died.
        """

    async def rest(self) -> Sequence[Done]:
        """Wait for all that was given; raises as `give`."""

    async def end(self) -> None:
        """All was given: the counts of the worlds' limits are those of the crew; raises as `give`."""


class Progress(NamedTuple):
    """How far a replay is. `done` of `total` in the source's unit; `total` None when nobody knows."""

    done: int
    total: int | None
    unit: str
    decisions: int
    clock_ms: int


class Result(msgspec.Struct, kw_only=True):
    """What a replay found. Times are ms; counts are of what lies within the window, without the warm-up."""

    source: str
    from_ms: int | None
    to_ms: int | None
    first_ms: int = 0
    last_ms: int = 0
    decisions: int = 0
    outcomes: int = 0
    commands: int = 0
    warm_up_ms: int = 0
    """How long before `from_ms` the first record of the warm-up lies."""
    warm_up_decisions: int = 0
    refused: dict[str, int] = {}
    """Records that could not be judged: reason -> how many."""
    recorded_blocklist: int = 0
    """Recorded denials by the blocklist (`count` times each): they came from the policy in force then. How much of
    that demand another policy would have met is unknown."""
    candidate: SideResult
    baseline: SideResult | None = None
    remarks: list[str] = []
    processes: int = 1
    seconds: float = 0.0

    @property
    def result_hash(self) -> str:
        """The candidate's."""
        return self.candidate.result_hash


class Replay:
    """One run over a source.

    Args:
        reading: the source.
        worlds: side -> its world; the candidate's is always there.
        window: which part counts.
        observer: told of everything, if given.
        report: told how far it is, after every slice.
        speed: times the recorded pace; None as fast as it goes.
        may_be_empty: nothing in the window is a result, too.
        crew: steps the slices; the worlds then say how their policies were called, and are left empty.
    """

    def __init__(
        self,
        reading: Reading,
        worlds: Mapping[Side, World],
        window: Window,
        *,
        observer: Observer | None = None,
        report: Callable[[Progress], None] | None = None,
        speed: float | None = None,
        may_be_empty: bool = False,
        crew: Crew | None = None,
    ) -> None:
        self._crew = crew
        self._may_be_empty = may_be_empty
        self._reading = reading
        self._worlds = worlds
        self._window = window
        self._observer = observer
        self._report = report
        self._speed = speed
        self._tallies: dict[Side, Tally] = {side: Tally() for side in worlds}
        self._counts = _Counts()
        self._paced: tuple[int, float] | None = None
        self._labels = 0

    async def run(self) -> Result:
        """Read the source to its end.

        Raises:
            ConfigurationError: it cannot be read, or there is nothing in the window.
            StoreUnavailable: a server does not answer.
        """
        start = time.monotonic()
        number = 0
        async for read in self._reading.slices():
            number += 1
            if number in ADVISED:
                advise()
            entries = await self._labelled(read)
            for part, counted in self._parts(entries) if entries else ():
                await self._pace(part, counted=counted)
                await self._step(part, counted=counted)
            if entries:
                self._told(entries)
        await self._catch_up()
        if self._crew is not None:
            await self._crew.end()
        if self._labels:
            self._reading.remarks.append(
                f"{self._labels:,} outcomes after --to were read too, for what they say of the subjects before it."
            )
        return self._result(time.monotonic() - start)

    async def _labelled(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Without the outcomes from after the range: they label what happened in it, and step nothing."""
        to_ms = self._window.to_ms
        if to_ms is None or entries[-1][CLOCK] < to_ms:
            return entries
        cut = bisect_left(entries, to_ms, key=lambda entry: entry[CLOCK])
        await self._catch_up()
        for _, _, _, event, _, _ in entries[cut:]:
            if type(event) is Outcome and self._observer is not None:
                self._observer.outcome(event, True)  # noqa: FBT003 - as in `_tell`
                self._labels += 1
        return entries[:cut]

    def _parts(self, entries: Sequence[Entry]) -> Iterator[tuple[Sequence[Entry], bool]]:
        """A slice cut where results begin to count, and, with pacing, into short steps of time."""
        cut = 0
        if self._window.from_ms is not None and entries[0][CLOCK] < self._window.from_ms:
            cut = bisect_left(entries, self._window.from_ms, key=lambda entry: entry[CLOCK])
            yield entries[:cut], False
        rest = entries[cut:] if cut else entries
        if not rest:
            return
        if self._speed is None:
            yield rest, True
            return
        step_ms = max(1, int(_STEP_S * 1000 * self._speed))
        while rest:
            end = bisect_left(rest, rest[0][CLOCK] + step_ms, key=lambda entry: entry[CLOCK])
            yield rest[:end], True
            rest = rest[end:]

    async def _pace(self, entries: Sequence[Entry], *, counted: bool) -> None:
        if self._speed is None or not counted:
            return
        clock, now = entries[0][CLOCK], time.monotonic()
        if self._paced is None:
            self._paced = (clock, now)
        due = self._paced[1] + (clock - self._paced[0]) / 1000 / self._speed
        if due > now:
            await asyncio.sleep(due - now)

    async def _step(self, entries: Sequence[Entry], *, counted: bool) -> None:
        if self._crew is not None:
            for done in await self._crew.give(entries, counted=counted):
                self._settle(done)
            return
        self._settle(Done(entries, counted, {side: world.step(entries) for side, world in self._worlds.items()}))
        if not counted:
            forget_limits(self._worlds)

    async def _catch_up(self) -> None:
        for done in await self._crew.rest() if self._crew is not None else ():
            self._settle(done)

    def _settle(self, done: Done) -> None:
        """Count what a slice did, and tell of it."""
        entries, counted, stepped = done
        self._counts.note(entries, counted=counted)
        for side, one in stepped.items():
            tally = self._tallies[side]
            if counted:
                for _, penalty in one.penalties:
                    tally.add(penalty)
                tally.stopped += len(one.stopped)
        if self._observer is not None:
            _tell(self._observer, entries, stepped, counted=counted)

    def _told(self, entries: Sequence[Entry]) -> None:
        if self._report is not None:
            reading, counts = self._reading, self._counts
            read = counts.decisions + counts.warm_up_decisions
            self._report(Progress(reading.done, reading.total, reading.unit, read, entries[-1][CLOCK]))

    def _result(self, seconds: float) -> Result:
        reading, counts, window = self._reading, self._counts, self._window
        if not counts.records and not self._may_be_empty:
            sentence = _nothing(reading, counts, window)
            if reading.refused.reasons:
                raise ConfigurationError(sentence)
            raise NothingThereError(sentence, reading.title)
        sides = {
            side: self._tallies[side].result(world.versions, world.limiter.counts if world.limiter else None)
            for side, world in self._worlds.items()
        }
        begun = counts.begun_ms
        return Result(
            source=reading.title,
            from_ms=window.from_ms,
            to_ms=window.to_ms,
            first_ms=counts.first_ms,
            last_ms=counts.last_ms,
            decisions=counts.decisions,
            outcomes=counts.outcomes,
            commands=counts.commands,
            warm_up_ms=window.from_ms - begun if window.from_ms is not None and 0 < begun < window.from_ms else 0,
            warm_up_decisions=counts.warm_up_decisions,
            refused=dict(sorted(reading.refused.reasons.items())),
            recorded_blocklist=counts.blocklist,
            candidate=sides["candidate"],
            baseline=sides.get("baseline"),
            remarks=list(reading.remarks),
            seconds=round(seconds, 3),
        )


def forget_limits(worlds: Mapping[Side, World]) -> None:
    """What limits answered so far was the warm-up."""
    for world in worlds.values():
        if world.limiter is not None:
            world.limiter.counts.clear()


class _Counts:
    """What was read."""

    def __init__(self) -> None:
        self.decisions = self.outcomes = self.commands = self.warm_up_decisions = self.blocklist = 0
        self.begun_ms = self.first_ms = self.last_ms = 0

    @property
    def records(self) -> int:
        return self.decisions + self.outcomes + self.commands

    def note(self, entries: Sequence[Entry], *, counted: bool) -> None:
        events: list[Any] = [entry[EVENT] for entry in entries]
        kinds = set(map(type, events))
        if ListChange in kinds:  # no record of the traffic
            entries = [entry for entry in entries if type(entry[EVENT]) is not ListChange]
            if not entries:
                return
            events = [entry[EVENT] for entry in entries]
            kinds.discard(ListChange)
        self.begun_ms = self.begun_ms or entries[0][CLOCK]
        if kinds == {Sighting}:
            decisions, outcomes = len(events), 0
            blocklist = sum(map(_listed, events)) if _BLOCKLIST in b"\n".join(map(_raw, events)) else 0
        else:
            decisions = sum(type(event) is Decision or type(event) is Sighting for event in events)
            outcomes = sum(type(event) is Outcome for event in events) if Outcome in kinds else 0
            blocklist = sum(map(_listed, events))
        if not counted:
            self.warm_up_decisions += decisions
            return
        self.first_ms = self.first_ms or entries[0][CLOCK]
        self.last_ms = entries[-1][CLOCK]
        self.decisions += decisions
        self.outcomes += outcomes
        self.commands += len(entries) - decisions - outcomes
        self.blocklist += blocklist


def _listed(event: Any) -> int:
    """How many denials by the blocklist an event stands for."""
    if type(event) is Sighting:
        if _BLOCKLIST not in event.raw:
            return 0
        event = event.whole
    return event.count if type(event) is Decision and event.reason == "blocklist" else 0


def _tell(
    observer: Observer, entries: Sequence[Entry], stepped: Mapping[Side, Stepped], *, counted: bool
) -> None:  # fmt: skip
    """What a slice did, to the observer, in its order."""
    led: dict[int, list[tuple[Side, int]]] = {}
    stops: dict[int, dict[Side, Hold | None]] = {}
    for side, one in stepped.items():
        for number, (at, _) in enumerate(one.penalties):
            led.setdefault(at, []).append((side, number))
        for at, hold in one.stopped.items():
            stops.setdefault(at, {})[side] = hold
    nobody: dict[Side, Hold | None] = {}
    decision, outcome, penalty = observer.decision, observer.outcome, observer.penalty
    for at, (_, _, _, event, names, _) in enumerate(entries):
        if type(event) is Decision:
            decision(event, names, stops.get(at, nobody), counted)
        elif type(event) is Outcome:
            outcome(event, counted)
        if at in led:
            for side, number in led[at]:
                penalty(side, stepped[side].penalties[number][1], counted)


def _nothing(reading: Reading, counts: _Counts, window: Window) -> str:
    """The sentence about a replay that met nothing."""
    refused = reading.refused.reasons.total()
    if counts.warm_up_decisions:
        return (
            f"{reading.title}: nothing lies between --from and --to, only {counts.warm_up_decisions:,} decisions "
            "before it. Choose an earlier --from, or leave it out."
        )
    if refused:
        return (
            f"{reading.title}: none of its {refused:,} records can be judged; {reading.refused.first}. "
            f"Wanted {reading.refused.wanted}."
        )
    remarks = "".join(f" {remark}" for remark in reading.remarks)
    if window.start_ms is None and window.to_ms is None:
        return f"{reading.title}: there is nothing to replay.{remarks} Name another --source, or publish first."
    return (
        f"{reading.title}: there is nothing to replay between --from and --to.{remarks} Choose another range, or "
        "another source."
    )
