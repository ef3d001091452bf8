"""A program's way to its limiter."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.producers.limiter import Request
from penaltybox.producers.web.access import PATIENCE_S, Access
from penaltybox.producers.web.decorator import Refused, limited
from penaltybox.producers.web.opening import Inline
from tests.producers.limiters import KINDS, url_of
from tests.producers.web.shop import POLICY, RefundingLimiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def request(number: int, **changed: Any) -> Request:
    return Request(**({"id": f"r{number}", "ts_ms": 1, "scenario": "closed", "subjects": {"user": "ann"}} | changed))


async def test_only_the_first_requests_wait_for_an_opening_that_hangs() -> None:
    """Those of the first second wait that long, together; all later ones are answered at once, until it is open."""
    answering = asyncio.Event()

    @asynccontextmanager
    async def opening() -> AsyncIterator[RefundingLimiter]:
        await answering.wait()
        yield RefundingLimiter()

    access = Access(opening, POLICY)
    clock = asyncio.get_running_loop().time
    begun = clock()
    first = await asyncio.gather(*(access.decide(request(number)) for number in range(5)))
    assert [one.reason for one in first] == ["fail_closed"] * 5
    assert clock() - begun >= PATIENCE_S / 2
    async with asyncio.timeout(5 * PATIENCE_S):  # a hundred that wait one after the other take twenty times as long
        later = [await access.decide(request(number)) for number in range(5, 105)]
        assert not await access.refund("a key")
    assert {one.reason for one in later} == {"fail_closed"}
    answering.set()
    await access.open()
    assert (await access.decide(request(106))).allowed
    await access.close()


def test_what_is_granted_while_it_opens_is_the_settings_share() -> None:
    """With `failure: local`, a process that starts without Redis grants what `local_percent` says, not half."""
    policy = parse_policy("limits: {s: {user: [{name: d, limit: 10, window: 1d}]}}\nscenarios: {s: {failure: local}}")
    for percent, granted in ((10, 1), (100, 10)):
        access = Access(Inline(Settings(local_percent=percent), policy, publish=False), policy)
        verdicts = [access.fail(request(number, scenario="s"), TimeoutError()) for number in range(20)]
        assert sum(one.allowed for one in verdicts) == granted


async def test_nothing_that_a_client_sends_is_a_failure_of_the_limiter(redis_by_kind: dict[str, Any]) -> None:
    """Keys, routes and subjects that are no text are counted as usual: else a client chooses what `failure` says."""
    settings = Settings(redis_url=url_of(redis_by_kind[KINDS[0]]), redis_prefix="hostile")
    policy = parse_policy("""
limits: {s: {user: [{name: d, limit: 2, window: 1d}], user+route: [{name: r, limit: 9, window: 1d}]}}
scenarios: {s: {deadline: 5s}}
""")
    access = Access(Inline(settings, policy, publish=False), policy)
    hostile = ({"idempotency_key": "\ud800"}, {"route": "\udfff"}, {"attrs": {"a": "\ud800"}})
    for number, changed in enumerate(hostile):
        one = {"scenario": "s", "subjects": {"user": f"hostile-{number}", "device": "\ud800"}} | changed
        verdicts = [await access.decide(request(3 * number + again, **one)) for again in range(3)]
        assert [verdict.reason for verdict in verdicts] == [None, None, "over_limit"]
    assert access.failures == 0
    await access.close()


async def test_an_orders_number_is_a_key(redis_by_kind: dict[str, Any]) -> None:
    """Numbers are keys like their texts, in the decorator and for `refund`; None and an empty text are no key."""
    settings = Settings(redis_url=url_of(redis_by_kind[KINDS[0]]), redis_prefix="orders")
    policy = parse_policy("limits: {s: {user: [{name: d, limit: 2, window: 1d}]}}\nscenarios: {s: {deadline: 5s}}")
    access = Access(Inline(settings, policy, publish=False), policy)

    @limited(access, scenario="s", subjects=lambda _: {"user": 1}, idempotency_key=lambda order: order)
    async def pay(order: object) -> object:
        return order

    assert [await pay(17), await pay(None)] == [17, None]
    with pytest.raises(Refused):
        await pay("")
    assert [await access.refund(17), await access.refund("17"), await pay(0)] == [True, False, 0]
    assert access.failures == 0
    await access.close()
