"""Where history ends after a step, and what of a later time the step has used: the oracle's own reading."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy, Rule
    from tests.oracle.person import Case, Entry


def granule(window_ms: int) -> int:
    return max(1, window_ms // 32)


def draw_fence(case: Case, s: int) -> None:
    """History ends at s, or after whatever a distinct set may have seen without noting the exact time."""
    track = case.track
    seen = [end_of(entry) - 1 for entries in track.counted.values() for entry in entries if entry.granule_ms]
    track.at = max([track.at, s, min(max(seen, default=0), case.trigger.broker_ms)])


def restart(policy: Policy, case: Case) -> None:
    """All rules count afresh. Which values they held is kept, each to the end of its granule, within the lateness."""
    track = case.track
    rules = {rule.key: rule for rule in policy.rules}
    last = case.trigger.broker_ms + policy.lateness_ms
    for key, entries in track.counted.items():
        if key in rules and rules[key].kind == "distinct" and entries:
            track.used += [(key, value, min(end, last + 1)) for end, value in held(rules[key], entries)]
    track.counted.clear()
    deny = track.deny
    blocked = 0 if deny is None else 1 << 62 if deny.until is None else deny.until - 1
    track.used = [one for one in track.used if one[2] - 1 > max(track.at, blocked)]


def held(rule: Rule, entries: list[Entry]) -> list[tuple[int, int]]:
    """(end of the granule, value) of the newest values, as many as the rule needs."""
    latest: dict[int, int] = {}
    for entry in entries:
        value = entry.value or 0
        latest[value] = max(end_of(entry), latest.get(value, 0))
    newest = max(latest.values())
    within = [(end, value) for value, end in latest.items() if end > newest - rule.window_ms]
    return sorted(within)[-rule.n :]


def end_of(entry: Entry) -> int:
    return entry.t // entry.granule_ms * entry.granule_ms + entry.granule_ms
