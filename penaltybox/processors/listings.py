"""The allowlist at work on blocks that run already: hidden while their subject is listed, back when the listing ends.

The engine lets nothing happen to a listed subject. But a block that was raised before is a key in Redis, and enforcers
read nothing else, so the keys are written anew when an entry of the policy or of the list in Redis comes into force,
goes, or ends.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.processors.ladder import active
from penaltybox.processors.state import decode_state
from penaltybox.processors.writer import next_nonce, write_of
from penaltybox.sinks.subject_store import Lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.links.listening import Hearing
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.state import SubjectState
    from penaltybox.sinks.blocklist import Block
    from penaltybox.sinks.subject_store import SubjectStore, Write

log = logging.getLogger(__name__)
EVERY_S: Final = 1.0
REREAD_S: Final = 60.0
"""How often the list in Redis is read although nothing was said: somebody may have forgotten to say it."""
CHUNK: Final = 500
_HIDEABLE: Final = ("block", "challenge")


class Blocks(Protocol):
    """The reading side of the blocklist (`sinks.blocklist.Blocklist`)."""

    async def lookup(self, subjects: Sequence[str]) -> list[Block | None]:
        """What is in force against each subject."""

    def subjects(self, dimension: str | None = None) -> AsyncIterator[str]:
        """Every subject of which a state is stored."""


class Listings:
    """Keeps the allowlist of a worker's engine, and the keys of listed subjects, as they should be.

    It hears that the list in Redis has changed (`links.listening.Hearer`), and reads it each second while it cannot
    hear.

    Args:
        engine: whose policy is in force.
        store: where states are.
        blocks: what enforcers see.
        wall_ms: the wall clock.
        read: reads the entries in Redis; None where there are only the policy's.
        stepping: gives the engine that a worker steps with, for a moment still the last policy's.
    """

    def __init__(
        self,
        engine: Engine,
        store: SubjectStore,
        blocks: Blocks,
        wall_ms: Callable[[], int],
        read: Callable[[], Awaitable[tuple[AllowEntry, ...]]] | None = None,
        stepping: Callable[[], Engine] | None = None,
    ) -> None:
        self._engine = engine
        self._store = store
        self._blocks = blocks
        self._wall_ms = wall_ms
        self._read = read
        self._stepping = stepping or (lambda: self._engine)
        self._news = asyncio.Event()
        self._news.set()
        self._done = Allowlist(())
        self._coming: list[AllowEntry] = []

    def replace_engine(self, engine: Engine) -> None:
        """Another policy is in force: what only the last one listed is shown again, what this one lists is hidden."""
        engine.list_also(self._engine.listed)
        self._engine = engine
        self._news.set()

    def changed(self, subject: str) -> None:
        """A block changed: nothing to do."""

    def lists_changed(self) -> None:
        """Read the list in Redis again."""
        self._news.set()

    def policy_changed(self) -> None:
        """Whoever watches the policy calls `replace_engine`."""

    def missed(self) -> None:
        """It may have changed unheard."""
        self._news.set()

    async def watch(self, hearing: Hearing | None = None, every_s: float = EVERY_S) -> None:
        """Follow the lists, and set keys right when an entry is new, gone, or has ended; for ever.

        Args:
            hearing: says whether changes are heard at all.
            every_s: how often the ends of entries are looked at.
        """
        loop = asyncio.get_running_loop()
        again: list[AllowEntry] = []
        reread = loop.time()
        while True:
            try:
                if self._news.is_set() or loop.time() >= reread or hearing is None or hearing.heard_ms is None:
                    self._news.clear()
                    await self.refresh()
                    reread = loop.time() + REREAD_S
                changes = self._changes()
                # Again a moment later: other workers may have written with the list of before.
                await self.set_right([*changes, *again])
                again = changes
            except StoreUnavailable as error:
                log.info("The blocks of allowlisted subjects are looked at again soon: %s", error)
                self._done, again = Allowlist(()), []
                self._news.set()
                await asyncio.sleep(every_s)
                continue
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), every_s)

    async def refresh(self) -> None:
        """Put what Redis lists now in force.

        Raises:
            StoreUnavailable: Redis does not answer; the engine has what it had.
        """
        if self._read is not None:
            listed = await self._read()
            for engine in (self._engine, self._stepping()):
                if listed != engine.listed:
                    engine.list_also(listed)

    def _changes(self) -> list[AllowEntry]:
        """Entries that are new or gone since the last call, or have ended."""
        allowlist = self._engine.allowlist
        now = self._wall_ms()
        found = [entry for entry in self._coming if entry.until is not None and entry.until <= now]
        if allowlist is not self._done:
            found += set(allowlist.entries) ^ set(self._done.entries)
            self._coming, self._done = [entry for entry in allowlist.entries if entry.until is not None], allowlist
        self._coming = [entry for entry in self._coming if entry.until is not None and entry.until > now]
        return found

    async def set_right(self, entries: Sequence[AllowEntry]) -> int:
        """Writes the keys of the entries' subjects anew where they are not what they should be; how many those were."""
        subjects = {entry.subject for entry in entries if entry.subject}
        combined = any("+" in rule.on for rule in self._engine.policy.rules)
        if entries and (combined or any(entry.cidr for entry in entries)):
            meant = Allowlist(tuple(entries))
            async for subject in self._blocks.subjects(None if combined else "ip"):
                if meant.matching(subject):
                    subjects.add(subject)
        todo, written = sorted(subjects), 0
        while todo:
            chunk, todo = todo[:CHUNK], todo[CHUNK:]
            lost, done = await self._rewrite(chunk)
            todo += lost
            written += done
        return written

    async def _rewrite(self, subjects: Sequence[str]) -> tuple[list[str], int]:
        now = self._wall_ms()
        blobs = await self._store.read(subjects)
        shown = await self._blocks.lookup(subjects)
        writes = []
        for subject, blob, block in zip(subjects, blobs, shown, strict=True):
            if blob is None:
                continue
            state = decode_state(blob, subject)
            held = active(state.real.deny, now) or active(state.real.challenge, now)
            if held and (block is not None) == self._engine.allowlist.covers(subject, now):
                writes.append(self._write(state, now))
        results = await self._store.write(writes) if writes else []
        lost = [one.subject for one, result in zip(writes, results, strict=True) if isinstance(result, Lost)]
        return lost, len(writes) - len(lost)

    def _write(self, state: SubjectState, now: int) -> Write:
        marks = tuple(mark for mark in self._engine.marks(state, now) if mark.name in _HIDEABLE)
        return write_of(self._engine, state, marks, now, next_nonce())
