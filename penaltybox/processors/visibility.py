"""Which rules see a decision, on which of its subjects.

Unless a rule says otherwise it sees `over_limit` and `challenged` only, and a denial is charged to its most specific
violated dimension only: a blocklist denial, an outage of the limiter or another subject's limit is nobody's offence.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.policy_rules import matches
from penaltybox.contracts.recognition import decode_recognised
from penaltybox.contracts.subjects import leading_part, most_specific
from penaltybox.processors.detections import granule_ms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.policy import Filter, Policy, Rule, Then
    from penaltybox.contracts.recognition import Recognised

_DEFAULT_REASONS: Final = ("over_limit", "challenged")
_subjects, _attrs, _shape = attrgetter("subjects"), attrgetter("attrs"), attrgetter("shape")
_FIELDS: Final = ("scenario", "route")
"""Fields of a decision that combinations may use as parts."""


@dataclass(frozen=True, slots=True)
class Detection:
    """A rule, unpacked for the hot path."""

    name: str
    key: int
    counts: bool
    distinct: str
    """The dimension whose values are told apart; empty for a count rule or an attr."""
    attr: str
    n: int
    window_ms: int
    granule_ms: int
    then: Then
    rule: Rule


@dataclass(frozen=True, slots=True)
class Plan:
    """What one kind of decision can change on the subjects of one dimension."""

    dimension: str
    parts: tuple[str, ...]
    """Parts of a combination; empty for a single dimension."""
    place: int
    """Where the subject stands among the decision's subjects; -1 for a combination."""
    rules: tuple[Sight, ...]
    shadows: tuple[Sight, ...]
    user: int
    """Where the established user stands who is evidence that this address is shared; -1 when there is none."""
    plain: bool
    """Rules of the real ladder and nothing else: a block, a fence or grace answers for all of it."""
    quick: bool
    """One distinct rule over a subject's values and nothing else: most decisions end in its quick look."""
    value: int
    """For the quick look: where the value stands."""
    key: int
    granule_ms: int


class Kind(NamedTuple):
    """All plans of one kind of decision."""

    plans: tuple[Plan, ...]
    quick: tuple[Plan, ...]
    """Those that are quick; the same object for all kinds that have the same."""
    rest: tuple[Plan, ...]
    places: int
    """Bit n is set: the n-th subject is touched. -1: a combination is touched, too."""


class Sight(NamedTuple):
    """A rule, and where among a decision's subjects the value stands that it tells apart (-1: none, or an attr)."""

    detection: Detection
    place: int


_Form = tuple[object, ...]
"""The dimensions of a decision's subjects; with the names of its attrs, if decisions that come with it have any."""


class Visibility:
    """The plans of a policy, per kind of decision, remembered."""

    _BOUND = 10_000

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._detections = tuple(_unpack(rule) for rule in policy.rules)
        addresses = {rule.on for rule in policy.rules if leading_part(rule.on) == "ip"}
        self._addresses = ("ip", *sorted(addresses - {"ip"}))
        self._on_scenario = any(rule.when.scenario for rule in policy.rules) or self._uses("scenario")
        self._on_route = any(rule.when.route for rule in policy.rules) or self._uses("route")
        self._on_source = any(rule.when.source for rule in policy.rules)
        traits = ["action", "reason", "violated", "established", "enforced"]
        traits += [
            field
            for field, used in (("scenario", self._on_scenario), ("route", self._on_route), ("source", self._on_source))
            if used
        ]
        self._traits = attrgetter(*traits)
        self._kinds: dict[_Form, dict[tuple[object, ...], Kind]] = {}
        self._room = self._BOUND
        self._quick: dict[tuple[object, ...], tuple[Plan, ...]] = {}
        self._recognised: dict[tuple[int | None, int | None, int], Kind] = {}

    def _uses(self, field: str) -> bool:
        return any("+" in rule.on and field in rule.on.split("+") for rule in self._policy.rules)

    def kind(self, decision: Decision) -> Kind:
        """A plan for every subject that the decision could change."""
        return self.kinds((decision,))[0]

    def kinds(self, decisions: Sequence[Decision]) -> list[Kind]:
        """The kind of each."""
        traits = list(map(self._traits, decisions))
        forms: list[_Form] = list(map(tuple, map(_subjects, decisions)))
        attrs = list(map(_attrs, decisions))
        if any(attrs):
            forms = list(zip(forms, map(tuple, attrs), strict=True))
        if forms.count(forms[0]) == len(forms):  # as it mostly is
            found = list(map(self._kinds.get(forms[0], {}).get, traits))
        else:
            found = [self._kinds.get(form, {}).get(those) for form, those in zip(forms, traits, strict=True)]
        if all(found):
            return found  # type: ignore[return-value] # nothing is missing
        rows = zip(found, forms, traits, decisions, strict=True)
        return [kind or self._learn(form, those, decision) for kind, form, those, decision in rows]

    def recognised_kinds(self, seen: Recognised) -> list[Kind | None]:
        """The kind of each recognised decision; None for one that is not, or whose kind was not told yet."""
        forms = zip(seen.heads, seen.tails, map(_shape, seen.names), strict=True)
        return list(map(self._recognised.get, forms))

    def recognised_kind(self, seen: Recognised, at: int, raw: bytes) -> Kind:
        """The kind of a recognised decision, and from now on of all that are alike."""
        form = seen.heads[at], seen.tails[at], seen.names[at].shape
        kind = self._recognised.get(form)
        if kind is None:
            if len(self._recognised) >= self._BOUND:
                self._recognised.clear()
            kind = self._recognised[form] = self.kind(decode_recognised(raw))
        return kind

    def _learn(self, form: _Form, traits: tuple[object, ...], decision: Decision) -> Kind:
        if self._room <= 0:
            self._kinds.clear()
            self._quick.clear()
            self._room = self._BOUND
        known = self._kinds.setdefault(form, {})
        if traits not in known:
            known[traits] = self._sorted(self._make(decision))
            self._room -= 1
        return known[traits]

    def _sorted(self, plans: tuple[Plan, ...]) -> Kind:
        quick = tuple(plan for plan in plans if plan.quick and plan.place >= 0)
        rest = tuple(plan for plan in plans if plan not in quick)
        quick = self._quick.setdefault(tuple((plan.place, plan.value, plan.key) for plan in quick), quick)
        return Kind(
            plans,
            quick,
            rest,
            -1 if any(plan.place < 0 for plan in plans) else sum({1 << plan.place for plan in plans}),
        )

    def _make(self, decision: Decision) -> tuple[Plan, ...]:
        charged = most_specific(limit.split(":", 1)[0] for limit in decision.violated) if decision.violated else ""
        seeing = [one for one in self._detections if _present(one.rule, decision) and sees(one.rule, decision, charged)]
        evidence = self._policy.shared_ip is not None and decision.established is True and "user" in decision.subjects
        dimensions = dict.fromkeys(one.rule.on for one in seeing)
        if evidence:  # an address is shared on each route, too
            dimensions |= dict.fromkeys(on for on in self._addresses if _has(on, decision))
        return tuple(_plan(on, seeing, decision, shared=evidence and on in self._addresses) for on in dimensions)


