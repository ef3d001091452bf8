"""What a rule of a policy sees of a decision, and on which subject: the oracle's own reading."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.subjects import most_specific, value_hash

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.policy import Policy, Rule
    from penaltybox.contracts.subjects import Canonicaliser

BY_DEFAULT = ("over_limit", "challenged")


def matches(patterns: tuple[str, ...] | None, word: str | None) -> bool:
    """Absent filter: everything. Otherwise literals, and patterns whose `*` stands for any run of characters."""
    if patterns is None:
        return True
    return any(matches_one(pattern, word or "") for pattern in patterns)


def matches_one(pattern: str, word: str) -> bool:
    if pattern == "":
        return word == ""
    if pattern[0] == "*":
        return any(matches_one(pattern[1:], word[skip:]) for skip in range(len(word) + 1))
    return word != "" and word[0] == pattern[0] and matches_one(pattern[1:], word[1:])


def sees(rule: Rule, decision: Decision) -> bool:
    """Whether the rule sees the decision at all (on whichever subject)."""
    if not decision.enforced and not rule.shadow:
        return False
    when = rule.when
    if not (
        matches(when.action, decision.action)
        and matches(when.scenario, decision.scenario)
        and matches(when.route, decision.route)
        and matches(when.source, decision.source)
        and reason_fits(rule, decision)
    ):
        return False
    if when.violated is not None:
        return any(matches(when.violated, limit) for limit in decision.violated)
    return rule.kind == "distinct" or charged(rule, decision)


def reason_fits(rule: Rule, decision: Decision) -> bool:
    if rule.when.reason is not None:
        return matches(rule.when.reason, decision.reason)
    if decision.reason is not None:
        return decision.reason in BY_DEFAULT
    return rule.kind == "distinct" or rule.when.action is not None


def charged(rule: Rule, decision: Decision) -> bool:
    """A denial is charged to its most specific violated dimension only."""
    if not decision.violated:
        return rule.when.reason is not None or rule.when.action is not None
    guilty = most_specific(limit.split(":")[0] for limit in decision.violated)
    return rule.on == guilty or ("+" in guilty and rule.on == most_specific(guilty.split("+")))


def subject_of(on: str, decision: Decision, canonicaliser: Canonicaliser) -> str | None:
    """The subject a rule on this dimension or combination counts the decision for."""
    fields = {"scenario": decision.scenario, "route": decision.route}
    values = {part: decision.subjects.get(part) or fields.get(part) for part in on.split("+")}
    present = {part: value for part, value in values.items() if value}
    if len(present) < len(values):
        return None
    try:
        if "+" in on:
            return canonicaliser.combination(on, present)
        return canonicaliser.subject(on, present[on]) if on in decision.subjects else None
    except BadEvent:
        return None


def value_of(rule: Rule, decision: Decision, canonicaliser: Canonicaliser) -> int | None:
    """Hash of the value that a distinct rule collects."""
    if rule.distinct.startswith("attrs."):
        text = decision.attrs.get(rule.distinct.removeprefix("attrs."))
        return None if text is None else value_hash(text)
    if rule.distinct not in decision.subjects:
        return None
    return value_hash(canonicaliser.subject(rule.distinct, decision.subjects[rule.distinct]).split(":", 1)[1])


def allowlisted(policy: Policy, subject: str, t: int) -> bool:
    """Whether an entry of the allowlist, not expired at t, names the subject, a part of it, or a range it lies in."""
    dimensions, values = subject.split(":", 1)
    if "+" in dimensions:
        pairs = zip(dimensions.split("+"), values.split("+"), strict=True)
        if any(allowlisted(policy, f"{dimension}:{value}", t) for dimension, value in pairs):
            return True
    return any(
        (entry.until is None or t < entry.until)
        and (subject == entry.subject or (entry.cidr != "" and inside(subject, entry.cidr)))
        for entry in policy.allow
    )


def inside(subject: str, cidr: str) -> bool:
    dimension, value = subject.split(":", 1)
    if dimension != "ip":
        return False
    try:
        network = ipaddress.ip_network(value)
    except ValueError:
        return False  # an HMAC of an address lies in no range
    wanted = ipaddress.ip_network(cidr)
    return network.version == wanted.version and network.overlaps(wanted)
