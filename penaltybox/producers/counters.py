"""Asking one Redis server, or the master that Sentinel names: one round trip per decision, all or nothing taken."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import hiredis
import msgspec
from redis.exceptions import NoScriptError

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.links.exchange import opening_of_packed
from penaltybox.producers.questions import Answer
from penaltybox.producers.scripts import script

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penaltybox.contracts.errors import PenaltyboxError
    from penaltybox.contracts.keyspace import Keyspace
    from penaltybox.links.exchange import Command, Script
    from penaltybox.links.multiplex import MultiplexLink
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.questions import Asked

RECORD_LIFE_MS: Final = 86_400_000
"""A record of what a request took lives as long as the longest window it took from, and at most this long."""
_AT_ONCE: Final = -1
_BLOCKED: Final = 1
_CHALLENGED: Final = 2
_CHANGED: Final = -1
_ATTEMPTS: Final = 4


_ONE: Final = ("",)


class Unanswered(StoreUnavailable):
    """Some nodes that a request needed did not do their part.

    Args:
        by_node: name of a node -> why.
        answered: names of those that did theirs.
    """

    def __init__(self, by_node: Mapping[str, PenaltyboxError], answered: Collection[str]) -> None:
        super().__init__(" ".join(dict.fromkeys(str(error) for error in by_node.values())))
        self.by_node = by_node
        self.answered = answered


class Counters(Protocol):
    """Whoever asks a Redis, of whatever topology.

    Nodes have names; the only one of a server, or of what Sentinel names, is the empty text.
    """

    def nodes(self) -> Collection[str]:
        """Names of all nodes, as far as is known."""

    def touched(self, stems: Sequence[str], request: Request) -> Collection[str]:
        """Names of the nodes that a request of subjects with these stems needs."""

    def look(self) -> None:
        """Somebody was not asked: find out, in the background and not too often, whether other nodes hold its keys."""

    async def load(self, algorithms: Iterable[frozenset[str]]) -> None:
        """Make the scripts for limits of these sets of algorithms known, so that the first decisions need not."""

    async def ask(self, asked: Asked, request: Request, deadline_s: float) -> Answer:
        """Check everything about a request, and take from all of its limits if it fits all that are in force.

        Raises:
            StoreUnavailable: no answer in time; whether something was taken nobody knows. `Unanswered` if some nodes
                of several gave none.
        """

    async def give_back(self, idempotency_key: str, deadline_s: float) -> bool:
        """Give back what the request of this key took; False when there is nothing (left). Raises as `ask` does."""

    async def close(self) -> None:
        """Close the connections."""


class ServerCounters:
    """Counters on one server.

    Args:
        link: to it; closed with this object.
        keyspace: how keys are called.
        test_now_ms: for tests: a time that stands for the server's.
    """

    def __init__(self, link: MultiplexLink, keyspace: Keyspace, test_now_ms: int | None = None) -> None:
        self._link = link
        self._keyspace = keyspace
        self.test_now_ms = test_now_ms

    def nodes(self) -> Collection[str]:
        """See `Counters.nodes`."""
        return _ONE

    def touched(self, stems: Sequence[str], request: Request) -> Collection[str]:  # noqa: ARG002 - always the same
        """See `Counters.touched`."""
        return _ONE

    def look(self) -> None:
        """See `Counters.look`: Sentinel is asked whenever a connection is opened."""

    async def load(self, algorithms: Iterable[frozenset[str]]) -> None:
        """See `Counters.load`."""
        scripts = [script("refund"), *(script("decide", one) for one in algorithms)]
        await self._link.exchange([("SCRIPT", "LOAD", one.text) for one in scripts])

    async def ask(self, asked: Asked, request: Request, deadline_s: float) -> Answer:
        """See `Counters.ask`; exactly one round trip."""
        if request.cost == 1 and not request.idempotency_key and self.test_now_ms is None:
            packed = self._packed(asked, request)
        else:
            packed = hiredis.pack_command(self._call(asked, request))  # type: ignore[arg-type]
        reply = await self._link.ask_packed(packed, deadline_s)
        if isinstance(reply, NoScriptError):
            reply = await self._run_again(asked.question.script, packed, deadline_s)
        kind = reply[0]
        if kind == _AT_ONCE:
            trust = None if reply[1] < 0 else reply[1] == 1
            return Answer(0, trust, states=asked.question.states_that_fit(reply, 2), fits=True)
        trust = None if reply[2] < 0 else reply[2] == 1
        if kind == _BLOCKED:
            return Answer(reply[1], trust, blocks=present(reply[3:]))
        if kind == _CHALLENGED:
            return Answer(reply[1], trust, challenges=present(reply[3:]))
        return Answer(reply[1], trust, states=asked.question.states(reply, 3))

    def _call(self, asked: Asked, request: Request) -> Command:
        keys = asked.question.counters(asked.stems)
        record_life = 0
        if request.idempotency_key:
            keys.append(self._keyspace.refund(request.idempotency_key))
            record_life = min(asked.question.longest_ms, RECORD_LIFE_MS)
        return (*_opening(asked, keys), request.id, record_life, request.cost, self._now())

    @staticmethod
    def _packed(asked: Asked, request: Request) -> bytes:
        """The same as it goes over the wire, for a cost of 1 without a record: only the request's id is new to it."""
        if asked.call is None:
            asked.call = opening_of_packed(_opening(asked, asked.question.counters(asked.stems)), more=1)
        identity = request.id.encode()
        return b"%b$%d\r\n%b\r\n" % (asked.call, len(identity), identity)

    async def give_back(self, idempotency_key: str, deadline_s: float) -> bool:
        """See `Counters.give_back`; two round trips, the second in one step with spending the record."""
        key = self._keyspace.refund(idempotency_key)
        refund = script("refund")
        for _ in range(_ATTEMPTS):
            record = await self._link.ask(("GET", key), deadline_s)
            counters = counters_of(record)
            if not counters:
                return False
            call: Command = ("EVALSHA", refund.sha, 1 + len(counters), key, *counters, record, "", 1, self._now())
            packed = hiredis.pack_command(call)  # type: ignore[arg-type]
            reply = await self._link.ask_packed(packed, deadline_s)
            if isinstance(reply, NoScriptError):
                reply = await self._run_again(refund, packed, deadline_s)
            if reply != _CHANGED:
                return bool(reply == 1)
        return False

    def _now(self) -> str | int:
        return "" if self.test_now_ms is None else self.test_now_ms

    async def _run_again(self, run: Script, packed: bytes, deadline_s: float) -> Any:
        """Only NOSCRIPT is retried: nothing was executed then. After another failure it may have counted."""
        try:
            async with asyncio.timeout(deadline_s):
                for _ in range(_ATTEMPTS):
                    await run.load(self._link)
                    reply = await self._link.ask_packed(packed, deadline_s)
                    if not isinstance(reply, NoScriptError):
                        return reply
        except TimeoutError as error:
            raise StoreUnavailable("Redis had forgotten the script and did not load it again in time.") from error
        raise StoreUnavailable("Redis keeps forgetting the script (NOSCRIPT): does another program run SCRIPT FLUSH?")

    async def close(self) -> None:
        """See `Counters.close`."""
        await self._link.close()


def _opening(asked: Asked, keys: Sequence[str]) -> Command:
    """A decision's call without what each request has of its own."""
    question = asked.question
    return ("EVALSHA", question.script.sha, len(keys), *keys, question.packed, *question.marks(asked.stems))


def present(values: Sequence[bytes]) -> list[tuple[int, bytes]]:
    """(place, value) of those that are not empty."""
    return [(at, value) for at, value in enumerate(values) if value]


def counters_of(record: bytes | None) -> list[str]:
    """The counters' keys that a record names; empty when there is none, or it is spent."""
    if record is None:
        return []
    try:
        return [key for key, *_ in msgspec.msgpack.decode(record, type=_RECORD)[4]]
    except msgspec.DecodeError:  # not ours
        return []


_RECORD: Final = tuple[str, int, int, int, list[tuple[str, str, int, int, int]]]
