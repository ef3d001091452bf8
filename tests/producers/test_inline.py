"""The inline limiter on every kind of server: what is taken, what is told, what a refused request leaves untouched."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.policy import Limit
from penaltybox.producers.inline import InlineLimiter
from penaltybox.producers.limiter import Limiter
from tests.producers.limiters import KINDS, PATIENT, Rig, at, policy, request, rig_on

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.verdict import LimitState, Verdict

ALGORITHMS = ["fixed_window", "sliding_window", "sliding_window_counter", "token_bucket", "leaky_bucket", "gcra"]
START = 1_766_400_000_000


@pytest.fixture(params=KINDS)
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


def anything(rng: random.Random, algorithms: Sequence[str]) -> Policy:
    """Limits of these algorithms on user, device, address and a combination, small enough to be hit all the time."""
    limits: dict[str, tuple[Limit, ...]] = {}
    for on in ("user", "device", "ip", "device+route"):
        found = []
        for name in ("a", "b")[: rng.randint(0, 2)]:
            algorithm: Any = rng.choice(algorithms)
            bucket = algorithm in {"token_bucket", "leaky_bucket", "gcra"}
            found.append(
                Limit(
                    name=name, limit=rng.randint(1, 6), window_ms=rng.choice([1_000, 10_000, 60_000]),
                    algorithm=algorithm, burst=rng.choice([None, 2, 5]) if bucket else None,
                    slots=rng.choice([2, 10]) if algorithm == "sliding_window_counter" else 60,
                    answer=rng.choice(["deny", "challenge", "shadow"]), dry_run=rng.random() < 0.2,
                )
            )  # fmt: skip
        if found:
            limits[on] = tuple(found)
    return msgspec.structs.replace(policy("user: [{name: a, limit: 1, window: 1s}]"), limits={"s": limits})


def told(rig: Rig, verdict: Verdict) -> list[LimitState]:
    """Its limits. What was taken and given back in a cluster may still show in how long a reset is said to take."""
    return [state._replace(reset_ms=0) if rig.clustered else state for state in verdict.limits]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("algorithms", [ALGORITHMS, ["sliding_window"]], ids=["any", "logs"])
async def test_it_decides_what_the_limiter_in_memory_decides(rig: Rig, algorithms: list[str], seed: int) -> None:
    """Any limits, any requests, virtual time: each verdict, and how each limit stands, is that of the memory's.

    Logs alone are decided at once where they fit (lua/at_once.lua).
    """
    rng = random.Random(seed)
    for _ in range(4):
        rules = anything(rng, algorithms)
        async with InlineLimiter.open(rig.fresh(), rules, source="test/1") as limiter:
            reference = Limiter(rules.limits, source="test/1")
            now_ms = START
            for number in range(60):
                now_ms += rng.choice([0, 1, 50, 900, 5_000, 30_000])
                at(limiter, now_ms)
                asked = request(
                    number,
                    ts_ms=now_ms,
                    subjects={"user": rng.choice("uv"), "device": rng.choice("de"), "ip": "192.0.2.1"},
                    route=rng.choice(["GET /a", "POST /b"]),
                    cost=rng.choice([1, 1, 1, 0, 2, 7]),
                )
                wanted, got = reference.judge(asked), await limiter.decide(asked)
                assert limiter.counts.last_error == ""
                stamped = tuple(msgspec.structs.replace(one, established=False) for one in wanted.decisions)
                assert got.decisions == stamped, (number, got.limits, wanted.limits)
                assert told(rig, got) == told(rig, wanted)
                assert (got.action, got.violated) == (wanted.action, wanted.violated)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_a_violated_dry_run_leaves_the_other_limits_as_they_are(rig: Rig, algorithm: str) -> None:
    """Limits before and behind one that is tried only, and violated, are taken from all the same, to the last."""
    more = f"window: 1h, algorithm: {algorithm}"
    rules = policy(f"""
    user: [{{name: a, limit: 4, {more}}}]
    device: [{{name: tried, limit: 1, dry_run: true, {more}}}]
    ip: [{{name: b, limit: 3, {more}}}, {{name: c, limit: 9, {more}}}]
    """)
    async with rig.open(rules) as limiter:
        verdicts = [await limiter.decide(request()) for _ in range(5)]
    assert [one.action for one in verdicts] == ["allow"] * 3 + ["deny"] * 2
    assert [state.remaining for state in verdicts[2].limits] == [1, 0, 0, 6]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in {"cluster", "sentinel"}])
async def test_a_decision_is_one_round_trip(redis_by_kind: dict[str, Any], kind: str) -> None:
    """With blocks, trust, plan, a record and six limits: the server reads once from its socket for each decision."""
    server = redis_by_kind[kind]
    limits = "\n    ".join(
        f"{on}: [{{name: a, limit: 50, window: 1h}}, {{name: b, limit: 50, window: 1d, algorithm: gcra}}]"
        for on in ("user", "device", "ip")
    )

    def reads() -> int:
        return int(server.call("INFO", "stats").split(b"total_reads_processed:")[1].split()[0])

    async with rig_on(server) as rig, rig.open(policy(limits)) as limiter:
        await rig.put("user:u", "trust", {"multiplier": 2, "established": True})
        await rig.put("user:u", "plan", {"limits": {"s/user:a": 70}})
        await limiter.decide(request())
        before, again = reads(), reads()
        for number in range(40):
            assert (await limiter.decide(request(idempotency_key=f"k{number}"))).allowed
        assert reads() - again == 40 + (again - before)


async def test_a_text_that_is_none_is_refused(rig: Rig) -> None:
    """Half a surrogate pair cannot be sent or stored: a bad event, and no failure of Redis. In a key it is a key."""
    rules = policy("user: [{name: a, limit: 3, window: 1h}]\n    user+route: [{name: a, limit: 3, window: 1h}]")
    async with rig.open(rules) as limiter:
        for broken in (request(id="\ud800"), request(route="\ud800")):
            with pytest.raises(BadEvent):
                await limiter.decide(broken)
        assert not limiter.breaker.openings
        keys = ["\ud800", "\udc00", "\x00{}:", "k" * 100_000]
        verdicts = [await limiter.decide(request(idempotency_key=key)) for key in keys]
        assert [verdict.allowed for verdict in verdicts] == [True, True, True, False]
        assert [await limiter.refund(key) for key in keys * 2] == [True, True, True, *[False] * 5]
        assert (await limiter.decide(request())).limits[0].remaining == 2


async def test_a_log_holds_exactly_what_was_allowed(rig: Rig) -> None:
    """Request N+1 is refused, and Redis holds N entries, which end with their window or an eighth of it later."""
    async with rig.open(policy("user: [{name: daily, limit: 5, window: 1d}]")) as limiter:
        verdicts = [await limiter.decide(request()) for _ in range(6)]
    assert [verdict.action for verdict in verdicts] == ["allow"] * 5 + ["deny"]
    assert verdicts[-1].retry_after_ms is not None
    assert 86_000_000 < verdicts[-1].retry_after_ms <= 86_400_000
    key = f"{rig.keyspace.stem('user:u')}:l:s:daily"
    assert await rig.call("LLEN", key) == 5
    assert 86_000_000 < await rig.call("PTTL", key) <= 97_201_000


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_two_hundred_clients_at_once_get_exactly_the_quota(rig: Rig, algorithm: str) -> None:
    """200 clients ask at the same moment over four limiters; 50 get through, whatever the algorithm."""
    rules = policy(f"""
    user: [{{name: hour, limit: 50, window: 10h, algorithm: {algorithm}}}]
    ip: [{{name: hour, limit: 1000, window: 10h, algorithm: {algorithm}}}]
    """)
    limiters = [rig.open(rules) for _ in range(4)]
    try:
        verdicts = await asyncio.gather(*(limiters[n % 4].decide(request()) for n in range(200)))
        assert [verdict.reason for verdict in verdicts].count(None) == 50
        assert [verdict.action for verdict in verdicts].count("deny") == 150
        last = await limiters[0].decide(request(subjects={"ip": "192.0.2.1"}))
    finally:
        for limiter in limiters:
            await limiter.close()
    assert last.limits[0].remaining == 949, "the refused took from the address"


async def test_a_block_denies_and_nothing_is_counted(rig: Rig) -> None:
    """A block of any subject denies; the longest answers; what is left of every quota stays."""
    rules = policy("user: [{name: a, limit: 2, window: 1h}]\n    ip: [{name: a, limit: 2, window: 1h}]")
    async with rig.open(rules) as limiter:
        now_ms = await rig.now()
        await rig.put("device:d", "block", {"until": now_ms + 30_000})
        await rig.put("ip:192.0.2.1", "block", {"until": now_ms + 50_000})
        await rig.put("user:u", "challenge", {"until": now_ms + 90_000})
        verdict = await limiter.decide(request())
        assert (verdict.action, verdict.reason, verdict.listed) == ("deny", "blocklist", "ip:192.0.2.1")
        assert verdict.retry_after_ms is not None
        assert 45_000 < verdict.retry_after_ms <= 50_000
        assert not verdict.permanent
        assert (verdict.decisions[0].reason, verdict.decisions[0].status) == ("blocklist", 403)
        await rig.put("device:d", "block", {"until": None})
        verdict = await limiter.decide(request())
        assert (verdict.permanent, verdict.retry_after_ms, verdict.listed) == (True, None, "device:d")
        await rig.put("device:d", "block", "whatever that is")
        assert (await limiter.decide(request())).permanent, "its presence denies"
        for subject, name in (("device:d", "block"), ("ip:192.0.2.1", "block"), ("user:u", "challenge")):
            await rig.drop(subject, name)
        verdict = await limiter.decide(request())
    assert [state.remaining for state in verdict.limits] == [1, 1]


async def test_a_block_of_a_combination_that_a_rule_is_about(rig: Rig) -> None:
    """Rules can be about combinations; their blocks are looked up although no limit counts them."""
    more = "rules: {r: {on: device+scenario, count: 3, window: 1m, then: step}}\n" + PATIENT
    async with rig.open(policy("user: [{name: a, limit: 2, window: 1h}]", more)) as limiter:
        await rig.put("device+scenario:d+s", "block", {"until": None})
        assert (await limiter.decide(request())).listed == "device+scenario:d+s"
        assert (await limiter.decide(request(scenario="t"))).allowed, "a scenario without limits, another combination"


async def test_a_challenge_and_who_has_passed_one(rig: Rig) -> None:
    """A passed challenge exempts from the address' challenge, not from the user's own; nothing is counted under one."""
    async with rig.open(policy("user: [{name: a, limit: 9, window: 1h}]")) as limiter:
        until = await rig.now() + 60_000
        await rig.put("ip:192.0.2.1", "challenge", {"until": until})
        verdict = await limiter.decide(request())
        assert (verdict.action, verdict.reason, verdict.listed) == ("challenge", "challenged", "ip:192.0.2.1")
        await rig.put("device:d", "pass", {"until": until})
        assert (await limiter.decide(request())).limits[0].remaining == 8
        await rig.put("user:u", "challenge", {"until": until})
        assert (await limiter.decide(request())).listed == "user:u"
        await rig.drop("user:u", "challenge")
        await rig.drop("device:d", "pass")
        assert (await limiter.decide(request())).action == "challenge"
        await rig.drop("ip:192.0.2.1", "challenge")
        assert (await limiter.decide(request())).limits[0].remaining == 7


async def test_trust_plan_and_override_hold_from_the_next_request_on(rig: Rig) -> None:
    """Newcomers get half, a plan another limit, an override beats the plan, trust multiplies; all of it live."""
    more = "scenarios: {s: {deadline: 5s, newcomers: 50}}\nplans: {pro: {'s/user:daily': 40}}"
    rules = policy("user: [{name: daily, limit: 11, window: 1d}]\n    ip: [{name: soft, limit: 100, window: 1h}]", more)
    async with rig.open(rules) as limiter:

        async def quotas() -> list[int]:
            return [state.limit for state in (await limiter.decide(request(cost=0))).limits]

        assert await quotas() == [5, 50]
        await rig.put("user:u", "trust", {"multiplier": 1.5, "established": True})
        assert await quotas() == [16, 150]
        await rig.put("user:u", "plan", {"plan": "pro"})
        assert await quotas() == [60, 150]
        await rig.put("user:u", "plan", {"plan": "pro", "limits": {"s/user:daily": 7, "s/ip:soft": 3}})
        assert await quotas() == [10, 4]
        await rig.put("user:u", "trust", {"multiplier": 0.001, "established": False})
        assert await quotas() == [1, 1], "at least 1"
        await rig.put("user:u", "trust", {"multiplier": "twice", "established": 1})
        await rig.put("user:u", "plan", ["pro"])
        assert await quotas() == [5, 50], "what cannot be read counts as nothing"
        for name in ("trust", "plan"):
            await rig.drop("user:u", name)
        assert await quotas() == [5, 50]


async def test_whether_the_user_is_established_is_stamped_into_the_decision(rig: Rig) -> None:
    """The trust key says it; an authenticated user without one is not; of a name that was typed nobody knows."""
    async with rig.open(policy("ip: [{name: a, limit: 100, window: 1h}]")) as limiter:

        async def stamp(**subjects: str) -> bool | None:
            return (await limiter.decide(request(subjects=subjects | {"ip": "192.0.2.1"}))).decisions[0].established

        await rig.put("user:u", "trust", {"multiplier": 1, "established": True})
        await rig.put("device:t", "trust", {"multiplier": 2, "established": True})
        await rig.put("login_name:u", "trust", {"multiplier": 2, "established": True})
        assert await stamp(user="u") is True
        assert await stamp(user="v") is False
        assert await stamp(api_key="k", user="u") is False, "the most specific one counts"
        assert await stamp(device="t") is None
        assert await stamp(login_name="u") is None


async def test_a_missing_dimension_is_skipped_or_refused(rig: Rig) -> None:
    """The scenario says which dimension it wants; without it the request is refused, by the other limits otherwise."""
    rules = policy("""
    user: [{name: a, limit: 1, window: 1h}]
    device: [{name: a, limit: 9, window: 1h}]
    """, "scenarios: {s: {deadline: 5s, missing: {device: refuse, user: skip}}}")  # fmt: skip
    async with rig.open(rules) as limiter:
        verdict = await limiter.decide(request(subjects={"user": "u"}))
        assert (verdict.action, verdict.reason, verdict.missing) == ("deny", "unknown", "device")
        assert (await limiter.decide(request(subjects={}))).missing == "device"
        assert [state.name for state in (await limiter.decide(request(subjects={"device": "d"}))).limits] == [
            "device:a"
        ]
        assert [state.remaining for state in (await limiter.decide(request())).limits] == [0, 7]
        with pytest.raises(BadEvent):
            await limiter.decide(request(subjects={"device": "a\nb"}))
        for subjects in ({}, {"tenant": "x"}):
            assert (await limiter.decide(request(subjects=subjects, scenario="t"))).allowed
    assert all(one.subjects for one in rig.published)


async def test_a_wrong_clock_of_a_client_changes_nothing(rig: Rig) -> None:
    """Requests that claim to be a day older or newer count in Redis' time."""
    async with rig.open(policy("user: [{name: a, limit: 3, window: 1m}]")) as limiter:
        now_ms = await rig.now()
        ahead = [await limiter.decide(request(ts_ms=now_ms + skew)) for skew in (-86_400_000, 0, 86_400_000, 600_000)]
    assert [verdict.action for verdict in ahead] == ["allow"] * 3 + ["deny"]


