"""The allowlist at work on blocks that run already: hidden while their subject is listed, back when the listing ends.

The engine lets nothing happen to a listed subject. But a block that was raised before is a key in Redis, and enforcers
read nothing else, so the keys are written anew when the policy comes into force and when an entry ends.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.processors.ladder import active
from penaltybox.processors.state import decode_state
from penaltybox.processors.writer import next_nonce, write_of
from penaltybox.sinks.subject_store import Lost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.state import SubjectState
    from penaltybox.sinks.blocklist import Block
    from penaltybox.sinks.subject_store import SubjectStore, Write

log = logging.getLogger(__name__)
EVERY_S: Final = 1.0
CHUNK: Final = 500
_HIDEABLE: Final = ("block", "challenge")


class Blocks(Protocol):
    """The reading side of the blocklist (`sinks.blocklist.Blocklist`)."""

    async def lookup(self, subjects: Sequence[str]) -> list[Block | None]:
        """What is in force against each subject."""

    def subjects(self, dimension: str | None = None) -> AsyncIterator[str]:
        """Every subject of which a state is stored."""


class Listings:
    """Keeps the keys of listed subjects as they should be.

    Args:
        engine: whose policy has the allowlist.
        store: where states are.
        blocks: what enforcers see.
        wall_ms: the wall clock.
    """

    def __init__(self, engine: Engine, store: SubjectStore, blocks: Blocks, wall_ms: Callable[[], int]) -> None:
        self._engine = engine
        self._store = store
        self._blocks = blocks
        self._wall_ms = wall_ms
        self._due: list[AllowEntry] = list(engine.allowlist.entries)
        self._changed = asyncio.Event()

    def replace_engine(self, engine: Engine) -> None:
        """Another policy is in force: what only the last one listed is shown again, what this one lists is hidden."""
        self._due += [*self._engine.allowlist.entries, *engine.allowlist.entries]
        self._engine = engine
        self._changed.set()

    async def watch(self, every_s: float = EVERY_S) -> None:
        """Set all keys right, then those of every entry that ends, for ever."""
        looked_ms = self._wall_ms()
        while True:
            due, self._due = self._due, []
            try:
                await self.set_right(due)
            except StoreUnavailable as error:
                log.info("The blocks of allowlisted subjects are looked at again soon: %s", error)
                self._due += due
                await asyncio.sleep(every_s)
                continue
            await self._next_look(looked_ms, every_s)
            now = self._wall_ms()
            self._due += [one for one in self._engine.allowlist.entries if looked_ms < (one.until or 0) <= now]
            looked_ms = now

    async def _next_look(self, looked_ms: int, every_s: float) -> None:
        """Returns after a while, or at once when the policy has changed; while no entry will end, only then."""
        ends = any((entry.until or 0) > looked_ms for entry in self._engine.allowlist.entries)
        with suppress(TimeoutError):
            async with asyncio.timeout(every_s if ends else None):
                await self._changed.wait()
        self._changed.clear()

    async def set_right(self, entries: Sequence[AllowEntry]) -> int:
        """Writes the keys of the entries' subjects anew where they are not what they should be; how many those were."""
        subjects = {entry.subject for entry in entries if entry.subject}
        combined = any("+" in rule.on for rule in self._engine.policy.rules)
        if entries and (combined or any(entry.cidr for entry in entries)):
            allowlist = self._engine.allowlist
            async for subject in self._blocks.subjects(None if combined else "ip"):
                if allowlist.matching(subject):
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
