"""The slowest dashboard query over 10 million decisions, in ms: `ROWS=2000000 python -m benchmarks.dashboard_queries`.

A day of sessions of 300,000 users at home and in shared addresses, an eighth of them robots. Every twentieth record was
published again and every fiftieth delivered again, and those copies are still there: merges are stopped. 300,000
outcomes, 60,000 penalties; the probe draws a twentieth of the denials, and some challenges are passed. Ids begin with
their time, as ULIDs do. Rows are generated inside ClickHouse by INSERT … SELECT into the tables that the migrations
made; the roll-ups are built by the role's own code, but for the latest ten minutes. Then every panel, note and choice
of the committed dashboards, and the shipped queries, over the whole day: the best of three each, by the clock of the
one who asks.

`PLACE=directory` keeps the engine's files there; a second run with it loads nothing and only migrates and asks.
`ASK=text` asks only what has the text in its name.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.sinks.clickhouse import queries, rollups
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.dashboards.asked import CHOICES, NOTES, PANELS, variables
from tests.dashboards.macros import View

if TYPE_CHECKING:
    from collections.abc import Callable

    Jobs = dict[str, Callable[[], object]]

ROWS: Final = int(os.environ.get("ROWS", "10000000"))
PLACE: Final = os.environ.get("PLACE", "")
ASK: Final = os.environ.get("ASK", "")
AT_ONCE: Final = 2_000_000
ROUNDS: Final = int(os.environ.get("ROUNDS", "3"))
START_MS: Final = 1_766_361_600_000
DAY_MS: Final = 86_400_000
LIMIT_MS: Final = 1000
SLOWEST: Final = 12
NO_PANEL: Final = frozenset({"sightings", "denied_subjects", "decisions_per_minute", "episodes", "judged_episodes"})
"""Views with a row per subject: panels sum them up."""
_DECISIONS: Final = """
INSERT INTO decisions (ts, logged_at, id, source, scenario, route, action, reason, violated, dimension, limit_name,
    subject, user, device, ip, ip_prefix, established, status, limit_value, window_s, remaining, cost, enforced, count,
    cached, sample_weight, attrs, incarnation, kafka_partition, kafka_offset, stored_through)
WITH intDiv(number, 20) AS session, cityHash64(session) AS h, h % 100 < 12 AS robot,
    cityHash64(h, 1) % 300000 AS person,
    {start} + h % ({day} - 400000) + number % 20 * 15000 + cityHash64(number) % 9000 AS at,
    cityHash64(number, 2) % 100 < if(robot, 80, 4) AS denied, denied AND cityHash64(number, 4) % 5 > 0 AS charged,
    ['user:daily', 'device:daily', 'ip:soft'][1 + cityHash64(h, 3) % 3] AS met,
    charged AND met != 'ip:soft' AND cityHash64(number, 11) % 20 = 0 AS drawn,
    concat('u', toString(person)) AS who,
    if(robot, concat('farm', toString(person % 2000)), concat('d', toString(person))) AS dev,
    if(person % 10 = 0, concat('10.9.0.', toString(person % 250)), concat('10.', toString(100 + person % 100), '.',
        toString(intDiv(person, 100) % 250), '.', toString(intDiv(person, 25000)))) AS address
SELECT fromUnixTimestamp64Milli(at, 'UTC'), fromUnixTimestamp64Milli(at, 'UTC'),
    concat(hex(toUInt64(at)), hex(cityHash64(number, 7))),
    concat('checkout/edge-', toString(number % 4)), ['web', 'login', 'coupon_claim'][1 + number % 3],
    'POST /coupons/{{id}}/claim',
    multiIf(NOT denied, 'allow', met = 'ip:soft' OR drawn, 'challenge', 'deny'),
    multiIf(charged, 'over_limit', denied, 'blocklist', ''),
    if(charged, [met], []), if(charged, splitByChar(':', met)[1], ''), if(charged, met, ''),
    if(charged, concat(splitByChar(':', met)[1], ':',
        multiIf(met = 'user:daily', who, met = 'ip:soft', address, dev)), ''),
    who, dev, address, concat(arrayStringConcat(arraySlice(splitByChar('.', address), 1, 3), '.'), '.0/24'),
    person % 2 = 0 AND NOT robot, if(denied, 429, 200), 10, if(met = 'ip:soft', 60, 86400), 3, 1, true, 1, false, 1,
    mapFromArrays(if(drawn, ['probe'], []), if(drawn, ['0.05'], [])),
    '{incarnation}', number % 4, intDiv(number, 4), intDiv(number, 4)
FROM numbers_mt({first}, {number}) WHERE {which}
SETTINGS max_insert_threads = 2, max_insert_block_size = 1000000, min_insert_block_size_rows = 1000000,
    min_insert_block_size_bytes = 2000000000
"""
_OUTCOMES: Final = """
INSERT INTO outcomes (ts, logged_at, id, label, subjects, incarnation)
SELECT fromUnixTimestamp64Milli({start} + cityHash64(number) % {day}, 'UTC'), now64(3), toString(number),
    ['payment_ok', 'payment_ok', 'identity_verified', 'challenge_passed', 'confirmed_abuse'][1 + number % 5],
    [concat('user:u', toString(cityHash64(number, 1) % 300000)),
     concat('device:d', toString(cityHash64(number, 1) % 300000))], 'i1'
