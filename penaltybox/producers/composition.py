"""The whole inline limiter, as programs use it: limits on Redis, behind lists, caches and sampling."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.policies import PolicyWatch
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
    from penaltybox.links.policies import InForce
    from penaltybox.producers.memory import Offering
    from penaltybox.producers.verdict import Decider


@asynccontextmanager
async def open_limiter(
    settings: Settings,
    policy: Policy,
    *,
    source: str = "",
    publisher: Offering | None = None,
    on_policy: Callable[[Policy], None] | None = None,
    follow: bool = True,
) -> AsyncIterator[CachedDecider]:
    """A limiter with everything, for an `async with`.

    Args:
        settings: where Redis is; how subjects count.
        policy: in force while Redis has none; what `penaltybox policy apply` stores there takes its place.
        source: ``limiter/instance``; by default this host's name.
        publisher: takes every decision (`BackgroundPublisher`); started and closed by whoever made it.
        on_policy: called when another policy has come into force here.
        follow: False: `policy` stays in force, whatever Redis has.

    Raises:
        ConfigurationError: the Redis URL cannot be read, or the login is refused.
    """
    source = source or f"limiter/{socket.gethostname()}"
    async with (
        InlineLimiter.open(settings, policy, source=source) as inner,
        cached(
            inner, policy, settings, source=source, publisher=publisher, on_policy=on_policy, follow=follow
        ) as limiter,
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
    on_policy: Callable[[Policy], None] | None = None,
    follow: bool = True,
) -> AsyncIterator[CachedDecider]:
    """`inner` behind lists, caches and sampling, all kept current; what programs use.

    Args:
        inner: made without a publisher; still open when this ends, because what is owed is then counted.
        policy: in force while Redis has none.
        settings: where Redis is; how subjects count; `hash_key` also makes sampling unpredictable for clients.
        source: ``limiter/instance``.
        publisher: takes every decision.
        on_policy: called when another policy has come into force here.
        follow: False: `policy` stays in force, whatever Redis has.

    Raises:
        ConfigurationError: the Redis URL cannot be read.
    """
    canonicaliser = Canonicaliser(settings.ipv6_prefix, settings.hashed_dimensions)
    link = open_link(endpoint_of(settings))
    passes = PassKeys(link, policy, canonicaliser, settings.redis_prefix)
    decider = CachedDecider(
        inner,
        policy,
        source=source,
        publisher=publisher,
        canonicaliser=canonicaliser,
        pseudonyms=Pseudonyms(settings) if settings.hashed_dimensions else None,
        passes=passes,
        sampling=Sampling(settings.hash_key.encode()[:64]),
    )

    def adopt(found: InForce) -> None:
        if found.policy.version != decider.policy.version:
            decider.replace_policy(found.policy)
            passes.replace_policy(found.policy)
            if on_policy is not None:
                on_policy(found.policy)

    watch = PolicyWatch(link, settings.redis_prefix, adopt)
    upkeep = Upkeep(decider, link, prefix=settings.redis_prefix, canonicaliser=canonicaliser, on_policy=watch.wake)
    following: asyncio.Task[None] | None = None
    try:
        if follow:
            with suppress(PenaltyboxError):  # Redis is away: it is looked at again soon
                await watch.look()
            following = asyncio.get_running_loop().create_task(watch.watch())
        await upkeep.start()
        yield decider
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        await upkeep.close()
        await decider.close()
        await link.close()
