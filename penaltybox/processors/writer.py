"""From stepped states to the store: versioned writes, lost races stepped again, and what they have to tell.

State, block and challenge are written together, and the outbox is in the state: what is told after a write (by
`Teller`) is lost by no crash, for it leaves the outbox only after Kafka has it.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.processors.engine import CHANGED, MARKS, PENALTY
from penaltybox.processors.residents import Resident
from penaltybox.processors.state import (
    blob_version,
    decode_state,
    encode_state,
    ladder_record,
    state_expiry,
)
from penaltybox.processors.teller import News
from penaltybox.sinks.subject_store import HEADER_BYTES, Lost, Rewound, Write, Written

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.contracts.events import Ladder, Penalty
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.patience import Patience
    from penaltybox.processors.seams import Seam
    from penaltybox.processors.state import SubjectState
    from penaltybox.processors.teller import Teller
    from penaltybox.sinks.subject_store import Mark, SubjectStore, WriteResult

MOST_RACES = 1000
"""Races one subject may lose in a row: more means a fault, not competition."""
_nonce = secrets.randbits(63) | 1 << 32


def next_nonce() -> int:
    """A nonce that no other write of any worker has: a random start, then a step of an odd constant."""
    global _nonce  # noqa: PLW0603 - one sequence a process
    _nonce = (_nonce + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
    return _nonce if _nonce >= 1 << 32 else next_nonce()


class Sent(NamedTuple):
    """A write under way, with what its result needs."""

    resident: Resident
    write: Write
    nonce: int
    outbox: tuple[Penalty, ...]
    ladder: Ladder | None
    confirmed: frozenset[str]


def write_of(engine: Engine, state: SubjectState, marks: tuple[Mark, ...] | None, now_ms: int, nonce: int) -> Write:
    """The write of a state that was read, or never stored, and has been changed since."""
    return Write(
        state.subject,
        state.read_number,
        state.nonce if state.read_number else 0,
        encode_state(state, nonce),
        state_expiry(state, engine.policy, now_ms),
        marks,
        bool(state.outbox),
    )


class Writer:
    """Settles residents: after `settle` returns, their changes are stored, and the teller has the news.

    Args:
        store: where states live.
        teller: takes what the writes have to tell, in their order.
        patience: how outages are waited out.
        engine: steps lost races again; may be replaced.
        doubt: told of residents whose states are replaced.
        wall_ms: the wall clock.
        seam: fault injection.
    """

    def __init__(
        self,
        store: SubjectStore,
        teller: Teller,
        patience: Patience,
        *,
        engine: Engine,
        doubt: Callable[[Resident], object],
        wall_ms: Callable[[], int],
        seam: Seam,
    ) -> None:
        self._doubt = doubt
        self._store = store
        self._teller = teller
        self._patience = patience
        self._wall_ms = wall_ms
        self._seam = seam
        self.engine = engine

    async def settle(self, residents: Sequence[Resident]) -> None:
        """Write what changed, verify what was only held, step lost races again, and pass on what there is to tell.

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
            checks = [one for one in todo if (one.kept or one.renew) and not one.dirty]
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
            self._teller.take(news)

    def _encode(self, residents: list[Resident]) -> list[Sent]:
        now_ms = self._wall_ms()
        sent = []
        for resident in residents:
            state = resident.state
            ladder = None
            marks = self.engine.marks(state, now_ms) if resident.remark else None
            if resident.remark or state.outbox:
                # Whoever stored a penalty may have died before telling the ladder, too.
                ladder = ladder_record(state)
            nonce = next_nonce()
            write = write_of(self.engine, state, marks, now_ms, nonce)
            resident.sent = resident.kept
            resident.kept = ()
            resident.dirty = resident.remark = resident.urgent = False
            sent.append(Sent(resident, write, nonce, tuple(state.outbox), ladder, resident.confirmed))
        return sent

    def _absorb(self, sent: list[Sent], results: Sequence[WriteResult], news: list[News], todo: list[Resident]) -> None:
        now_s = time.monotonic()
        for one, result in zip(sent, results, strict=True):
            resident = one.resident
            resident.renew = False
            if type(result) is Written:
                state = resident.state
                state.number = result.number
                state.nonce = one.nonce
                resident.verified_s = now_s
                resident.sent = ()
                if one.confirmed:
                    resident.confirmed -= one.confirmed
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
        """Residents of which a block, a fence or grace answers: is that still what is stored?"""
        subjects = [one.state.subject for one in residents]
        counts = [len(one.kept) for one in residents]
        blobs = await self._patience.call(lambda: self._store.read(subjects))
        now_s = time.monotonic()
        for resident, count, blob in zip(residents, counts, blobs, strict=True):
            resident.renew = False
            state = resident.state
            here = (state.number, state.nonce) if state.read_number else None
            if (None if blob is None else blob_version(blob)) == here:
                resident.verified_s = now_s
                if not resident.dirty and count:
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
        state = decode_state(blob, resident.state.subject)
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
        self._doubt(resident)
        resident.state = state
        resident.hush()
        resident.verified_s = now_s
        resident.sent = ()
        resident.dirty = bool(effect & (CHANGED | PENALTY | MARKS))
        resident.remark = bool(effect & (PENALTY | MARKS))
        resident.kept = events if resident.dirty else ()

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
            resident = Resident(decode_state(blob, subject), now_s)
            state = resident.state
            if state.outbox:
                resident.telling = frozenset(penalty.id for penalty in state.outbox)
                news.append(News(resident, list(state.outbox), ladder_record(state), laddered=True))
            else:
                resident.dirty = True  # the write takes it out of the index
            swept.append(resident)
        if news:
            self._teller.take(news)
        return swept


def _news(one: Sent, number: int) -> News:
    """What the write has stored; penalties written for the first time get its version as their `seq`."""
    resident = one.resident
    for penalty in one.outbox:
        penalty.seq = penalty.seq or number
    # The teller works beside: what it was told, or has told, while the write was under way is not told again.
    known = resident.telling | resident.confirmed
    penalties = [penalty for penalty in one.outbox if penalty.id not in known]
    if penalties:
        resident.telling |= {penalty.id for penalty in penalties}
    if one.ladder is not None:
        one.ladder.seq = number
    return News(resident, penalties, one.ladder, one.write.marks is not None or bool(penalties))
