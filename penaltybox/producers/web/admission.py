"""What the application sees of a decision about a request, and what it can say back: give back, what became of it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from penaltybox.contracts.events import Label
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import Verdict
    from penaltybox.producers.web.access import Access


class Admission:
    """One decided request, in a program with an event loop.

    Attributes:
        request: what the limiter was asked.
        verdict: what it answered.
    """

    __slots__ = ("_access", "_loop", "request", "verdict")

    def __init__(self, request: Request, verdict: Verdict, access: Access, loop: asyncio.AbstractEventLoop) -> None:
        self.request = request
        self.verdict = verdict
        self._access = access
        self._loop = loop

    @property
    def allowed(self) -> bool:
        """Whether the request is within its limits."""
        return self.verdict.allowed

    @property
    def charged(self) -> bool:
        """Whether this very request took quota."""
        return charged(self.verdict)

    @property
    def withheld(self) -> bool:
        """Pretend success and withhold the benefit: the answer is `shadow`."""
        return self.verdict.action == "shadow"

    async def refund(self) -> bool:
        """Gives back what the request took, once; False when it took nothing or has got it back already.

        Of all requests of one idempotency key, each of which is charged, one is given back.

        Raises:
            ConfigurationError: the middleware was not told that requests may be refunded.
        """
        key = self._key()
        return self.charged and await self._access.refund(key)

    def refund_soon(self) -> None:
        """`refund` without waiting for it, from any thread; raises as it does."""
        key = self._key()
        if self.charged:
            self._access.run_soon(self._access.refund(key), self._loop)

    def of(self, request: Request, verdict: Verdict) -> Self:
        """Another decision about the same HTTP request, e.g. by a limit within a view."""
        return type(self)(request, verdict, self._access, self._loop)

    def outcome(self, label: Label, ref: str = "") -> bool:
        """Publishes what became of the request's subjects, e.g. ``challenge_passed``; from any thread, at once.

        Args:
            label: one of `Label`.
            ref: the order or decision it is about; the request's id if absent.

        Returns:
            False when nothing is published because the limiter has no publisher.
        """
        return self._access.tell(label, self.request, ref)

    def _key(self) -> str:
        if not self.request.idempotency_key:
            raise ConfigurationError(
                "refund: the request has no key to refund by; give the middleware refunds=True, refund_on_status or "
                "idempotency_key"
            )
        return self.request.idempotency_key


class BlockingAdmission(Admission):
    """The same in a program without an event loop: `refund` waits for its answer."""

    __slots__ = ()

    def refund(self) -> bool:  # type: ignore[override] # the same word for the other kind of program
        """See `Admission.refund`; blocks for the round trip."""
        key = self._key()
        return self.charged and asyncio.run_coroutine_threadsafe(self._access.refund(key), self._loop).result()


def charged(verdict: Verdict) -> bool:
    """Whether a request took quota. If it did not, its key may be another's, whose quota is not to be given back."""
    return verdict.allowed and verdict.reason is None and all(one.cost > 0 for one in verdict.decisions[:1])
