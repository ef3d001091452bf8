"""Tells Kafka what is stored: penalties and ladders, in the order of the writes; then what waits for that is finished.

Beside the writer, not behind it: a new block does not wait in the store's queue until Kafka has taken the last one.
While one batch is being delivered, news gathers for the next.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from penaltybox.processors.announcements import ladder_message, penalty_messages
from penaltybox.processors.patience import GivenUpError
from penaltybox.processors.state import blob_version, decode_state, ladder_record

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penaltybox.contracts.events import Ladder, Penalty
    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Sender
    from penaltybox.processors.patience import Patience
    from penaltybox.processors.residents import Resident
    from penaltybox.processors.seams import Seam
    from penaltybox.sinks.subject_store import SubjectStore


class News(NamedTuple):
    """What a stored write has to tell: penalties of its outbox, and the ladder if it changed."""

    resident: Resident
    penalties: list[Penalty]
    ladder: Ladder | None
    laddered: bool


class Teller:
    """Delivers news in order.

    Args:
        store: looked at again after a ladder was told.
        sender: where penalties and ladders go.
        topics: their names.
        patience: how outages are waited out.
        touched: called with a resident that has to be written once more: its outbox has been told.
        finish: awaited after every batch, and whenever `wake` was called: what waits for news may be finished now.
        seam: fault injection.

    Attributes:
        taken: how much news was taken so far.
        told: how much of it is delivered. It never overtakes: news is told in the order in which it was taken.
    """

    def __init__(
        self,
        store: SubjectStore,
        sender: Sender,
        topics: Topics,
        patience: Patience,
        *,
        touched: Callable[[Resident], None],
        finish: Callable[[], Awaitable[None]],
        seam: Seam,
    ) -> None:
        self._store = store
        self._sender = sender
        self._topics = topics
        self._patience = patience
        self._touched = touched
        self._finish = finish
        self._seam = seam
        self._news: list[News] = []
        self._work = asyncio.Event()
        self.taken = 0
        self.told = 0

    def take(self, news: Sequence[News]) -> None:
        """Have news told."""
        self._news += news
        self.taken += len(news)
        self._work.set()

    def wake(self) -> None:
        """Have what waits looked at, although there may be no news."""
        self._work.set()

    async def run(self) -> None:
        """Tell, for ever."""
        while True:
            await self._work.wait()
            self._work.clear()
            news, self._news = self._news, []
            try:
                if news:
                    await self._tell(news)
                self.told += len(news)
                await self._finish()
            except GivenUpError:
                # It is in the stored outboxes, and whoever sweeps them tells it.
                self._news = []
                self.told = self.taken

    async def _tell(self, news: list[News]) -> None:
        messages = []
        for one in news:
            messages += penalty_messages(self._topics, one.penalties)
            if one.laddered:
                messages.append(ladder_message(self._topics, one.resident.state.subject, one.ladder))
        if messages:
            await self._patience.call(lambda: self._sender.send(messages))
        self._seam("after_produce")
        for one in news:
            if one.penalties:
                self._confirm(one.resident, frozenset(penalty.id for penalty in one.penalties))
        await self._look_again({one.resident.state.subject: one.ladder for one in news if one.laddered})

    def _confirm(self, resident: Resident, ids: frozenset[str]) -> None:
        """Kafka has these: they leave the outbox with the next write."""
        resident.telling -= ids
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
                stored = ladder_record(decode_state(blob, subject))
                if stored is not None and _substance(stored) != _substance(told):
                    newer[subject] = stored
            messages = [ladder_message(self._topics, subject, ladder) for subject, ladder in newer.items()]
            if messages:
                await self._patience.call(lambda messages=messages: self._sender.send(messages))  # type: ignore[misc]
            ladders = newer


def _substance(ladder: Ladder | None) -> Any:
    """A ladder without its version: most versions differ in counters only."""
    if ladder is None:
        return None
    return {name: getattr(ladder, name) for name in ladder.__struct_fields__ if name != "seq"}
