"""The Lua algorithms against the ones in memory, on virtual time, on every server that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penaltybox.contracts.policy import Algorithm, Limit
from penaltybox.producers.algorithms import NEVER, counting
from tests.producers.algorithms.lua_algorithms import Call

if TYPE_CHECKING:
    from penaltybox.producers.algorithms import Counting
    from tests.producers.algorithms.lua_algorithms import LuaAlgorithms

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
NOON = 1_766_400_000_000
NO_END = -1

bounded = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@st.composite
def limits(draw: st.DrawFn, algorithm: Algorithm) -> Limit:
    """Small ones, where everything happens, and large ones, where numbers are as long as a policy allows."""
    if draw(st.integers(0, 3)):
        quota, window, bursts = draw(st.integers(1, 6)), draw(st.integers(2, 50)), st.integers(1, 9)
    else:
        window = draw(st.integers(10**6, 31 * 86_400_000))
        most = (1 << 53) // window
        quota, bursts = draw(st.integers(1, most)), st.integers(1, most)
    return Limit(
        name="x",
        limit=quota,
        window_ms=window,
        algorithm=algorithm,
        burst=draw(st.none() | bursts),
        slots=draw(st.integers(2, min(window, 60))),
    )


@st.composite
def steps(draw: st.DrawFn, limit: Limit) -> list[tuple[int, int]]:
    """(cost, ms since the step before; sometimes back)."""
    window = limit.window_ms
    gap = st.integers(0, max(1, window // 8)) | st.integers(0, 3 * window) | st.integers(-window // 2, 0)
    cost = st.integers(0, 3) | st.integers(0, (limit.burst or limit.limit) + 1)
    return draw(st.lists(st.tuples(cost, gap), min_size=1, max_size=40))


class Clock:
    """Virtual time, which steps back too: only from the newest take, because asking later than that may clean up.

    A step back by more than a window comes with a take, which starts the key afresh.
    """

    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        self.now = self.taken = NOON
        self.asked = NOON + 1  # nothing was taken yet

    def step(self, gap: int, cost: int) -> tuple[int, int]:
        """The time after a gap, and what may be asked for then."""
        self.now += gap if gap > 0 or self.asked <= self.taken else 0
        self.asked = max(self.asked, self.now)
        return self.now, cost if self.taken - self.now <= self.window_ms else 1

    def took(self) -> None:
        """A take at the time now."""
        first = self.asked > self.taken == NOON
        afresh = self.taken - self.now > self.window_ms
        self.taken = self.now if afresh else max(self.now, self.taken)
        self.asked = self.taken if afresh or first else self.asked


def expected(counter: Counting, cost: int, now: int) -> list[int]:
    """What the harness' `decide` says, from memory."""
    answer = [counter.wait_ms("k", cost, now), counter.remaining("k", now), counter.reset_ms("k", now)]
    if answer[0] == 0:
        answer += [counter.take("k", cost, now), counter.reset_ms("k", now)]
    return answer


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@bounded
@given(data=st.data())
def test_lua_equals_memory(lua: LuaAlgorithms, algorithm: Algorithm, data: st.DataObject) -> None:
    """Wait, remaining and reset, before and after each take, are those of the algorithm in memory; so after a give."""
    limit = data.draw(limits(algorithm))
    counter, calls, wanted = counting(limit), list[Call](), list[list[int]]()
    clock = Clock(limit.window_ms)
    taken: list[tuple[str, int, int]] = []
    for number, (cost, gap) in enumerate(data.draw(steps(limit))):
        now, cost = clock.step(gap, cost)  # noqa: PLW2901 - the cost that goes with the step
        calls.append(Call("decide", limit, cost, now, f"id{number}"))
        wanted.append(expected(counter, cost, now))
        if wanted[-1][0] == 0 and cost:
            if now >= clock.taken:
                taken.append((f"id{number}", cost, now))
            clock.took()
        if taken and data.draw(st.integers(0, 4)) == 0:
            given_id, given_cost, at = taken.pop(data.draw(st.integers(0, len(taken) - 1)))
            counter.give("k", given_cost, at, now)
            calls.append(Call("give", limit, given_cost, now, given_id, at))
            wanted.append([])
            clock.asked = clock.taken + 1
    key = lua.key()
    assert lua.run(key, calls) == wanted
    if any(call.operation == "decide" and call.cost for call in calls):
        assert lua.client.pttl(key) != NO_END


@bounded
@given(data=st.data())
def test_anything_on_one_key(lua: LuaAlgorithms, data: st.DataObject) -> None:
    """Algorithms, limits and windows that change at every call: no error, no key without end, no wait beyond reset."""
    key, now, calls = lua.key(), NOON, []
    for number in range(data.draw(st.integers(1, 30))):
        limit = data.draw(st.sampled_from(ALGORITHMS).flatmap(limits))
        now += data.draw(st.integers(-100, 100) | st.integers(-(10**6), 10**6))
        cost = data.draw(st.integers(0, 3) | st.integers(0, limit.limit))
        operation = data.draw(st.sampled_from(["decide", "decide", "ask", "give"]))
        taken = number - data.draw(st.integers(0, 2))
        taken_ms = calls[taken].now_ms if 0 <= taken < number else now
        calls.append(Call(operation, limit, cost, now, f"id{taken if operation == 'give' else number}", taken_ms))
    for call, reply in zip(calls, lua.run(key, calls), strict=True):
        if call.operation != "give":
            wait, remaining, reset = reply[:3]
            assert wait == NEVER or 0 <= wait <= reset
            assert min(reply[1:]) >= 0
            assert remaining <= max(call.limit.burst or 0, call.limit.limit)
    assert lua.client.pttl(key) != NO_END
