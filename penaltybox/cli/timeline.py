"""The timeline of one subject: its recorded events of a range, told again by the engine, as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.subjects import leading_part, value_hash
from penaltybox.processors.detections import see_value
from penaltybox.processors.remedies import COMMANDED
from penaltybox.processors.retelling.recorded import Recorded, state_after
from penaltybox.processors.retelling.story import Moment, differences, tell
from penaltybox.sinks.clickhouse.subject_history import established_on, events_of, penalties_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.retelling.story import Engines
    from penaltybox.processors.retelling.verdicts import Verdict
    from penaltybox.processors.state import SubjectState
    from penaltybox.sinks.clickhouse.client import ClickHouse

MAX_EVENTS: Final = 20_000
MAX_PENALTIES: Final = 500
_HOUR_MS: Final = 3_600_000
_SHORTEST_MS: Final = 600_000


class Timeline(msgspec.Struct, kw_only=True):
    """What became of every recorded event in a range. Times in ms since the epoch."""

    since: int
    until: int
    policy_version: str
    """The one in force now."""
    policies: list[tuple[int, str]] = []
    """(from when, version): under which it was told again."""
    other_versions: list[str] = []
    """Versions that made penalties in the range, and are not known any more."""
    verdicts: dict[Verdict, int] = {}
    moments: list[Moment] = []
    left_out: int = 0
    """Moments that are not in `moments`, because they are many."""
    left_out_after: int = -1
    """How many of `moments` stand before the gap; what follows in it wrote penalties."""
    older_left_out: bool = False
    """The range has more events than are read."""
    differences: list[str] = []


class Past(msgspec.Struct, kw_only=True):
    """What ClickHouse gave: the timeline, and the penalties before it, newest first."""

    timeline: Timeline
    earlier: list[Penalty]


def read_past(
    clickhouse: ClickHouse,
    live: SubjectState | None,
    subject: str,
    engines: Engines,
    *,
    since_ms: int | None,
    now_ms: int,
) -> Past:
    """Read a subject's past, and tell it again under the policies that were in force.

    Args:
        clickhouse: where the records are.
        live: its state in Redis, to compare with.
        subject: canonical.
        engines: of the policies to tell it under.
        since_ms: where to begin; None: one window before the last step of a rule.
        now_ms: wall clock.

    Raises:
        StoreUnavailable: ClickHouse does not answer, or has no tables.
    """
    policy = engines.now.policy
    penalties = penalties_of(clickhouse, subject, MAX_PENALTIES)
    since = default_since(policy, subject, penalties, now_ms) if since_ms is None else since_ms
    earlier = [penalty for penalty in penalties if penalty.ts < since]
    within = [penalty for penalty in penalties if penalty.ts >= since]
    found = events_of(clickhouse, subject, since, now_ms, MAX_EVENTS)
    state = state_after(subject, earlier, policy)
    _see_established(clickhouse, state, policy, since)
    story = tell(engines, state, [Recorded(*one) for one in found.events], within)
    verdicts: dict[Verdict, int] = {}
    for moment in story.moments:
        verdicts[moment.verdict] = verdicts.get(moment.verdict, 0) + 1
    timeline = Timeline(
        since=since,
        until=now_ms,
        policy_version=engines.now.version,
        policies=story.policies,
        other_versions=sorted({penalty.policy_version for penalty in within} - {one for _, one in story.policies}),
        verdicts=verdicts,
        moments=story.moments,
        older_left_out=found.more,
        differences=differences(story, live, now_ms),
    )
    return Past(timeline=timeline, earlier=earlier[::-1])


def default_since(policy: Policy, subject: str, penalties: Sequence[Penalty], now_ms: int) -> int:
    """One window of its rules before the last step of a rule; else the longest window on the dimension before now."""
    windows = {rule.name: rule.window_ms for rule in policy.rules}
    steps = [one for one in penalties if one.origin != COMMANDED and one.action != "lift"]
    if steps:
        last = steps[-1]
        names = last.evidence.get("rules", [])
        fired = [last.rule, *(names if isinstance(names, list) else [])]
        return last.ts - max([_SHORTEST_MS, *(windows[name] for name in fired if name in windows)])
    dimension = subject.partition(":")[0]
    return now_ms - max([_HOUR_MS, *(rule.window_ms for rule in policy.rules if rule.on == dimension)])


def _see_established(clickhouse: ClickHouse, state: SubjectState, policy: Policy, since_ms: int) -> None:
    """Shared-IP evidence from before the range."""
    shared_ip = policy.shared_ip
    if shared_ip is None or leading_part(state.dimension) != "ip":
        return
    begin = since_ms - shared_ip.window_ms
    state.shared = {}
    for user, at in established_on(clickhouse, state.subject, begin, since_ms - 1, shared_ip.established):
        see_value(state.shared, value_hash(user), at, shared_ip.window_ms, shared_ip.established)


def bounded(timeline: Timeline, each_end: int) -> Timeline:
    """The first and last moments, and those between them that wrote a penalty (as many as that again, four times)."""
    moments = timeline.moments
    if len(moments) <= 2 * each_end:
        return timeline
    middle = [one for one in moments[each_end:-each_end] if one.steps][: 8 * each_end]
    kept = [*moments[:each_end], *middle, *moments[-each_end:]]
    return msgspec.structs.replace(timeline, moments=kept, left_out=len(moments) - len(kept), left_out_after=each_end)
