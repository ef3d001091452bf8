"""What is checked and published of a sampled scenario: exact by request id, and right when weighed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.events import encode
from penaltybox.contracts.policy import Scenario
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.cached import CachedDecider
from penaltybox.producers.decisions import bare
from penaltybox.producers.sampling import Sampling, publish_rate
from tests.producers.deciders import NOW, Blocking, Published, request


def sampled(check: float, publish: float, limit: int = 1_000_000) -> Any:
    return parse_policy(f"""
    limits: {{s: {{user: [{{name: hour, limit: {limit}, window: 1h}}]}}}}
    scenarios: {{s: {{check: {check}, publish: {publish}}}}}
    """)


async def decide(policy: Any, total: int = 4_000, **options: Any) -> tuple[Blocking, list[Any], list[Any]]:
    """(decider inside, verdicts, published) of so many requests."""
    inner, published = Blocking(policy), Published()
    cached = CachedDecider(inner, policy, source="edge/1", publisher=published, **options)
    return inner, [await cached.decide(request(n)) for n in range(total)], published


async def test_a_share_is_checked_the_rest_is_allowed() -> None:
    """With `check: 10` a tenth reaches the limits, always the same requests."""
    policy = sampled(10, 100)
    inner, verdicts, _ = await decide(policy)
    assert 0.08 < inner.calls / 4_000 < 0.12
    assert all(one.allowed for one in verdicts)
    again, _, _ = await decide(policy)
    assert [one.id for one in again.asked] == [one.id for one in inner.asked]


async def test_denials_are_never_sampled() -> None:
    """With `publish: 1` every refusal is published, without a rate; of the allows about one in a hundred, with it."""
    _, verdicts, published = await decide(sampled(100, 1, limit=3_000))
    denied = [one for one in published if one.action == "deny"]
    assert len(denied) == sum(not one.allowed for one in verdicts) == 1_000
    assert {one.sample_rate for one in denied} == {None}
    allowed = [one for one in published if one.action == "allow"]
    assert 15 <= len(allowed) <= 50
    assert {one.sample_rate for one in allowed} == {0.01}


@pytest.mark.parametrize(("check", "publish"), [(10, 10), (10, 100), (50, 5), (100, 20), (30, 30)])
async def test_weights_tell_the_truth_about_all_requests(check: float, publish: float) -> None:
    """Half of the checked requests are denied: allows weighed by 1/sample_rate plus denials are all requests.

    A single draw for both would publish allows of checked requests alone and miss about half of them.
    """
    total = 8_000
    _, verdicts, published = await decide(sampled(check, publish, limit=total * int(check) // 200), total)
    allowed = sum(1 / (one.sample_rate or 1) for one in published if one.action == "allow")
    denied = sum(one.action == "deny" for one in published)
    assert denied == sum(not one.allowed for one in verdicts)
    true = total - denied
    sigma = (true * (100 / publish - 1)) ** 0.5
    assert abs(allowed - true) <= 4 * sigma
    for one in published[:50]:
        decode_decision(encode(one), NOW, Canonicaliser())


async def test_a_known_block_is_not_sampled_away() -> None:
    """What lists and caches know costs nothing, so it answers the unchecked requests too."""
    policy = sampled(1, 100)
    inner, published = Blocking(policy), Published()
    inner.blocks["user:u"] = ("deny", None)
    cached = CachedDecider(inner, policy, source="edge/1", publisher=published)
    actions = [(await cached.decide(request(n))).action for n in range(1_000)]
    first = actions.index("deny")
    assert first > 0
    assert set(actions[first:]) == {"deny"}
    assert inner.calls == 1
    await cached.close()


def probing(percent: float, answer: str = "deny") -> Any:
    return parse_policy(f"""
    limits: {{s: {{user: [{{name: hour, limit: 1, window: 1h, answer: {answer}}}]}}}}
    scenarios: {{s: {{probe: {percent}}}}}
    """)


async def test_a_share_of_the_denials_become_challenges() -> None:
    """With `probe: 5` about a twentieth is challenged, marked with the share, always the same, and still over limit."""
    _, verdicts, published = await decide(probing(5))
    drawn = [one for one in published if one.action == "challenge"]
    assert 0.035 < len(drawn) / 3_999 < 0.065
    for one in drawn:
        assert (one.reason, one.violated, one.status, one.attrs) == (
            "over_limit", ("user:hour",), 403, {"probe": "0.05"},
        )  # fmt: skip
        decode_decision(encode(one), NOW, Canonicaliser())
    assert {one.id for one in drawn} == {one.decisions[0].id for one in verdicts if one.action == "challenge"}
    assert sum(one.allowed for one in verdicts) == 1
    assert {one.attrs.get("probe") for one in published if one.action != "challenge"} == {None}
    again = (await decide(probing(5)))[2]
    assert [one.id for one in again if one.action == "challenge"] == [one.id for one in drawn]


async def test_without_a_probe_every_denial_stays_one() -> None:
    """It is off by default, and `probe: 0` says so."""
    for policy in (probing(0), sampled(100, 100, limit=1)):
        assert {one.action for one in (await decide(policy, 500))[1][1:]} == {"deny"}


@pytest.mark.parametrize("until", [None, NOW + 60_000])
@pytest.mark.parametrize("remembered", [True, False])
async def test_a_block_is_never_probed(until: int | None, *, remembered: bool) -> None:
    """Whoever is blocked stays so, for ever or for a time, whether the block is read or remembered."""
    policy = probing(5)
    inner, published = Blocking(policy), Published()
    inner.blocks["user:u"] = ("deny", until)
    cached = CachedDecider(inner, policy, source="edge/1", publisher=published)
    actions = set()
    for n in range(500):
        actions.add((await cached.decide(request(n))).action)
        if not remembered:
            cached.missed()
    assert inner.calls == (1 if remembered else 500)
    assert actions == {"deny"}
    await cached.close()
    assert not any("probe" in one.attrs for one in published)


async def test_other_answers_are_not_probed() -> None:
    """A limit that pretends success goes on to; a challenge of a limit carries no mark."""
    for answer in ("shadow", "challenge"):
        _, verdicts, published = await decide(probing(5, answer), 500)
        assert {one.action for one in verdicts[1:]} == {answer}
        assert not any("probe" in one.attrs for one in published)


async def test_without_room_for_the_mark_nothing_is_drawn() -> None:
    """A decision holds eight attrs; a ninth would make it a dead letter."""
    policy = probing(5)
    cached = CachedDecider(Blocking(policy), policy, source="edge/1")
    full = {f"a{n}": "x" for n in range(8)}
    verdicts = [await cached.decide(request(n, attrs=full)) for n in range(500)]
    assert {one.action for one in verdicts[1:]} == {"deny"}


@pytest.mark.parametrize("value", ["5.1", "-1", "yes", "true"])
def test_a_probe_is_bounded(value: str) -> None:
    """More than one denial in twenty is refused when the policy is read."""
    with pytest.raises(PenaltyboxError, match="probe"):
        parse_policy(
            f"limits: {{s: {{user: [{{name: h, limit: 1, window: 1h}}]}}}}\nscenarios: {{s: {{probe: {value}}}}}"
        )


def test_a_key_makes_the_draw_unpredictable() -> None:
    """Who knows the ids but not the key cannot tell which requests are checked."""
    scenario = sampled(50, 100).scenario("s")
    open_draw, keyed = Sampling(), Sampling(b"secret")
    same = sum(open_draw.checks(scenario, f"r{n}") == keyed.checks(scenario, f"r{n}") for n in range(2_000))
    assert 850 < same < 1_150


def test_the_smallest_rate_is_one_that_a_decision_can_tell() -> None:
    """A share below one in a million counts as one in a million; a smaller rate would be a dead letter."""
    assert publish_rate(Scenario(publish_percent=0.00001)) == 1e-6
    told = msgspec.structs.replace(bare(request(1), "edge/1", "allow"), sample_rate=1e-6)
    decode_decision(encode(told), NOW, Canonicaliser())
