"""Who passed a challenge lately, and so is exempt from the challenge of an address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.keyspace import Keyspace, slot_of
from penaltybox.links.cluster import ClusterLink
from penaltybox.producers.breakers import Breakers

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.links.exchange import Link
    from penaltybox.producers.limiter import Request

PASSING: Final = ("api_key", "user", "device")
"""Dimensions whose subjects can have passed a challenge."""


class Passes(Protocol):
    """Knows who passed a challenge."""

    async def passed(self, request: Request) -> bool:
        """Whether a user, API key or device of the request is exempt from its address' challenge; never raises."""


class PassKeys:
    """Reads the `pass` keys, within the scenario's deadline; a Redis that is away knows of no pass.

    A node that failed is asked by one request at a time, as the limiter does it: a node that hangs costs a deadline per
    probe, not per request. In a cluster that concerns the subjects of that node alone.

    Args:
        link: a way to Redis.
        policy: the deadlines.
        canonicaliser: how subjects count.
        prefix: of all keys.
    """

    def __init__(self, link: Link, policy: Policy, canonicaliser: Canonicaliser, prefix: str = "pbx") -> None:
        self.breaker = Breakers()
        self._link = link
        self._cluster = link if isinstance(link, ClusterLink) else None
        self._policy = policy
        self._canonicaliser = canonicaliser
        self._keys = Keyspace(prefix)

    def replace_policy(self, policy: Policy) -> None:
        """Another policy's deadlines hold from now on."""
        self._policy = policy

    async def passed(self, request: Request) -> bool:
        """See `Passes.passed`."""
        deadline_s = self._policy.scenario(request.scenario).deadline_ms / 1000
        subjects = [
            self._canonicaliser.subject(name, request.subjects[name]) for name in PASSING if name in request.subjects
        ]
        return any(await asyncio.gather(*(self._has_passed(subject, deadline_s) for subject in subjects)))

    async def _has_passed(self, subject: str, deadline_s: float) -> bool:
        clock, slot = asyncio.get_running_loop().time, slot_of(subject)
        node = self._cluster.node_at(slot) if self._cluster is not None else ""
        asked_s = clock()
        if not self.breaker.admits((node,), asked_s, deadline_s):
            if self._cluster is not None:
                self._cluster.look()  # another node may have its slots by now
            return False
        try:
            async with asyncio.timeout(deadline_s):
                (value,) = await self._link.exchange([("GET", self._keys.subject_keys([subject], "pass")[0])], [slot])
        except (PenaltyboxError, TimeoutError):
            self.breaker.failed(node, clock(), asked_s)
            if self._cluster is not None:
                self._cluster.doubt(slot)
                self.breaker.keep(self._cluster.names())
            return False
        self.breaker.succeeded(node)
        return value is not None