def _plan(on: str, seeing: list[Detection], decision: Decision, *, shared: bool) -> Plan:
    places = {dimension: place for place, dimension in enumerate(decision.subjects)}
    mine = [Sight(one, places.get(one.distinct, -1)) for one in seeing if one.rule.on == on]
    rules = tuple(sight for sight in mine if not sight.detection.rule.shadow and decision.enforced)
    shadows = tuple(sight for sight in mine if sight.detection.rule.shadow)
    first = rules[0] if rules else None
    return Plan(
        dimension=on,
        parts=tuple(on.split("+")) if "+" in on else (),
        place=places.get(on, -1),
        rules=rules,
        shadows=shadows,
        user=places["user"] if shared else -1,
        plain=bool(rules) and not shadows and not shared,
        quick=first is not None and first.place >= 0 and len(rules) == 1 and not shadows and not shared,
        value=first.place if first else -1,
        key=first.detection.key if first else 0,
        granule_ms=first.detection.granule_ms if first else 0,
    )


def sees(rule: Rule, decision: Decision, charged: str) -> bool:
    """Whether a rule sees this kind of decision; `charged` is its most specific violated dimension."""
    when = rule.when
    if not (
        _passes(when.action, decision.action)
        and _passes(when.scenario, decision.scenario)
        and _passes(when.route, decision.route)
        and _passes(when.source, decision.source)
        and _reason_passes(rule, decision)
    ):
        return False
    if not decision.enforced and not rule.shadow:
        return False
    if when.violated is not None:
        return any(_passes(when.violated, limit) for limit in decision.violated)
    if rule.kind == "distinct":
        return True
    if not charged:
        return when.reason is not None or when.action is not None
    return rule.on in {charged, leading_part(charged)}


def _reason_passes(rule: Rule, decision: Decision) -> bool:
    if rule.when.reason is not None:
        return _passes(rule.when.reason, decision.reason or "")
    if decision.reason is None:
        return rule.kind == "distinct" or rule.when.action is not None
    return decision.reason in _DEFAULT_REASONS


def _passes(patterns: Filter | None, word: str) -> bool:
    return patterns is None or any(matches(pattern, word) for pattern in patterns)


def _present(rule: Rule, decision: Decision) -> bool:
    """Whether the decision has the rule's subject, and the value that the rule tells apart."""
    if rule.distinct.startswith("attrs."):
        if rule.distinct.removeprefix("attrs.") not in decision.attrs:
            return False
    elif rule.distinct and rule.distinct not in decision.subjects:
        return False
    return _has(rule.on, decision)


def _has(on: str, decision: Decision) -> bool:
    if "+" not in on:
        return on in decision.subjects
    return all(part in decision.subjects or (part in _FIELDS and getattr(decision, part)) for part in on.split("+"))


def combination_values(plan: Plan, decision: Decision) -> Mapping[str, str]:
    """The values that a combination's text is made of."""
    return {part: decision.subjects.get(part) or getattr(decision, part) for part in plan.parts}


def _unpack(rule: Rule) -> Detection:
    attr = rule.distinct.removeprefix("attrs.") if rule.distinct.startswith("attrs.") else ""
    return Detection(
        name=rule.name,
        key=rule.key,
        counts=rule.kind == "count",
        distinct="" if attr else rule.distinct,
        attr=attr,
        n=rule.n,
        window_ms=rule.window_ms,
        granule_ms=granule_ms(rule.window_ms),
        then=rule.then,
        rule=rule,
    )
