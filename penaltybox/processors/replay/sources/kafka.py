"""The topics of decisions and outcomes, read by `assign`: no group, no commits, nothing written.

Where the topics end is asked once, at the start; what is published during the replay is not in it.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, NoOffsetForPartitionError, OffsetOutOfRangeError

from penaltybox.contracts.decoding import decode_decisions, decode_outcome
from penaltybox.contracts.errors import BadEvent, ConfigurationError, StoreUnavailable
from penaltybox.contracts.subjects import Names
from penaltybox.contracts.topics import Topics
from penaltybox.links.kafka import Connection
from penaltybox.processors.broker import probe
from penaltybox.processors.fetched import FetchedRecords
from penaltybox.processors.intake import judge_decisions, sightings
from penaltybox.processors.replay.listed import ListChange
from penaltybox.processors.replay.merge import Lane, released
from penaltybox.processors.replay.records import SLICE, Refusals
from penaltybox.processors.replay.times import iso, lie
from penaltybox.processors.topic_log import ANSWER_MS, end_offsets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    from penaltybox.contracts.events import Command, Decision, Outcome
    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.replay.merge import Placed
    from penaltybox.processors.replay.records import Entry, Window

_rank = itemgetter(1)
POLL_MS: Final = 500
FETCH_WAIT_MS: Final = 25
"""The embedded broker holds a fetch for as long as it may, even when it has records."""
TURNS: Final = 8
"""Of the event loop after each slice: the next records arrive in pieces meanwhile, one a turn."""
SILENCE_S: Final = 30
"""A broker that sends nothing for so long, though more is to come, has gone."""


class TopicSource:
    """The topics of these settings, up to where they end now.

    Args:
        settings: the cluster and the prefix of the topics.
        canonicaliser: judges the subjects.
        window: what the broker stamped outside of it is left out.
        partitions: only these of each topic; None all.
        commands: steps by hand and changes of the allowlist to put in their places, by time: (ms, command).
        ends: (topic, partition) -> where it is taken to end, if not where it ends now.
        labels: outcomes from after the window, too: they say who of those in it was legitimate.
        engine: the only one that will step them, when nobody else wants the decisions: those that it recognises are
            not decoded.
    """

    unit = "records"

    def __init__(
        self,
        settings: Settings,
        canonicaliser: Canonicaliser,
        window: Window,
        *,
        partitions: frozenset[int] | None = None,
        commands: Sequence[tuple[int, Command | ListChange]] = (),
        ends: Mapping[tuple[str, int], int] | None = None,
        labels: bool = False,
        engine: Engine | None = None,
    ) -> None:
        self._given_ends = ends
        self._engine = engine
        self.done = 0
        self.total: int | None = None
        self.refused = Refusals()
        self.remarks: list[str] = []
        self.places: list[tuple[str, int]] = []
        """(topic, partition) by rank, of all that there are."""
        self._settings = settings
        self._canonicaliser = canonicaliser
        self._window = window
        self._wanted = partitions
        self._commands = commands
        self._labels = labels
        self._topics = Topics.named(settings.topic_prefix)
        self.title = f"{self._topics.decisions} at {settings.kafka}"
        self._first_outcome = 0
        """Rank of the first partition of outcomes; they stand behind those of decisions."""
        self._ends: dict[TopicPartition, int] = {}
        self._lanes: dict[TopicPartition, Lane] = {}

    async def slices(self) -> AsyncIterator[Sequence[Entry]]:
        """See `Reading.slices`.

        Raises:
            KafkaError: the broker cannot be reached, or refuses.
        """
        async with self._consumer("none") as consumer:
            await self._begin(consumer)
            found = False
            lanes = [*self._lanes.values(), *self._by_hand()]
            while any(not lane.done or lane.records for lane in lanes):
                await self._fill(consumer)
                ready = released(lanes)
                for first in range(0, len(ready), SLICE):
                    entries = self._entries(ready[first : first + SLICE])
                    if entries:
                        found = True
                        yield entries
                    for _ in range(TURNS):
                        await asyncio.sleep(0)
            if not found:
                await self._tell_where(consumer)

    async def _tell_where(self, consumer: Any) -> None:
        """Where the records lie, if none of them lies in the window: the first and the last of each partition."""
        decisions = [tp for tp in self._ends if tp.topic == self._topics.decisions]
        stamps: list[int] = []
        with suppress(KafkaError):  # it is for the reader's ease only
            begins = await consumer.beginning_offsets(decisions)
            for tp in decisions:
                for offset in sorted({begins[tp], self._ends[tp] - 1}) if begins[tp] < self._ends[tp] else ():
                    consumer.seek(tp, offset)
                    fetched = await consumer.getmany(tp, timeout_ms=POLL_MS)
                    stamps += [record.timestamp for records in fetched.values() for record in records[:1]]
        if stamps:
            self.remarks.append(lie(min(stamps), max(stamps)))

    @property
    def ends(self) -> dict[tuple[str, int], int]:
        """(topic, partition) -> where it ends, once reading has begun."""
        return {(tp.topic, tp.partition): end for tp, end in self._ends.items()}

    @asynccontextmanager
    async def _consumer(self, reset: str) -> AsyncIterator[Any]:
        consumer = AIOKafkaConsumer(
            **Connection.of(self._settings).client_options(),
            enable_auto_commit=False,
            auto_offset_reset=reset,
            fetch_max_wait_ms=FETCH_WAIT_MS,
            request_timeout_ms=ANSWER_MS,
        )
        try:
            await consumer.start()
            yield consumer
        finally:
            await consumer.stop()

    async def _begin(self, consumer: Any) -> None:
        """Find the partitions, where each begins and ends, and go there."""
        topics = await self._partitions(consumer)
        self.places = [(tp.topic, tp.partition) for tp in topics]  # decisions first
        self._first_outcome = sum(topic == self._topics.decisions for topic, _ in self.places)
        ranks = {TopicPartition(*place): rank for rank, place in enumerate(self.places)}
        wanted = [tp for tp in topics if self._wanted is None or tp.partition in self._wanted]
        if self._given_ends is not None:
            self._ends = {tp: self._given_ends.get((tp.topic, tp.partition), 0) for tp in wanted}
        else:
            async with self._consumer("earliest") as scout:  # where a partition was emptied it must not stumble
                self._ends = await end_offsets(scout, wanted)
        begins = await consumer.beginning_offsets(wanted)
        starts = await self._starts(consumer, begins)
        endless = self._topics.outcomes if self._labels else ""
        to_ms = self._window.to_ms
        self._lanes = {tp: Lane(ranks[tp], until_ms=None if tp.topic == endless else to_ms) for tp in wanted}
        fetcher = consumer._fetcher  # noqa: SLF001 - as in processors/transport.py
        fetcher._records = FetchedRecords(frozenset({tp.topic for tp in wanted}))  # noqa: SLF001
        consumer.assign(wanted)
        for tp, lane in self._lanes.items():
            lane.done = starts[tp] >= self._ends[tp]
            consumer.seek(tp, min(starts[tp], self._ends[tp]))
        self.total = sum(max(0, self._ends[tp] - starts[tp]) for tp in wanted)

    async def _partitions(self, consumer: Any) -> list[TopicPartition]:
        metadata = await consumer._client.fetch_all_metadata()  # noqa: SLF001 - asking by name would create the topic
        found: list[TopicPartition] = []
        for topic in (self._topics.decisions, self._topics.outcomes):
            numbers = metadata.partitions_for_topic(topic)
            found += [TopicPartition(topic, number) for number in sorted(numbers or ())]
            if not numbers and topic == self._topics.decisions:
                others = sorted(name for name in metadata.topics() if name.endswith(".decisions"))
                hint = f" It has {', '.join(others)}: set PENALTYBOX_TOPIC_PREFIX." if others else ""
                raise ConfigurationError(
                    f"Kafka at {self._settings.kafka} has no topic {topic}.{hint} `penaltybox setup` creates the "
                    "topics; --source FILE replays a file."
                )
            if not numbers:
                self.remarks.append(f"There is no topic {topic}: no outcomes are in this replay.")
        return found

    async def _starts(self, consumer: Any, begins: dict[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where to start: by time where the broker can tell, else at the beginning."""
        self._tell_deleted(begins)
        start_ms = self._window.start_ms
        if start_ms is None:
            return dict(begins)
        if not (await probe(Connection.of(self._settings), self._topics.decisions)).timestamp_offsets:
            self.remarks.append("This broker cannot look times up: the topics are scanned from their beginning.")
            return dict(begins)
        found = await consumer.offsets_for_times(dict.fromkeys(begins, max(0, start_ms)))
        starts = {tp: self._ends[tp] if found.get(tp) is None else found[tp].offset for tp in begins}
        cut = [found[tp] for tp in begins if begins[tp] and starts[tp] == begins[tp] and found.get(tp) is not None]
        if cut:
            first = min(one.timestamp for one in cut)
            self.remarks.append(
                f"Records before {iso(first)} are deleted already (retention): the warm-up is shorter than the "
                "policies look back, so windows and ladders begin emptier than they were."
            )
        return starts

    def _tell_deleted(self, begins: dict[TopicPartition, int]) -> None:
        gone = {tp: first for tp, first in begins.items() if first and tp.topic == self._topics.decisions}
        if gone and self._window.start_ms is None:
            self.remarks.append(
                f"The first {sum(gone.values()):,} offsets of {self._topics.decisions} are deleted already "
                "(retention): the replay begins behind them, with nothing remembered. With --from they warm it up."
            )

    def _by_hand(self) -> list[Lane]:
        """Steps by hand, in their places: a lane of their own behind all others."""
        lane = Lane(len(self.places))
        lane.done = True
        window = self._window
        start = window.start_ms if window.start_ms is not None else 0
        for number, (ms, command) in enumerate(self._commands):
            if isinstance(command, ListChange):
                ms = max(ms, start)  # noqa: PLW2901 - who was listed before is listed when the replay begins
            if ms >= start and (window.to_ms is None or ms < window.to_ms):
                lane.records.append((ms, lane.rank, number, command))
        return [lane] if lane.records else []

    async def _fill(self, consumer: Any) -> None:
        """Take what was fetched, and fetch until no partition is blocking.

        Also of those that are not: while anything lies there that nobody has taken, the next records are not fetched.
        """
        silent_since = asyncio.get_running_loop().time()
        while hungry := [tp for tp, lane in self._lanes.items() if lane.hungry]:
            blocking = [tp for tp in hungry if self._lanes[tp].blocking]
            try:
                fetched = await consumer.getmany(*hungry, timeout_ms=POLL_MS if blocking else 0)
            except (OffsetOutOfRangeError, NoOffsetForPartitionError) as error:
                raise ConfigurationError(
                    f"{self.title}: records were deleted (retention) before they were read: {error!r}. Choose a later "
                    "--from."
                ) from error
            now = asyncio.get_running_loop().time()
            for tp, records in fetched.items():
                self._take(tp, records)
                silent_since = now
            if not blocking:
                return
            for tp in blocking:
                # The position passes the end although compaction, or a transaction's marker, may have the last record.
                lane = self._lanes[tp]
                if lane.blocking and await consumer.position(tp) >= self._ends[tp]:
                    lane.done = True
                    silent_since = now
            if now - silent_since > SILENCE_S:
                raise StoreUnavailable(
                    f"Kafka at {self._settings.kafka} has sent nothing for {SILENCE_S} s, though {blocking[0].topic}, "
                    f"partition {blocking[0].partition} goes on to offset {self._ends[blocking[0]]}. Try again."
                )

    def _take(self, tp: TopicPartition, records: list[Any]) -> None:
        lane, end = self._lanes[tp], self._ends[tp]
        if records[-1].offset >= end - 1:
            lane.done = True
            records = [record for record in records if record.offset < end]
        self.done += len(records)
        lane.take(records)

    def _entries(self, placed: Sequence[Placed]) -> list[Entry]:
        """Decoded entries of a slice; what cannot be judged is counted."""
        start = self._window.start_ms
        if start is not None and placed[0][0] < start:
            placed = [one for one in placed if one[0] >= start]
        if not placed:
            return []
        first_outcome, by_hand = self._first_outcome, len(self.places)
        if max(map(_rank, placed)) < first_outcome:
            return self._decisions(placed)
        decisions = [one for one in placed if one[1] < first_outcome]
        entries = self._decisions(decisions) if decisions else []
        entries += self._outcomes(one for one in placed if first_outcome <= one[1] < by_hand)
        entries += [(clock, rank, number, command, Names(()), clock) for clock, rank, number, command in placed
                    if rank == by_hand]  # fmt: skip
        entries.sort(key=lambda entry: entry[:3])
        return entries

    def _decisions(self, placed: Sequence[Placed]) -> list[Entry]:
        clocks, ranks, offsets, records = zip(*placed, strict=True)
        values, stamps = [record.value for record in records], [record.timestamp for record in records]
        if self._engine is not None:
            seen, times, named, kinds, refused = judge_decisions(self._engine, values, stamps)
            for at, error in refused.items():
                self._refuse(error, ranks[at], offsets[at])
            entries = zip(clocks, ranks, offsets, sightings(seen, times, kinds), named, stamps, strict=True)
            return [one for at, one in enumerate(entries) if at not in refused] if refused else list(entries)
        judged = decode_decisions(values, stamps, self._canonicaliser)
        if BadEvent in set(map(type, judged)):
            for one, rank, offset in zip(judged, ranks, offsets, strict=True):
                if type(one) is BadEvent:
                    self._refuse(one, rank, offset)
            rows = zip(clocks, ranks, offsets, judged, stamps, strict=True)
            return [
                (clock, rank, offset, *cast("tuple[Decision, Names]", one), stamp)
                for clock, rank, offset, one, stamp in rows
                if type(one) is not BadEvent
            ]
        events, names = zip(*cast("list[tuple[Decision, Names]]", judged), strict=True)
        return list(zip(clocks, ranks, offsets, events, names, stamps, strict=True))

    def _outcomes(self, placed: Iterable[Placed]) -> list[Entry]:
        entries: list[Entry] = []
        for clock, rank, offset, record in placed:
            try:
                event: Outcome = decode_outcome(record.value or b"", record.timestamp, self._canonicaliser)
                names = self._canonicaliser.names(event.subjects)
            except BadEvent as error:
                self._refuse(error, rank, offset)
                continue
            entries.append((clock, rank, offset, event, names, record.timestamp))
        return entries

    def _refuse(self, error: BadEvent, rank: int, offset: int) -> None:
        topic, partition = self.places[rank]
        self.refused.note(error, f"{topic}, partition {partition}, offset {offset}")
