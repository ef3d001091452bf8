"""When and why a role's process ends; and that it does end, whatever still waits for a server that hangs."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

log = logging.getLogger(__name__)
MARGIN_S: Final = 5.0
"""Beyond `stop_timeout_s`: what leaves in good order never needs it."""
LET_GO_S: Final = 2.0
"""For what was called off, or stands last in line: connections and threads that end at once unless a server hangs."""


class Ending:
    """When a role's process is to end, and why. `error` None: in good order.

    Args:
        on_begin: called once, when the end begins.
    """

    def __init__(self, on_begin: Callable[[], None] | None = None) -> None:
        self.error: BaseException | None = None
        self._event = asyncio.Event()
        self._on_begin = on_begin

    def request(self) -> None:
        """End in good order: drain, flush, acknowledge, commit, leave."""
        self._begin()

    def fail(self, error: BaseException) -> None:
        """End because of an error; the first one counts."""
        self.error = self.error or error
        self._begin()

    def _begin(self) -> None:
        if not self._event.is_set():
            self._event.set()
            if self._on_begin is not None:
                self._on_begin()

    async def wait(self) -> None:
        """Return when the process is to end."""
        await self._event.wait()

    async def outrun(self, work: Awaitable[Any], what: str) -> bool:
        """Do what may take as long as a server hangs, unless the end comes first.

        Args:
            work: cancelled when the end comes first.
            what: names it in the log line that says that it was not waited for.

        Returns:
            Whether the work was done. Raises what it raised.
        """
        task = asyncio.ensure_future(work)
        wish = asyncio.create_task(self.wait())
        try:
            await asyncio.wait({task, wish}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                # What is nearly done leaves in good order; called off, it would drop its connections open.
                await asyncio.wait({task}, timeout=LET_GO_S)
            if task.done():
                task.result()
                return True
        finally:
            wish.cancel()
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=LET_GO_S)
        log.warning("Ending without waiting for %s", what)
        return False


class LastResort:
    """Ends this process from a thread of its own when the event loop, a thread or the interpreter's end hangs.

    Args:
        limit_s: seconds from `begin` on.
        end: what ends the process, given its exit code.
    """

    def __init__(self, limit_s: float, end: Callable[[int], None] = os._exit) -> None:
        self._limit_s = limit_s
        self._end = end
        self._timer: threading.Timer | None = None
        self.code = 1

    def begin(self) -> None:
        """From now on the time is running."""
        self._arm(self._limit_s)

    def hurry(self, code: int) -> None:
        """All that mattered is over: what is left has a moment. Without effect before `begin`.

        Args:
            code: the process's exit code if that moment is not enough.
        """
        if self._timer is not None:
            self.code = code
            self._arm(LET_GO_S)

    def _arm(self, after_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(after_s, self._leave, [after_s])
        self._timer.name = "last-resort"
        self._timer.daemon = True
        self._timer.start()

    def _leave(self, after_s: float) -> None:
        log.warning("Not ended within %g s: left without waiting for %s", after_s, ", ".join(unended()) or "anything")
        for handler in logging.getLogger().handlers:
            handler.flush()
        sys.stderr.flush()
        self._end(self.code)


def unended() -> list[str]:
    """Names of the threads that keep this process."""
    own = threading.current_thread()
    return [f"thread {one.name}" for one in threading.enumerate() if one is not own and not one.daemon]


def run_process(role: Callable[[Ending], Coroutine[Any, Any, None]], stop_timeout_s: float) -> None:
    """Run a role as a process of its own: SIGTERM and SIGINT end it.

    Args:
        role: ends in good order when its ending says so, within about `stop_timeout_s`.
        stop_timeout_s: when it has not ended `MARGIN_S` later than that, the process ends all the same, with code 1.

    Raises:
        BaseException: what the role raised.
    """
    resort = LastResort(stop_timeout_s + MARGIN_S)

    async def until_told() -> None:
        ending = Ending(resort.begin)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ending.request)
        code = 1
        try:
            await role(ending)
            code = 0
        finally:
            resort.hurry(code)

    asyncio.run(until_told())
