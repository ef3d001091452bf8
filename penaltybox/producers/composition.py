"""The whole inline limiter, as programs use it: limits on Redis, behind lists, caches and sampling."""

from __future__ import annotations

import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.producers.cached import CachedDecider
from penaltybox.producers.inline import InlineLimiter
from penaltybox.producers.passes import PassKeys
from penaltybox.producers.pseudonyms import Pseudonyms
from penaltybox.producers.sampling import Sampling
from penaltybox.producers.upkeep import Upkeep

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.memory import Offering
    from penaltybox.producers.verdict import Decider


@asynccontextmanager
async def open_limiter(
    settings: Settings,
    policy: Policy,
    *,
    source: str = "",
    publisher: Offering | None = None,
    on_policy: Callable[[], None] | None = None,
) -> AsyncIterator[CachedDecider]:
    """A limiter with everything, for an `async with`.

    Args:
        settings: where Redis is; how subjects count.
        policy: in force; `CachedDecider.replace_policy` switches it.
        source: ``limiter/instance``; by default this host's name.
        publisher: takes every decision (`BackgroundPublisher`); started and closed by whoever made it.
        on_policy: called when another policy is said to be in force.

    Raises:
        ConfigurationError: the Redis URL cannot be read, or the login is refused.
    """
    source = source or f"limiter/{socket.gethostname()}"
    async with (
        InlineLimiter.open(settings, policy, source=source) as inner,
        cached(inner, policy, settings, source=source, publisher=publisher, on_policy=on_policy) as limiter,
    ):
        yield limiter


@asynccontextmanager
async def cached(
    inner: Decider,
    policy: Policy,
    settings: Settings,
    *,
    source: str,
    publisher: Offering | None = None,
    on_policy: Callable[[], None] | None = None,
) -> AsyncIterator[CachedDecider]:
    """`inner` behind lists, caches and sampling, all kept current; what programs use.

    Args:
        inner: made without a publisher; still open when this ends, because what is owed is then counted.
        policy: in force.
        settings: where Redis is; how subjects count; `hash_key` also makes sampling unpredictable for clients.
        source: ``limiter/instance``.
        publisher: takes every decision.
        on_policy: called when another policy is said to be in force.

    Raises:
        ConfigurationError: the Redis URL cannot be read.
    """
    canonicaliser = Canonicaliser(settings.ipv6_prefix, settings.hashed_dimensions)
    link = open_link(endpoint_of(settings))
    decider = CachedDecider(
        inner,
        policy,
        source=source,
        publisher=publisher,
        canonicaliser=canonicaliser,
        pseudonyms=Pseudonyms(settings) if settings.hashed_dimensions else None,
        passes=PassKeys(link, policy, canonicaliser, settings.redis_prefix),
        sampling=Sampling(settings.hash_key.encode()[:64]),
    )
    upkeep = Upkeep(decider, link, prefix=settings.redis_prefix, canonicaliser=canonicaliser, on_policy=on_policy)
    try:
        await upkeep.start()
        yield decider
    finally:
        await upkeep.close()
        await decider.close()
        await link.close()
