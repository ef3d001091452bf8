"""Which limits and rules hurt legitimate subjects too often, and one bounded step that softens each. Pure.

A step is proposed only where the whole interval of the false-discovery rate lies above the target (docs/analytics.md):
a denial becomes a challenge; what challenges already lets more through. Nothing is ever made stricter.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from penaltybox.contracts.durations import format_duration
from penaltybox.contracts.policy import MAX_COUNT, MAX_DISTINCT, Then
from penaltybox.contracts.rates import ACTIONABLE, ENOUGH, Rate, rate
from penaltybox.contracts.subjects import leading_part
from penaltybox.processors.ladder import CHALLENGE, cap_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from penaltybox.contracts.policy import Limit, Policy, Rule

MOST_TIMES: Final = 4
"""No step raises a limit above this many times itself."""
ADDRESS_TARGET: Final = 0.05
TARGET: Final = 0.01
_MOST_LIMIT: Final = 1_000_000_000
_MOST_LEVEL: Final = 1 << 53
_BUCKETS: Final = frozenset({"token_bucket", "leaky_bucket", "gcra"})

Verdict = Literal[
    "proposed", "insufficient", "unlabelled", "contains the target", "under the target", "nothing softer",
    "not in the policy",
]  # fmt: skip


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one limit or rule.

    Attributes:
        kind: of what.
        name: of the rule, or ``scenario/dimension:limit name``.
        episodes, immature: mature ones, and those too young to be judged.
        independent: how many independent episodes the mature ones are worth, as a subject's share its labels.
        labelled: how many of the mature have a label.
        legitimate: sum over the mature of the probability that their subject was legitimate.
    """

    kind: Literal["limit", "rule"]
    name: str
    episodes: int
    immature: int
    independent: float
    labelled: int
    legitimate: float


