"""The keys of the Lua algorithms: when they end, and what becomes of keys that hold something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.policy import Algorithm, Limit
from tests.producers.algorithms.lua_algorithms import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.producers.algorithms.lua_algorithms import LuaAlgorithms

ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
NOON = 1_766_400_000_000
SLACK_MS = 1_000
HOUR_MS = 3_600_000
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)

FOREIGN: dict[str, Callable[[Any, str], Any]] = {
    "text": lambda client, key: client.set(key, "hello"),
    "empty text": lambda client, key: client.set(key, ""),
    "number": lambda client, key: client.set(key, 12),
    "bytes": lambda client, key: client.set(key, b"\x00\xff\x01"),
    "list": lambda client, key: client.rpush(key, "a", "b"),
    "set": lambda client, key: client.sadd(key, "a", "b"),
    "stream": lambda client, key: client.xadd(key, {"a": "b"}),
    "hash": lambda client, key: client.hset(key, mapping={"shape": "3600000/60", "used": "many", "oldest": "-1"}),
    "hash with holes": lambda client, key: client.hset(
        key, mapping={"shape": "3600000/60", "used": "5", "oldest": "0", "latest": str(NOON // 60_000)}
    ),
    "scores below zero": lambda client, key: client.zadd(key, {"a": -5, "#": -3}),
    "no end of time": lambda client, key: client.zadd(key, {"a": float("inf"), "b": float("-inf")}),
    "parts of ms": lambda client, key: client.zadd(key, {"a": NOON + 0.5}),
    "states of no sense": lambda client, key: client.set(key, "token:3600000:-1:2:3:x"),
}


def limit_of(algorithm: Algorithm, quota: int = 3, window_ms: int = HOUR_MS) -> Limit:
    return Limit(name="x", limit=quota, window_ms=window_ms, algorithm=algorithm)


def waits(lua: LuaAlgorithms, key: str, limit: Limit, times: list[int], name: str = "id") -> list[int]:
    """Of one decision of cost 1 at each of the times."""
    calls = [Call("decide", limit, 1, now, f"{name}{number}") for number, now in enumerate(times)]
    return [reply[0] for reply in lua.run(key, calls)]


@every_algorithm
def test_end_of_a_key(real_lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """A key ends a second after all of the quota is there again, the log's up to an eighth of its window later.

    Never before that, never not at all.
    """
    spare = HOUR_MS // 8 if algorithm == "sliding_window" else 0
    key = real_lua.key()
    for number in range(3):
        start = now_ms()
        *_, reset = real_lua.one(key, Call("decide", limit_of(algorithm), 1, NOON + number, f"id{number}"))
        ttl = real_lua.client.pttl(key)
        assert reset + SLACK_MS - (now_ms() - start) - 1 <= ttl <= reset + SLACK_MS + spare


def test_end_of_a_log_moves_when_it_must(real_lua: LuaAlgorithms) -> None:
    """Requests that come close together move a log's end once; it is never before the newest one's window is over."""
    key, limit, ends = real_lua.key(), limit_of("sliding_window", 100), []
    for number in range(20):
        real_lua.one(key, Call("decide", limit, 1, NOON + number * HOUR_MS // 80, f"id{number}"))
        ends.append(real_lua.client.pexpiretime(key))
        assert real_lua.client.pttl(key) > HOUR_MS
    assert len(set(ends)) == 2


def test_end_of_a_log_that_gives_back(real_lua: LuaAlgorithms) -> None:
    """Giving back the newest entry, which had moved the end, or all, leaves no log without an end, or one too short."""
    key, limit = real_lua.key(), limit_of("sliding_window", 100)
    for number in range(3):
        real_lua.one(key, Call("decide", limit, 2, NOON + number * HOUR_MS // 4, f"id{number}"))
    for number in (2, 0, 1):
        at = NOON + number * HOUR_MS // 4
        real_lua.one(key, Call("give", limit, 2, NOON + HOUR_MS // 2, f"id{number}", at))
        assert number == 1 or real_lua.client.pttl(key) > HOUR_MS
    assert not real_lua.client.exists(key)
    real_lua.one(key, Call("decide", limit, 1, NOON, "again"))
    assert real_lua.client.pttl(key) > HOUR_MS


@every_algorithm
def test_refused_requests_change_no_end(real_lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """Who goes on asking is not kept out for longer."""
    key, limit = real_lua.key(), limit_of(algorithm)
    waits(real_lua, key, limit, [NOON] * 3)
    end = real_lua.client.pexpiretime(key)
    assert all(waits(real_lua, key, limit, [NOON + 5_000] * 5, "late"))
    assert real_lua.client.pexpiretime(key) == end


@every_algorithm
def test_giving_back_extends_no_end(real_lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """A key from which something was given back ends when it would have, or earlier; and one more request fits."""
    key, limit, start = real_lua.key(), limit_of(algorithm), now_ms()
    waits(real_lua, key, limit, [NOON] * 3)
    end = real_lua.client.pexpiretime(key)
    real_lua.one(key, Call("give", limit, 1, NOON, "id1", NOON))
    assert 0 < real_lua.client.pexpiretime(key) <= end + now_ms() - start  # virtual time stood still meanwhile
    assert [wait > 0 for wait in waits(real_lua, key, limit, [NOON] * 2, "again")] == [False, True]


@every_algorithm
def test_giving_back_all_is_a_full_quota(lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """Giving back more than counts never makes more than the quota; what the window has left is not given back."""
    key, limit = lua.key(), limit_of(algorithm)
    assert lua.one(key, Call("decide", limit, 2, NOON, "a"))[0] == 0
    lua.run(key, [Call("give", limit, 2, NOON, "a", NOON)] * 2)
    assert lua.one(key, Call("ask", limit, 1, NOON))[:2] == [0, 3]
    later = NOON + 2 * HOUR_MS
    assert lua.one(key, Call("decide", limit, 2, NOON, "b"))[0] == 0
    assert lua.one(key, Call("decide", limit, 3, later, "c"))[0] == 0
    lua.one(key, Call("give", limit, 2, later, "b", NOON))
    assert lua.one(key, Call("ask", limit, 1, later))[1] == 0


@every_algorithm
def test_costs_of_nothing_and_above_all(lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """A cost of 0 fits even when nothing is left, and writes nothing; a cost above the limit never fits."""
    key, limit = lua.key(), limit_of(algorithm)
    assert lua.one(key, Call("decide", limit, 0, NOON, "a")) == [0, 3, 0, 3, 0]
    assert lua.one(key, Call("decide", limit, 4, NOON, "b")) == [-1, 3, 0]
    assert not lua.client.exists(key)
    assert lua.one(key, Call("decide", limit, 3, NOON, "c"))[3] == 0
    assert lua.one(key, Call("decide", limit, 0, NOON, "d"))[0] == 0
    assert lua.one(key, Call("decide", limit, 4, NOON, "e"))[0] == -1


@every_algorithm
@pytest.mark.parametrize("foreign", FOREIGN)
def test_key_of_something_else(lua: LuaAlgorithms, algorithm: Algorithm, foreign: str) -> None:
    """A key that something else wrote counts as empty, is replaced by the first take, and then counts and ends."""
    key, limit = lua.key(), limit_of(algorithm)
    FOREIGN[foreign](lua.client, key)
    lua.one(key, Call("give", limit, 1, NOON, "never taken", NOON))
    lua.one(key, Call("ask", limit, 1, NOON))
    found = waits(lua, key, limit, [NOON + n for n in range(4)])
    assert found[:3] == [0, 0, 0]
    assert found[3] > 0
    assert lua.client.pttl(key) > 0


@every_algorithm
@pytest.mark.parametrize("before", ALGORITHMS)
def test_other_algorithm_under_the_same_name(lua: LuaAlgorithms, algorithm: Algorithm, before: Algorithm) -> None:
    """A policy that changes a limit's algorithm starts its count afresh once: no error, no lock-out, then exact."""
    if algorithm == before:
        return
    key = lua.key()
    assert waits(lua, key, limit_of(before), [NOON] * 4)[3] > 0
    found = waits(lua, key, limit_of(algorithm), [NOON + 1] * 4, "after")
    assert found[:3] == [0, 0, 0]
    assert 0 < found[3] <= HOUR_MS + HOUR_MS // 60


