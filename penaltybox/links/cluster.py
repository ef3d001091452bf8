"""A Redis Cluster: each command goes to the node that owns its slot, and a node that is away concerns only its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from redis.exceptions import AskError, MovedError

from penaltybox.contracts.errors import PenaltyboxError, StoreUnavailable
from penaltybox.contracts.keyspace import SLOTS
from penaltybox.links.outages import explained
from penaltybox.links.sharing import Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penaltybox.links.exchange import Command, Link, NodeLink

Address: TypeAlias = "tuple[str, int]"
_REDIRECTS: Final = 5
HEDGE_S: Final = 0.05
"""A node that has not told the slot table after this long is not waited for: the next one is asked too."""
LOOK_S: Final = 0.5
"""How often the slot table is asked for, at most, by those who only would like to know."""
_REFRESH_S: Final = 1.0
"""A call for a node that was away waits this long, at most, to hear whether another one has its slots now."""


class ClusterLink:
    """Commands grouped by the node that owns their slot, one pipeline per node, all at once.

    The slot table stays as it was while a node is away, and is asked for again beside the calls: of nodes that answer
    before those that do not. A call for a node that answers never waits for it.

    Args:
        seeds: nodes to ask for the slot table at first.
        link_to: makes the link to one node of the cluster by host and port.
        where: the seeds for messages, no secrets.
    """

    clustered = True

    def __init__(self, seeds: Sequence[Address], link_to: Callable[[str, int], NodeLink], where: str) -> None:
        self._seeds = list(seeds)
        self._link_to = link_to
        self._where = where
        self._links: dict[Address, NodeLink] = {}
        self._owners: list[Address | None] = []
        self._holders: set[Address | None] = {None}
        self._silent: set[Address | None] = set()
        self._looked_s = float("-inf")
        self._discover = Shared(self._ask_for_owners)

    def _link(self, address: Address) -> NodeLink:
        if address not in self._links:
            self._links[address] = self._link_to(*address)
        return self._links[address]

    # Which node it is.

    def node_at(self, slot: int) -> str:
        """Name of the node that owns this slot; empty when nobody knows."""
        owner = self._owners[slot] if self._owners else None
        return "" if owner is None else self._link(owner).where

    def names(self) -> set[str]:
        """Names of all nodes that own slots, with the empty one if some slot has no owner."""
        return {"" if owner is None else self._link(owner).where for owner in self._holders}

    def doubt(self, slot: int) -> None:
        """Whoever asked the owner of this slot has waited in vain."""
        if self._owners:
            self._silent.add(self._owners[slot])
        self.look()

    def look(self) -> None:
        """Have the slot table asked for again, in the background, if that was not done lately."""
        now_s = asyncio.get_running_loop().time()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._discover.start()

    def holders(self, slots: Iterable[int]) -> Sequence[Link]:
        """The links to the nodes that own these slots, as far as they are known."""
        owners = dict.fromkeys(self._owners[slot] for slot in slots) if self._owners else {}
        return [self._link(owner) for owner in owners if owner is not None]

    # Calls.

    async def exchange(self, commands: Iterable[Command], slots: Sequence[int] | None = None) -> list[Any]:
        """Send each command to the owner of its slot (slot 0 without `slots`); see `Link.exchange`."""
        todo = list(commands)
        where = list(slots) if slots is not None else [0] * len(todo)
        replies: list[Any] = [None] * len(todo)
        open_positions = list(range(len(todo)))
        if not self._owners:
            await self._discover()
        elif self._silent and not self._silent.isdisjoint([self._owners[slot] for slot in where]):
            await self._look_again()
        for _ in range(_REDIRECTS):
            await self._exchange_once(todo, where, open_positions, replies)
            moved = [at for at in open_positions if isinstance(replies[at], MovedError)]
            asked = [at for at in open_positions if type(replies[at]) is AskError]
            for at in asked:
                replies[at] = await self._ask(replies[at], todo[at])
            open_positions = moved
            if not open_positions:
                return replies
            await self._look_again()
            for at in moved:  # who just said it knows better than a table that another node told
                self._follow(where[at], replies[at])
        raise StoreUnavailable(f"Redis cluster at {self._where} keeps redirecting slot {where[open_positions[0]]}.")

    async def _exchange_once(
        self, todo: list[Command], slots: list[int], positions: list[int], replies: list[Any]
    ) -> None:
        by_owner: dict[Address, list[int]] = {}
        for at in positions:
            owner = self._owners[slots[at]]
            if owner is None:
                self._silent.add(None)
                raise StoreUnavailable(f"Redis cluster at {self._where} has no node for slot {slots[at]}.")
            by_owner.setdefault(owner, []).append(at)
        calls = [self._link(owner).exchange([todo[at] for at in group]) for owner, group in by_owner.items()]
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        failure: BaseException | None = None
        for (owner, group), outcome in zip(by_owner.items(), outcomes, strict=True):
            if isinstance(outcome, BaseException):
                failure = failure or outcome
                if isinstance(outcome, StoreUnavailable):
                    self._silent.add(owner)
                continue
            self._silent.discard(owner)
            for at, reply in zip(group, outcome, strict=True):
                replies[at] = reply
        if failure is not None:
            self.look()  # a failover may have moved its slots
            raise failure

    def _follow(self, slot: int, redirect: MovedError) -> None:
        if self._owners and redirect.host:
            self._owners[slot] = (redirect.host, redirect.port)
            self._holders.add(self._owners[slot])

    async def _ask(self, redirect: AskError, command: Command) -> Any:
        link = self._link((redirect.host, redirect.port))
        _, reply = await link.exchange([("ASKING",), command])
        if isinstance(reply, (AskError, MovedError)):
            raise explained(reply, link.where, link.deadline_s) from reply
        return reply

    # The slot table.

    async def _look_again(self) -> None:
        """Ask for the slot table; without an answer the old one is as good as any."""
        with suppress(PenaltyboxError, TimeoutError):
            async with asyncio.timeout(_REFRESH_S):
                await self._discover()

    async def _ask_for_owners(self) -> None:
        self._looked_s = asyncio.get_running_loop().time()
        known = dict.fromkeys([*self._links, *self._seeds])
        self._owners = await self._first_told(sorted(known, key=lambda address: address in self._silent))
        self._holders = set(self._owners)
        self._silent &= self._holders.union(self._seeds)
        self._looked_s = asyncio.get_running_loop().time()
        await self._forget_others()

    async def _first_told(self, addresses: Sequence[Address]) -> list[Address | None]:
        """The table of the first node that tells it; one after the other is asked, until one has."""
        failure: BaseException = StoreUnavailable(f"Redis cluster at {self._where} has no reachable node.")
        asked: dict[asyncio.Task[list[Address | None]], Address] = {}
        left = list(reversed(addresses))
        try:
            while left or asked:
                if left:
                    address = left.pop()
                    asked[asyncio.ensure_future(self._told_by(address))] = address
                done, _ = await asyncio.wait(
                    asked, timeout=HEDGE_S if left else None, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    address = asked.pop(task)
                    error = task.exception()
                    if error is None:
                        return task.result()
                    if not isinstance(error, StoreUnavailable):
                        raise error
                    self._silent.add(address)
                    failure = error
        finally:
            for task in asked:
                task.cancel()
        raise failure

    async def _told_by(self, address: Address) -> list[Address | None]:
        (table,) = await self._link(address).exchange([("CLUSTER", "SLOTS")])
        owners: list[Address | None] = [None] * SLOTS
        for first, last, primary, *_ in table:
            host = primary[0].decode() if primary[0] else address[0]
            owners[first : last + 1] = [(host, primary[1])] * (last - first + 1)
        if not any(owners):
            raise StoreUnavailable(f"Redis cluster at {self._where}: {self._link(address).where} knows no owner.")
        return owners

    async def _forget_others(self) -> None:
        known = self._holders.union(self._seeds)
        for address in [address for address in self._links if address not in known]:
            await self._links.pop(address).close()

    async def nodes(self) -> Sequence[Link]:
        """The primaries that own slots, asked for anew."""
        await self._discover()
        return [self._link(owner) for owner in dict.fromkeys(self._owners) if owner is not None]

    async def close(self) -> None:
        """Close the connections to all nodes."""
        self._discover.cancel()
        for link in self._links.values():
            await link.close()
        self._links.clear()
        self._owners, self._holders = [], {None}
        self._silent.clear()
