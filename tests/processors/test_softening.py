"""Proposals of softer policies: for any figures, and the arithmetic of each kind of step."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.policy import MAX_COUNT, MAX_DISTINCT
from penaltybox.contracts.policy_file import default_policy_path, load_policy, parse_policy, policy_from
from penaltybox.contracts.policy_form import document
from penaltybox.processors.softening import MOST_TIMES, Figure, Finding, Needed, propose, softened

POLICY = parse_policy("""
limits:
  shop:
    user:   [{name: daily, limit: 3, window: 1d}]
    device: [{name: burst, limit: 5, window: 1m, answer: challenge, algorithm: gcra}]
    ip:     [{name: soft, limit: 300, window: 1m, answer: challenge}, {name: hard, limit: 900, window: 1m}]
    ip+route: [{name: dry, limit: 10, window: 1m, dry_run: true}]
rules:
  farm:   {on: device, distinct: user, n: 4, window: 10m, then: {level: 1h}}
  abuse:  {on: user, count: 20, window: 10m, then: step}
  office: {on: ip, distinct: user, n: 60, window: 1h, then: {challenge: 15m}}
  stuff:  {on: ip, count: 240, window: 1m, then: {level: permanent}}
  warned: {on: user, count: 10000, window: 1m, then: {level: warn}}
  tried:  {on: user, count: 5, window: 1m, then: {level: 1h}, shadow: true}
