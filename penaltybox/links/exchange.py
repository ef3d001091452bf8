"""Round trips: many commands to one Redis server, or to the nodes of a cluster, within one deadline.

Commands are packed by hiredis and sent while the next ones are still being packed, so that server and client work at
the same time. Nothing is retried here except what a cluster redirects, because a redirected command was not executed.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha1
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import hiredis
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.keyspace import SLOTS
from penaltybox.links.outages import code_of, explained
from penaltybox.links.sharing import Shared

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence

    from redis.asyncio import ConnectionPool

Command: TypeAlias = "tuple[str | bytes | int, ...]"
_SEND_BYTES = 1 << 16
_REDIRECTS = 5
# The caller decides about these replies; every other error reply is raised.
ANSWERS = frozenset({"NOSCRIPT", "GENERATION", "MOVED", "ASK"})


class Link(Protocol):
    """A way to a Redis, whatever its topology."""

    clustered: bool

    async def exchange(self, commands: Iterable[Command], slots: Sequence[int] | None = None) -> list[Any]:
        """Send all commands, return all replies in order; `slots` says where each belongs in a cluster.

        NOSCRIPT and GENERATION replies are returned as exceptions, every other failure is raised.
        """

    async def nodes(self) -> Sequence[Link]:
        """The servers that hold keys: itself, or the primaries of the cluster."""

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


class ClusterLink:
    """A Redis Cluster: commands grouped by the node that owns their slot, one pipeline per node, all at once.

    Args:
        seeds: nodes to ask for the slot table, tried in order.
        link_to: makes the link to one node of the cluster by host and port.
        where: the seeds for messages, no secrets.
    """

    clustered = True

    def __init__(self, seeds: Sequence[tuple[str, int]], link_to: Callable[[str, int], NodeLink], where: str) -> None:
        self._seeds = list(seeds)
        self._link_to = link_to
        self._where = where
        self._links: dict[tuple[str, int], NodeLink] = {}
        self._owners: list[tuple[str, int] | None] = []
        self._discover = Shared(self._ask_for_owners)

    def _link(self, address: tuple[str, int]) -> NodeLink:
        if address not in self._links:
            self._links[address] = self._link_to(*address)
        return self._links[address]

    async def exchange(self, commands: Iterable[Command], slots: Sequence[int] | None = None) -> list[Any]:
        """Send each command to the owner of its slot (slot 0 without `slots`); see `Link.exchange`."""
        todo = list(commands)
        where = list(slots) if slots is not None else [0] * len(todo)
        replies: list[Any] = [None] * len(todo)
        open_positions = list(range(len(todo)))
        if not self._owners:
            await self._discover()
        for _ in range(_REDIRECTS):
            await self._exchange_once(todo, where, open_positions, replies)
            moved = [at for at in open_positions if isinstance(replies[at], MovedError)]
            asked = [at for at in open_positions if type(replies[at]) is AskError]
            for at in asked:
                replies[at] = await self._ask(replies[at], todo[at])
            open_positions = moved
            if not open_positions:
                return replies
            await self._discover()
        raise StoreUnavailable(f"Redis cluster at {self._where} keeps redirecting slot {where[open_positions[0]]}.")

    async def _exchange_once(
        self, todo: list[Command], slots: list[int], positions: list[int], replies: list[Any]
    ) -> None:
        by_owner: dict[tuple[str, int], list[int]] = {}
        for at in positions:
            owner = self._owners[slots[at]]
            if owner is None:
                self._owners = []
                raise StoreUnavailable(f"Redis cluster at {self._where} has no node for slot {slots[at]}.")
            by_owner.setdefault(owner, []).append(at)
        calls = [self._link(owner).exchange([todo[at] for at in group]) for owner, group in by_owner.items()]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        for group, outcome in zip(by_owner.values(), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                self._owners = []  # a failover may have moved its slots: ask again before the next call
                raise outcome
            for at, reply in zip(group, outcome, strict=True):
                replies[at] = reply

    async def _ask(self, redirect: AskError, command: Command) -> Any:
        link = self._link((redirect.host, redirect.port))
        _, reply = await link.exchange([("ASKING",), command])
        if isinstance(reply, (AskError, MovedError)):
            raise explained(reply, link.where, link.deadline_s) from reply
        return reply

    async def _ask_for_owners(self) -> None:
        failure: Exception = StoreUnavailable(f"Redis cluster at {self._where} has no reachable node.")
        for address in [*self._links, *(seed for seed in self._seeds if seed not in self._links)]:
            try:
                (table,) = await self._link(address).exchange([("CLUSTER", "SLOTS")])
            except StoreUnavailable as error:
                failure = error
                continue
            owners: list[tuple[str, int] | None] = [None] * SLOTS
            for first, last, primary, *_ in table:
                host = primary[0].decode() if primary[0] else address[0]
                owners[first : last + 1] = [(host, primary[1])] * (last - first + 1)
            if any(owners):
                self._owners = owners
                await self._forget_others()
                return
        raise failure

    async def _forget_others(self) -> None:
        known = set(self._owners) | set(self._seeds)
        for address in [address for address in self._links if address not in known]:
            await self._links.pop(address).close()

    async def nodes(self) -> Sequence[Link]:
        """The primaries that own slots, asked for anew."""
        await self._discover()
        return [self._link(owner) for owner in dict.fromkeys(self._owners) if owner is not None]

    async def close(self) -> None:
        """Close the connections to all nodes."""
        for link in self._links.values():
            await link.close()
        self._links.clear()
        self._owners = []


class Script:
    """A Lua script that survives SCRIPT FLUSH, restarts and failovers: only NOSCRIPT is retried."""

    ATTEMPTS = 4

    def __init__(self, text: str) -> None:
        self.text = text
        self.sha = sha1(text.encode(), usedforsecurity=False).hexdigest()
        self._loading: weakref.WeakKeyDictionary[Link, Shared[None]] = weakref.WeakKeyDictionary()

    async def load(self, link: Link) -> None:
        """Make every node of the link know the script; many who find it forgotten load it once."""
        loading = self._loading.get(link)
        if loading is None:
            loading = self._loading[link] = Shared(partial(self._load, weakref.ref(link)))
        await loading()

    async def _load(self, to: weakref.ref[Link]) -> None:
        link = to()
        for node in await link.nodes() if link is not None else ():
            await node.exchange([("SCRIPT", "LOAD", self.text)])

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
        for _ in range(self.ATTEMPTS):
            missing = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
            if not missing:
                return replies
            await self.load(link)
            again = await link.exchange([commands[at] for at in missing], slots and [slots[at] for at in missing])
            for at, reply in zip(missing, again, strict=True):
                replies[at] = reply
        raise StoreUnavailable("Redis keeps forgetting the script (NOSCRIPT): does another program run SCRIPT FLUSH?")
