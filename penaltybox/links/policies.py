"""Which policy is in force, as Redis says, and whoever works by it hears of another one within a second."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError, StoreUnavailable
from penaltybox.contracts.keyspace import Keyspace, slot_of
from penaltybox.contracts.policy_versions import StoredPolicy, Switch, read_switch, read_version

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.policy import Policy
    from penaltybox.links.exchange import Link

log = logging.getLogger("penaltybox.policy")
EVERY_S: Final = 0.5
"""So that a switch is within a second even where no message is heard: reading one small key costs nothing."""


class InForce(NamedTuple):
    """The policy in force, with its text and the switch that brought it."""

    switch: Switch
    stored: StoredPolicy
    policy: Policy


async def read_in_force(link: Link, prefix: str = "pbx") -> InForce | None:
    """The policy that Redis has in force; None when it has none.

    Raises:
        StoreUnavailable: Redis does not answer.
        ConfigurationError: what is stored cannot be read, or is no policy to this release.
    """
    keys = Keyspace(prefix)
    raw = await _get(link, keys.policy)
    if raw is None:
        return None
    switch = read_switch(raw)
    stored = await read_policy(link, switch.version, prefix)
    if stored is None:
        raise ConfigurationError(
            f"policy version {switch.version} is in force, but its text is missing in Redis: apply it again"
        )
    return InForce(switch, stored, stored.policy())


async def read_policy(link: Link, version: str, prefix: str = "pbx") -> StoredPolicy | None:
    """A stored version; None when there is none.

    Raises:
        StoreUnavailable: Redis does not answer.
        ConfigurationError: it cannot be read.
    """
    raw = await _get(link, Keyspace(prefix).policy_version(version))
    return None if raw is None else read_version(raw, version)


async def _get(link: Link, key: str) -> bytes | None:
    (raw,) = await link.exchange([("GET", key)], [slot_of(key)])
    found: bytes | None = raw
    return found


class PolicyWatch:
    """Looks which policy is in force, at once when it is woken and every half second anyway.

    What is not stored, or cannot be read, changes nothing: whoever works goes on with what it has.

    Args:
        link: a way to Redis; closed by whoever opened it.
        prefix: of all keys.
        adopt: called with another policy than the last one.
        every_s: how often it looks.
    """

    def __init__(
        self, link: Link, prefix: str, adopt: Callable[[InForce], object], *, every_s: float = EVERY_S
    ) -> None:
        self._link = link
        self._prefix = prefix
        self._adopt = adopt
        self._every_s = every_s
        self._raw: bytes | None = None
        self._woken = asyncio.Event()

    def wake(self) -> None:
        """Look now."""
        self._woken.set()

    async def look(self) -> InForce | None:
        """What is newly in force, after it was adopted; None when nothing has changed.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        raw = await _get(self._link, Keyspace(self._prefix).policy)
        if raw is None or raw == self._raw:
            return None
        try:
            found = await read_in_force(self._link, self._prefix)
        except StoreUnavailable:
            raise
        except PenaltyboxError as error:
            self._raw = raw
            log.error("The policy in Redis is not taken over, the one before stays in force here: %s", error)  # noqa: TRY400 - a sentence says it
            return None
        self._raw = raw
        if found is not None:
            self._adopt(found)
            switch = found.switch
            log.info(
                "Policy %s is in force, from Redis (%s by %s: %s)",
                switch.version, switch.verb, switch.actor, switch.reason,
            )  # fmt: skip
        return found

    async def watch(self) -> None:
        """Look, for ever."""
        while True:
            try:
                async with asyncio.timeout(self._every_s):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            try:
                await self.look()
            except PenaltyboxError as error:
                log.debug("Which policy is in force is looked at again soon: %s", error)
