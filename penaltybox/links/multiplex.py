"""One connection for all calls of an event loop: concurrent calls share it, replies come in the calls' order.

A call that runs out of time is answered with an outage, and its reply is dropped when it comes; the connection stays,
because nothing is wrong with it. Only when the server has said nothing for a while is the connection given up.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import hiredis
from redis.asyncio.sentinel import SentinelConnectionPool
from redis.exceptions import AskError, MovedError, NoScriptError, RedisError, ResponseError

from penaltybox.links.exchange import ANSWERS
from penaltybox.links.outages import code_of, explained
from penaltybox.links.sharing import Shared

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from redis.asyncio import ConnectionPool

    from penaltybox.links.exchange import Command, Link

_MAX_WAITING: Final = 20_000
_SILENCE_S: Final = 2.0
_TICK_S: Final = 0.001
"""Calls that run out of time within a millisecond are told together."""
_REDIRECTS: Final = {"MOVED": MovedError, "ASK": AskError}


def _error_of(text: str) -> ResponseError:
    """An error reply as redis-py has it, as far as links and stores tell them apart."""
    code, _, rest = text.partition(" ")
    if code == "NOSCRIPT":
        return NoScriptError(text)
    if code in _REDIRECTS:
        return _REDIRECTS[code](rest)
    return ResponseError(text)


def _silence() -> ConnectionError:
    return ConnectionError(f"nothing heard for {_SILENCE_S:g} s")


class _Call:
    """A caller that waits for `wanted` replies."""

    __slots__ = ("deadline_s", "end_s", "future", "replies", "wanted")

    def __init__(self, future: asyncio.Future[list[Any]], wanted: int, end_s: float, deadline_s: float) -> None:
        self.future = future
        self.wanted = wanted
        self.end_s = end_s
        self.deadline_s = deadline_s
        self.replies: list[Any] = []


class _Channel(asyncio.Protocol):
    """An open connection: writes calls, hands out replies. It belongs to one event loop.

    There is one timer for all calls that wait, not one for each: it is set for the earliest end that it knew of, and a
    call that was answered meanwhile costs nothing.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Any) -> None:
        self.loop = loop
        self._connection = connection  # held, because redis-py closes the socket of a connection that nobody holds
        self._transport = connection._writer.transport  # noqa: SLF001 - there is no public way to it
        self._transport.set_protocol(self)
        self._reader = hiredis.Reader(replyError=_error_of)
        self._waiting: deque[_Call] = deque()
        self._held: list[tuple[bytes, _Call]] | None = None
        self._heard_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self.open = True

    def call(self, packed: bytes, wanted: int, deadline_s: float) -> asyncio.Future[list[Any]]:
        """Send commands; the future has their replies, `TimeoutError`, or `ConnectionError`."""
        loop = self.loop
        future: asyncio.Future[list[Any]] = loop.create_future()
        if len(self._waiting) >= _MAX_WAITING:
            future.set_exception(ConnectionError(f"{_MAX_WAITING:,} calls are waiting already"))
            return future
        now_s = loop.time()
        end_s = now_s + deadline_s
        if not self._waiting:
            self._heard_at = now_s
        elif now_s - self._heard_at > _SILENCE_S:  # those who wait may have no patience left to notice it
            self.give_up(_silence())
            future.set_exception(_silence())
            return future
        call = _Call(future, wanted, end_s, deadline_s)
        if self._held is not None:
            self._held.append((packed, call))
        elif self._waiting:
            # Those that join calls under way in one turn of the loop leave together. A call on its own leaves at once,
            # and costs no further turn.
            self._held = [(packed, call)]
            loop.call_soon(self._let_go)
        else:
            self._transport.write(packed)
        self._waiting.append(call)
        if self._timer is None or end_s < self._timer_s:
            self._set_timer(end_s)
        return future

    def _set_timer(self, at_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = at_s
        self._timer = self.loop.call_at(at_s, self._expire)

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held and self.open:
            self._transport.write(b"".join([packed for packed, _ in held]))
            # A turn of a thousand requests takes longer than their deadline, and that is not the server's fault.
            now_s = self.loop.time()
            for _, call in held:
                call.end_s = now_s + call.deadline_s

    def _expire(self) -> None:
        """Tell those who have run out of time; the timer goes on with whoever would be next, if anybody waits."""
        self._timer = None
        now_s = self.loop.time()
        overdue, ends = False, []
        for call in self._waiting:
            if call.end_s > now_s:
                ends.append(call.end_s)
                continue
            overdue = True
            if not call.future.done():
                call.future.set_exception(TimeoutError())
        if overdue and now_s - self._heard_at > _SILENCE_S:
            self.give_up(_silence())
        elif ends:
            self._set_timer(max(min(ends), now_s + _TICK_S))

    def data_received(self, data: bytes) -> None:
        """Whoever waits longest gets the next reply."""
        self._heard_at = self.loop.time()
        reader, waiting = self._reader, self._waiting
        reader.feed(data)
        while True:
            try:
                reply = reader.gets()
            except hiredis.ProtocolError as error:
                self.give_up(ConnectionError(f"not a Redis reply: {error}"))
                return
            if reply is False:
                return
            if not waiting:
                self.give_up(ConnectionError("a reply that nobody asked for"))
                return
            call = waiting[0]
            call.replies.append(reply)
            if len(call.replies) >= call.wanted:
                waiting.popleft()
                if not call.future.done():
                    call.future.set_result(call.replies)

    def connection_lost(self, error: Exception | None) -> None:
        """Everybody who waits is told; whether their calls were executed nobody knows."""
        self.give_up(ConnectionError(str(error) if error else "the server closed the connection"))

    def give_up(self, error: Exception) -> None:
        """Close; no call is made over this channel any more."""
        self.open = False
        waiting, self._waiting = self._waiting, deque()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in waiting:
            if not call.future.done():
                call.future.set_exception(error)
        self._transport.abort()
        self._connection._writer = self._connection._reader = None  # noqa: SLF001 - closed: nothing to warn about


class MultiplexLink:
    """One Redis server, or the master that Sentinel names, over one connection per event loop.

    Args:
        pool: makes connections and logs in; hiredis, bytes, RESP2.
        where: host and port for messages, no secrets.
        deadline_s: for a call without a deadline of its own.
    """

    clustered = False

    def __init__(self, pool: ConnectionPool, where: str, deadline_s: float) -> None:
        self._pool = pool
        self.where = where
        self.deadline_s = deadline_s
        # A server that accepts a connection and then is gone for good would be waited for as long as TCP allows. Every
        # Sentinel may have to be waited for, and then its answer.
        sentinels = len(pool.sentinel_manager.sentinels) if isinstance(pool, SentinelConnectionPool) else 0
        self._open_s = 2 * deadline_s * (1 + sentinels)
        self._channels: WeakKeyDictionary[asyncio.AbstractEventLoop, _Channel] = WeakKeyDictionary()
        self._last: _Channel | None = None
        self._opened = Shared(self._open)

    def ask(self, command: Command, deadline_s: float) -> Coroutine[Any, Any, Any]:
        """The reply to one command; NOSCRIPT, MOVED and ASK are returned, other failures raised as `exchange` does."""
        return self.ask_packed(hiredis.pack_command(command), deadline_s)  # type: ignore[arg-type]

    async def ask_packed(self, packed: bytes, deadline_s: float) -> Any:
        """The same for a command as it goes over the wire."""
        channel = self._last
        if channel is not None and channel.open and channel.loop is asyncio.get_running_loop():
            try:
                (reply,) = await channel.call(packed, 1, deadline_s)
            except (OSError, TimeoutError) as error:
                raise explained(error, self.where, deadline_s) from error
        else:
            (reply,) = await self._call(packed, 1, deadline_s)
        if isinstance(reply, ResponseError):
            self._check(reply, deadline_s)
        return reply

    async def exchange(
        self,
        commands: Iterable[Command],
        slots: Sequence[int] | None = None,  # noqa: ARG002 - one server holds all slots
        deadline_s: float | None = None,
    ) -> list[Any]:
        """Send all commands in one go; see `Link.exchange`."""
        packed = [hiredis.pack_command(command) for command in commands]  # type: ignore[arg-type]
        if not packed:
            return []
        limit_s = self.deadline_s if deadline_s is None else deadline_s
        replies = await self._call(b"".join(packed), len(packed), limit_s)
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._check(reply, limit_s)
        return replies

    def _check(self, reply: ResponseError, deadline_s: float) -> None:
        code = code_of(reply)
        if code in {"READONLY", "MASTERDOWN"}:  # through Sentinel the next connection finds the new master
            self._drop(ConnectionError("the server is a replica now"))
        if code not in ANSWERS:
            raise explained(reply, self.where, deadline_s) from reply

    async def _call(self, packed: bytes, wanted: int, deadline_s: float) -> list[Any]:
        loop = asyncio.get_running_loop()
        try:
            channel = self._channels.get(loop)
            if channel is None or not channel.open:
                end = loop.time() + deadline_s
                async with asyncio.timeout(deadline_s):  # it comes all the same, for those who wait longer
                    channel = await self._opened()
                deadline_s = end - loop.time()
            self._last = channel
            return await channel.call(packed, wanted, deadline_s)
        except (RedisError, OSError, TimeoutError) as error:
            raise explained(error, self.where, deadline_s) from error

    async def _open(self) -> _Channel:
        loop = asyncio.get_running_loop()
        connection: Any = self._pool.make_connection()  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self._open_s):
                await connection.connect()
        except BaseException:
            await connection.disconnect(nowait=True)
            raise
        # redis-py has found the server, logged in and read the answers; from here the protocol is ours.
        channel = self._channels[loop] = _Channel(loop, connection)
        return channel

    def _drop(self, error: Exception) -> None:
        channel = self._channels.pop(asyncio.get_running_loop(), None)
        if channel is not None:
            channel.give_up(error)

    async def nodes(self) -> Sequence[Link]:
        """Only this one."""
        return [self]

    def holders(self, slots: Iterable[int]) -> Sequence[Link]:  # noqa: ARG002 - one server holds all slots
        """Only this one."""
        return [self]

    async def close(self) -> None:
        """Close this loop's connection; calls that wait are told."""
        self._opened.cancel()
        self._drop(ConnectionError("this program closes its connections"))
        await self._pool.aclose()
