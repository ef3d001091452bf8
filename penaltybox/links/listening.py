"""Hears on the channel `pbx:events` what has changed, so that caches forget it; and knows up to when all was heard.

Every primary of a cluster is listened to itself: a message goes from node to node on the cluster's own connections,
and one that is lost there is lost without a sign.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.keyspace import LISTS_CHANGED, POLICY_CHANGED
from penaltybox.links.exchange import ServerLink
from penaltybox.links.subscriptions import Subscription, monotonic_ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.links.exchange import Link

_log = logging.getLogger(__name__)
_LISTS: Final = LISTS_CHANGED.encode()
_POLICY: Final = POLICY_CHANGED.encode()
_TOPOLOGY_S: Final = 5.0
"""How often the nodes of a cluster are looked at again when none was lost."""
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 1.0


class Hearing(Protocol):
    """Knows up to when all changes were heard, as a `Listener` does."""

    @property
    def heard_ms(self) -> int | None:
        """Monotonic milliseconds; None while changes are not heard."""


class Hearer(Protocol):
    """Whoever wants to know what has changed. Called on the event loop; must return at once."""

    def changed(self, subject: str) -> None:
        """The block or challenge of this subject is new, changed or gone."""

    def lists_changed(self) -> None:
        """The allowlist or a ban of a range changed."""

    def policy_changed(self) -> None:
        """Another policy is in force."""

    def missed(self) -> None:
        """Something may have been said while nobody listened: everything known from before is in doubt."""


class Listener:
    """Keeps a subscription to every server that messages come from.

    Args:
        link: the way to Redis, whatever its topology.
        channel: see `Keyspace.events`.
        hearer: what gets the news.
        clock: monotonic milliseconds.
    """

    def __init__(self, link: Link, channel: str, hearer: Hearer, clock: Callable[[], int] = monotonic_ms) -> None:
        self._link = link
        self._channel = channel
        self._hearer = hearer
        self._clock = clock
        self._ears: dict[ServerLink, tuple[Subscription, asyncio.Task[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._told = False

    @property
    def heard_ms(self) -> int | None:
        """Everything said before this moment (monotonic) was heard; None while a server is not listened to."""
        earliest: int | None = None
        for subscription, _ in self._ears.values():
            heard = subscription.heard_ms
            if heard is None:
                return None
            if earliest is None or heard < earliest:
                earliest = heard
        return earliest

    def start(self) -> None:
        """Starts to listen, in the background."""
        self._task = asyncio.get_running_loop().create_task(self._keep())

    async def close(self) -> None:
        """Stops listening."""
        tasks = [task for _, task in self._ears.values()] + ([self._task] if self._task is not None else [])
        self._ears.clear()
        self._task = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                nodes = [node for node in await self._link.nodes() if isinstance(node, ServerLink)]
            except PenaltyboxError as error:
                self._tell(error)
            else:
                self._attend(nodes)
            tasks = [task for _, task in self._ears.values()]
            if tasks:
                await asyncio.wait(tasks, timeout=_TOPOLOGY_S, return_when=asyncio.FIRST_COMPLETED)
            if tasks and not any(task.done() for task in tasks):
                pause_s = _FIRST_PAUSE_S
                self._told = False
                continue
            # Apart from each other, or all processes would come back to a restarted server at the same moment.
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))  # noqa: S311 - no secret
            pause_s = min(2 * pause_s, _LAST_PAUSE_S)

    def _attend(self, nodes: list[ServerLink]) -> None:
        """An ear for each of these nodes, and for no other."""
        for node in [node for node in self._ears if node not in nodes]:
            self._ears.pop(node)[1].cancel()
        for node in nodes:
            if node not in self._ears or self._ears[node][1].done():
                subscription = Subscription(node, self._channel, self._hear, self._hearer.missed, self._clock)
                task = asyncio.get_running_loop().create_task(self._listen(subscription))
                self._ears[node] = (subscription, task)

    async def _listen(self, subscription: Subscription) -> None:
        try:
            await subscription.run()
        except PenaltyboxError as error:
            self._tell(error)

    def _tell(self, error: BaseException) -> None:
        """The first failure of an outage, as one line."""
        if not self._told:
            self._told = True
            _log.warning("changes of blocks are not heard, so nothing is remembered longer than 1 s: %s", error)

    def _hear(self, message: bytes) -> None:
        if message == _LISTS:
            self._hearer.lists_changed()
        elif message == _POLICY:
            self._hearer.policy_changed()
        elif not message.startswith(b"#"):
            self._hearer.changed(message.decode("utf-8", "replace"))


def fresh(read_ms: int, heard_ms: int | None, now_ms: int, bound_ms: int = 1000) -> bool:
    """Whether what was read at `read_ms` is known to have been true within the last `bound_ms`.

    All changes up to `heard_ms` were heard, and would have made its holder forget it.
    """
    known = read_ms if heard_ms is None or heard_ms < read_ms else heard_ms
    return now_ms - known < bound_ms
