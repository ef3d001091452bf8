"""A program's way to its limiter: opens it in the loop that runs, and answers by the failure policy when it fails."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent, ConfigurationError, StoreUnavailable
from penaltybox.contracts.events import Label, Outcome
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.policy import Scenario
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.failure import LOCAL_PERCENT, Failures
from penaltybox.producers.verdict import Decider, Verdict

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.memory import Offering

Opening = Decider | Callable[[], AbstractAsyncContextManager[Decider]]
"""A limiter that is ready, or what opens one: called once per process and loop, never at import."""

_log = logging.getLogger("penaltybox.web")
PATIENCE_S: Final = 1.0
"""Beyond the scenario's deadline: a limiter keeps its deadline itself, and this is for one that does not."""
_AGAIN_S: Final = 1.0


class _Opened:
    """A limiter that is open in one loop. One task opens and closes it, whoever asked first."""

    def __init__(self, limiter: Opening) -> None:
        self.loop = asyncio.get_running_loop()
        self.tried_at = time.monotonic()
        self.ready: asyncio.Future[Decider] = self.loop.create_future()
        self._closing = asyncio.Event()
        self._task = self.loop.create_task(self._hold(limiter))

    @property
    def worn(self) -> bool:
        """Whether it could not be opened, or has ended by itself, long enough ago to try again."""
        return self._task.done() and time.monotonic() - self.tried_at >= _AGAIN_S

    async def _hold(self, limiter: Opening) -> None:
        try:
            if not callable(limiter):
                self.ready.set_result(limiter)
                return
            async with limiter() as decider:
                self.ready.set_result(decider)
                await self._closing.wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)
            self.ready.exception()  # looked at: whoever awaits it gets it all the same

    async def close(self) -> None:
        """Closes the limiter; raises what its closing raises."""
        self._closing.set()
        await self._task


