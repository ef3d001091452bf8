"""The algorithms in memory, against brute force that is obviously right."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.policy import Algorithm, Limit
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.algorithms import (
    NEVER,
    FixedWindow,
    Gcra,
    LeakyBucket,
    SlidingWindow,
    SlidingWindowCounter,
    TokenBucket,
    counting,
)

Kind = (
    type[FixedWindow]
    | type[SlidingWindow]
    | type[SlidingWindowCounter]
    | type[TokenBucket]
    | type[LeakyBucket]
    | type[Gcra]
)
KINDS: list[Kind] = [FixedWindow, SlidingWindow, SlidingWindowCounter, TokenBucket, LeakyBucket, Gcra]

requests = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 40)), max_size=60
)  # key, cost, ms since the request before
sizes = st.tuples(st.integers(1, 6), st.integers(1, 50))


class BruteFixed:
    """Adds up everything taken in the same window of the epoch."""

    def __init__(self, limit: int, window_ms: int) -> None:
        self.limit, self.window_ms = limit, window_ms
        self.taken: list[tuple[str, int, int]] = []

    def remaining(self, key: str, now: int) -> int:
        window = now // self.window_ms
        return self.limit - sum(c for k, t, c in self.taken if k == key and t // self.window_ms == window)

    def take(self, key: str, cost: int, now: int) -> None:
        self.taken.append((key, now, cost))


class BruteSliding(BruteFixed):
    """Adds up everything taken within the last window."""

    def remaining(self, key: str, now: int) -> int:
        return self.limit - sum(c for k, t, c in self.taken if k == key and now - self.window_ms < t <= now)


class BruteSlots(BruteFixed):
    """Adds up every slot of 60 of which the last millisecond is within the last window, or still to come."""

    def remaining(self, key: str, now: int) -> int:
        width = -(-self.window_ms // 60)
        return self.limit - sum(
            c for k, t, c in self.taken if k == key and now - self.window_ms < t - t % width + width - 1
        )


class BruteBucket(BruteFixed):
    """Plays the bucket again from the start, in fractions."""

    burst = 0

    def remaining(self, key: str, now: int) -> int:
        full = Fraction(self.burst or self.limit)
        level, at = full, 0
        for _, t, c in [*(entry for entry in self.taken if entry[0] == key), (key, now, 0)]:
            level = min(full, level + Fraction((t - at) * self.limit, self.window_ms)) - c
            at = t
        return level.numerator // level.denominator


@pytest.mark.parametrize(
    ("kind", "brute"),
    [
        (FixedWindow, BruteFixed),
        (SlidingWindow, BruteSliding),
        (SlidingWindowCounter, BruteSlots),
        (TokenBucket, BruteBucket),
        (LeakyBucket, BruteBucket),
        (Gcra, BruteBucket),
    ],
)
@given(sizes=sizes, requests=requests)
def test_equals_brute_force(
    kind: Kind, brute: type[BruteFixed], sizes: tuple[int, int], requests: list[tuple[str, int, int]]
) -> None:
    """Every answer (fits or not, remaining, how long to wait) equals a recount from the whole history."""
    counter, oracle, now = kind(*sizes), brute(*sizes), 1_000
    for key, cost, gap in requests:
        now += gap
        left = oracle.remaining(key, now)
        assert counter.remaining(key, now) == left
        wait = counter.wait_ms(key, cost, now)
        assert (wait == 0) == (cost == 0 or cost <= left)
        if cost > counter.limit:
            assert wait == NEVER
        elif wait > 0:
            assert oracle.remaining(key, now + wait) >= cost
            assert oracle.remaining(key, now + wait - 1) < cost
        else:
            taken = counter.take(key, cost, now)
            oracle.take(key, cost, now)
            assert taken == counter.remaining(key, now) == oracle.remaining(key, now)


@pytest.mark.parametrize("kind", [TokenBucket, LeakyBucket, Gcra])
@given(sizes=sizes, burst=st.integers(1, 9), requests=requests)
def test_burst_equals_brute_force(
    kind: type[TokenBucket | LeakyBucket | Gcra],
    sizes: tuple[int, int],
    burst: int,
    requests: list[tuple[str, int, int]],
) -> None:
    """A burst of its own, smaller or larger than the limit, is what fits at once; the rate stays the limit's."""
    counter, oracle, now = kind(*sizes, burst=burst), BruteBucket(*sizes), 1_000
    oracle.burst = burst
    for key, cost, gap in requests:
        now += gap
        left = oracle.remaining(key, now)
        assert counter.remaining(key, now) == left
        wait = counter.wait_ms(key, cost, now)
        assert (wait == 0) == (cost == 0 or cost <= left)
        assert (wait == NEVER) == (cost > burst)
        if wait == 0:
            counter.take(key, cost, now)
            oracle.take(key, cost, now)
        reset = counter.reset_ms(key, now)
        assert oracle.remaining(key, now + reset) == burst
        assert reset == 0 or oracle.remaining(key, now + reset - 1) < burst


@given(sizes=sizes, requests=requests)
def test_reset_is_when_all_is_there_again(sizes: tuple[int, int], requests: list[tuple[str, int, int]]) -> None:
    """Until then something is missing, then nothing: in every algorithm."""
    for kind in KINDS:
        counter, now = kind(*sizes), 1_000
        for key, cost, gap in requests:
            now += gap
            if counter.wait_ms(key, cost, now) == 0:
                counter.take(key, cost, now)
        left, reset = counter.remaining("a", now), counter.reset_ms("a", now)
        assert (reset == 0) == (left == counter.limit)
        assert reset == 0 or counter.remaining("a", now + reset - 1) < counter.limit
        assert counter.remaining("a", now + reset) == counter.limit


