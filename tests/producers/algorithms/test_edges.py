"""What passes around a window's edge, on a real server: nothing too much in any window, and not too late."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penaltybox.contracts.policy import Limit
from penaltybox.producers.algorithms import SlidingWindow, SlidingWindowCounter
from tests.producers.algorithms.lua_algorithms import Call

if TYPE_CHECKING:
    from tests.producers.algorithms.lua_algorithms import LuaAlgorithms

NOON = 1_766_400_000_000

bounded = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
quotas = st.integers(1, 12)
windows = st.integers(2, 120)
traffic = st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3) | st.integers(0, 90)), min_size=1, max_size=80)
"""(cost, ms since the request before)"""


def decided(lua: LuaAlgorithms, limit: Limit, requests: list[tuple[int, int]]) -> list[tuple[int, int, bool]]:
    """(time, cost, allowed) of each request."""
    now, calls = NOON, []
    for number, (cost, gap) in enumerate(requests):
        now += gap
        calls.append(Call("decide", limit, cost, now, f"id{number}"))
    replies = lua.run(lua.key(), calls)
    return [(call.now_ms, call.cost, reply[0] == 0) for call, reply in zip(calls, replies, strict=True)]


def taken_within(decisions: list[tuple[int, int, bool]], end: int, window: int) -> int:
    """Cost taken in (end - window, end]."""
    return sum(cost for at, cost, allowed in decisions if allowed and end - window < at <= end)


@bounded
@given(quota=quotas, window=windows, requests=traffic)
def test_log_is_exact(lua: LuaAlgorithms, quota: int, window: int, requests: list[tuple[int, int]]) -> None:
    """The log allows a request if, and only if, the window that ends with it then holds at most the limit."""
    decisions = decided(lua, Limit(name="x", limit=quota, window_ms=window), requests)
    for index, (now, cost, allowed) in enumerate(decisions):
        assert allowed == (taken_within(decisions[:index], now, window) + cost <= quota)


@bounded
@given(quota=quotas, window=windows, slots=st.integers(2, 60), requests=traffic)
def test_bound_of_the_counter(
    lua: LuaAlgorithms, quota: int, window: int, slots: int, requests: list[tuple[int, int]]
) -> None:
    """The counter lets no window hold more than the limit, and allows what a log longer by a slot - 1 ms allows."""
    slots = min(slots, window)
    limit = Limit(name="x", limit=quota, window_ms=window, algorithm="sliding_window_counter", slots=slots)
    decisions = decided(lua, limit, requests)
    longer = window + -(-window // slots) - 1
    for index, (now, cost, allowed) in enumerate(decisions):
        if allowed:
            assert taken_within(decisions[:index], now, window) + cost <= quota
        else:
            assert taken_within(decisions[:index], now, longer) + cost > quota


@given(quota=quotas, window=st.integers(2, 200), slots=st.integers(2, 60), start=st.integers(0, 10_000))
def test_rate_of_the_counter(quota: int, window: int, slots: int, start: int) -> None:
    """Someone who always asks again gets more than slots / (slots + 1) of the limit's rate."""
    slots = min(slots, window)
    counter, taken, length = SlidingWindowCounter(quota, window, slots=slots), 0, 10 * window
    for now in range(start, start + length):
        while counter.wait_ms("k", 1, now) == 0:
            counter.take("k", 1, now)
            taken += 1
    assert taken * window * (slots + 1) >= quota * length * slots


@pytest.mark.parametrize("algorithm", ["sliding_window", "sliding_window_counter"])
def test_both_sides_of_an_edge(lua: LuaAlgorithms, algorithm: str) -> None:
    """Ten on each side of a window's edge: ten pass with the sliding windows, there is no double peak."""
    #        9 s           10 s
    # ───────┼─────────────┼───────
    #    99999|100000: ten requests on each side of the edge
    limit = Limit(name="x", limit=10, window_ms=10_000, algorithm=algorithm)  # type: ignore[arg-type]
    calls = [Call("decide", limit, 1, NOON + ms, f"{ms}-{n}") for ms in (9_999, 10_000) for n in range(10)]
    waits = [reply[0] for reply in lua.run(lua.key(), calls)]
    assert waits[:10] == [0] * 10
    assert all(9_000 < wait <= 10_200 for wait in waits[10:])


def test_fixed_window_has_the_double_peak(lua: LuaAlgorithms) -> None:
    """What the fixed window is not for: around an edge twice the limit passes."""
    limit = Limit(name="x", limit=10, window_ms=10_000, algorithm="fixed_window")
    calls = [Call("decide", limit, 1, NOON + ms, f"{ms}-{n}") for ms in (9_999, 10_000) for n in range(10)]
    assert [reply[0] for reply in lua.run(lua.key(), calls)] == [0] * 20


def test_sums_of_a_log_start_again(lua: LuaAlgorithms) -> None:
    """Costs that together pass what a number holds exactly, many times over: it decides as the log in memory does."""
    limit = Limit(name="x", limit=2**51, window_ms=2)
    costs = [2**50 - 1, 2**50, 2**49 + 1, 1]
    reference, calls, wanted = SlidingWindow(limit.limit, limit.window_ms), [], []
    for number in range(80):
        cost, now = costs[number % 4], NOON + number
        calls.append(Call("decide", limit, cost, now, f"id{number}"))
        wanted.append((reference.wait_ms("k", cost, now), reference.remaining("k", now)))
        if wanted[-1][0] == 0:
            reference.take("k", cost, now)
    assert [tuple(reply[:2]) for reply in lua.run(lua.key(), calls)] == wanted


@pytest.mark.parametrize("costs", [[1], [1, 7, 2]])
def test_many_entries_leave_at_once(lua: LuaAlgorithms, costs: list[int]) -> None:
    """After every pause between requests, whatever share of a long log has left the window, the count is exact."""
    limit = Limit(name="x", limit=10_000, window_ms=1_000)
    reference = SlidingWindow(limit.limit, limit.window_ms)
    now, calls, wanted = NOON, [], []
    for burst, pause in enumerate([0, 999, 1, 500, 37, 963, 1, 700]):
        now += pause
        for number in range(300):
            now += number % 2
            cost = costs[number % len(costs)]
            calls.append(Call("decide", limit, cost, now, f"{burst}-{number}"))
            wanted.append((reference.wait_ms("k", cost, now), reference.remaining("k", now)))
            reference.take("k", cost, now)
    assert [tuple(reply[:2]) for reply in lua.run(lua.key(), calls)] == wanted


def test_request_above_the_limit_leaves_no_entry(lua: LuaAlgorithms) -> None:
    """Request N + 1 is refused, and Redis holds exactly N entries."""
    limit = Limit(name="x", limit=25, window_ms=60_000)
    key = lua.key()
    waits = [reply[0] for reply in lua.run(key, [Call("decide", limit, 1, NOON, f"id{n}") for n in range(26)])]
    assert waits == [0] * 25 + [60_000]
    assert lua.client.llen(key) == 25
