"""Who passed a challenge lately, and so is exempt from the challenge of an address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.keyspace import Keyspace, slot_of

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

    Args:
        link: a way to Redis.
        policy: the deadlines.
        canonicaliser: how subjects count.
        prefix: of all keys.
    """

    def __init__(self, link: Link, policy: Policy, canonicaliser: Canonicaliser, prefix: str = "pbx") -> None:
        self._link = link
        self._policy = policy
        self._canonicaliser = canonicaliser
        self._keys = Keyspace(prefix)

    def replace_policy(self, policy: Policy) -> None:
        """Another policy's deadlines hold from now on."""
        self._policy = policy

    async def passed(self, request: Request) -> bool:
        """See `Passes.passed`."""
        subjects = [
            self._canonicaliser.subject(name, request.subjects[name]) for name in PASSING if name in request.subjects
        ]
        commands = [("GET", key) for key in self._keys.subject_keys(subjects, "pass")]
        try:
            async with asyncio.timeout(self._policy.scenario(request.scenario).deadline_ms / 1000):
                values = await self._link.exchange(commands, [slot_of(subject) for subject in subjects])
        except (PenaltyboxError, TimeoutError):
            return False
        return any(value is not None for value in values)
