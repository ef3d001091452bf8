"""The limiter for code without an event loop: it runs on the process's own loop, and the caller waits."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from penaltybox.producers.loop_thread import PROCESS_LOOP
from penaltybox.producers.web.access import PATIENCE_S
from penaltybox.producers.web.admission import BlockingAdmission

if TYPE_CHECKING:
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import Verdict
    from penaltybox.producers.web.access import Access

_LONGEST_S = 10 + 2 * PATIENCE_S
"""The longest deadline of a scenario, and some more: only a loop that does not run at all is waited for that long."""


class Blocking:
    """`Access` for threads; a forked process opens its own limiter."""

    def __init__(self, access: Access) -> None:
        self.access = access

    def decide(self, request: Request) -> Verdict:
        """See `Access.decide`."""
        try:
            return PROCESS_LOOP.run(self.access.decide(request), _LONGEST_S)
        except (TimeoutError, concurrent.futures.CancelledError, RuntimeError) as error:
            return self.access.fail(request, error)

    def admit(self, request: Request) -> BlockingAdmission:
        """The decided request, as the application sees it."""
        return BlockingAdmission(request, self.decide(request), self.access, PROCESS_LOOP.loop())

    def refund(self, idempotency_key: str) -> bool:
        """See `Access.refund`."""
        try:
            return PROCESS_LOOP.run(self.access.refund(idempotency_key), _LONGEST_S)
        except (TimeoutError, concurrent.futures.CancelledError, RuntimeError):
            return False

    def close(self) -> None:
        """Closes the limiter, if this process has opened it."""
        if PROCESS_LOOP.running:
            PROCESS_LOOP.run(self.access.close(), _LONGEST_S)
