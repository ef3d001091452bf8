"""Keeps the caches of a decider current: hears what changed, and reads the lists again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.links.listening import Listener, fresh
from penaltybox.links.subscriptions import monotonic_ms
from penaltybox.producers.lists import ListSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.links.exchange import Link
    from penaltybox.producers.cached import CachedDecider

_log = logging.getLogger(__name__)
SOON_MS: Final = 1000
"""How often the lists are read again while no change can be heard, if reading them is quick."""
ANYWAY_MS: Final = 60_000
"""How often they are read again in any case: somebody may have written one by hand and told nobody."""
_REST: Final = 20
"""Reading them may take one part in this of the time."""


class Upkeep:
    """Hears for a decider, and reads lists for it. It belongs to one event loop.

    Args:
        decider: whose caches and lists are kept.
        link: a way to Redis of its own, with connections that can subscribe (`open_link`).
        prefix: of all keys.
        canonicaliser: the decider's.
        on_policy: called when another policy is said to be in force.
        clock: monotonic milliseconds.
    """

    def __init__(
        self,
        decider: CachedDecider,
        link: Link,
        *,
        prefix: str = "pbx",
        canonicaliser: Canonicaliser | None = None,
        on_policy: Callable[[], None] | None = None,
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._decider = decider
        self._source = ListSource(link, prefix, canonicaliser)
        self._on_policy = on_policy
        self._clock = clock
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._read_ms: int | None = None
        self._took_ms = 0
        self._told = False
        self.listener = Listener(link, Keyspace(prefix).events, self, clock)

    async def start(self) -> None:
        """Reads the lists and begins to listen. A Redis that is away is no error: both are tried again and again."""
        self._decider.hearing = self.listener
        self._decider.reread = self._wanted.set
        self.listener.start()
        await self._read()
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stops both; from now on nothing is remembered longer than a second."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self.listener.close()

    # What the listener tells.

    def changed(self, subject: str) -> None:
        """See `Hearer.changed`."""
        self._decider.changed(subject)

    def lists_changed(self) -> None:
        """See `Hearer.lists_changed`."""
        self._wanted.set()

    def policy_changed(self) -> None:
        """See `Hearer.policy_changed`."""
        if self._on_policy is not None:
            self._on_policy()

    def missed(self) -> None:
        """See `Hearer.missed`."""
        self._decider.missed()
        self._wanted.set()

    async def _keep(self) -> None:
        while True:
            try:
                async with asyncio.timeout(SOON_MS / 1000):  # wait_for of Python 3.11 can lose a cancellation
                    await self._wanted.wait()
            except TimeoutError:
                if not self._is_due():
                    continue
            await self._read()
            await asyncio.sleep(self._took_ms / 1000)  # however often somebody says that they changed

    def _is_due(self) -> bool:
        if self._read_ms is None:
            return True
        now = self._clock()
        heard = self.listener.heard_ms
        period = ANYWAY_MS if heard is not None and fresh(heard, heard, now) else SOON_MS
        return now - self._read_ms >= max(period, self._took_ms * _REST)

    async def _read(self) -> None:
        self._wanted.clear()
        started = self._clock()
        try:
            lists = await self._source.read(self._decider.policy.allow)
        except PenaltyboxError as error:
            self._read_ms = None
            if not self._told:
                self._told = True
                _log.warning("allowlist and banned ranges could not be read and stay as they were: %s", error)
            return
        self._told = False
        self._decider.lists = lists
        self._read_ms = started
        self._took_ms = self._clock() - started
