"""The limiter for code without an event loop: it runs on the process's own loop, and the caller waits."""

from __future__ import annotations

import atexit
import concurrent.futures
import contextlib
from typing import TYPE_CHECKING

from penaltybox.producers.loop_thread import PROCESS_LOOP
from penaltybox.producers.web.access import PATIENCE_S
from penaltybox.producers.web.admission import BlockingAdmission

if TYPE_CHECKING:
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import Verdict
    from penaltybox.producers.web.access import Access

_FAREWELL_S = 2.0
_LONGEST_S = 10 + 2 * PATIENCE_S
"""The longest deadline of a scenario, and some more: only a loop that does not run at all is waited for that long."""


class Blocking:
    """`Access` for threads; a forked process opens its own limiter."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def decide(self, request: Request) -> Verdict:
        """See `Access.decide`."""
        if not self.access.closes_at_exit:
            self._close_at_exit()
        try:
            return PROCESS_LOOP.run(self.access.decide(request), _LONGEST_S)
        except (TimeoutError, concurrent.futures.CancelledError, RuntimeError) as error:
            return self.access.fail(request, error)

    def admit(self, request: Request) -> BlockingAdmission:
        """The decided request, as the application sees it."""
        return BlockingAdmission(request, self.decide(request), self.access, PROCESS_LOOP.loop())

    def refund(self, idempotency_key: object) -> bool:
        """See `Access.refund`."""
        try:
            return PROCESS_LOOP.run(self.access.refund(idempotency_key), _LONGEST_S)
        except (TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            return False

    def close(self) -> None:
        """Closes the limiter, if this process has opened it; done at exit by itself."""
        if PROCESS_LOOP.running:
            PROCESS_LOOP.run(self.access.close(), _LONGEST_S)

    def _close_at_exit(self) -> None:
        """Before the loop ends and takes its publisher along: what the limiter still has to tell is told."""
        self.access.closes_at_exit = True
        PROCESS_LOOP.loop()
        atexit.register(self._leave)  # after the loop's own, so it is called before that

    def _leave(self) -> None:
        with contextlib.suppress(Exception):
            if PROCESS_LOOP.running:
                PROCESS_LOOP.run(self.access.close(), _FAREWELL_S)