FROM numbers({number})
"""
_PASSED: Final = """
INSERT INTO outcomes (ts, logged_at, id, label, subjects, ref, incarnation)
SELECT ts + toIntervalSecond(5), now64(3), concat('passed', id), 'challenge_passed', [concat('user:', user)], id, 'i1'
FROM decisions
WHERE action = 'challenge' AND reason = 'over_limit' AND cityHash64(id) % 100 < if(established, 60, 10)
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
    """Print a JSON line for each query, then the slowest as `dashboard_query_max_ms`."""
    with ExitStack() as stack:
        folder = PLACE or stack.enter_context(tempfile.TemporaryDirectory())
        server = stack.enter_context(ClickHouseServer(Path(folder)))
        clickhouse = ClickHouse(server.url, "bench", answer_s=PATIENT_S)
        stack.callback(clickhouse.close)
        migrate(clickhouse)
        settle(clickhouse)
        clickhouse.command("SYSTEM STOP MERGES")
        if not clickhouse.rows("SELECT count() AS n FROM penalties")[0]["n"]:
            timed("dashboard_load_s", lambda: fill(clickhouse))
        timed("dashboard_rollups_s", lambda: roll_up(clickhouse))
        times = measure({**shipped(clickhouse), **asked(clickhouse)})
    if not times:
        return
    slowest = sorted(times, key=lambda name: -times[name])[:SLOWEST]
    for name in slowest:
        sys.stderr.write(f"{times[name]:8,.0f} ms  {name}\n")
    say("dashboard_query_max_ms", times[slowest[0]], "ms", peer="wanted at most", peer_value=LIMIT_MS, query=slowest[0])


def settle(clickhouse: ClickHouse) -> None:
    """Until what a migration has asked for is done to rows of before."""
    deadline = time.monotonic() + PATIENT_S
    while clickhouse.rows("SELECT count() AS n FROM system.mutations WHERE NOT is_done")[0]["n"]:
        if time.monotonic() > deadline:
            raise SystemExit("The migrations' changes of old rows have not ended.")
        time.sleep(0.1)


def fill(clickhouse: ClickHouse) -> None:
    """Rows of a day; some once more, under another offset as one published twice is, or under the same."""
    common = {"start": START_MS, "day": DAY_MS}
    unique = ROWS * 100 // 107
    sources = (
        ("i1", "true"),
        ("i2", "cityHash64(number, 9) % 20 = 0"),
        ("i1", "cityHash64(number, 10) % 50 = 0"),
    )
    for first in range(0, unique, AT_ONCE):
        number = min(AT_ONCE, unique - first)
        for incarnation, which in sources:
            clickhouse.command(
                _DECISIONS.format(**common, first=first, number=number, incarnation=incarnation, which=which)
            )
        sys.stderr.write(f"{first + number:,} decisions\n")
    clickhouse.command(_OUTCOMES.format(**common, number=ROWS * 3 // 100))
    clickhouse.command(_PASSED)
    clickhouse.command(_PENALTIES.format(**common, number=ROWS * 6 // 1000))


def roll_up(clickhouse: ClickHouse) -> None:
    """Roll-ups of all slots but the latest, which is still being written to."""
    last_s = (START_MS + DAY_MS) // 1000 - rollups.SLOT_S
    slots = [slot for slot in rollups.stale_slots(clickhouse, 0) if slot.start_s < last_s]
    for group in rollups.by_hour(slots):
        rollups.build(clickhouse, group, START_MS)


def shipped(clickhouse: ClickHouse) -> Jobs:
    """The shipped queries, as the console, `report` and `tune` ask them."""
    values: dict[str, int | str] = {
        "from": START_MS, "to": START_MS + DAY_MS, "as_of": START_MS + 40 * DAY_MS, "matures_s": -1, "by": "ip",
        "prefix": "", "change": START_MS + DAY_MS // 2,
    }  # fmt: skip
    return {
        f"view {name}": lambda name=name: queries.run(clickhouse, name, values)
        for name in queries.QUERIES
        if name not in NO_PANEL
    }


def asked(clickhouse: ClickHouse) -> Jobs:
    """Every query of the committed dashboards."""
    from_s, to_s = START_MS // 1000, (START_MS + DAY_MS) // 1000
    view = View(from_s, to_s, 60, variables((from_s + to_s) // 2))
    return {one.where: lambda sql=one.sql: clickhouse.rows(view.expanded(sql)) for one in [*PANELS, *NOTES, *CHOICES]}


def measure(jobs: Jobs) -> dict[str, float]:
    """Name -> milliseconds, the best of some rounds."""
    best = {}
    for name, job in jobs.items():
        if ASK not in name:
            continue
        taken = []
        for _ in range(ROUNDS):
            started = time.perf_counter()
            job()
            taken.append((time.perf_counter() - started) * 1000)
        best[name] = min(taken)
        say(f"dashboard_query_ms/{name}", best[name], "ms")
    return best


def timed(bench: str, job: Callable[[], None]) -> None:
    """A JSON line of how long something took."""
    started = time.perf_counter()
    job()
    say(bench, time.perf_counter() - started, "s")


def say(bench: str, value: float, unit: str, **more: object) -> None:
    """One JSON line."""
    print(json.dumps({"bench": bench, "value": round(value, 1), "unit": unit, "rows": ROWS, **more}), flush=True)


if __name__ == "__main__":
    main()
