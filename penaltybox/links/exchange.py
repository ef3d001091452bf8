"""Round trips: many commands to one Redis server within one deadline; and scripts that no server forgets for long.

Commands are packed by hiredis and sent while the next ones are still being packed, so that server and client work at
the same time. Nothing is retried here but a script that the server had forgotten, because that was not executed.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import hiredis
from redis.exceptions import NoScriptError, RedisError, ResponseError

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.links.outages import code_of, explained
from penaltybox.links.sharing import Shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

    from redis.asyncio import ConnectionPool

Command: TypeAlias = "tuple[str | bytes | int, ...]"
_SEND_BYTES = 1 << 16
# The caller decides about these replies; every other error reply is raised.
ANSWERS = frozenset({"NOSCRIPT", "GENERATION", "MOVED", "ASK"})


def opening_of_packed(words: Command, *, more: int) -> bytes:
    """The first words of a command as they go over the wire; `more` words will follow, each ``$length␍␊word␍␊``."""
    packed: bytes = hiredis.pack_command(words)  # type: ignore[arg-type]
    return b"*%d\r\n%b" % (len(words) + more, packed[packed.index(b"\n") + 1 :])


class Link(Protocol):
    """A way to a Redis, whatever its topology."""

    clustered: bool

    async def exchange(self, commands: Iterable[Command], slots: Sequence[int] | None = None) -> list[Any]:
        """Send all commands, return all replies in order; `slots` says where each belongs in a cluster.

        NOSCRIPT and GENERATION replies are returned as exceptions, every other failure is raised.
        """

    async def nodes(self) -> Sequence[Link]:
        """The servers that hold keys: itself, or the primaries of the cluster."""

    def holders(self, slots: Iterable[int]) -> Sequence[Link]:
        """The servers that hold these slots, without asking: itself, or those nodes of the cluster."""

    async def close(self) -> None:
        """Close all connections."""


class NodeLink(Link, Protocol):
    """A way to one server."""

    where: str
    deadline_s: float


class ServerLink:
    """One Redis server, or the master that Sentinel names.

    Args:
        pool: connections with no timeout of their own; hiredis, bytes.
        where: host and port for messages, no secrets.
        deadline_s: for a whole exchange, connecting included.
    """

    clustered = False

    def __init__(self, pool: ConnectionPool, where: str, deadline_s: float) -> None:
        self._pool = pool
        self.where = where
        self.deadline_s = deadline_s

    async def exchange(self, commands: Iterable[Command], slots: Sequence[int] | None = None) -> list[Any]:  # noqa: ARG002 - one server holds all slots
        """Send all commands in one go; see `Link.exchange`."""
        try:
            async with asyncio.timeout(self.deadline_s):
                replies = await self._exchange(commands)
        except (RedisError, OSError, TimeoutError) as error:
            raise explained(error, self.where, self.deadline_s) from error
        for reply in replies:
            if isinstance(reply, ResponseError) and code_of(reply) not in ANSWERS:
                raise explained(reply, self.where, self.deadline_s) from reply
        return replies

    async def _exchange(self, commands: Iterable[Command]) -> list[Any]:
        connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        finished = False
        try:
            sent = await _send(connection, commands)
            replies: list[Any] = []
            stale = False
            for _ in range(sent):
                try:
                    replies.append(await connection.read_response(disable_decoding=True))
                except ResponseError as error:
                    # Through Sentinel the next connection finds the new master.
                    stale = stale or code_of(error) in {"READONLY", "MASTERDOWN"}
                    replies.append(error)
            finished = not stale
        finally:
            if not finished:
                # Replies may still be on their way: this connection must never serve another call.
                await connection.disconnect(nowait=True)
            await self._pool.release(connection)
        return replies

    @asynccontextmanager
    async def reserved(self) -> AsyncIterator[Any]:
        """A connection for its caller alone, e.g. for a subscription; closed afterwards."""
        async with asyncio.timeout(self.deadline_s):
            connection = await self._pool.get_connection()  # type: ignore[no-untyped-call]
        try:
            yield connection
        finally:
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    async def nodes(self) -> Sequence[Link]:
        """Only this one."""
        return [self]

    def holders(self, slots: Iterable[int]) -> Sequence[Link]:  # noqa: ARG002 - one server holds all slots
        """Only this one."""
        return [self]

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


async def _send(connection: Any, commands: Iterable[Command]) -> int:
    """Pack and send; returns how many commands."""
    buffer: list[bytes] = []
    size = sent = 0
    for command in commands:
        packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
        buffer.append(packed)
        size += len(packed)
        sent += 1
        if size >= _SEND_BYTES:
            await connection.send_packed_command(buffer)
            buffer, size = [], 0
    if buffer:
        await connection.send_packed_command(buffer)
    return sent


class Script:
    """A Lua script that survives SCRIPT FLUSH, restarts and failovers: only NOSCRIPT is retried."""

    ATTEMPTS = 4

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._loading: weakref.WeakKeyDictionary[Link, Shared[None]] = weakref.WeakKeyDictionary()

    async def load(self, link: Link) -> None:
        """Make every node of the link know the script."""
        await asyncio.gather(*(self._load_once(node) for node in await link.nodes()))

    async def _load_once(self, node: Link) -> None:
        """Many who find it forgotten on a node load it there once."""
        loading = self._loading.get(node)
        if loading is None:
            loading = self._loading[node] = Shared(partial(self._load, weakref.ref(node)))
        await loading()

    async def _load(self, to: weakref.ref[Link]) -> None:
        node = to()
        if node is not None:
            await node.exchange([("SCRIPT", "LOAD", self.text)])

    async def _load_again(self, link: Link, slots: Iterable[int], attempt: int) -> None:
        """Where these slots are. If that was of no use, a slot is on its way to a node that nobody can name: then all.

        Raises:
            StoreUnavailable: a node that holds the slots does not answer.
        """
        if attempt:
            nodes = await link.nodes()
            await asyncio.gather(*(self._load_once(node) for node in nodes), return_exceptions=True)
        else:
            await asyncio.gather(*(self._load_once(node) for node in link.holders(slots)))

    async def run(self, link: Link, calls: Iterable[Command], slots: Sequence[int] | None = None) -> list[Any]:
        """Run EVALSHA once per call; `calls` are (number of keys, *keys, *args).

        Raises:
            StoreUnavailable: also when the server forgets the script again and again.
        """
        commands: list[Command] = []

        def remembered() -> Iterator[Command]:
            for call in calls:
                commands.append(("EVALSHA", self.sha, *call))
                yield commands[-1]

        replies = await link.exchange(remembered(), slots)
        for attempt in range(self.ATTEMPTS):
            missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if not missing:
                return replies
            await self._load_again(link, [slots[at] for at in missing] if slots else (0,), attempt)
            again = await link.exchange([commands[at] for at in missing], slots and [slots[at] for at in missing])
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
        raise StoreUnavailable("Redis keeps forgetting the script (NOSCRIPT): does another program run SCRIPT FLUSH?")
