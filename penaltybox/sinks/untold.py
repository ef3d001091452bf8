"""What was changed by hand and the control topic does not know yet: records kept in Redis until Kafka has them.

A change and its record are written in one step, so a change is in force at once, and told even if Kafka is away or the
command dies. In a cluster the keys are in different slots: there the record is written first, because a record of a
change that did not come to be does less harm than a change that nobody is told of.
"""

from __future__ import annotations

from secrets import token_hex
from typing import TYPE_CHECKING, Final

from redis.exceptions import ResponseError

from penaltybox.contracts.errors import PenaltyboxError, StoreUnavailable
from penaltybox.contracts.events import encode
from penaltybox.contracts.keyspace import Keyspace, slot_of
from penaltybox.links.exchange import Script

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from penaltybox.contracts.events import Control
    from penaltybox.links.exchange import Command, Link

CLAIM_MS: Final = 30_000
"""How long whoever tells has the list for itself, unless it says that it goes on."""
CHUNK: Final = 500
_RELEASE: Final = Script("if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0")
_PROLONG: Final = Script(
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
)


class Untold:
    """The list of control records that wait for Kafka, and the way to change something by hand.

    Args:
        link: from `connections.open_link`; closed by whoever opened it.
        prefix: of all keys.
    """

    def __init__(self, link: Link, prefix: str = "pbx") -> None:
        self.link = link
        self.keys = Keyspace(prefix)
        self._slot = slot_of(self.keys.untold)
        self._token = token_hex(8)

    async def commit(self, changes: Sequence[Command], records: Sequence[Control], *, say: str = "") -> None:
        """Change something and keep the records of it, in one step; then say so on the events channel.

        Args:
            changes: commands with one key each, which is their second word. In a cluster they are done in their order
                where the key changes.
            records: for the control topic, in their order.
            say: message on the channel, e.g. ``#lists``.

        Raises:
            StoreUnavailable: Redis did not answer; perhaps it is done all the same. Say it again.
        """
        told: list[Command] = [("RPUSH", self.keys.untold, *map(encode, records))] if records else []
        said: list[Command] = [("PUBLISH", self.keys.events, say)] if say else []
        if self.link.clustered:
            await self._in_turn([*told, *changes, *said])
            return
        *_, done = await self.link.exchange([("MULTI",), *told, *changes, *said, ("EXEC",)])
        for reply in done:
            if isinstance(reply, ResponseError):
                raise PenaltyboxError(f"Redis refused a part of the change: {reply}") from reply

    async def _in_turn(self, commands: Sequence[Command]) -> None:
        at = 0
        while at < len(commands):
            slot = slot_of(str(commands[at][1]))
            group = [commands[at]]
            while at + len(group) < len(commands) and slot_of(str(commands[at + len(group)][1])) == slot:
                group.append(commands[at + len(group)])
            await self.link.exchange(group, [slot] * len(group))
            at += len(group)

    async def size(self) -> int:
        """How many records wait."""
        (count,) = await self.link.exchange([("LLEN", self.keys.untold)], [self._slot])
        return int(count)

    async def chunks(self) -> AsyncGenerator[Sequence[bytes]]:
        """All that waits, oldest first, in chunks; each is taken off the list when the next one is asked for.

        Yields nothing while another one tells: two at once could bring the records of a key out of order.

        Raises:
            StoreUnavailable: Redis did not answer; what was not taken off is told again.
        """
        if not await self.size():
            return
        claim: Command = ("SET", self.keys.telling, self._token, "NX", "PX", str(CLAIM_MS))
        if (await self.link.exchange([claim], [slot_of(self.keys.telling)]))[0] is None:
            return
        try:
            while waiting := await self._first():
                yield waiting
                await self.link.exchange(
                    [("LREM", self.keys.untold, "1", record) for record in waiting], [self._slot] * len(waiting)
                )
                if not await self._owned(_PROLONG, str(CLAIM_MS)):
                    return
        finally:
            await self._owned(_RELEASE)

    async def _first(self) -> Sequence[bytes]:
        command: Command = ("LRANGE", self.keys.untold, "0", str(CHUNK - 1))
        (records,) = await self.link.exchange([command], [self._slot])
        found: Sequence[bytes] = records
        return found

    async def _owned(self, script: Script, *arguments: str) -> bool:
        """Whether the claim is still ours, after the script has done its part with it."""
        call: Command = (1, self.keys.telling, self._token, *arguments)
        try:
            (mine,) = await script.run(self.link, [call], [slot_of(self.keys.telling)])
        except StoreUnavailable:
            return False  # it ends by itself
        return bool(mine)