@pytest.mark.parametrize("kind", KINDS)
@given(sizes=sizes, first=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 20))), data=st.data())
def test_giving_back_is_as_if_never_taken(
    kind: Kind, sizes: tuple[int, int], first: list[tuple[int, int]], data: st.DataObject
) -> None:
    """What is given back at once leaves what there was before; later it never gives more than was taken."""
    counter, now = kind(*sizes), 1_000
    for cost, gap in first:
        now += gap
        if counter.wait_ms("k", cost, now) == 0:
            counter.take("k", cost, now)
    left = counter.remaining("k", now)
    cost = data.draw(st.integers(0, left))
    counter.take("k", cost, now)
    later = now + data.draw(st.just(0) | st.integers(0, 100))
    before = counter.remaining("k", later)
    counter.give("k", cost, now, later)
    assert before <= counter.remaining("k", later) <= min(before + cost, counter.limit)
    if later == now:
        assert counter.remaining("k", now) == left


@pytest.mark.parametrize(("name", "kind"), list(zip(get_args(Algorithm), [
    FixedWindow, SlidingWindow, SlidingWindowCounter, TokenBucket, LeakyBucket, Gcra,
], strict=True)))  # fmt: skip
def test_counter_of_a_limit(name: Algorithm, kind: Kind) -> None:
    """Each algorithm that a policy can name is there, with the limit's burst or slots."""
    counter = counting(Limit(name="x", limit=4, window_ms=1_000, algorithm=name, burst=9, slots=10))
    assert type(counter) is kind
    assert (counter.limit, counter.window_ms) == (4, 1_000)
    assert getattr(counter, "burst", 9) == 9
    assert getattr(counter, "width_ms", 100) == 100


@given(sizes=sizes, gaps=st.lists(st.integers(0, 30), max_size=80))
def test_sliding_window_has_no_peak(sizes: tuple[int, int], gaps: list[int]) -> None:
    """Whatever comes, no window anywhere holds more than the limit."""
    limit, window = sizes
    counter, now, allowed = SlidingWindow(limit, window), 0, []
    for gap in gaps:
        now += gap
        if counter.wait_ms("k", 1, now) == 0:
            counter.take("k", 1, now)
            allowed.append(now)
    for end in allowed:
        assert sum(1 for t in allowed if end - window < t <= end) <= limit


def test_window_edge() -> None:
    """Around an edge the fixed window lets twice the limit pass; the sliding window does not."""
    #        9 s           10 s
    # ───────┼─────────────┼───────
    #    99999|100000: ten requests on each side of the edge
    passed = {}
    for kind in (FixedWindow, SlidingWindow):
        counter, passed[kind] = kind(10, 10_000), 0
        for now in [9_999] * 10 + [10_000] * 10:
            if counter.wait_ms("k", 1, now) == 0:
                counter.take("k", 1, now)
                passed[kind] += 1
    assert passed == {FixedWindow: 20, SlidingWindow: 10}


def test_sliding_window_frees_exactly_at_its_end() -> None:
    """What was taken at t is free again at t + window, not a millisecond earlier."""
    counter = SlidingWindow(1, 1_000)
    counter.take("k", 1, 500)
    assert counter.wait_ms("k", 1, 1_499) == 1
    assert counter.wait_ms("k", 1, 1_500) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_memory_is_flat(kind: Kind) -> None:
    """A million keys that come once leave a table no larger than twice the live ones."""
    counter = kind(5, 1_000)
    for number in range(100_000):
        counter.take(f"k{number}", 1, number)
    assert len(counter) <= 2 * 1_000 + 1_024


@pytest.mark.parametrize("kind", KINDS)
def test_more_live_keys_than_room(kind: Kind) -> None:
    """A flood of live keys is bounded by max_keys, and the newest keys are those kept."""
    counter = kind(5, 10**9, max_keys=1_000)
    for number in range(5_000):
        counter.take(f"k{number}", 5, 1)
    assert len(counter) <= 1_000
    assert counter.remaining("k4999", 1) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_time_that_runs_backwards(kind: Kind) -> None:
    """A little back counts at the key's newest time; back by more than a window starts the key afresh."""
    counter = kind(3, 1_000)
    counter.take("k", 3, 10_000)
    assert counter.remaining("k", 9_999) == 0
    assert counter.wait_ms("k", 1, 9_999) > 0
    assert counter.remaining("k", 5_000) == 3


def test_token_bucket_refills_evenly() -> None:
    """Six a minute: after the burst one token every ten seconds."""
    counter = TokenBucket(6, 60_000)
    counter.take("k", 6, 0)
    assert [counter.wait_ms("k", cost, 0) for cost in (1, 2, 6, 7)] == [10_000, 20_000, 60_000, NEVER]
    assert [counter.remaining("k", ms) for ms in (9_999, 10_000, 60_000, 600_000)] == [0, 1, 6, 6]


def test_the_page_names_every_algorithm() -> None:
    """docs/limiter.md says of each algorithm what it is for, and its example is a policy."""
    page = (Path(__file__).parents[3] / "docs" / "limiter.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)`.*\|.*\|.*\|.*\|.*\|$", page, re.MULTILINE)) >= set(get_args(Algorithm))
    section = page[page.index("## Which algorithm") :]
    example = section[section.index("```yaml\n") + len("```yaml\n") : section.index("\n```\n")]
    assert parse_policy(example).limits["reports"]["user"][1].burst == 10
