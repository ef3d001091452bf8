"""The limiter of one process answers with whole verdicts."""

from __future__ import annotations

from typing import Any

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.limiter import Request
from penaltybox.producers.memory import MemoryLimiter

POLICY = parse_policy("""
limits:
  claim:
    user: [{name: daily, limit: 2, window: 1d}]
    device: [{name: burst, limit: 3, window: 10s, algorithm: token_bucket}]
scenarios:
  claim: {missing: {user: refuse}}
""")


class Published(list[Any]):
    """Keeps what it is offered."""

    offer = list.append


def request(number: int, **changed: Any) -> Request:
    given = {"id": f"r{number}", "ts_ms": 1_000, "scenario": "claim", "subjects": {"user": "u", "device": "d"}}
    return Request(**(given | changed))


async def test_a_verdict_tells_every_limit() -> None:
    """Each limit tells its quota and what is left, and a refusal which one is violated and how long to wait."""
    published = Published()
    limiter = MemoryLimiter(POLICY, publisher=published)
    first, _, third = [await limiter.decide(request(n)) for n in range(3)]
    assert [(one.name, one.limit, one.remaining) for one in first.limits] == [
        ("user:daily", 2, 1),
        ("device:burst", 3, 2),
    ]
    assert first.allowed
    assert (third.action, third.reason, third.violated) == ("deny", "over_limit", ("user:daily",))
    assert third.retry_after_ms == 86_400_000
    assert [decision.action for decision in published] == ["allow", "allow", "deny"]


async def test_a_missing_dimension_is_refused_where_the_policy_says_so() -> None:
    """Without the user the request is refused; without the device its limit is skipped; nothing names nobody."""
    published = Published()
    limiter = MemoryLimiter(POLICY, publisher=published)
    refused = await limiter.decide(request(1, subjects={}))
    assert (refused.action, refused.missing) == ("deny", "user")
    assert published == []
    skipped = await limiter.decide(request(2, subjects={"user": "u"}))
    assert [one.name for one in skipped.limits] == ["user:daily"]


async def test_its_clock_can_be_set() -> None:
    """With a clock of its own, quota comes back when that clock says so."""
    now = [1_000]
    limiter = MemoryLimiter(POLICY, clock=lambda: now[0])
    answers = [(await limiter.decide(request(n))).action for n in range(3)]
    now[0] += 86_400_000
    answers.append((await limiter.decide(request(3))).action)
    assert answers == ["allow", "allow", "deny", "allow"]


async def test_what_a_request_took_is_given_back_once() -> None:
    """A refund makes room for one more request and a second one does not; a key that comes again is charged again."""
    limiter = MemoryLimiter(POLICY, clock=lambda: 1_000)
    answers = [(await limiter.decide(request(n, idempotency_key=key))).action for n, key in enumerate("aab")]
    assert answers == ["allow", "allow", "deny"]
    assert [await limiter.refund(key) for key in "bbaa"] == [False, False, True, False]
    again = [await limiter.decide(request(n)) for n in (5, 6)]
    assert [one.action for one in again] == ["allow", "deny"]
    assert [one.remaining for one in again[0].limits] == [0, 1]
