"""Opens the whole limiter for an application: Redis by the settings, and the publisher that tells Kafka."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penaltybox.producers.background import BackgroundPublisher
from penaltybox.producers.inline import InlineLimiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from contextlib import AbstractAsyncContextManager

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

_FLUSH_S = 2.0


def inline(
    settings: Settings, policy: Policy, *, source: str = "", publish: bool = True
) -> Callable[[], AbstractAsyncContextManager[InlineLimiter]]:
    """What opens an `InlineLimiter` on the settings' Redis. Nothing connects before it is called.

    Args:
        settings: where Redis and Kafka are.
        policy: limits and scenarios.
        source: ``limiter/instance``, written into every decision; by default the host's name is the instance.
        publish: False: nothing is told to Kafka, so no rule sees these requests.
    """
    publisher = BackgroundPublisher(settings) if publish else None

    @asynccontextmanager
    async def opening() -> AsyncIterator[InlineLimiter]:
        async with InlineLimiter.open(settings, policy, source=source, publisher=publisher) as limiter:
            yield limiter
        if publisher is not None:  # not closed: another loop may publish; at exit it closes itself
            await asyncio.to_thread(publisher.flush, _FLUSH_S)

    return opening
