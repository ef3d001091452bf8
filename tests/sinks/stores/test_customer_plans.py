"""One customer's plan, on every kind of Redis."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penaltybox.sinks.customer_plans import CustomerPlan, CustomerPlans

if TYPE_CHECKING:
    from tests.sinks.stores.conftest import RedisRig


async def test_a_plan_is_set_changed_and_cleared(redis_rig: RedisRig) -> None:
    """What is read is what was written last; an empty plan leaves no key; each change is announced."""
    plans = CustomerPlans(redis_rig.store().link, redis_rig.prefix)
    await redis_rig.announced()
    assert await plans.read("user:u1") == CustomerPlan()
    pro = CustomerPlan("pro", {"coupon_claim/user:daily": 50})
    assert await plans.change("user:u1", lambda _: pro) == pro
    assert await plans.read("user:u1") == pro
    assert await redis_rig.get("user:u1", "plan") == b'{"plan":"pro","limits":{"coupon_claim/user:daily":50}}'
    assert await plans.read("user:u2") == CustomerPlan()
    await plans.change("user:u1", lambda _: CustomerPlan())
    assert await redis_rig.get("user:u1", "plan") is None
    assert await redis_rig.announced() == ["user:u1", "user:u1"]


async def test_two_operators_at_once(redis_rig: RedisRig) -> None:
    """Of many changes at the same time none is undone by another."""
    plans = CustomerPlans(redis_rig.store().link, redis_rig.prefix)

    async def add(number: int) -> None:
        await plans.change("user:u1", lambda old: CustomerPlan("", {**old.limits, f"s/user:l{number}": number + 1}))

    await asyncio.gather(*(add(number) for number in range(8)))
    assert len((await plans.read("user:u1")).limits) == 8


async def test_a_value_that_cannot_be_read(redis_rig: RedisRig) -> None:
    """Garbage counts as no plan and can be replaced."""
    plans = CustomerPlans(redis_rig.store().link, redis_rig.prefix)
    await redis_rig.call("SET", redis_rig.key("user:u1", "plan"), b"{")
    assert await plans.read("user:u1") == CustomerPlan()
    await plans.change("user:u1", lambda _: CustomerPlan("pro"))
    assert await plans.read("user:u1") == CustomerPlan("pro")
