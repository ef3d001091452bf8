"""The blocklist as the console keeps it: read once by SCAN, then kept current by what Redis says on its channel."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

from penaltybox.cli.console_page.answers import BlockPage, BlockRow, RangeRow, Tally
from penaltybox.contracts.errors import PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.sinks.blocklist import Block, Blocklist
    from penaltybox.sinks.lists import Banned, HandLists

Order = Literal["last", "first", "subject"]
MOST: Final = 200_000
"""Blocks that are kept; whoever has more is told that some are not shown."""
_REREAD_S: Final = 300.0
"""How often all keys are walked again, whatever was heard."""
_GATHER_S: Final = 0.1
_RETRY_S: Final = 1.0
_STEP: Final = 500
_EVER: Final = 1 << 62
_log = logging.getLogger("penaltybox.console")


class Roll:
    """Who is denied or challenged now.

    Args:
        blocklist: reads the marks.
        lists: reads the banned ranges.
        now_ms: wall clock.
    """

    def __init__(self, blocklist: Blocklist, lists: HandLists, now_ms: Callable[[], int]) -> None:
        self._blocklist = blocklist
        self._lists = lists
        self._now_ms = now_ms
        self._found: dict[str, list[Block]] = {}
        self._ranges: dict[str, Banned] = {}
        self._dirty: set[str] = set()
        self._woken = asyncio.Event()
        self._reread = True
        self._ranges_changed = True
        self._complete = False
        self._sorted: dict[tuple[str, str, str, Order], tuple[int, list[BlockRow]]] = {}
        self._counted: tuple[int, int, int] | None = None
        self.version = 0
        """Another one whenever the list is another, also after the console was started again."""
        self.failure = ""
        """Why Redis is not read now; empty when it is."""

    def changed(self, subject: str) -> None:
        """Heard: the block or challenge of this subject is new, changed or gone."""
        self._dirty.add(subject)
        self._woken.set()

    def lists_changed(self) -> None:
        """Heard: a ban of a range, or the allowlist, changed."""
        self._ranges_changed = True
        self._woken.set()

    def policy_changed(self) -> None:
        """Heard: another policy. It changes no block."""

    def missed(self) -> None:
        """Something may have been said while nobody listened."""
        self._reread = True
        self._woken.set()

    async def keep(self) -> None:
        """Reads, and reads again what changes, until it is cancelled."""
        while True:
            try:
                await self._catch_up()
                self.failure = ""
            except PenaltyboxError as error:
                if not self.failure:
                    _log.warning("the blocklist is not read: %s", error)
                self.failure = str(error)
                self._reread = True
                await asyncio.sleep(_RETRY_S)
                continue
            try:
                async with asyncio.timeout(_REREAD_S):
                    await self._woken.wait()
            except TimeoutError:
                self._reread = True
            await asyncio.sleep(_GATHER_S)

    async def _catch_up(self) -> None:
        self._woken.clear()
        if self._reread:
            self._reread, self._dirty = False, set()
            found: dict[str, list[Block]] = {}
            kept, whole = 0, True
            if not self._complete:
                self._found = found  # to be looked at while it grows
            async for block in self._blocklist.blocks():
                if kept == MOST:
                    whole = False
                    break
                found.setdefault(block.subject, []).append(self._ending(block))
                kept += 1
            self._found, self._complete = found, whole
            self._ranges_changed = True
            self._touch()
        while self._dirty:
            some = [self._dirty.pop() for _ in range(min(_STEP, len(self._dirty)))]
            for subject, blocks in zip(some, await self._blocklist.all_of(some), strict=True):
                if blocks:
                    self._found[subject] = [self._ending(block) for block in blocks]
                else:
                    self._found.pop(subject, None)
            self._touch()
        if self._ranges_changed:
            self._ranges_changed = False
            self._ranges = await self._lists.banned()
            self._touch()

    def _ending(self, block: Block) -> Block:
        """A block of another program may say no end, and have one."""
        if block.until is None and block.ttl_ms is not None:
            return block._replace(until=self._now_ms() + block.ttl_ms)
        return block

    def _touch(self) -> None:
        self.version = max(self.version + 1, self._now_ms())
        self._counted = None
        self._sorted.clear()

    def in_force(self) -> Iterable[Block]:
        """Every block and challenge whose end has not come."""
        at_ms = self._now_ms()
        return (
            block for blocks in self._found.values() for block in blocks if block.until is None or block.until > at_ms
        )

    def counts(self) -> tuple[int, int, int]:
        """How many are denied, challenged, and how many ranges are banned; one that has ended changes the version."""
        kinds = Counter(block.kind for block in self.in_force())
        found = (kinds["deny"], kinds["challenge"], len(self._ranges_now()))
        if self._counted not in (None, found):
            self._touch()
        self._counted = found
        return found

    def page(
        self, *, dimension: str = "", kind: str = "", text: str = "", order: Order = "last", offset: int, limit: int
    ) -> BlockPage:
        """One page of those that match.

        Args:
            dimension: only its subjects; empty: all.
            kind: ``deny``, ``challenge`` or empty.
            text: what subject or rule contain, in any case.
            order: by end, the last or the first one at the top; or by subject.
            offset: of the first row.
            limit: rows on the page.
        """
        rows = self._rows(dimension, kind, text.lower(), order)
        tally: dict[str, list[int]] = {}
        for block in self.in_force():
            tally.setdefault(block.subject.partition(":")[0], [0, 0])[block.kind != "deny"] += 1
        return BlockPage(
            at=self._now_ms(),
            version=self.version,
            offset=offset,
            total=len(rows),
            complete=self._complete,
            rows=rows[offset : offset + limit],
            ranges=self._ranges_now(),
            dimensions=[Tally(name, *numbers) for name, numbers in sorted(tally.items())],
        )

    def _rows(self, dimension: str, kind: str, text: str, order: Order) -> list[BlockRow]:
        """Sorted rows, kept for a second: what has ended meanwhile leaves with the next one."""
        second = self._now_ms() // 1000
        kept = self._sorted.get((dimension, kind, text, order))
        if kept is not None and kept[0] == second:
            return kept[1]
        rows = [
            BlockRow(block.subject, block.kind, block.until, block.rung, block.rule)
            for block in self.in_force()
            if (not kind or block.kind == kind)
            and (not dimension or block.subject.startswith(f"{dimension}:"))
            and (not text or text in block.subject.lower() or text in block.rule.lower())
        ]
        if order == "subject":
            rows.sort(key=lambda row: (row.subject, row.kind))
        else:
            sign = 1 if order == "first" else -1
            rows.sort(key=lambda row: (sign * (_EVER if row.until is None else row.until), row.subject))
        if len(self._sorted) > 20:  # noqa: PLR2004 - people type into the search field
            self._sorted.clear()
        self._sorted[dimension, kind, text, order] = (second, rows)
        return rows

    def _ranges_now(self) -> list[RangeRow]:
        at_ms = self._now_ms()
        return [
            RangeRow(name, one.action, one.until, one.actor, one.reason)
            for name, one in sorted(self._ranges.items())
            if one.until is None or one.until > at_ms
        ]
