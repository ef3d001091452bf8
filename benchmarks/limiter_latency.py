"""How long one caller waits for a decision of the inline limiter, beside bare EVALSHAs of a script `return 1`.

Everybody's calls take turns in short blocks, and a ratio is formed within a turn: between two blocks that are a few
milliseconds apart, so that a busy moment, a slow clock or a cold machine meets both. Told is the median of the turns'
ratios with its quartiles, and the range in which the true median is with 95 % certainty (order statistics).

Who takes turns:

- `limiter`: `decide` of a request with a user of two thresholds, a device and an address, exact sliding windows, as
  users get it from `InlineLimiter.open`. Of 10,000 users who all have logs, another one at each call, so their keys
  are in no processor's caches. Requests are made beforehand, as everybody's arguments are. The program has asked about
  each of them before, as one that has run for a while.
- `limiter_new`: the same by a program that has just started, so almost every user is new to it: the worst case.
- `limiter_few`: the same, of 100 users: how real traffic is, where few ask often.
- `same_client`: the script over a connection like the limiter's, in the call that the limiter makes, with the keys and
  arguments of a decision. **This is the bar's peer**: the same client, the same key set, the same request on the wire;
  what it lacks is the limiter.
- `same_client_no_keys`: the same without any key or argument: what this connection can do at all.
- `redis_py`: the script without keys through redis-py's client, which a limiter usually has.

Where it is measured, each in turn: server and client pinned to two cores (`two_cores`), both pinned to one
(`one_core`). Unpinned it is the kernel's choice, from one moment to the next, so that is not measured. The cycle
collector is off within a block and runs between two turns, for everybody. The server is as Debian has it, without its
append-only file.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import random
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from itertools import product
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redis.asyncio import Redis

from benchmarks.limiter_speed import POLICY, USERS, Installed, ours, request_of
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.connections import endpoint_of, open_multiplexed
from penaltybox.links.multiplex import MultiplexLink
from penaltybox.producers.inline import InlineLimiter
from penaltybox.producers.questions import Questions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Call = Callable[[Any], Awaitable[Any]]

TURNS = int(os.environ.get("TURNS", "400"))
BLOCK = 20
FEW = 100
WARM_TURNS = 20
DEADLINE_S = 10.0
PEERS = ("same_client", "same_client_no_keys", "redis_py")
BAR = ("limiter", "two_cores", "same_client")
"""Where and beside whom the bar of 1.5 is: where the server has a core of its own, as it has in production."""


class Arguments:
    """Makes the arguments of a decision's call, before anybody's time is taken."""

    def __init__(self) -> None:
        self._questions = Questions(POLICY, Keyspace(), Canonicaliser())

    def of(self, number: int) -> tuple[Any, ...]:
        """Number of keys, keys, arguments."""
        asked = self._questions.asked(request_of(number))
        keys = asked.question.counters(asked.stems)
        marks = asked.question.marks(asked.stems)
        return (len(keys), *keys, asked.question.packed, *marks, f"01K3ZB5Q0V7M2X8R{number:010}")


async def _block(call: Call, numbers: Sequence[Any]) -> list[float]:
    """Milliseconds of each call, one after another."""
    clock = time.perf_counter
    taken = []
    for number in numbers:
        begun = clock()
        await call(number)
        taken.append((clock() - begun) * 1000)
    return taken


async def _take_turns(url: str, where: str) -> None:
    link = open_multiplexed(endpoint_of(Settings(redis_url=url)))
    assert isinstance(link, MultiplexLink)  # noqa: S101 - the URL is of one server
    client = Redis.from_url(url)
    (loaded,) = await link.exchange([("SCRIPT", "LOAD", "return 1")])
    sha, arguments = loaded.decode(), Arguments()
    settings = Settings(redis_url=url)
    async with (
        InlineLimiter.open(settings, POLICY, source="bench/1") as limiter,
        InlineLimiter.open(settings, POLICY, source="bench/2") as started,
    ):
        decide = ours(limiter)
        for first in range(0, USERS, 50):
            await asyncio.gather(*(decide(request_of(one)) for one in range(first, first + 50)))
        calls: dict[str, Call] = {
            "limiter": decide,
            "limiter_new": ours(started),
            "limiter_few": decide,
            "same_client": lambda call: link.ask(call, DEADLINE_S),
            "same_client_no_keys": lambda _: link.ask(("EVALSHA", sha, 0), DEADLINE_S),
            "redis_py": lambda _: client.evalsha(sha, 0),
        }
        blocks: dict[str, list[list[float]]] = defaultdict(list)
        order, draw, number = list(calls), random.Random(1), 900_000_000
        for turn in range(WARM_TURNS + TURNS):
            gc.collect(1)
            draw.shuffle(order)
            for name in order:
                numbers = range(number, number + BLOCK)
                number += BLOCK
                things: list[Any] = list(numbers)
                if name == "same_client":
                    things = [("EVALSHA", sha, *arguments.of(one)) for one in numbers]
                elif name in {"limiter", "limiter_new"}:
                    things = [request_of(one) for one in numbers]
                elif name == "limiter_few":
                    things = [request_of(one % FEW) for one in numbers]
                taken = await _block(calls[name], things)
                if turn >= WARM_TURNS:
                    blocks[name].append(taken)
    await client.aclose()
    await link.close()
    _tell(blocks, where)


def _tell(blocks: dict[str, list[list[float]]], where: str) -> None:
    medians = {name: [statistics.median(taken) for taken in turns] for name, turns in blocks.items()}
    every = {name: [one for taken in turns for one in taken] for name, turns in blocks.items()}
    p50 = {name: statistics.median(found) for name, found in every.items()}
    p99 = {name: statistics.quantiles(found, n=100)[98] for name, found in every.items()}
    for one, peer in product(("limiter", "limiter_new", "limiter_few"), PEERS):
        ratios = sorted(own / other for own, other in zip(medians[one], medians[peer], strict=True))
        suffix = "" if (one, where, peer) == BAR else f"_{where}_{peer}"
        _line(f"{one}_p50_ms{suffix}", p50[one], peer, p50[peer], ratios)
        _line(f"{one}_p99_ms{suffix}", p99[one], peer, p99[peer], [p99[one] / p99[peer]])


def _line(bench: str, value: float, peer: str, peer_value: float, ratios: Sequence[float]) -> None:
    line: dict[str, Any] = {
        "bench": bench, "value": round(value, 4), "unit": "ms", "peer": f"bare EVALSHA, {peer}",
        "peer_value": round(peer_value, 4), "ratio": round(statistics.median(ratios), 3),
    }  # fmt: skip
    if len(ratios) > 1:
        low, _, high = statistics.quantiles(ratios, n=4)
        off = sqrt(len(ratios))  # twice the standard deviation of how many of them are below the median
        middle = len(ratios) / 2
        line["quartiles"] = [round(low, 3), round(high, 3)]
        line["certain"] = [
            round(ratios[int(middle - off)], 3),
            round(ratios[min(int(middle + off), len(ratios) - 1)], 3),
        ]
        line["turns"] = len(ratios)
    print(json.dumps(line), flush=True)


def _pin(pid: int, core: int) -> None:
    """A process with all of its threads, to a core; ahead of other programs where the system lets us."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})
        with suppress(PermissionError):
            os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(10))


async def _warm(url: str) -> None:
    """Every user has a log in each of the limits."""
    client = Redis.from_url(url)
    await client.config_set("appendonly", "no")
    await client.aclose()
    async with InlineLimiter.open(Settings(redis_url=url), POLICY, source="bench/1") as limiter:
        decide = ours(limiter)
        for first in range(0, 3 * USERS, 50):
            await asyncio.gather(*(decide(request_of(number)) for number in range(first, first + 50)))


def main() -> None:
    """Print one JSON line per figure."""
    logging.disable(logging.WARNING)
    cores = sorted(os.sched_getaffinity(0))
    places = {"two_cores": (cores[0], cores[-1]), "one_core": (cores[0], cores[0])}
    for where, (server_core, client_core) in places.items():
        with tempfile.TemporaryDirectory() as folder, Installed(Path(folder)) as server:
            asyncio.run(_warm(server.url))
            _pin(server.pid, server_core)
            _pin(os.getpid(), client_core)
            gc.collect()
            gc.freeze()
            gc.disable()
            asyncio.run(_take_turns(server.url, where))
            gc.enable()
            gc.unfreeze()


if __name__ == "__main__":
    main()
