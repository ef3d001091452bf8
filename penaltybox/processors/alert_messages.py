"""Which penalties alert, and what an alert says. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.durations import format_duration
from penaltybox.contracts.ids import stable_id
from penaltybox.contracts.policy_rules import matches

if TYPE_CHECKING:
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.settings import Settings

_IMPOSED: Final = ("deny", "challenge", "warn")
_WORDS: Final = {"deny": "denied", "challenge": "challenged", "warn": "warned"}
_SAMPLE: Final = 20


class Alert(NamedTuple):
    """One message: its identity, when what it tells of happened (ms), its title, its body."""

    identity: str
    at_ms: int
    title: str
    body: bytes


class Choice(NamedTuple):
    """Which penalties alert.

    Attributes:
        rungs: names; none: every step that denies.
        rules: patterns with ``*``; none: every rule, and steps by hand (rule ``hand``).
        shadow: whether shadow penalties do, too.
    """

    rungs: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    shadow: bool = True

    @classmethod
    def of(cls, settings: Settings) -> Choice:
        """What the settings choose."""
        return cls(settings.alert_rungs, settings.alert_rules, settings.alert_shadow)

    def wants(self, penalty: Penalty) -> bool:
        """Whether a penalty alerts. Lifts and notes never do."""
        if penalty.action not in _IMPOSED or (penalty.shadow and not self.shadow):
            return False
        if self.rules and not any(matches(pattern, penalty.rule) for pattern in self.rules):
            return False
        return penalty.to in self.rungs if self.rungs else penalty.action == "deny"


def penalty_alert(penalty: Penalty) -> Alert:
    """The alert of one penalty; a shadow penalty says so in title and field."""
    title = _title(penalty)
    return _alert("penalty", penalty.id, penalty.ts, title, {"shadow": penalty.shadow, "penalty": penalty})


def pause_alert(reason: str, at_ms: int) -> Alert:
    """New blocks are paused, by the breaker or by hand."""
    title = f"penaltybox: new blocks are paused: {reason}"
    return _alert("pause", stable_id("pause", reason), at_ms, title, {"shadow": False, "reason": reason})


def _title(penalty: Penalty) -> str:
    word = _WORDS[penalty.action]
    length = "" if penalty.until is None else f" for {format_duration(max(1, penalty.until - penalty.ts))}"
    lasts = " permanently" if penalty.until is None else length
    by = f"by {penalty.actor}: {penalty.note}" if penalty.origin == "hand" else f"by rule {penalty.rule}"
    if penalty.shadow:
        return f"[shadow, nothing was done] {penalty.subject} would be {word}{lasts} {by}"
    return f"{penalty.subject} is {word}{lasts} {by}{' (handled late)' if penalty.late else ''}"


def _alert(kind: str, identity: str, at_ms: int, title: str, fields: dict[str, Any]) -> Alert:
    document = {"v": 1, "type": kind, "id": identity, "at": at_ms, "title": title, "text": title} | fields
    return Alert(identity, at_ms, title, msgspec.json.encode(document))


class Overflow:
    """What went beyond the rate, counted until it is told in one summary."""

    def __init__(self) -> None:
        self.count = 0
        self.shadow = 0
        self.first_ms = self.last_ms = 0
        self._rungs: Counter[str] = Counter()
        self._rules: Counter[str] = Counter()
        self._sample: list[str] = []

    def add(self, penalty: Penalty) -> None:
        """Counts one."""
        self.first_ms = min(self.first_ms, penalty.ts) if self.count else penalty.ts
        self.last_ms = max(self.last_ms, penalty.ts)
        self.count += 1
        self.shadow += penalty.shadow
        self._rungs[penalty.to] += 1
        self._rules[penalty.rule] += 1
        if len(self._sample) < _SAMPLE:
            self._sample.append(penalty.id)

    def summary(self) -> Alert:
        """``and 37 more``, with figures by rung and rule and the ids of the first."""
        shadow = f", {self.shadow} of them shadow" if self.shadow else ""
        rules = ", ".join(f"{rule} {number}" for rule, number in self._rules.most_common(5))
        fields = {
            "count": self.count,
            "shadow": self.shadow == self.count,
            "shadow_count": self.shadow,
            "by_rung": dict(self._rungs.most_common()),
            "by_rule": dict(self._rules.most_common(_SAMPLE)),
            "first_at": self.first_ms,
            "penalties": self._sample,
        }
        identity = stable_id("summary", str(self.count), *self._sample)
        title = f"and {self.count} more{shadow} ({rules})"
        return _alert("summary", identity, self.last_ms, title, fields)
