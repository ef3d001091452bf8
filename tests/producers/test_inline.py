"""The inline limiter on every kind of server: what is taken, what is told, what a refused request leaves untouched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.producers.limiters import KINDS, Rig, policy, request, rig_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(params=[kind for kind in KINDS if kind != "cluster"])
async def rig(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> AsyncIterator[Rig]:
    async with rig_on(redis_by_kind[request.param]) as rig:
        yield rig


async def test_a_refused_request_takes_from_no_limit(rig: Rig) -> None:
    """Twenty refusals by the user's limit leave the quotas of device and address where they were."""
    rules = policy("""
    user: [{name: burst, limit: 1, window: 1h}]
    device: [{name: burst, limit: 3, window: 1h}]
    ip: [{name: soft, limit: 3, window: 1h}]
    """)
    async with rig.open(rules) as limiter:
        answers = [(await limiter.decide(request())).action for _ in range(21)]
        assert answers == ["allow"] + ["deny"] * 20
        verdict = await limiter.decide(request(subjects={"ip": "192.0.2.1", "device": "d"}))
    assert {state.name: state.remaining for state in verdict.limits} == {"device:burst": 1, "ip:soft": 1}
    assert [one.action for one in rig.published] == [*answers, "allow"]
