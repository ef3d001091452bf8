"""Reading `rules` of a policy file, and refusing rules that could never fire."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, get_args

from penaltybox.contracts.events import Action, Reason
from penaltybox.contracts.policy import (
    MAX_COUNT,
    MAX_DISTINCT,
    Filter,
    LadderPolicy,
    Rule,
    Then,
    When,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.policy import Scenario
    from penaltybox.contracts.policy_limits import Limits
    from penaltybox.contracts.policy_yaml import Node

_RULE_KEYS: Final = ("on", "count", "distinct", "n", "window", "when", "then", "shadow")
_NO_NAMES: Final = ("", "hand")
_WHEN_KEYS: Final = ("action", "reason", "scenario", "route", "source", "violated")
_WHOLE: Final = 100
_VIRTUAL: Final = ("scenario", "route")
"""Parts of a combination that are fields of the decision, not subjects."""


def read_rules(node: Node, ladder: LadderPolicy, limits: Limits) -> tuple[Rule, ...]:
    """The rules, by name."""
    return tuple(_rule(name, child, ladder, limits) for name, child in node.pairs())


def _rule(name: str, node: Node, ladder: LadderPolicy, limits: Limits) -> Rule:
    node.mapping(_RULE_KEYS)
    if name in _NO_NAMES:
        raise node.error(f"the name {name!r}", "a name of its own: penalties by hand are known by `hand`")
    on = node.child("on", None)
    on.dimensions(on.text())
    counted = node.has("count")
    if counted == node.has("distinct"):
        raise node.error(node.value, "exactly one of count: N, or distinct: DIMENSION with n: N")
    if counted and node.has("n"):
        raise node.child("n", None).error(node.value["n"], "no n beside count")
    distinct = "" if counted else _distinct(node.child("distinct", None), on.value)
    when_node = node.child("when", {})
    when = _when(when_node)
    _check_can_match(when_node, when, limits)
    then = read_then(node.child("then", None), ladder)
    return Rule(
        name=name,
        on=on.value,
        kind="count" if counted else "distinct",
        n=node.integer("count", None, least=1, most=MAX_COUNT)
        if counted
        else node.integer("n", None, least=2, most=MAX_DISTINCT),
        window_ms=node.duration("window", None),
        then=then,
        distinct=distinct,
        when=when,
        shadow=node.boolean("shadow", default=False),
    )


def check_sampling(node: Node, rules: tuple[Rule, ...], scenarios: Mapping[str, Scenario]) -> None:
    """Refuses a `distinct` rule over a scenario of which not every request is seen: it would count too few.

    Raises:
        ConfigurationError: names the rule and the scenario.
    """
    sampled = [name for name, one in scenarios.items() if min(one.check_percent, one.publish_percent) < _WHOLE]
    for rule in rules:
        seen = [name for name in sampled if rule.when.scenario is None or _any_matches(rule.when.scenario, name)]
        if rule.kind == "distinct" and seen:
            raise node.child(rule.name, None).error(
                f"distinct over {seen[0]}, of which only a part is seen",
                "when: {scenario: [...]} without it, or check and publish of 100 there",
            )


def _distinct(node: Node, on: str) -> str:
    text = node.text()
    name = text.removeprefix("attrs.")
    if text == on or not name:
        raise node.error(text, f"another dimension than {on}, or attrs.NAME")
    if name == text:
        node.dimensions(text)
        if "+" in text:
            raise node.error(text, "a single dimension, or attrs.NAME")
    return text


def read_then(node: Node, ladder: LadderPolicy) -> Then:
    """`step`, `{level: RUNG}`, `{score: POINTS}` or `{challenge: DURATION}`."""
    if node.value == "step":
        return Then(step=True)
    if not isinstance(node.value, dict) or len(node.value) != 1:
        raise node.error(node.value, "one of: step, {level: RUNG}, {score: POINTS}, {challenge: DURATION}")
    node.mapping(("step", "level", "score", "challenge"))
    if node.has("level"):
        return Then(level=node.child("level", None).one_of([rung.name for rung in ladder.rungs]))
    if node.has("score"):
        return Then(score=node.integer("score", None, least=1, most=100_000))
    if node.has("challenge"):
        return Then(challenge_ms=node.duration("challenge", None))
    if node.value["step"] is not True:
        raise node.error(node.value, "step: true, or just step")
    return Then(step=True)


def _when(node: Node) -> When:
    node.mapping(_WHEN_KEYS)
    found: dict[str, Filter] = {}
    for key, child in node.pairs():
        listed = [child] if isinstance(child.value, str) else list(child.items())
        if not listed:
            raise child.error("an empty list", "at least one literal or * pattern")
        found[key] = tuple(item.text() for item in listed)
    return When(**found)


def _check_can_match(node: Node, when: When, limits: Limits) -> None:
    _check_vocabulary(node, "action", when.action, get_args(Action))
    _check_vocabulary(node, "reason", when.reason, get_args(Reason))
    for pattern in when.violated or ():
        if ":" not in pattern and "*" not in pattern:
            raise node.child("violated", None).error(pattern, "<dimension>:<limit name>, or a pattern with *")
    if not limits:
        return  # another limiter's decisions: its scenarios and limits are not known here
    for pattern in when.scenario or ():
        if not _matches_any(pattern, limits):
            raise node.child("scenario", None).error(pattern, f"a scenario of limits: {', '.join(limits)}")
    scenarios = [name for name in limits if when.scenario is None or _any_matches(when.scenario, name)]
    known = sorted({f"{on}:{one.name}" for name in scenarios for on, found in limits[name].items() for one in found})
    for pattern in when.violated or ():
        if not _matches_any(pattern, known):
            raise node.child("violated", None).error(pattern, f"a limit of these scenarios: {', '.join(known)}")


def _check_vocabulary(node: Node, key: str, patterns: Filter | None, words: tuple[str, ...]) -> None:
    for pattern in patterns or ():
        if not _matches_any(pattern, words):
            raise node.child(key, None).error(pattern, f"one of {', '.join(words)}")


def _matches_any(pattern: str, words: object) -> bool:
    return any(matches(pattern, word) for word in words)  # type: ignore[attr-defined]


def _any_matches(patterns: Filter, word: str) -> bool:
    return any(matches(pattern, word) for pattern in patterns)


def matches(pattern: str, word: str) -> bool:
    """Whether a literal or a pattern in which only ``*`` is special matches the whole word."""
    if "*" not in pattern:
        return pattern == word
    return fnmatchcase(word, pattern.replace("[", "[[]").replace("?", "[?]"))