@every_algorithm
@pytest.mark.parametrize("window_ms", [1_000, 24 * HOUR_MS])
def test_other_window_under_the_same_name(lua: LuaAlgorithms, algorithm: Algorithm, window_ms: int) -> None:
    """A policy that changes a window locks nobody out for longer than the new window, and the new one is kept."""
    key, limit = lua.key(), limit_of(algorithm, window_ms=window_ms)
    waits(lua, key, limit_of(algorithm), [NOON] * 3)
    later = NOON + window_ms + window_ms // 60
    found = waits(lua, key, limit, [later] * 4, "after")
    assert found[:3] == [0, 0, 0]
    assert 0 < found[3] <= window_ms + window_ms // 60


@every_algorithm
def test_limit_that_is_lowered(lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """What was taken counts against a lower limit; the wait is not longer than the key lives, and is what it says."""
    key, high, low = lua.key(), limit_of(algorithm, 100), limit_of(algorithm, 2)
    lua.one(key, Call("decide", high, 100, NOON, "id"))
    wait, remaining, reset = lua.one(key, Call("decide", low, 1, NOON + 1, "low"))
    assert 0 < wait <= reset <= HOUR_MS + HOUR_MS // 60
    assert remaining == 0
    assert lua.one(key, Call("ask", low, 1, NOON + wait))[0] > 0
    assert lua.one(key, Call("decide", low, 1, NOON + 1 + wait, "low"))[0] == 0


@every_algorithm
def test_limit_that_is_raised(lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """A customer who used up a quota of 10 has something of a raised one at once."""
    key = lua.key()
    lua.one(key, Call("decide", limit_of(algorithm, 10), 5, NOON, "id"))
    remaining = lua.one(key, Call("ask", limit_of(algorithm, 20), 1, NOON))[1]
    # GCRA keeps the share: half of the quota used stays half of it
    assert remaining == (10 if algorithm == "gcra" else 15)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "gcra"])
