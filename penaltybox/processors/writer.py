"""From stepped states to the store and to Kafka: versioned writes, lost races stepped again, the outbox told.

Order: write (state, block and challenge together; the outbox is in the state) -> penalties and ladders delivered ->
acknowledge.  A penalty leaves the outbox only after Kafka has it, so a crash between any two loses nothing.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.processors.announcements import ladder_message, penalty_messages
from penaltybox.processors.engine import CHANGED, MARKS, PENALTY
from penaltybox.processors.remedies import marks_of
from penaltybox.processors.residents import NONE, Resident
from penaltybox.processors.state import (
    blob_version,
    decode_state,
    encode_state,
    ladder_record,
    state_expiry,
)
from penaltybox.sinks.subject_store import HEADER_BYTES, Lost, Rewound, Write, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.contracts.events import Ladder, Penalty
    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Sender
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.patience import Patience
    from penaltybox.processors.seams import Seam
    from penaltybox.sinks.subject_store import SubjectStore, WriteResult

MOST_RACES = 1000
"""Races one subject may lose in a row: more means a fault, not competition."""
_nonce = secrets.randbits(63) | 1 << 32


def next_nonce() -> int:
    """A nonce that no other write of any worker has: a random start, then a step of an odd constant."""
    global _nonce  # noqa: PLW0603 - one sequence a process
    _nonce = (_nonce + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return _nonce if _nonce >= 1 << 32 else next_nonce()


class News(NamedTuple):
    """What a stored write has to tell: all of its outbox, and the ladder if a step is among it."""

    resident: Resident
    penalties: list[Penalty]
    ladder: Ladder | None
    laddered: bool


class Sent(NamedTuple):
    """A write under way, with what its result needs."""

    resident: Resident
    write: Write
    nonce: int
    outbox: int
    ladder: Ladder | None


class Writer:
    """Settles residents: after `settle` returns, their changes are stored and told.

    Args:
        store: where states live.
        sender: where penalties and ladders go.
        topics: their names.
        patience: how outages are waited out.
        wall_ms: the wall clock.
        touched: called with a resident that has to be written once more (its outbox has been told).
        seam: fault injection.
    """

    def __init__(
        self,
        store: SubjectStore,
        sender: Sender,
        topics: Topics,
        patience: Patience,
        *,
        engine: Engine,
        wall_ms: Callable[[], int],
        touched: Callable[[Resident], None],
        seam: Seam,
    ) -> None:
        self._store = store
        self._sender = sender
        self._topics = topics
        self._patience = patience
        self._wall_ms = wall_ms
        self._touched = touched
        self._seam = seam
        self.engine = engine

    async def settle(self, residents: Sequence[Resident]) -> None:
        """Write what changed, verify what was only held, step lost races again, and tell what was stored.

        A resident that is listed twice is written once: a second encoding would forget what the first one holds, and
        then nobody could step it again after a lost race.

        Raises:
            GivenUpError: called off during an outage.
        """
        news: list[News] = []
        todo = list(dict.fromkeys(residents))
        wrote = False
        races = 0
        while todo:
            checks = [one for one in todo if one.kept and not one.dirty]
            sent = self._encode([one for one in todo if one.dirty])
            todo = []
            if sent:
                wrote = True
                writes = [one.write for one in sent]
                results = await self._patience.call(lambda writes=writes: self._store.write(writes))  # type: ignore[misc]
                self._absorb(sent, results, news, todo)
            if checks:
                await self._verify(checks, todo)
            races += 1
            if races > MOST_RACES:
                raise PenaltyboxError(f"{todo[0].state.subject}: lost {races} races in a row; is the store in order?")
        if wrote:
            self._seam("after_redis_write")
        if news:
            await self._tell(news)

    def _encode(self, residents: list[Resident]) -> list[Sent]:
        policy, allowlist, now_ms = self.engine.policy, self.engine.allowlist, self._wall_ms()
        sent = []
        for resident in residents:
            state = resident.state
            ladder = None
            marks = None
            if resident.remark:
                marks = marks_of(policy, state, now_ms, listed=allowlist.covers(state.subject, now_ms))
                ladder = ladder_record(state)
            nonce = next_nonce()
            write = Write(
                state.subject,
                state.read_number,
                state.nonce if state.read_number else 0,
                encode_state(state, nonce),
                state_expiry(state, policy, now_ms),
                marks,
                bool(state.outbox),
            )
            resident.sent = resident.kept
            resident.kept = ()
            resident.dirty = resident.remark = resident.urgent = False
            sent.append(Sent(resident, write, nonce, len(state.outbox), ladder))
        return sent

    def _absorb(self, sent: list[Sent], results: Sequence[WriteResult], news: list[News], todo: list[Resident]) -> None:
        now_s = time.monotonic()
        for one, result in zip(sent, results, strict=True):
            resident = one.resident
            if type(result) is Written:
                state = resident.state
                state.number = result.number
                state.nonce = one.nonce
                resident.verified_s = now_s
                resident.sent = ()
                resident.confirmed = NONE
                if not resident.dirty:
                    resident.kept = ()  # they changed nothing, and what they met is what is stored now
                if one.outbox or one.write.marks is not None:
                    news.append(_news(one, result.number))
            elif type(result) is Rewound:
                # Less is stored than was read: everything is written anew, whatever is beside it too.
                resident.kept = [*resident.sent, *resident.kept]
                resident.sent = ()
                resident.dirty = resident.remark = True
                todo.append(resident)
            elif type(result) is Lost:
                self.step_again(resident, result.current, now_s)
                todo.append(resident)

    async def _verify(self, residents: list[Resident], todo: list[Resident]) -> None:
        """Residents in which nothing changed because of a block, a fence or grace: is that still what is stored?"""
        subjects = [one.state.subject for one in residents]
        counts = [len(one.kept) for one in residents]
        blobs = await self._patience.call(lambda: self._store.read(subjects))
        now_s = time.monotonic()
        for resident, count, blob in zip(residents, counts, blobs, strict=True):
            state = resident.state
            here = (state.number, state.nonce) if state.read_number else None
            if (None if blob is None else blob_version(blob)) == here:
                resident.verified_s = now_s
                if not resident.dirty:
                    resident.kept = list(resident.kept[count:])
            elif blob is not None and blob_version(blob)[0] >= state.read_number:
                self.step_again(resident, blob, now_s)
                todo.append(resident)
            else:
                # The store has lost its last writes: mine is written again.
                resident.dirty = resident.remark = True
                todo.append(resident)

    def step_again(self, resident: Resident, blob: bytes, now_s: float) -> None:
        """Take the stored state and step everything that is open about the subject again."""
        events = [*resident.sent, *resident.kept]
        state = decode_state(blob)
        effect = 0
        if resident.confirmed:
            told = [one for one in state.outbox if one.id not in resident.confirmed]
            if len(told) != len(state.outbox):
                state.outbox = told
                effect = CHANGED
        engine = self.engine
        for plan, event, handling, names in events:
            if plan is None:
                effect |= engine.apply_outcome(state, event, handling)
            else:
                effect |= engine.apply(state, plan, event, handling, names)
        resident.state = state
        resident.verified_s = now_s
        resident.sent = ()
        resident.dirty = bool(effect & (CHANGED | PENALTY | MARKS))
        resident.remark = bool(effect & (PENALTY | MARKS))
        resident.kept = events if resident.dirty else ()

    async def _tell(self, news: list[News]) -> None:
        messages = []
        for one in news:
            messages += penalty_messages(self._topics, one.penalties)
            if one.laddered:
                messages.append(ladder_message(self._topics, one.resident.state.subject, one.ladder))
        await self._patience.call(lambda: self._sender.send(messages))
        self._seam("after_produce")
        for one in news:
            if one.penalties:
                self._confirm(one.resident, {penalty.id for penalty in one.penalties})
        await self._look_again({one.resident.state.subject: one.ladder for one in news if one.laddered})

    def _confirm(self, resident: Resident, ids: set[str]) -> None:
        """Kafka has these: they leave the outbox with the next write."""
        resident.confirmed |= ids
        state = resident.state
        state.outbox = [penalty for penalty in state.outbox if penalty.id not in ids]
        resident.dirty = True
        self._touched(resident)

    async def _look_again(self, ladders: dict[str, Ladder | None]) -> None:
        """Tell a ladder that another worker wrote meanwhile: compaction keeps the last record, not the highest."""
        while ladders:
            subjects = list(ladders)
            blobs = await self._patience.call(lambda subjects=subjects: self._store.read(subjects))  # type: ignore[misc]
            newer: dict[str, Ladder | None] = {}
            for subject, blob in zip(subjects, blobs, strict=True):
                told = ladders[subject]
                if blob is None or (told is not None and blob_version(blob)[0] <= told.seq):
                    continue
                stored = ladder_record(decode_state(blob))
                if stored is not None and _substance(stored) != _substance(told):
                    newer[subject] = stored
            messages = [ladder_message(self._topics, subject, ladder) for subject, ladder in newer.items()]
            if messages:
                await self._patience.call(lambda messages=messages: self._sender.send(messages))  # type: ignore[misc]
            ladders = newer

    async def sweep(self, subjects: Sequence[str], known: Callable[[str], Resident | None]) -> list[Resident]:
        """Tell what is still in the outboxes of subjects that are indexed as pending; others are un-indexed.

        Args:
            subjects: from the store's index.
            known: the resident of a subject, if it is here.

        Returns:
            Fresh residents of the subjects that are swept.
        """
        blobs = await self._patience.call(lambda: self._store.read(subjects))
        await self._patience.call(
            lambda: self._store.settle([s for s, blob in zip(subjects, blobs, strict=True) if blob is None])
        )
        now_s = time.monotonic()
        swept, news = [], []
        for subject, blob in zip(subjects, blobs, strict=True):
            here = known(subject)
            if blob is None or len(blob) < HEADER_BYTES or (here is not None and here.busy):
                continue  # who is busy with it here tells it
            resident = Resident(decode_state(blob), now_s)
            state = resident.state
            if state.outbox:
                news.append(News(resident, list(state.outbox), ladder_record(state), laddered=True))
            swept.append(resident)
        if news:
            await self._tell(news)
        for resident in swept:
            resident.dirty = True  # the write takes it out of the index
        return swept


def _news(one: Sent, number: int) -> News:
    """What the write has stored; penalties written for the first time get its version as their `seq`."""
    penalties = one.resident.state.outbox[: one.outbox]
    for penalty in penalties:
        penalty.seq = penalty.seq or number
    if one.ladder is not None:
        one.ladder.seq = number
    return News(one.resident, penalties, one.ladder, one.write.marks is not None)


def _substance(ladder: Ladder | None) -> Any:
    """A ladder without its version: most versions differ in counters only."""
    if ladder is None:
        return None
    return {name: getattr(ladder, name) for name in ladder.__struct_fields__ if name != "seq"}