""")
LIMITS = ["shop/user:daily", "shop/device:burst", "shop/ip:soft", "shop/ip:hard", "shop/ip+route:dry"]
RULES = [rule.name for rule in POLICY.rules]


def figure(name: str, share: float = 1.0, episodes: int = 200, **fields: Any) -> Figure:
    """Episodes of as many subjects, all labelled."""
    kind = "limit" if "/" in name else "rule"
    known: dict[str, Any] = {
        "episodes": episodes,
        "immature": 0,
        "independent": float(episodes),
        "labelled": episodes,
        "legitimate": share * episodes,
    }
    return Figure(kind=kind, name=name, **(known | fields))  # type: ignore[arg-type]


def one(name: str, needed: dict[str, Needed] | None = None, **fields: Any) -> Finding:
    (found,) = propose(POLICY, [figure(name, **fields)], needed=needed or {})
    return found


@st.composite
def known_figures(draw: st.DrawFn) -> list[Figure]:
    found = []
    for name in draw(st.lists(st.sampled_from([*LIMITS, *RULES, "gone", "shop/user:gone"]), unique=True)):
        episodes = draw(st.integers(0, 1000))
        worth = draw(st.floats(0, 1))
        labelled = draw(st.integers(0, episodes))
        found.append(figure(name, draw(st.floats(0, 1)), episodes, independent=worth * episodes, labelled=labelled))
    return found


NEEDED = st.dictionaries(
    st.sampled_from(LIMITS), st.builds(Needed, st.integers(1, 2_000_000_000), st.just("as report nat says"))
)


@given(known_figures(), NEEDED, st.none() | st.floats(0.001, 0.5))
def test_nothing_gets_stricter_and_no_step_is_beyond_its_cap(
    figures: list[Figure], needed: dict[str, Needed], target: float | None
) -> None:
    """Thresholds never sink nor pass their cap, a denial only ever becomes a challenge, and what has no step stays."""
    findings = propose(POLICY, figures, target=target, needed=needed)
    made = softened(POLICY, findings)
    changed = {found.figure.name for found in findings if found.step is not None}
    for scenario, dimensions in POLICY.limits.items():
        for on, thresholds in dimensions.items():
            for old, new in zip(thresholds, made.limits[scenario][on], strict=True):
                assert (old != new) == (f"{scenario}/{on}:{old.name}" in changed)
                assert old.limit <= new.limit <= old.limit * MOST_TIMES
                assert (old.answer, new.answer) != ("challenge", "deny")
    for before, after in zip(POLICY.rules, made.rules, strict=True):
        assert (before != after) == (before.name in changed)
        assert before.n <= after.n <= min(-(-before.n * 3 // 2), MAX_COUNT if before.kind == "count" else MAX_DISTINCT)
        if before.then != after.then:
            assert before.then.level in ("1h", "permanent")
            assert after.then.challenge_ms == 3_600_000
    assert policy_from(document(made)) == made


@given(known_figures(), NEEDED, st.floats(0.001, 0.5))
def test_a_step_needs_a_whole_interval_above_the_target(
    figures: list[Figure], needed: dict[str, Needed], target: float
) -> None:
    """Every figure has one finding with a sentence; where none is proved over the target, the policy stays."""
    findings = propose(POLICY, figures, target=target, needed=needed)
    assert [found.figure for found in findings] == figures
    for found in findings:
        assert found.why
        if found.step is not None:
            assert found.figure.independent >= 30
            assert found.rate.low is not None
            assert found.rate.low > target
    calm = [found for found in findings if found.step is None]
    assert softened(POLICY, calm) == POLICY


@pytest.mark.parametrize(
    ("name", "field", "before", "after", "how"),
    [
        ("shop/user:daily", "answer", "deny", "challenge", "challenge instead of deny"),
        ("shop/ip:hard", "answer", "deny", "challenge", "challenge instead of deny"),
        ("shop/device:burst", "limit", 5, 8, "5 * 1.5 = 8"),
        ("farm", "then", "{level: 1h}", "{challenge: 1h}", "{challenge: 1h} instead of {level: 1h}"),
        ("stuff", "then", "{level: permanent}", "{challenge: 1h}", "{challenge: 1h} instead of {level: permanent}"),
        ("abuse", "n", 20, 30, "20 * 1.5 = 30"),
        ("office", "n", 60, 64, "60 * 1.5 = 90, at most 64"),
    ],
)
def test_each_kind_of_step(name: str, field: str, before: object, after: object, how: str) -> None:
    """What denies asks instead; what asks already lets half as many more through."""
    found = one(name)
    assert found.verdict == "proposed"
    assert found.step is not None
    assert (found.step.field, found.step.before, found.step.after) == (field, before, after)
    assert found.why.endswith(how)


def test_a_limit_on_addresses_goes_to_the_figure_of_the_report() -> None:
    """It is raised to what report nat computes, at most fourfold; without a higher figure it stays."""
    near, far = (one("shop/ip:soft", {"shop/ip:soft": Needed(to, "3 * N_eff")}) for to in (700, 5000))
    assert near.step is not None
    assert (near.step.after, near.why.endswith("3 * N_eff")) == (700, True)
    assert far.step is not None
    assert (far.step.after, far.why.endswith("in one step at most 1,200")) == (1200, True)
    for needed in ({}, {"shop/ip:soft": Needed(300, "")}):
        assert one("shop/ip:soft", needed).verdict == "nothing softer"


@pytest.mark.parametrize("name", ["shop/ip+route:dry", "tried", "warned"])
def test_what_stops_nobody_or_is_at_its_cap_stays(name: str) -> None:
    """A dry run, a shadow rule and the highest count are over the target and left alone."""
    assert (one(name).verdict, one(name).step) == ("nothing softer", None)


@pytest.mark.parametrize(
    ("fields", "verdict", "why"),
    [
        ({"episodes": 29}, "insufficient", "29 mature episodes are worth 29.0 independent ones, 30 are needed"),
        ({"independent": 1.0}, "insufficient", "200 mature episodes are worth 1.0 independent ones, 30 are needed"),
        ({"labelled": 0, "share": 0.0}, "unlabelled", "none of 200 mature episodes has a label"),
        ({"share": 0.01}, "contains the target", "2.0 of 200 episodes legitimate, 0.3% <= 1.0% <= 3.6%"),
        ({"share": 0.0, "episodes": 1000}, "under the target", "0.0 of 1,000 episodes legitimate, at most 0.4% < 1.0%"),
    ],
)
def test_why_nothing_is_proposed(fields: dict[str, Any], verdict: str, why: str) -> None:
    """Too few, one loud subject, no label, an interval around the target or below it: each is said with its figures."""
    found = one("farm", **fields)
    assert (found.verdict, found.why, found.step) == (verdict, why, None)


def test_addresses_have_a_target_of_their_own() -> None:
    """Five per cent on addresses and one elsewhere, unless a target is given for all."""
    assert [one(name).target for name in ("stuff", "shop/ip+route:dry", "farm")] == [0.05, 0.05, 0.01]
    (given_one,) = propose(POLICY, [figure("stuff")], target=0.2, needed={})
    assert given_one.target == 0.2


def test_a_rule_that_its_cap_makes_a_challenge_counts_more() -> None:
    """Where the dimension is capped at challenge, the level denies nobody: the count rises."""
    ladder = msgspec.structs.replace(POLICY.ladder, caps={"ip": "challenge"})
    capped = msgspec.structs.replace(POLICY, ladder=ladder)
    (found,) = propose(capped, [figure("stuff")], needed={})
    assert found.step is not None
    assert (found.step.field, found.step.after) == ("n", 360)


def test_the_default_policy_can_be_softened_again_and_again() -> None:
    """With everything over the target each step leads to a valid policy, until nothing softer is left."""
    policy = load_policy(default_policy_path())
    names = [f"{scenario}/{on}:{limit.name}" for scenario, dimensions in policy.limits.items()
             for on, limits in dimensions.items() for limit in limits]  # fmt: skip
    names += [rule.name for rule in policy.rules]
    for _ in range(60):
        findings = propose(policy, [figure(name) for name in names], needed={})
        policy = softened(policy, findings)
        assert policy_from(document(policy)) == policy
    assert all(found.step is None for found in findings)
