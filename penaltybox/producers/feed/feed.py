"""Feeds enforcers: hears what changes in Redis, looks up once for all of them what is in force now, and tells it."""

from __future__ import annotations

import asyncio
import logging
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import PenaltyboxError, StoreUnavailable
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.listening import Listener, fresh
from penaltybox.links.subscriptions import monotonic_ms
from penaltybox.producers.feed.change_log import SIZE, ChangeLog
from penaltybox.producers.feed.lines import Line, encoded, mark_in_force
from penaltybox.producers.feed.list_entries import read_entries
from penaltybox.producers.feed.snapshots import Snapshots

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence

    from penaltybox.contracts.policy import AllowEntry
    from penaltybox.links.exchange import Link
    from penaltybox.producers.feed.lines import InForce, Mark, Name
    from penaltybox.producers.feed.list_entries import Entries

_log = logging.getLogger(__name__)
BEAT_S: Final = 5.0
"""How often a stream says that it is alive."""
LISTS_S: Final = 60.0
"""How often the lists are read in any case: somebody may have written one and told nobody."""
_BATCH: Final = 256
_LINES: Final = 500
_READY_S: Final = 2.0
_AGAIN_S: Final = 0.2
_SYNCING: Final = 64
"""Whole lists that are sent at the same time; who comes beyond that is asked to come back."""
SYNC_S: Final = 30.0
"""So long one of them counts: a reader that takes nothing keeps nobody else away."""
_SPREAD_MS: Final = 20
_LONGEST_MS: Final = 30_000


class Marks(Protocol):
    """Reads blocks and challenges in Redis."""

    def blocks(self) -> AsyncIterator[Mark]:
        """All of them, in no order."""

    async def all_of(self, subjects: Sequence[str]) -> Sequence[Sequence[Mark]]:
        """Those of each subject."""


