"""One asyncio loop in a daemon thread per process: where threads, WSGI programs and the publisher run coroutines.

It is made when first needed, and made anew in a forked child: a parent's loop cannot be used there, for the kernel's
list of what it waits for (epoll) is shared, and changing it in the child would change it in the parent. So the child
forgets the parent's loop and everything on it, untouched.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import functools
import logging
import os
import queue
import socket
import threading
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")
log = logging.getLogger(__name__)
EXIT_DEADLINE_S: Final = 2.0
"""How long the loop's tasks may take to end at exit, after the farewells."""


class DaemonExecutor(concurrent.futures.Executor):
    """One daemon thread that does blocking work in order.

    Python's own pools are joined at exit and refuse work before it: a hanging disk or name server would hang the exit,
    and a flush at exit could neither write nor connect.
    """

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[T]:
        """Queues a call; its result or error is the future's."""
        future: concurrent.futures.Future[T] = concurrent.futures.Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - whoever asked gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._jobs.put(job)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - Executor's
        """Ends the thread after what is queued; waits for nothing."""
        del wait, cancel_futures
        self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


class _Loop(asyncio.SelectorEventLoop):
    """Resolves names in a daemon thread, so that it can still connect at exit and never holds it up."""

    def __init__(self) -> None:
        super().__init__()
        self.owner = os.getpid()
        self.resolver = DaemonExecutor("penaltybox-names")

    async def getaddrinfo(
        self,
        host: Any,
        port: Any,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        """As asyncio's."""
        call = functools.partial(socket.getaddrinfo, host, port, family, type, proto, flags)
        return await self.run_in_executor(self.resolver, call)


class LoopThread:
    """A loop in a daemon thread. `PROCESS_LOOP` is the process's own; more are for tests."""

    def __init__(self) -> None:
        self._inherited: list[object] = []
        self._hooked = False
        self._clear()

    def _clear(self) -> None:
        self._pid = os.getpid()
        self._starting = threading.Lock()
        self._loop: _Loop | None = None
        self._thread: threading.Thread | None = None
        self._farewells: list[Callable[[], object]] = []

    @property
    def running(self) -> bool:
        """Whether this process has the loop already."""
        return self._loop is not None and self._pid == os.getpid()

    @property
    def ident(self) -> int | None:
        """The thread's number; None while there is none."""
        return self._thread.ident if self._thread is not None else None

    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of this process; started if there is none (about a millisecond, once)."""
        if self._pid != os.getpid():
            self._forget()
        loop = self._loop
        return loop if loop is not None else self._start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Starts a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop())

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """The result of a coroutine, waited for in this thread for at most `timeout` seconds.

        Raises:
            TimeoutError: it took longer, and was cancelled.
            RuntimeError: called on the loop's own thread, which would wait for itself.
        """
        if threading.get_ident() == self.ident and self.running:
            coroutine.close()
            raise RuntimeError("run() was called on the loop's own thread; await the coroutine there instead")
        future = self.submit(coroutine)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise

    def at_exit(self, farewell: Callable[[], object]) -> None:
        """Calls `farewell` when the process ends, in the thread that ends it, before the loop stops.

        Last come, first called, each once. A forked child has none of its parent's.
        """
        if farewell not in self._farewells:
            self._farewells.append(farewell)

    def not_at_exit(self, farewell: Callable[[], object]) -> None:
        """Takes `at_exit` back, if it stands."""
        if farewell in self._farewells:
            self._farewells.remove(farewell)

    def stop(self, deadline_s: float = EXIT_DEADLINE_S) -> None:
        """Farewells, then every task is cancelled and the loop ends; a later call of `loop` makes a new one.

        Returns after `deadline_s` (farewells have deadlines of their own) even if a task does not end.
        """
        if not self.running:
            return
        while self._farewells:
            farewell = self._farewells.pop()
            try:
                farewell()
            except Exception:
                log.exception("A farewell failed at exit")
        loop, thread = self._loop, self._thread
        self._loop = self._thread = None
        if loop is None or thread is None:
            return
        end = time.monotonic() + deadline_s
        ended = asyncio.run_coroutine_threadsafe(_cancel_tasks(deadline_s), loop)
        concurrent.futures.wait([ended], deadline_s)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(max(0.0, end - time.monotonic()) + 0.2)

    def _start(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                if not self._hooked:
                    self._hooked = True
                    os.register_at_fork(after_in_child=self._forget)
                    atexit.register(self.stop)
                loop = _Loop()
                loop.set_exception_handler(_tell)
                thread = threading.Thread(target=_run, args=(loop,), name="penaltybox-loop", daemon=True)
                thread.start()
                self._thread, self._loop = thread, loop
            return self._loop

    def _forget(self) -> None:
        """In a forked child: the loop is the parent's. It is kept, unused, so that nothing closes it."""
        self._inherited.append((self._loop, self._thread, self._farewells))
        self._clear()


def _run(loop: _Loop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.resolver.shutdown()
        loop.close()


async def _cancel_tasks(deadline_s: float) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=deadline_s)


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What nobody caught. Results that nobody asks for are normal while a broker is away."""
    if isinstance(loop, _Loop) and loop.owner != os.getpid():
        return  # a forked child ends, and its parent's tasks are unfinished there
    level = logging.DEBUG if "never retrieved" in context.get("message", "") else logging.WARNING
    log.log(level, "%s", context.get("message"), exc_info=context.get("exception"))


PROCESS_LOOP: Final = LoopThread()
"""The process's loop: limiter and publisher of threaded programs live on it."""


def run(coroutine: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
    """`LoopThread.run` on the process's loop."""
    return PROCESS_LOOP.run(coroutine, timeout)
