"""One customer's plan and own limits, read by the inline limiter in the round trip of every decision."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import encode
from penaltybox.contracts.keyspace import Keyspace, require_canonical, slot_of
from penaltybox.links.exchange import Script

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.events import Control
    from penaltybox.links.exchange import Link

ATTEMPTS: Final = 20
# In one step with the comparison, so that of two operators at once neither undoes the other; and with the record of it.
_REPLACE: Final = Script("""
if redis.call('GET', KEYS[1]) ~= (ARGV[1] ~= '' and ARGV[1]) then return 0 end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
redis.call('PUBLISH', ARGV[3], ARGV[4])
if KEYS[2] then redis.call('RPUSH', KEYS[2], ARGV[5]) end
return 1
""")


class CustomerPlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a customer has instead of the policy's limits.

    Attributes:
        plan: name of a plan of the policy; empty for none.
        limits: ``scenario/dimension:limit name`` -> limit; before the plan's.
    """

    plan: str = ""
    limits: dict[str, int] = {}


class CustomerPlans:
    """Reads and changes plans.

    Args:
        link: from `connections.open_link`; closed by whoever opened it.
        prefix: of all keys.
    """

    def __init__(self, link: Link, prefix: str = "pbx") -> None:
        self._link = link
        self._keys = Keyspace(prefix)

    async def read(self, subject: str) -> CustomerPlan:
        """The plan of a canonical subject; an empty one if it has none, or one that cannot be read.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        return _read(await self._raw(subject))

    async def change(
        self,
        subject: str,
        change: Callable[[CustomerPlan], CustomerPlan],
        record: Callable[[CustomerPlan], Control] | None = None,
    ) -> CustomerPlan:
        """Replaces the plan by what `change` makes of it (which may be called again), and tells the limiters.

        Args:
            subject: canonical.
            change: the old plan to the new one.
            record: the control record of a new plan; kept in the same step until Kafka has it (`Untold`), in a cluster
                in the step after it.

        Raises:
            StoreUnavailable: Redis does not answer, or others write the same plan all the time.
        """
        key = self._key(subject)
        for _ in range(ATTEMPTS):
            raw = await self._raw(subject)
            new = change(_read(raw))
            value = b"" if new == CustomerPlan() else msgspec.json.encode(new)
            told = encode(record(new)) if record is not None else b""
            arguments = (raw or b"", value, self._keys.events, subject, told)
            together = told and not self._link.clustered
            call = (2, key, self._keys.untold, *arguments) if together else (1, key, *arguments)
            (done,) = await _REPLACE.run(self._link, [call], [slot_of(subject)])
            if done and told and not together:
                await self._link.exchange([("RPUSH", self._keys.untold, told)], [slot_of(self._keys.untold)])
            if done:
                return new
        raise StoreUnavailable(f"the plan of {subject} is written too often by others: tried {ATTEMPTS} times")

    async def put_back(self, subject: str, plan: CustomerPlan) -> None:
        """Sets a plan as the control topic remembers it.

        Raises:
            StoreUnavailable: Redis does not answer.
        """
        await self.change(subject, lambda _: plan)

    async def _raw(self, subject: str) -> bytes | None:
        (raw,) = await self._link.exchange([("GET", self._key(subject))], [slot_of(subject)])
        value: bytes | None = raw
        return value

    def _key(self, subject: str) -> str:
        require_canonical([subject])
        return f"{self._keys.stem(subject)}:plan"


def _read(raw: bytes | None) -> CustomerPlan:
    try:
        return CustomerPlan() if raw is None else msgspec.json.decode(raw, type=CustomerPlan)
    except msgspec.MsgspecError:
        return CustomerPlan()  # as the limiter takes it: no plan
