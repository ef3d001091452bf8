"""When a rule fires: so many decisions, or so many distinct values, within a window. Pure, by event time.

Both kinds are sets that only grow within their window (an id or a value counts once), so duplicates, redelivery and
order change nothing but the moment at which N is reached.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from penaltybox.processors.state import FOREVER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.processors.state import Counter, Track

UNCHANGED: Final = 0
CHANGED: Final = 1
FIRED: Final = 2
GRANULES: Final = 32
"""A value's last sighting is kept to 1/32 of the window: a write a granule, not a write a request."""
MAX_CONTRIBUTIONS: Final = 64
MAX_USED: Final = 64


def granule_ms(window_ms: int) -> int:
    """Length of the granule in which sightings of distinct values are kept."""
    return max(1, window_ms // GRANULES)


def see_value(seen: dict[int, int], value: int, t: int, window_ms: int, n: int) -> int:
    """A distinct rule sees a value (its hash) at time `t`.

    Args:
        seen: value hash -> granule of its last sighting; changed in place.
        value: hash of the value.
        t: event time in ms.
        window_ms: length of the window.
        n: how many distinct values fire the rule; also the most that are kept.

    Returns:
        UNCHANGED, CHANGED, or FIRED when this sighting made the number reach `n`.
    """
    granule = t - t % granule_ms(window_ms)
    known = seen.get(value)
    if known is not None and known >= granule:
        return UNCHANGED
    if not seen:
        seen[value] = granule
        return FIRED if n <= 1 else CHANGED
    horizon = max(granule, *seen.values()) - window_ms
    if granule <= horizon:
        return UNCHANGED
    for old in [other for other, last in seen.items() if last <= horizon]:
        del seen[old]
    before = len(seen) >= n
    seen[value] = granule
    if len(seen) > n:
        del seen[min(seen, key=lambda other: (seen[other], other))]
    return FIRED if len(seen) >= n and not before else CHANGED


def values_within(seen: dict[int, int], t: int, window_ms: int) -> int:
    """How many distinct values are in the window that ends at `t`, or at the last sighting if that is later."""
    if not seen:
        return 0
    horizon = max(t - t % granule_ms(window_ms), *seen.values()) - window_ms
    return sum(1 for last in seen.values() if last > horizon)


def count_event(counter: Counter, event: int, t: int, weight: int, window_ms: int, n: int) -> int:
    """A count rule sees an event (hash of its id) that stands for `weight` decisions, at time `t`.

    Only as many of the newest events are kept as are needed to reach `n`. Returns as `see_value` does.
    """
    times, ids, weights = counter.times, counter.ids, counter.weights
    latest = times[-1] if times else t - 1
    horizon = (t if t > latest else latest) - window_ms  # noqa: FURB136 - a call to max would be felt here
    if t <= horizon or event in ids:
        return UNCHANGED
    if times and times[0] <= horizon:
        expired = bisect_right(times, horizon)
        del times[:expired], ids[:expired], weights[:expired]
    total = sum(weights)
    before = total >= n
    if t > latest:  # as most events are
        times.append(t)
        ids.append(event)
        weights.append(weight)
    else:
        place = bisect_right(times, t)
        while place and times[place - 1] == t and ids[place - 1] > event:
            place -= 1
        times.insert(place, t)
        ids.insert(place, event)
        weights.insert(place, weight)
    total += weight
    spare = 0
    while total - weights[spare] >= n:
        total -= weights[spare]
        spare += 1
    if spare:
        del times[:spare], ids[:spare], weights[:spare]
    return FIRED if total >= n and not before else CHANGED


def score_at(scores: Iterable[tuple[int, int, int]], now: int, window_ms: int) -> int:
    """A risk score: every contribution decays linearly to zero over the window, in integers."""
    return sum(points * max(0, window_ms - (now - t)) // window_ms for t, _, points in scores)


def add_score(track: Track, t: int, contributions: list[tuple[int, int]], window_ms: int) -> tuple[int, int]:
    """Adds (key, points) contributions at time `t`; a key counts once.

    Returns:
        The score just before and just after, both at the latest contribution's time.
    """
    known = {key for _, key, _ in track.scores}
    new = [(t, key, points) for key, points in contributions if key not in known]
    now = max([t, *(at for at, _, _ in track.scores)])
    kept = [entry for entry in track.scores if entry[0] > now - window_ms]
    before = score_at(kept, now, window_ms)
    added = [entry for entry in new if entry[0] > now - window_ms]
    track.scores = tuple(sorted([*kept, *added])[-MAX_CONTRIBUTIONS:])
    return before, score_at(track.scores, now, window_ms)


def latest_count(track: Track) -> int:
    """The latest time of an event that counts on this track now; 0 when none does."""
    return max((counter.times[-1] for counter in track.counters.values() if counter.times), default=0)


def fence(track: Track, windows: dict[int, int], at: int, broker_ms: int) -> int:
    """Where history ends after a step at time `at`: nothing that was seen before the step may count after it.

    Sightings of a known value are kept to a granule only, so the fence is the end of the latest granule, but never
    beyond the broker's time.

    Args:
        track: before its sets are emptied.
        windows: rule key -> window in ms, of the policy in force.
        at: time of the step.
        broker_ms: the broker's timestamp of the record that led to it.
    """
    seen = at
    for key, values in track.sets.items():
        if values and key in windows:
            seen = max(seen, min(max(values.values()) + granule_ms(windows[key]) - 1, broker_ms))
    return seen


def use_up(track: Track, windows: dict[int, int], latest_ms: int) -> None:
    """Empties the sets after a step, and remembers which of their values may be delivered again behind the fence.

    The fence goes no further than the broker's time of the record that led to the step. If that record's partition
    lags, others have had later ones. Such a sighting is in the granule of its value; a block would still hide it.

    Args:
        track: its fence is drawn already, its block imposed.
        windows: rule key -> window in ms, of the policy in force.
        latest_ms: no other partition is expected to have been later than this.
    """
    used = {key: dict(ends) for key, ends in track.used.items()}
    for key, values in track.sets.items():
        if key not in windows:
            continue
        ends = used.setdefault(key, {})
        for value, granule in values.items():
            ends[value] = max(ends.get(value, 0), min(granule + granule_ms(windows[key]), latest_ms + 1))
    seen_from = track.at + 1
    if track.deny is not None:
        seen_from = FOREVER if track.deny.until is None else max(seen_from, track.deny.until)
    left = {key: sorted((end, value) for value, end in ends.items() if end > seen_from) for key, ends in used.items()}
    track.used = {key: {value: end for end, value in ends[-MAX_USED:]} for key, ends in left.items() if ends}
    track.sets = {}
