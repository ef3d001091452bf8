"""The slowest dashboard query over 10 million decisions, in ms: `ROWS=2000000 python -m benchmarks.dashboard_queries`.

A day of sessions of 300,000 users at home and in shared addresses, an eighth of them robots; every twentieth record was
published again; 300,000 outcomes, 60,000 penalties. Roll-ups are built but for the last ten minutes. Every query that a
panel reads runs over the whole day: the best of three.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.sinks.clickhouse import queries, rollups
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate

ROWS: Final = int(os.environ.get("ROWS", "10000000"))
AT_ONCE: Final = 100_000
ROUNDS: Final = 3
START_MS: Final = 1_766_361_600_000
DAY_MS: Final = 86_400_000
LIMIT_MS: Final = 1000
NO_PANEL: Final = frozenset({"sightings", "denied_subjects", "decisions_per_minute", "episodes", "judged_episodes"})
"""Views with a row per subject: panels sum them up."""
PANELS: Final = {
    "per_minute": (
        "SELECT minute, action, sum(requests) AS requests FROM decisions_per_minute({span}) GROUP BY minute, action"
    ),
    "top_subjects": (
        "SELECT subject, sum(denials) AS denials FROM denied_subjects({span}) GROUP BY subject "
        "ORDER BY denials DESC LIMIT 20"
    ),
}
_DECISIONS: Final = """
INSERT INTO decisions (ts, logged_at, id, source, scenario, route, action, reason, violated, dimension, limit_name,
    subject, user, device, ip, ip_prefix, established, status, limit_value, window_s, remaining, cost, enforced, count,
    cached, sample_weight, incarnation, kafka_partition, kafka_offset, stored_through)
WITH intDiv(number, 20) AS session, cityHash64(session) AS h, h % 100 < 12 AS robot,
    cityHash64(h, 1) % 300000 AS person,
    {start} + h % ({day} - 400000) + number % 20 * 15000 + cityHash64(number) % 9000 AS at,
    cityHash64(number, 2) % 100 < if(robot, 80, 4) AS denied, denied AND cityHash64(number, 4) % 5 > 0 AS charged,
    ['user:daily', 'device:daily', 'ip:soft'][1 + cityHash64(h, 3) % 3] AS met,
    concat('u', toString(person)) AS who,
    if(robot, concat('farm', toString(person % 2000)), concat('d', toString(person))) AS dev,
    if(person % 10 = 0, concat('10.9.0.', toString(person % 250)), concat('10.', toString(100 + person % 100), '.',
        toString(intDiv(person, 100) % 250), '.', toString(intDiv(person, 25000)))) AS address
SELECT fromUnixTimestamp64Milli(at, 'UTC'), fromUnixTimestamp64Milli(at, 'UTC'), hex(sipHash128(number)),
    concat('checkout/edge-', toString(number % 4)), ['web', 'login', 'coupon_claim'][1 + number % 3],
    'POST /coupons/{{id}}/claim',
    multiIf(NOT denied, 'allow', met = 'ip:soft', 'challenge', 'deny'),
    multiIf(charged, 'over_limit', denied, 'blocklist', ''),
    if(charged, [met], []), if(charged, splitByChar(':', met)[1], ''), if(charged, met, ''),
    if(charged, concat(splitByChar(':', met)[1], ':',
        multiIf(met = 'user:daily', who, met = 'ip:soft', address, dev)), ''),
    who, dev, address, concat(arrayStringConcat(arraySlice(splitByChar('.', address), 1, 3), '.'), '.0/24'),
    person % 2 = 0 AND NOT robot, if(denied, 429, 200), 10, if(met = 'ip:soft', 60, 86400), 3, 1, true, 1, false, 1,
    '{incarnation}', number % 4, intDiv(number, 4), intDiv(number, 4)
FROM numbers({first}, {number}) WHERE {which}
"""
_OUTCOMES: Final = """
INSERT INTO outcomes (ts, logged_at, id, label, subjects, incarnation)
SELECT fromUnixTimestamp64Milli({start} + cityHash64(number) % {day}, 'UTC'), now64(3), toString(number),
    ['payment_ok', 'payment_ok', 'identity_verified', 'challenge_passed', 'confirmed_abuse'][1 + number % 5],
    [concat('user:u', toString(cityHash64(number, 1) % 300000)),
     concat('device:d', toString(cityHash64(number, 1) % 300000))], 'i1'
