"""How far back a policy looks: that long a replay warms up before its results count."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.durations import format_duration
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.processors.replay.records import Window
from penaltybox.processors.replay.times import iso

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.policy import Policy

LONGEST_MS: Final = 30 * 86_400_000
"""A warm-up is never longer than this unless asked for: `decisions` are kept for a week by default."""


class Horizon(NamedTuple):
    """The longest look back, and which part of the policy asks for it."""

    ms: int
    name: str


def horizon(policies: Iterable[Policy]) -> Horizon:
    """The longest horizon of all the policies: windows, forgiveness and memory, trust, shared addresses, holds.

    A permanent block has none: who was banned for good before the warm-up begins is not in it.
    """
    return max((one for policy in policies for one in _horizons(policy)), default=Horizon(0, "nothing"))


def _horizons(policy: Policy) -> Iterable[Horizon]:
    for rule in policy.rules:
        yield Horizon(rule.window_ms, f"the window of rule {rule.name}")
        yield Horizon(rule.then.challenge_ms or 0, f"the challenge of rule {rule.name}")
    ladder = policy.ladder
    longest = max((rung.duration_ms or 0 for rung in ladder.rungs), default=0)
    stretched = longest + longest * ladder.jitter_percent // 100
    yield Horizon(stretched + ladder.memory_ms, "ladder.memory after the longest rung")
    yield Horizon(policy.score.window_ms if policy.score.thresholds else 0, "the window of the score")
    yield Horizon(policy.pass_ms, "the pass after a challenge")
    if policy.trust.points:
        yield Horizon(policy.trust.ttl_ms, "trust.ttl")
    if policy.shared_ip is not None:
        yield Horizon(policy.shared_ip.window_ms, "shared_ip.window")


def window_of(
    from_ms: int | None, to_ms: int | None, policies: Iterable[Policy], warm_up_ms: int | None
) -> tuple[Window, str]:
    """The window of a replay with its warm-up, and the sentence about it (empty when there is none).

    Args:
        from_ms: where results begin to count; None: with the first record, without a warm-up.
        to_ms: where they end.
        policies: all that are replayed.
        warm_up_ms: as asked for; None: the longest horizon, up to `LONGEST_MS`.

    Raises:
        ConfigurationError: the range is empty.
    """
    if from_ms is not None and to_ms is not None and to_ms <= from_ms:
        raise ConfigurationError(
            f"--from {iso(from_ms)} --to {iso(to_ms)}: nothing lies between them. --to must be later than --from."
        )
    if from_ms is None:
        return Window(None, None, to_ms), ""
    longest = horizon(policies)
    length = min(longest.ms, LONGEST_MS) if warm_up_ms is None else warm_up_ms
    if warm_up_ms is not None:
        why = "as asked for"
    elif longest.ms > LONGEST_MS:
        why = f"the most; {longest.name} is {format_duration(longest.ms)}: --warm-up {format_duration(longest.ms)}"
    else:
        why = longest.name
    sentence = f"Warm-up from {iso(from_ms - length)}: {format_duration(length) if length else 'none'} ({why})."
    return Window(from_ms - length, from_ms, to_ms), sentence
