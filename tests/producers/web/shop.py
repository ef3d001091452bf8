"""A small shop for the tests of the ways in: its policy, and limiters that fail on request."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.memory import MemoryLimiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import Verdict

POLICY = parse_policy("""
limits:
  web:    {ip: [{name: soft, limit: 1000, window: 1m}]}
  claim:  {user: [{name: daily, limit: 2, window: 1d}]}
  login:  {ip: [{name: burst, limit: 1, window: 10m, answer: challenge}]}
  review: {user: [{name: daily, limit: 1, window: 1d, answer: shadow}]}
  report: {user: [{name: hourly, limit: 100, window: 1h}]}
  orders: {user: [{name: daily, limit: 1, window: 1d}]}
  strict: {user: [{name: daily, limit: 5, window: 1d}]}
  closed: {user: [{name: daily, limit: 5, window: 1d}]}
scenarios:
  web:    {routes: [/]}
  claim:  {routes: [POST /coupons], messages: {deny: {en: "Come back tomorrow.", de: "Bis morgen."}}}
  login:  {routes: [POST /login]}
  review: {routes: [POST /reviews]}
  orders: {routes: [POST /orders]}
  strict: {routes: [/strict], missing: {user: refuse}}
  closed: {routes: [/closed], failure: closed}
""")
USER = "x-test-user"


class Publisher(list[Any]):
    """Keeps what it is offered."""

    offer = list.append


class RefundingLimiter(MemoryLimiter):
    """Counts in memory, and remembers what it was asked and which keys were refunded."""

    def __init__(self, **given: Any) -> None:
        super().__init__(POLICY, publisher=Publisher(), **given)
        self.asked: list[Request] = []
        self.refunded: list[str] = []
        self.opened = 0
        self.closed = 0

    @property
    def published(self) -> list[Any]:
        assert isinstance(self.publisher, Publisher)
        return self.publisher

    async def decide(self, request: Request) -> Verdict:
        self.asked.append(request)
        return await super().decide(request)

    async def refund(self, idempotency_key: str) -> bool:
        self.refunded.append(idempotency_key)
        return self.refunded.count(idempotency_key) == 1

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[RefundingLimiter]:
        """As a limiter with connections is opened and closed."""
        self.opened += 1
        try:
            yield self
        finally:
            self.closed += 1


class BrokenLimiter:
    """Fails whatever it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    async def decide(self, request: Request) -> Verdict:
        self.calls += 1
        raise ZeroDivisionError(request.id)

    async def refund(self, idempotency_key: str) -> bool:
        raise ZeroDivisionError(idempotency_key)