class Feed:
    """See the module. It belongs to one event loop, and begins to listen when somebody first asks.

    Args:
        link: a way to Redis with connections that can subscribe (`open_link`); closed by whoever opened it.
        marks: looks blocks up, by the same link.
        prefix: of all keys.
        canonicaliser: how subjects count.
        allow: the policy's own allowlist.
        size: changes that are kept.
    """

    def __init__(
        self,
        link: Link,
        marks: Marks,
        *,
        prefix: str = "pbx",
        canonicaliser: Canonicaliser | None = None,
        allow: Sequence[AllowEntry] = (),
        size: int = SIZE,
    ) -> None:
        self._link = link
        self._marks = marks
        self._keys = Keyspace(prefix)
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._allow = tuple(allow)
        self._log = ChangeLog(size)
        self._size = size
        self._snapshots = Snapshots(self._log, self._walk)
        self._listener = Listener(link, self._keys.events, self)
        self._entries: Entries = {}
        self._waiting: dict[str, None] = {}
        self._work = asyncio.Event()
        self._lists_wanted = True
        self._reading = asyncio.Lock()
        self._heard = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._syncing: set[object] = set()
        self._stopped = False
        self._told = False
        self.streams = 0
        """Answers that are being given."""

    async def ready(self) -> None:
        """Begins to listen, the first time; returns when changes are heard.

        Raises:
            StoreUnavailable: they are not, within two seconds.
        """
        if self._task is None:
            self._listener.start()
            self._task = asyncio.get_running_loop().create_task(self._keep())
        try:
            async with asyncio.timeout(_READY_S):
                await self._heard.wait()
        except TimeoutError:
            raise StoreUnavailable("Redis does not answer: changes of blocks are not heard.") from None

    def stop(self) -> None:
        """Ends every answer; whoever got it asks another process, or this one when it is back."""
        self._stopped = True
        self._log.wake()

    async def close(self) -> None:
        """Stops listening."""
        self.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._listener.close()

    def replace_allow(self, allow: Sequence[AllowEntry]) -> None:
        """Another policy is in force, with this allowlist."""
        self._allow = tuple(allow)
        self.lists_changed()

    # What the listener tells.

    def changed(self, subject: str) -> None:
        """See `Hearer.changed`."""
        self._waiting[subject] = None
        if len(self._waiting) > self._size:
            self.missed()
        self._work.set()

    def lists_changed(self) -> None:
        """See `Hearer.lists_changed`."""
        self._lists_wanted = True
        self._work.set()

    def policy_changed(self) -> None:
        """See `Hearer.policy_changed`; the allowlist of another policy comes by `replace_allow`."""

    def missed(self) -> None:
        """See `Hearer.missed`: everybody has to resync."""
        self._heard.set()
        self._waiting.clear()
        self._log.restart()
        self.lists_changed()

    async def _keep(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LISTS_S):
                    await self._work.wait()
            if not self._work.is_set():
                self._lists_wanted = True
            self._work.clear()
            try:
                await self._look()
                self._told = False
            except PenaltyboxError as error:
                if not self._told:
                    self._told = True
                    _log.warning("the feed cannot look up what changed, and tries again: %s", error)
                await asyncio.sleep(_AGAIN_S)
                self._work.set()
            except Exception:  # noqa: BLE001 - whatever it is, no enforcer may go on as if it knew everything
                _log.exception("the feed failed; everybody has to resync")
                await asyncio.sleep(_AGAIN_S)
                self.missed()

    async def _look(self) -> None:
        """What was said to have changed, as it is now."""
        while self._waiting:
            batch = list(self._waiting)[:_BATCH]
            for subject in batch:
                del self._waiting[subject]
            epoch = self._log.epoch
            try:
                found = await self._marks.all_of(batch)
            except BaseException:
                self._waiting = dict.fromkeys(batch) | self._waiting
                raise
            if epoch != self._log.epoch:
                continue  # a list that is read from now on has it all
            at_ms = now_ms()
            for subject, marks in zip(batch, found, strict=True):
                self._log.append(("subject", subject), [mark_in_force(mark, at_ms) for mark in marks])
            self._log.wake()
        if self._lists_wanted:
            await self._read_lists()

    async def _read_lists(self) -> None:
        async with self._reading:
            await self._read_lists_now()

    async def _read_lists_now(self) -> None:
        self._lists_wanted = False
        try:
            entries = await read_entries(self._link, self._keys, self._canonicaliser, self._allow, now_ms())
        except BaseException:
            self._lists_wanted = True
            raise
        before, self._entries = self._entries, entries
        for name in before.keys() - entries.keys():
            self._log.append(name, ())
        for name, in_force in entries.items():
            if before.get(name) != in_force:
                self._log.append(name, in_force)
        self._log.wake()

    async def _walk(self) -> AsyncIterator[tuple[Name, tuple[InForce, ...]]]:
        """Everything that is in force. Who is challenged comes last, looked up again: he may be denied too."""
        await self._read_lists()
        for name, in_force in list(self._entries.items()):
            yield name, in_force
        challenged: dict[str, None] = {}
        async for mark in self._marks.blocks():
            if mark.kind == "challenge":
                challenged[mark.subject] = None
            else:
                yield ("subject", mark.subject), (mark_in_force(mark, now_ms()),)
        subjects = list(challenged)
        for at in range(0, len(subjects), _BATCH):
            batch = subjects[at : at + _BATCH]
            for subject, marks in zip(batch, await self._marks.all_of(batch), strict=True):
                if marks:
                    yield ("subject", subject), tuple(mark_in_force(mark, now_ms()) for mark in marks)

    # What an enforcer gets.

    async def follow(self, since: str = "", wait_s: float | None = None) -> AsyncGenerator[bytes, None]:
        """What is in force, and every change, as lines.

        Args:
            since: the last cursor that was taken up; another, or none, brings the whole list first.
            wait_s: None: goes on and on. Else the answer ends with the first news, or after so long.
        """
        self.streams += 1
        try:
            position, epoch = self._log.position(since), self._log.epoch
            if position is None:
                if len(self._syncing) >= _SYNCING:
                    yield self._again("others are getting the whole list")
                    return
                mine = object()
                self._syncing.add(mine)
                late = asyncio.get_running_loop().call_later(SYNC_S, self._syncing.discard, mine)
                try:
                    whole = await self._snapshots.get()
                    position, epoch = whole.number, whole.epoch
                    yield encoded(Line("resync", now=now_ms(), reason=_reason(since)))
                    for at in range(len(whole.chunks)):
                        yield whole.lines(at)
                    yield encoded(Line("synced", now=now_ms(), cursor=f"{epoch}-{position}"))
                except PenaltyboxError as error:
                    yield self._again(str(error))
                    return
                finally:
                    late.cancel()
                    self._syncing.discard(mine)
                if wait_s is not None:
                    # the list may have been read for somebody else: what came since then is news, and ends the answer
                    while news := self._after(position, epoch):
                        position += len(news)
                        yield b"".join(news)
                    return
            async for lines in self._changes(position, epoch, wait_s):
                yield lines
        finally:
            self.streams -= 1

    async def _changes(self, position: int, epoch: str, wait_s: float | None) -> AsyncGenerator[bytes, None]:
        """From a position on, as long as nothing is missing."""
        yield self._beat(position)
        while not self._stopped:
            lines = self._after(position, epoch)
            if lines is None:
                yield self._again("some changes are not known here: the whole list follows")
                return
            if lines:
                position += len(lines)
                yield b"".join(lines)
            if wait_s is not None and (lines or wait_s <= 0):
                return
            if not lines:
                await self._log.changed(position, epoch, BEAT_S if wait_s is None else min(wait_s, BEAT_S))
                if self._log.epoch == epoch and self._log.last == position:
                    yield self._beat(position)
                    wait_s = None if wait_s is None else wait_s - BEAT_S
        yield self._again("the service stops")

    def _after(self, position: int, epoch: str) -> list[bytes] | None:
        """The next changes as lines; None if they are not all here."""
        return self._log.after(position, _LINES) if self._log.epoch == epoch else None

    def _beat(self, position: int) -> bytes:
        heard = self._listener.heard_ms
        hears = heard is not None and fresh(heard, heard, monotonic_ms(), 2000)
        return encoded(Line("beat", now=now_ms(), cursor=self._log.cursor(position), stale=not hears))

    def _again(self, reason: str) -> bytes:
        """Ends an answer. All who hear it at once come back at different times, the more of them the longer."""
        longest = min(_LONGEST_MS, _SPREAD_MS * (1 + self.streams))
        return encoded(Line("again", now=now_ms(), reason=reason, after_ms=random.randrange(longest)))  # noqa: S311 - no secret


def _reason(since: str) -> str:
    return "the cursor is too old, or from another start of the service" if since else "no cursor"


class RedisSource:
    """A feed in this process as a `Source`: for an enforcer that has a Redis and needs no service.

    Args:
        feed: followed.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    async def lines(self, since: str) -> AsyncGenerator[bytes, None]:
        """See `Source.lines`.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        await self._feed.ready()
        async for piece in self._feed.follow(since):
            yield piece
