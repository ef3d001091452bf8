"""What is allowed in a policy and probably not meant: the warnings of `penaltybox policy check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.policy_rules import matches
from penaltybox.contracts.subjects import leading_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.contracts.policy import Policy, Rule

USUAL: Final = frozenset({"user", "device", "ip", "api_key", "login_name", "scenario", "route"})
"""Dimensions that decisions have without a limit on them, and the fields that combinations may use."""


class Warned(msgspec.Struct, frozen=True):
    """A warning: where, and a sentence that says what to do."""

    where: str
    says: str


def warnings(policy: Policy, now_ms: int) -> list[Warned]:
    """Everything that is allowed and probably not meant."""
    found = [Warned(f"rules.{rule.name}", says) for rule in policy.rules for says in _of_rule(rule, policy)]
    if not policy.rules:
        found.append(Warned("rules", "there are none: nobody will ever be penalised"))
    if policy.breaker is None:
        found.append(Warned("breaker", "it is off: nothing stops a rule that blocks everybody"))
    ended = [entry for entry in policy.allow if entry.until is not None and entry.until <= now_ms]
    found += [Warned("allow", f"the listing of {one.subject or one.cidr} has ended; take it out") for one in ended]
    closed = [name for name, one in policy.scenarios.items() if one.failure == "closed"]
    says = "failure: closed refuses every request while Redis is away"
    return found + [Warned(f"scenarios.{name}", says) for name in closed]


def _of_rule(rule: Rule, policy: Policy) -> Iterator[str]:
    limited = {on for dimensions in policy.limits.values() for on in dimensions}
    parts = {part for on in limited for part in on.split("+")}
    strange = [part for part in rule.on.split("+") if part not in USUAL | parts]
    if strange:
        yield f"no limit has the dimension {', '.join(strange)}: it sees only decisions that bring it along"
    if rule.distinct and not rule.distinct.startswith("attrs.") and rule.distinct not in USUAL | parts:
        yield f"no limit has the dimension {rule.distinct}: it sees only decisions that bring it along"
    when = rule.when
    charged = {on for name, dimensions in policy.limits.items() if _covers(rule, name) for on in dimensions}
    if (
        policy.limits
        and rule.kind == "count"
        and when.violated is None
        and when.reason is None
        and rule.on not in charged | {leading_part(on) for on in charged}
    ):
        yield (
            f"a denial is charged to the limit that it violated, and none of its scenarios has a limit on {rule.on}: "
            "it will not fire; add one, or say which limits it is about (when: {violated: [...]})"
        )
    if rule.shadow:
        return
    rungs = {rung.name: rung for rung in policy.ladder.rungs}
    level = rungs.get(rule.then.level or "")
    if level is not None and level.action == "deny":
        if leading_part(rule.on) == "ip":
            yield (
                f"it denies an address at once (level {level.name}): whoever shares it is refused too, unless "
                "shared_ip knows enough of them; {challenge: ...} is safer"
            )
        if level.duration_ms is None:
            yield "it blocks permanently at the first time; nobody can show that he has stopped"


def _covers(rule: Rule, scenario: str) -> bool:
    return rule.when.scenario is None or any(matches(pattern, scenario) for pattern in rule.when.scenario)