class Needed(NamedTuple):
    """What the established users of a shared address may use by their own limits, and the arithmetic."""

    limit: int
    why: str


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One value of a policy file that changes; `challenge_ms` where a rule's `then` becomes a challenge."""

    field: Literal["limit", "answer", "n", "then"]
    before: int | str
    after: int | str
    challenge_ms: int = 0


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What follows for one limit or rule: a step, or why there is none."""

    figure: Figure
    rate: Rate
    target: float
    verdict: Verdict
    why: str
    step: Step | None = None


def propose(
    policy: Policy, figures: Iterable[Figure], *, target: float | None = None, needed: Mapping[str, Needed]
) -> list[Finding]:
    """One finding per figure.

    Args:
        policy: whose limits and rules they are.
        figures: what is known of each.
        target: the share of limited episodes that may be legitimate; None: `ADDRESS_TARGET` on addresses, or `TARGET`.
        needed: limit on addresses -> what `report nat` computes for it.
    """
    limits = _limits(policy)
    rules = {rule.name: rule for rule in policy.rules}
    found = []
    for figure in figures:
        thing = limits.get(figure.name) if figure.kind == "limit" else rules.get(figure.name)
        on = "" if thing is None else thing.on
        wanted = target if target is not None else ADDRESS_TARGET if on and leading_part(on) == "ip" else TARGET
        found.append(_finding(policy, figure, wanted, thing, needed.get(figure.name)))
    return found


def softened(policy: Policy, findings: Iterable[Finding]) -> Policy:
    """The policy with the steps taken."""
    steps = {(one.figure.kind, one.figure.name): one.step for one in findings if one.step is not None}
    limits = {
        scenario: {
            on: tuple(_stepped(one, steps.get(("limit", f"{scenario}/{on}:{one.name}"))) for one in thresholds)
            for on, thresholds in dimensions.items()
        }
        for scenario, dimensions in policy.limits.items()
    }
    rules = tuple(_stepped_rule(rule, steps.get(("rule", rule.name))) for rule in policy.rules)
    return msgspec.structs.replace(policy, limits=limits, rules=rules)


class OnLimit(NamedTuple):
    """A limit and its dimension."""

    on: str
    limit: Limit


def _limits(policy: Policy) -> dict[str, OnLimit]:
    return {
        f"{scenario}/{on}:{one.name}": OnLimit(on, one)
        for scenario, dimensions in policy.limits.items()
        for on, thresholds in dimensions.items()
        for one in thresholds
    }


def _finding(
    policy: Policy, figure: Figure, target: float, thing: OnLimit | Rule | None, needed: Needed | None
) -> Finding:
    known = rate(figure.legitimate, max(figure.episodes, 1), figure.independent, labelled=figure.labelled > 0)
    if thing is None:
        why = f"this policy has no such {figure.kind}"
        return Finding(figure=figure, rate=known, target=target, verdict="not in the policy", why=why)
    verdict, why = _verdict(figure, known, target)
    step = None
    if verdict == "proposed":
        step, how = _limit_step(thing, needed) if isinstance(thing, OnLimit) else _rule_step(policy, thing)
        verdict = "nothing softer" if step is None else verdict
        why = f"{why}: {how}"
    return Finding(figure=figure, rate=known, target=target, verdict=verdict, why=why, step=step)


def _verdict(figure: Figure, known: Rate, target: float) -> tuple[Verdict, str]:
    young = f"; {figure.immature:,} more are too young to be judged" if figure.immature else ""
    if known.low is None or known.high is None:
        if known.status == "unlabelled":
            return "unlabelled", f"none of {figure.episodes:,} mature episodes has a label{young}"
        worth = f"{figure.episodes:,} mature episodes are worth {figure.independent:.1f} independent ones"
        return "insufficient", f"{worth}, {ENOUGH} are needed{young}"
    share = f"{figure.legitimate:.1f} of {figure.episodes:,} episodes legitimate"
    if known.low > target:
        few = f" (under {ACTIONABLE} independent ones: look twice)" if known.n < ACTIONABLE else ""
        return "proposed", f"{share}, at least {known.low:.1%} > {target:.1%}{few}"
    if known.high < target:
        return "under the target", f"{share}, at most {known.high:.1%} < {target:.1%}"
    return "contains the target", f"{share}, {known.low:.1%} <= {target:.1%} <= {known.high:.1%}{young}"


def _limit_step(thing: OnLimit, needed: Needed | None) -> tuple[Step | None, str]:
    limit = thing.limit
    if limit.dry_run or limit.answer == "shadow":
        return None, "it refuses nobody"
    if limit.answer == "deny":
        return Step(field="answer", before="deny", after=CHALLENGE), "challenge instead of deny"
    most = min(limit.limit * MOST_TIMES, _MOST_LIMIT)
    if limit.algorithm in _BUCKETS:
        most = min(most, _MOST_LEVEL // limit.window_ms)
    if thing.on == "ip":
        if needed is None or needed.limit <= limit.limit:
            return None, "it challenges already, and report nat computes no higher figure for it"
        wanted, how = needed.limit, needed.why
    else:
        wanted = math.ceil(limit.limit * 3 / 2)
        how = f"{limit.limit:,} * 1.5 = {wanted:,}"
    after = min(wanted, most)
    if after <= limit.limit:
        return None, f"{limit.limit:,} is the most that it can be"
    how += f", in one step at most {most:,}" if after < wanted else ""
    return Step(field="limit", before=limit.limit, after=after), how


def _rule_step(policy: Policy, rule: Rule) -> tuple[Step | None, str]:
    if rule.shadow:
        return None, "it is in shadow and stops nobody"
    challenge_ms = _denies_for(policy, rule)
    if challenge_ms:
        after = f"{{challenge: {format_duration(challenge_ms)}}}"
        step = Step(field="then", before=f"{{level: {rule.then.level}}}", after=after, challenge_ms=challenge_ms)
        return step, f"{after} instead of {step.before}"
    most = MAX_COUNT if rule.kind == "count" else MAX_DISTINCT
    wanted = -(-rule.n * 3 // 2)
    after_n = min(wanted, most)
    if after_n <= rule.n:
        return None, f"{rule.n:,} is the most that it can be"
    capped = f", at most {most:,}" if after_n < wanted else ""
    return Step(field="n", before=rule.n, after=after_n), f"{rule.n:,} * 1.5 = {wanted:,}{capped}"


def _denies_for(policy: Policy, rule: Rule) -> int:
    """How long a challenge may last that replaces the denial of a rule's level; 0 where it denies nobody."""
    rungs = {rung.name: rung for rung in policy.ladder.rungs}
    level = rungs.get(rule.then.level or "")
    cap = cap_of(policy.ladder, rule.on)
    if level is None or level.action != "deny" or cap == CHALLENGE:
        return 0
    ends = [level.duration_ms, policy.challenge_ms if level.duration_ms is None else None]
    if cap is not None:
        if rungs[cap].action != "deny":
            return 0
        ends.append(rungs[cap].duration_ms)
    return min(end for end in ends if end is not None)


def _stepped(limit: Limit, step: Step | None) -> Limit:
    if step is None or step.field not in ("limit", "answer"):
        return limit
    return msgspec.structs.replace(limit, **{step.field: step.after})


def _stepped_rule(rule: Rule, step: Step | None) -> Rule:
    if step is None:
        return rule
    if step.field == "then":
        return msgspec.structs.replace(rule, then=Then(challenge_ms=step.challenge_ms))
    return msgspec.structs.replace(rule, n=step.after)
