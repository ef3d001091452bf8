"""Memory of the sliding window counter beside the log's: 10,000 users who each make 500 requests within a day's window.

Every request is taken by the limiter's own Lua, with an id as long as a ULID, at a random moment of the day. The sum is
of MEMORY USAGE over all users' keys; a user's keys are deleted when they have been measured. The other lines are one
key of each algorithm after the same requests.
"""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import redis

from penaltybox.embedded.redis_server import RedisServer
from penaltybox.producers.scripts import script_text

USERS = 10_000
REQUESTS = 500
DAY_MS = 86_400_000
NOON = 1_766_404_800_000
SLOTS = 60
PIPELINE = 100
LOG, COUNTER = "sliding_window", "sliding_window_counter"
OTHERS = ("fixed_window", "token_bucket", "leaky_bucket", "gcra")
FILL = """
local algorithm, limit, window, size = algorithms[ARGV[1]], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local number = 0
for text in string.gmatch(ARGV[6], '%d+') do
  local now = tonumber(text)
  number = number + 1
  local id = ARGV[5] .. string.format('%06d', number)
  local wait, remaining, reset, known = algorithm.check(KEYS[1], limit, window, size, 1, now, id)
  if wait ~= 0 then
    return redis.error_reply('ERR a request below the limit was refused')
  end
  algorithm.take(KEYS[1], limit, window, size, 1, now, id, known, remaining, reset)
end
return redis.call('MEMORY', 'USAGE', KEYS[1], 'SAMPLES', 0)
"""


def main() -> None:
    """Print one JSON line per figure."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(Path(folder)) as server:
        client = redis.Redis.from_url(server.url)
        client.config_set("appendonly", "no")
        sha = client.script_load(script_text() + FILL)
        sums = measure(client, sha)
        client.close()
    log_mb, counter_mb = sums[LOG] / 1e6, sums[COUNTER] / 1e6
    print(_line("counter_memory", round(counter_mb, 2), "MB", LOG, round(log_mb, 1), counter_mb / log_mb), flush=True)
    log_key = sums[LOG] / USERS
    for name, users in ((COUNTER, USERS), *((other, PIPELINE) for other in OTHERS)):
        each = sums[name] / users
        print(_line(f"key_memory_{name}", round(each), "bytes", LOG, round(log_key), each / log_key), flush=True)


def measure(client: redis.Redis, sha: str) -> dict[str, int]:
    """Bytes of all users' keys by algorithm; of the other algorithms, of the first hundred users'."""
    rng = random.Random(1)
    sums = dict.fromkeys((LOG, COUNTER, *OTHERS), 0)
    for first in range(0, USERS, PIPELINE):
        measured = (LOG, COUNTER) if first else tuple(sums)  # the others are all of one size: a hundred will do
        names = [(user, algorithm) for user in range(first, first + PIPELINE) for algorithm in measured]
        days = {user: _day(rng) for user in range(first, first + PIPELINE)}
        pipeline = client.pipeline(transaction=False)
        for user, algorithm in names:
            size = SLOTS if algorithm == COUNTER else REQUESTS
            times = f"{NOON} " * REQUESTS if algorithm == "fixed_window" else days[user]
            key, ulid = f"pbx:{{user:{user:08}}}:l:orders:{algorithm}", f"01K3ZB5Q{user:012}"
            pipeline.evalsha(sha, 1, key, algorithm, REQUESTS, DAY_MS, size, ulid, times)
            pipeline.unlink(key)
        for (_, algorithm), bytes_used in zip(names, pipeline.execute()[::2], strict=True):
            sums[algorithm] += bytes_used
    return sums


def _day(rng: random.Random) -> str:
    """Moments of a user's requests, ascending."""
    return " ".join(map(str, sorted(NOON + int(rng.random() * DAY_MS) for _ in range(REQUESTS))))


def _line(bench: str, value: float, unit: str, peer: str, peer_value: float, ratio: float) -> str:
    line = {
        "bench": bench, "value": value, "unit": unit, "peer": peer, "peer_value": peer_value, "ratio": round(ratio, 4),
    }  # fmt: skip
    return json.dumps(line)


if __name__ == "__main__":
    main()
