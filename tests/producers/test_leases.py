"""Leases of quota: much fewer questions, nothing forgotten, and never more let through than the stated bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.cached import CachedDecider
from penaltybox.producers.leases import SHARE
from tests.producers.deciders import Blocking, Hears, Published, Time, request

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy

WINDOW_MS = 4_000


def policy(limit: int, treatment: str = "allow_cache: 1s") -> Policy:
    return parse_policy(f"""
    limits:
      s:
        user: [{{name: burst, limit: {limit}, window: 4s}}]
        ip: [{{name: soft, limit: {3 * limit}, window: 4s}}]
    scenarios: {{s: {{{treatment}}}}}
    """)


class World:
    """Some processes with caches of their own before one Redis, on one clock."""

    def __init__(self, processes: int, rules: Policy) -> None:
        self.time = Time()
        self.inner = Blocking(rules)
        self.published = Published()
        self.processes = [
            CachedDecider(
                self.inner, rules, source=f"edge/{n}", publisher=self.published, hearing=Hears(self.time),
                clock=self.time,
            )
            for n in range(processes)
        ]  # fmt: skip
        self.admitted: list[tuple[int, str, int]] = []
        self.number = 0

    async def ask(self, process: int, cost: int = 1, user: str = "u", **changed: Any) -> Any:
        self.number += 1
        subjects = {"user": user, "ip": "192.0.2.1"}
        asked = request(self.number, self.time.wall, cost=cost, subjects=subjects, **changed)
        verdict = await self.processes[process].decide(asked)
        if verdict.allowed:
            self.admitted.append((self.time.ms, user, cost))
        return verdict

    async def pass_ms(self, duration_ms: int) -> None:
        self.time.ms += duration_ms
        for process in self.processes:
            await process._catch_up()

    async def close(self) -> None:
        for process in self.processes:
            await process.close()

    def most(self, user: str | None = None) -> int:
        """The largest cost admitted in any window."""
        mine = [(at, cost) for at, name, cost in self.admitted if user in (None, name)]
        return max(
            (sum(cost for at, cost in mine if start <= at < start + WINDOW_MS) for start, _ in mine), default=0
        )  # fmt: skip


STEPS = st.lists(
    st.tuples(
        st.integers(0, 3), st.sampled_from(["u", "v", "w"]), st.sampled_from([1, 3, 20, 60]), st.integers(0, 3),
        st.sampled_from([0, 0, 0, 1, 100, 250, 700, 1_000, 3_999]),
    ),
    max_size=15,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 4), st.sampled_from([20, 50, 100]), STEPS)
async def test_no_window_admits_more_than_the_bound(processes: int, limit: int, steps: Any) -> None:
    """Any traffic over up to four processes, costs 0 to 3: per window at most limit x (1 + processes/10)."""
    world = World(processes, policy(limit))
    for process, user, repeats, cost, pause_ms in steps:
        for _ in range(repeats):
            await world.ask(process % processes, cost, user)
        if pause_ms:
            await world.pass_ms(pause_ms)
    for user in "uvw":
        assert world.most(user) <= limit + processes * (limit // SHARE)
    assert world.most() <= 3 * limit + processes * (3 * limit // SHARE)
    await world.close()


async def test_the_bound_without_leases_is_the_limit() -> None:
    """The test above measures what it says: without leases the exact log admits the limit and no more."""
    world = World(4, policy(50, ""))
    for number in range(300):
        await world.ask(number % 4)
    assert world.most("u") == 50


async def test_a_lease_saves_most_questions_and_forgets_nothing() -> None:
    """300 requests of 1,000 cost a few questions and are all counted; each is published with what is left."""
    world = World(1, policy(1_000))
    told = [(await world.ask(0)).limits[0].remaining for _ in range(300)]
    assert told == [999 - n for n in range(300)]
    await world.pass_ms(1_000)
    assert world.inner.calls <= 8
    left = (await world.inner.decide(request(9_999, world.time.wall, cost=0, subjects={"user": "u"}))).limits[0]
    assert left.remaining == 700
    assert len(world.published) == 300
    assert len({one.id for one in world.published}) == 300
    assert {one.cost for one in world.published} == {1}
    assert [one.cached for one in world.published].count(True) >= 292


async def test_what_cannot_be_counted_stays_owed() -> None:
    """Another process uses the quota up: what a lease let through is counted as soon as it fits, not forgotten."""
    world = World(2, policy(100))
    for _ in range(10):
        await world.ask(0)  # one counted, nine on the lease
    while (await world.ask(1)).allowed:
        pass
    await world.pass_ms(1_000)
    assert len(world.processes[0]._leases) == 1
    assert not (await world.ask(0)).allowed
    await world.pass_ms(WINDOW_MS)
    assert len(world.processes[0]._leases) == 0
    left = (await world.inner.decide(request(9_999, world.time.wall, cost=0, subjects={"user": "u"}))).limits[0]
    assert left.remaining == 100 - 9


async def test_close_counts_what_is_owed() -> None:
    """A process that ends in order owes nothing."""
    world = World(1, policy(1_000))
    for _ in range(50):
        await world.ask(0)
    await world.close()
    left = (await world.inner.decide(request(9_999, world.time.wall, cost=0, subjects={"user": "u"}))).limits[0]
    assert left.remaining == 950


async def test_who_has_little_left_is_always_asked_about() -> None:
    """Below half of the quota there is no lease, nor for a request that may be given back."""
    world = World(1, policy(100))
    for _ in range(30):
        await world.ask(0, 2)
    await world.pass_ms(1_000)
    asked = world.inner.calls
    for _ in range(10):
        await world.ask(0)
    assert world.inner.calls == asked + 10
    other = World(1, policy(1_000))
    for number in range(10):
        await other.ask(0, idempotency_key=f"k{number}")
    assert other.inner.calls == 10


async def test_a_block_or_another_policy_ends_a_lease() -> None:
    """A message about a subject of the lease has Redis asked at the next request, and so has a new policy."""
    world = World(1, policy(1_000))
    for _ in range(5):
        await world.ask(0)
    world.inner.blocks["user:u"] = ("deny", None)
    assert (await world.ask(0)).allowed
    world.processes[0].changed("user:u")
    assert (await world.ask(0)).action == "deny"
    for user in ("v", "v"):
        await world.ask(0, user=user)
    asked = world.inner.calls
    world.processes[0].replace_policy(policy(500))
    await world.ask(0, user="v")
    assert world.inner.calls == asked + 1
    await world.close()


async def test_what_redis_did_not_count_leases_nothing() -> None:
    """An answer given because Redis is away, or under which a dry run would refuse, is no reason to ask less."""

    class Away(Blocking):
        async def decide(self, asked: Any) -> Any:
            return msgspec.structs.replace(await super().decide(asked), reason="fail_open")

    world = World(1, policy(1_000))
    world.processes[0].inner = away = Away(policy(1_000))
    for _ in range(5):
        await world.ask(0)
    assert away.calls == 5
    tried = parse_policy("""
    limits: {s: {user: [{name: a, limit: 1000, window: 4s}, {name: b, limit: 1, window: 4s, dry_run: true}]}}
    scenarios: {s: {allow_cache: 1s}}
    """)
    trial = World(1, tried)
    for _ in range(5):
        await trial.ask(0)
    assert trial.inner.calls == 5