def test_limits_that_take_turns(lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """Requests with and without trust on one key: each limit sees all that was taken, nobody's is forgotten."""
    key, trusted, plain = lua.key(), limit_of(algorithm, 20), limit_of(algorithm, 10)
    assert lua.one(key, Call("decide", trusted, 15, NOON, "a"))[0] == 0
    assert lua.one(key, Call("decide", plain, 1, NOON, "b"))[0] > 0
    assert lua.one(key, Call("decide", trusted, 5, NOON, "c"))[0] == 0
    assert lua.one(key, Call("decide", trusted, 1, NOON, "d"))[0] > 0


def test_id_that_comes_again_counts_again(lua: LuaAlgorithms) -> None:
    """Who sends one request id all the time gets no more than others, and each can be given back."""
    key, limit = lua.key(), limit_of("sliding_window")
    calls = [Call("decide", limit, 1, NOON, "same") for _ in range(4)]
    assert [reply[0] > 0 for reply in lua.run(key, calls)] == [False, False, False, True]
    assert lua.client.llen(key) == 3
    lua.run(key, [Call("give", limit, 1, NOON, "same", NOON)] * 2)
    assert lua.client.llen(key) == 1
    lua.run(key, [Call("give", limit, 1, NOON, "same", NOON)] * 2)
    assert not lua.client.exists(key)


def test_giving_back_to_a_log_has_a_bound(lua: LuaAlgorithms) -> None:
    """Below a thousand younger entries nothing is given back: each has to be moved, and Redis waits for that."""
    key, limit = lua.key(), limit_of("sliding_window", 2000)
    lua.run(key, [Call("decide", limit, 1, NOON, f"id{number}") for number in range(1002)])
    lua.one(key, Call("give", limit, 1, NOON, "id1", NOON))
    assert lua.client.llen(key) == 1002
    lua.one(key, Call("give", limit, 1, NOON, "id2", NOON))
    assert lua.client.llen(key) == 1001
    assert lua.one(key, Call("ask", limit, 1, NOON))[1] == 2000 - 1001


def test_costs_in_the_log(lua: LuaAlgorithms) -> None:
    """A cost is one entry, however large, whatever its id looks like; the wait is for as many old ones as it needs."""
    key, limit = lua.key(), limit_of("sliding_window", 1_000_000)
    costs = [(400_000, "7:x"), (1, "#"), (599_999, "1:#"), (500_000, "y")]
    replies = lua.run(key, [Call("decide", limit, cost, NOON + at, name) for at, (cost, name) in enumerate(costs)])
    assert [reply[0] for reply in replies] == [0, 0, 0, HOUR_MS - 1]
    assert lua.client.llen(key) == 3
    later = NOON + HOUR_MS + 1
    assert lua.one(key, Call("decide", limit, 400_001, later, "z"))[:2] == [0, 400_001]


@every_algorithm
def test_clock_of_redis_that_steps_back(lua: LuaAlgorithms, algorithm: Algorithm) -> None:
    """After a failover to a slower clock nothing is free again; after a step of more than a window it starts afresh."""
    key, limit = lua.key(), limit_of(algorithm)
    assert waits(lua, key, limit, [NOON] * 3) == [0, 0, 0]
    assert all(waits(lua, key, limit, [NOON - 1, NOON - 30_000, NOON - HOUR_MS // 2], "back"))
    assert waits(lua, key, limit, [NOON - 3 * HOUR_MS] * 3, "far back") == [0, 0, 0]
