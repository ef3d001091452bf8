"""How a subject stands in Redis right now: blocked, challenged, trusted; and whether Redis answers at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.keyspace import Keyspace, slot_of

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.links.exchange import Link

MARKS: Final = ("block", "challenge", "pass", "trust")
_PROBE_S: Final = 0.5


class Standing(msgspec.Struct, frozen=True):
    """What is written about a subject: each mark's JSON as it is in Redis, null where there is none."""

    subject: str
    block: msgspec.Raw
    challenge: msgspec.Raw
    pass_: msgspec.Raw = msgspec.field(name="pass")
    trust: msgspec.Raw


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests are decided here.

    Attributes:
        ready: Redis answers, or every scenario says what happens without it other than refusing.
        redis: ``reachable``, or what is wrong with it.
        policy: version in force.
        closed: scenarios that refuse every request while Redis is away.
    """

    ready: bool
    redis: str
    policy: str
    closed: tuple[str, ...] = ()


class Standings:
    """Looks into Redis on its own connection, so that it tells about Redis and not about the limiter's patience.

    Args:
        link: closed by whoever opened it.
        prefix: of all keys.
    """

    def __init__(self, link: Link, prefix: str = "pbx") -> None:
        self._link = link
        self._keys = Keyspace(prefix)

    async def of(self, subject: str) -> Standing:
        """The marks of a canonical subject.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        commands = [("GET", self._keys.subject_keys([subject], name)[0]) for name in MARKS]
        values = await self._link.exchange(commands, [slot_of(subject)] * len(MARKS))
        return Standing(subject, *map(_raw, values))

    async def readiness(self, policy: Policy) -> Readiness:
        """Whether a request that came now would be decided, by Redis or by the failure policy."""
        closed = tuple(name for name in policy.limits if policy.scenario(name).failure == "closed")
        try:
            async with asyncio.timeout(_PROBE_S):
                for node in await self._link.nodes():
                    await node.exchange([("PING",)])
        except (PenaltyboxError, TimeoutError) as error:
            said = str(error) or f"no answer within {_PROBE_S:g} s"
            return Readiness(not closed, said, policy.version, closed)
        return Readiness(ready=True, redis="reachable", policy=policy.version)


def _raw(value: bytes | None) -> msgspec.Raw:
    """A mark as JSON. Another program may have written anything: then it is told as a text."""
    if value is None:
        return msgspec.Raw(b"null")
    try:
        msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.Raw(msgspec.json.encode(value.decode("utf-8", "replace")))
    return msgspec.Raw(value)