FROM numbers({number})
"""
_PENALTIES: Final = """
INSERT INTO penalties (ts, logged_at, id, subject, dimension, from_rung, to_rung, to_ms, action, until, rule,
    policy_version, origin, incarnation)
WITH {start} + cityHash64(number) % {day} AS at
SELECT fromUnixTimestamp64Milli(at, 'UTC'), now64(3), toString(number), concat('device:farm', toString(number % 2000)),
    'device', 'none', ['warn', '5m', '1h'][1 + number % 3], [0, 300000, 3600000][1 + number % 3],
    if(number % 3 = 0, 'warn', 'deny'),
    fromUnixTimestamp64Milli(at + 300000, 'UTC'), 'device_farm', 'p1', 'rule', 'i1'
FROM numbers({number})
"""


def main() -> None:
    """Print a JSON line for each query, and the slowest as `dashboard_query_max_ms`."""
    with tempfile.TemporaryDirectory() as folder, ClickHouseServer(Path(folder)) as server:
        clickhouse = ClickHouse(server.url, "bench", answer_s=PATIENT_S)
        migrate(clickhouse)
        fill(clickhouse)
        started = time.perf_counter()
        groups = rollups.by_hour(rollups.stale_slots(clickhouse, 0)[1:])
        for group in groups:
            rollups.build(clickhouse, group, START_MS)
        say("dashboard_rollups_s", time.perf_counter() - started, "s")
        slowest = measure(clickhouse)
        clickhouse.close()
    say("dashboard_query_max_ms", slowest, "ms", peer="wanted at most", peer_value=LIMIT_MS)


def fill(clickhouse: ClickHouse) -> None:
    """Rows of a day; every twentieth record once more, under another offset as one published twice is."""
    common = {"start": START_MS, "day": DAY_MS}
    unique = ROWS * 20 // 21
    for first in range(0, unique, AT_ONCE):
        number = min(AT_ONCE, unique - first)
        place = {"first": first, "number": number}
        clickhouse.command(_DECISIONS.format(**common, **place, incarnation="i1", which="true"))
        again = "cityHash64(number, 9) % 20 = 0"
        clickhouse.command(_DECISIONS.format(**common, **place, incarnation="i2", which=again))
        sys.stderr.write(f"\r{first + number:,} decisions")
    clickhouse.command(_OUTCOMES.format(**common, number=ROWS * 3 // 100))
    clickhouse.command(_PENALTIES.format(**common, number=ROWS * 6 // 1000))
    sys.stderr.write("\n")


def measure(clickhouse: ClickHouse) -> float:
    """Milliseconds of the slowest query, each the best of some rounds."""
    values: dict[str, int | str] = {
        "from": START_MS, "to": START_MS + DAY_MS, "as_of": START_MS + 40 * DAY_MS, "matures_s": -1, "by": "ip",
        "prefix": "", "change": START_MS + DAY_MS // 2,
    }  # fmt: skip
    span = f"from = toDateTime({START_MS // 1000}, 'UTC'), to = toDateTime({(START_MS + DAY_MS) // 1000}, 'UTC')"
    jobs = {
        name: lambda name=name: queries.run(clickhouse, name, values)
        for name in queries.QUERIES
        if name not in NO_PANEL
    }
    jobs |= {name: lambda sql=sql: clickhouse.rows(sql.format(span=span)) for name, sql in PANELS.items()}
    slowest = 0.0
    for name, job in jobs.items():
        taken = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            job()
            taken.append((time.perf_counter() - started) * 1000)
        say(f"dashboard_query_ms/{name}", min(taken), "ms")
        slowest = max(slowest, min(taken))
    return slowest


def say(bench: str, value: float, unit: str, **more: object) -> None:
    """One JSON line."""
    print(json.dumps({"bench": bench, "value": round(value, 1), "unit": unit, "rows": ROWS, **more}), flush=True)


if __name__ == "__main__":
    main()