async def test_another_policy_holds_from_the_next_request_on(rig: Rig) -> None:
    """Replacing the policy needs no restart; what was counted under a limit's name goes on."""
    async with rig.open(policy("user: [{name: a, limit: 3, window: 1h}]")) as limiter:
        await limiter.decide(request())
        limiter.replace_policy(policy("user: [{name: a, limit: 2, window: 1h}, {name: b, limit: 9, window: 1h}]"))
        verdict = await limiter.decide(request())
    assert [state.remaining for state in verdict.limits] == [0, 8]


async def test_values_are_hashed_before_they_become_keys(redis_by_kind: dict[str, Any]) -> None:
    """With hashed dimensions no key holds the value; the decision is offered as it came: the publisher hashes."""
    async with rig_on(redis_by_kind[KINDS[0]], hashed_dimensions=("user", "ip"), hash_key="k") as rig:
        async with rig.open(policy("user: [{name: a, limit: 3, window: 1h}]")) as limiter:
            await limiter.decide(request(subjects={"user": "alice", "ip": "192.0.2.9"}))
        (key,) = await rig.keys()
        assert "{user:" in key
        assert "alice" not in key
        assert rig.published[0].subjects == {"user": "alice", "ip": "192.0.2.9"}


NO_END = -1
"""What PTTL says of a key without an end; -2 of one that is gone."""


async def test_every_key_of_the_limiter_has_an_end(rig: Rig) -> None:
    """Counters and records of all algorithms: none lives for ever."""
    limits = "\n    ".join(
        f"{on}: [{{name: a, limit: 3, window: 10s, algorithm: {algorithm}}}]"
        for on, algorithm in zip(["user", "device", "ip", "api_key", "tenant", "shop"], ALGORITHMS, strict=True)
    )
    subjects = {"user": "u", "device": "d", "ip": "192.0.2.1", "api_key": "k", "tenant": "t", "shop": "s"}
    async with rig.open(policy(limits)) as limiter:
        for _ in range(4):
            await limiter.decide(request(subjects=subjects, idempotency_key="order 7"))
            await limiter.decide(request(subjects=subjects))
        await limiter.refund("order 7")
    ends = {key: await rig.call("PTTL", key) for key in await rig.keys()}
    assert len(ends) > 6
    endless = {key: end for key, end in ends.items() if end == NO_END or end > 90_000}
    assert not endless  # one that has ended since it was listed had an end
