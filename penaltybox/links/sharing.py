"""One run of something for all who want it at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Runs `make()` once for everybody of an event loop who calls while it runs.

    Whoever stops waiting does not stop it for the others.
    """

    def __init__(self, make: Callable[[], Coroutine[None, None, Result]]) -> None:
        self._make = make
        self._running: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Result]] = WeakKeyDictionary()

    async def __call__(self) -> Result:
        """The result of the run that is under way, or of a new one; raises what it raises."""
        return await asyncio.shield(self.start())

    def start(self) -> asyncio.Task[Result]:
        """The run that is under way, or a new one; nobody has to wait for it."""
        loop = asyncio.get_running_loop()
        task = self._running.get(loop)
        if task is None or task.done():
            task = self._running[loop] = loop.create_task(self._make())
            task.add_done_callback(_looked_at)
        return task

    def cancel(self) -> None:
        """Stop the run of this loop, if there is one."""
        task = self._running.pop(asyncio.get_running_loop(), None)
        if task is not None:
            task.cancel()


def _looked_at(task: asyncio.Task[Result]) -> None:
    """Nobody may be waiting any more for a failure; the next caller tries again."""
    if not task.cancelled():
        task.exception()
