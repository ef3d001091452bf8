"""Opens the whole limiter for an application: Redis by the settings, caches, and the publisher that tells Kafka."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from penaltybox.producers.background import BackgroundPublisher
from penaltybox.producers.composition import open_limiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.verdict import Decider

_FLUSH_S: Final = 2.0


class Inline:
    """What opens the inline limiter (`composition.open_limiter`), once per process and event loop that asks.

    Nothing connects before it is called, so it can be made at import, and before a server forks its workers.

    Args:
        settings: where Redis and Kafka are.
        policy: limits and scenarios, while Redis has no policy; what `penaltybox policy apply` puts in force there is
            taken over within a second.
        source: ``limiter/instance``, written into every decision; by default the host's name is the instance.
        publish: False: nothing is told to Kafka, so no rule sees these requests.
        follow: False: this policy stays in force, whatever Redis has.
    """

    def __init__(
        self, settings: Settings, policy: Policy, *, source: str = "", publish: bool = True, follow: bool = True
    ) -> None:
        self.publisher = BackgroundPublisher(settings) if publish else None
        """Of all the process's limiters; it closes itself at exit."""
        self.local_percent = settings.local_percent
        """Share of each quota that a process grants without Redis, also while the limiter is being opened."""
        self._settings = settings
        self._policy = policy
        self._source = source
        self._follow = follow

    def __call__(self) -> AbstractAsyncContextManager[Decider]:
        """A limiter for the running loop, for an ``async with``."""
        return self._opened()

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[Decider]:
        publisher = self.publisher
        async with open_limiter(
            self._settings, self._policy, source=self._source, publisher=publisher, follow=self._follow
        ) as limiter:
            yield limiter
        if publisher is not None:  # another loop of this process may go on publishing, so it is not closed
            await asyncio.to_thread(publisher.flush, _FLUSH_S)
