"""One channel of one Redis server, on a connection of its own, with a heartbeat that says up to when all was heard."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import hiredis
from redis.exceptions import RedisError

from penaltybox.links.outages import explained

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.links.exchange import ServerLink

BEAT_S: Final = 0.25
"""How often a subscription asks whether the server is still there."""
SILENCE_S: Final = 1.0
"""After this long without an answer the connection is given up."""


def monotonic_ms() -> int:
    """Milliseconds of a clock that never goes backwards; its zero means nothing."""
    return time.monotonic_ns() // 1_000_000


class Subscription:
    """What a server says on a channel, until it falls silent.

    A server answers in order. So when the answer to a PING of time `t` is here, every message that it sent out before
    `t` is here too.

    Args:
        link: the server; the subscription takes one connection out of its pool.
        channel: its name.
        on_message: gets the bytes of each message.
        on_subscribed: called when the channel is subscribed, before any message.
        clock: monotonic milliseconds.
    """

    def __init__(
        self,
        link: ServerLink,
        channel: str,
        on_message: Callable[[bytes], None],
        on_subscribed: Callable[[], None],
        clock: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._link = link
        self._channel = channel
        self._on_message = on_message
        self._on_subscribed = on_subscribed
        self._clock = clock
        self._asked: deque[int] = deque()
        self.heard_ms: int | None = None
        """Everything said before this moment was heard; None while it is not subscribed."""

    async def run(self) -> None:
        """Listens until the connection is lost, which it always raises; or until it is cancelled.

        Raises:
            StoreUnavailable: the server is gone, or silent.
            ConfigurationError: it refuses the channel.
        """
        failure: BaseException
        try:
            async with self._link.reserved() as connection:
                async with asyncio.timeout(self._link.deadline_s):
                    await self._send(connection, "SUBSCRIBE", self._channel)
                    await connection.read_response(disable_decoding=True)
                self._asked.clear()
                self._on_subscribed()
                self.heard_ms = self._clock()
                await self._listen(connection)
        except* (RedisError, OSError, TimeoutError) as failures:
            failure = failures
        finally:
            self.heard_ms = None
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise explained(failure, self._link.where, SILENCE_S) from failure

    async def _listen(self, connection: Any) -> None:
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(connection))
            both.create_task(self._beat(connection))

    async def _read(self, connection: Any) -> None:
        while True:
            reply = await connection.read_response(disable_decoding=True)
            if reply[0] == b"message":
                self._on_message(reply[2])
            elif reply[0] == b"pong" and self._asked:
                self.heard_ms = self._asked.popleft()

    async def _beat(self, connection: Any) -> None:
        while True:
            if self._is_silent():
                await asyncio.sleep(BEAT_S)  # perhaps it is us who stood still, and the answer is waiting
                if self._is_silent():
                    raise TimeoutError
            self._asked.append(self._clock())
            await self._send(connection, "PING")
            await asyncio.sleep(BEAT_S)

    def _is_silent(self) -> bool:
        return bool(self._asked) and self._clock() - self._asked[0] > SILENCE_S * 1000

    @staticmethod
    async def _send(connection: Any, *command: str) -> None:
        await connection.send_packed_command([hiredis.pack_command(command)])  # type: ignore[arg-type]