class Access:
    """The limiter of a program. It is opened once in every event loop that asks, and answers whatever happens.

    Args:
        limiter: see `Opening`.
        policy: what a failing limiter means per scenario; without it everything is let through then.
    """

    def __init__(self, limiter: Opening, policy: Policy | None = None) -> None:
        if not callable(limiter) and not hasattr(limiter, "decide"):
            raise ConfigurationError(f"limiter: got {limiter!r}, wanted a limiter, or a function that opens one")
        self.failures = 0
        """Requests that the failure policy has answered here, because the limiter could not be asked at all."""
        self.closes_at_exit = False
        """Whether somebody has seen to it that the limiter of the process's own loop is closed at exit."""
        self._limiter = limiter
        self._policy = policy
        percent = getattr(limiter, "local_percent", LOCAL_PERCENT)
        self._failures = None if policy is None else Failures(policy, _source(), Canonicaliser(), percent)
        self._opened: dict[asyncio.AbstractEventLoop, _Opened] = {}
        self._decider: Decider | None = None
        self._errands: set[asyncio.Task[Any]] = set()
        self._complaints = Complaints()
        self._canonicaliser = Canonicaliser()

    @property
    def policy(self) -> Policy | None:
        """The limiter's policy, which may have been switched; else the one given here."""
        found: Policy | None = getattr(self._decider, "policy", None)
        return found or self._policy

    async def open(self) -> Decider:
        """The limiter of the running loop, opened if it is not; raises what its opening raises."""
        self._decider = await asyncio.shield(self._opening().ready)
        return self._decider

    async def _open_soon(self) -> Decider:
        """The same for a request: only those of the first second wait for the opening. A Redis that hangs takes longer.

        Raises:
            StoreUnavailable: it is not open by then.
        """
        opening = self._opening()
        if not opening.ready.done():
            await asyncio.wait({opening.ready}, timeout=max(0.0, opening.tried_at + PATIENCE_S - time.monotonic()))
            if not opening.ready.done():
                raise StoreUnavailable("the limiter is still being opened; does its Redis answer?")
        return await self.open()

    def _opening(self) -> _Opened:
        loop = asyncio.get_running_loop()
        opened = self._opened.get(loop)
        if opened is None or (opened.worn and callable(self._limiter)):
            for other in [one for one in list(self._opened) if one.is_closed()]:  # another thread may add its own
                self._opened.pop(other, None)
            opened = self._opened[loop] = _Opened(self._limiter)
        return opened

    async def close(self) -> None:
        """Finishes what is under way in the running loop and closes its limiter."""
        loop = asyncio.get_running_loop()
        mine = [errand for errand in self._errands if errand.get_loop() is loop]
        if mine:
            await asyncio.wait(mine, timeout=PATIENCE_S)
        opened = self._opened.pop(loop, None)
        if opened is not None:
            await opened.close()

    async def decide(self, request: Request) -> Verdict:
        """The limiter's verdict, or the failure policy's when the limiter fails. Never late, never an error.

        A subject that is not allowed (too long, unprintable, not an address) is as good as missing: the scenario says
        whether that is refused. So is a route that is no text. Nothing that a client can send is a failure of the
        limiter, or clients could choose what the failure policy says.
        """
        try:
            async with asyncio.timeout(self._scenario(request).deadline_ms / 1000 + PATIENCE_S):
                decider = await self._open_soon()
                try:
                    return await decider.decide(request)
                except BadEvent:
                    return await decider.decide(self._without_bad_texts(request))
        except Exception as error:  # noqa: BLE001 - whatever it is, the application goes on
            return self.fail(request, error)

    def fail(self, request: Request, error: Exception) -> Verdict:
        """What the failure policy says to a request about which nobody could be asked."""
        self.failures += 1
        self._complaints.say("the limiter failed, the failure policy answers", error)
        if self._failures is None:
            return Verdict(action="allow", reason="fail_open")
        try:
            verdict = self._failures.verdict(request, 0)
        except BadEvent:  # of a local limiter, about the application's own words
            return Verdict(action="allow", reason="fail_open")
        publisher = self._publisher()
        if publisher is not None and request.subjects:
            for decision in verdict.decisions:
                publisher.offer(decision)
        return verdict

    async def refund(self, idempotency_key: object) -> bool:
        """Gives back what a request took; False when there is nothing to give back, or nobody to ask.

        Args:
            idempotency_key: of the request, a text or a number.
        """
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await (await self._open_soon()).refund(str(idempotency_key))
        except Exception as error:  # noqa: BLE001 - as above
            self._complaints.say("nothing was given back", error)
            return False

    def run_soon(self, errand: Coroutine[Any, Any, object], loop: asyncio.AbstractEventLoop) -> None:
        """Runs something beside the request in that loop; callable from any thread."""
        try:
            loop.call_soon_threadsafe(self._start, errand)
        except RuntimeError as error:  # the loop has ended
            errand.close()
            self._complaints.say("an errand is dropped", error)

    def tell(self, label: Label, request: Request, ref: str = "") -> bool:
        """Publishes what became of a request's subjects; False when the limiter publishes nothing.

        Raises:
            ConfigurationError: no such label.
        """
        if label not in get_args(Label):
            raise ConfigurationError(f"outcome: got {label!r}, wanted one of {', '.join(get_args(Label))}")
        publisher = self._publisher()
        if publisher is None or not request.subjects:
            return False
        at_ms = now_ms()
        publisher.offer(
            Outcome(v=1, id=ulid(at_ms), ts=at_ms, label=label, subjects=request.subjects, ref=ref or request.id)
        )
        return True

    def _without_bad_texts(self, request: Request) -> Request:
        def good(dimension: str, value: str) -> bool:
            try:
                self._canonicaliser.subject(dimension, value)
            except BadEvent:
                return False
            return True

        subjects = {dimension: value for dimension, value in request.subjects.items() if good(dimension, value)}
        route = request.route.encode("utf-8", "replace").decode()
        return msgspec.structs.replace(request, subjects=subjects, route=route)

    def _publisher(self) -> Offering | None:
        """Of the limiter, or of what opened it; None when nothing is published."""
        found: Offering | None = getattr(self._decider, "publisher", None) or getattr(self._limiter, "publisher", None)
        return found

    def _scenario(self, request: Request) -> Scenario:
        return Scenario() if self._policy is None else self._policy.scenario(request.scenario)

    def _start(self, errand: Coroutine[Any, Any, object]) -> None:
        task = asyncio.get_running_loop().create_task(errand)
        self._errands.add(task)
        task.add_done_callback(self._errands.discard)


class Complaints:
    """Says what went wrong, at most once a minute; the next line tells how many were left out."""

    def __init__(self, quiet_s: float = 60.0) -> None:
        self._quiet_s = quiet_s
        self._said_at = -quiet_s
        self._unsaid = 0

    def say(self, what: str, error: Exception) -> None:
        """Logs the error, or counts it."""
        now = time.monotonic()
        if now - self._said_at < self._quiet_s:
            self._unsaid += 1
            return
        unsaid, self._unsaid, self._said_at = self._unsaid, 0, now
        _log.error("%s: %s: %s (%d such since the last line)", what, type(error).__name__, error, unsaid)


def _source() -> str:
    return f"limiter/{socket.gethostname()}"
