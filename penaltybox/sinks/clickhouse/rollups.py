"""Building roll-ups: slots of ten minutes whose rows are not those that their roll-up was built from.

Nothing has to be remembered: ClickHouse tells which slots have changed (view `slot_states`), and until one is rebuilt
the shipped queries read its rows. So this may be late, run twice at once, or die anywhere.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from penaltybox.sinks.clickhouse.client import ClickHouse

SLOT_S: Final = 600
HOUR_S: Final = 3600
ROWS_AT_ONCE: Final = 3_000_000
QUIET_S: Final = 20
"""A slot into which rows are still coming is left alone: it would have to be built again."""
_EARLIEST, _LATEST = "1970-01-01 00:00:00", "2106-01-01 00:00:00"
_MINUTES: Final = (
    "minute, source, scenario, dimension, limit_name, action, reason, enforced, cached, decisions, denials, requests, "
    "first_at, last_at"
)
_DENIALS: Final = (
    "scenario, route, dimension, limit_name, subject, action, reason, enforced, records, denials, established, "
    "first_at, last_at, last_gap_ms"
)
_SIGHTINGS: Final = (
    "user, device, ip, ip_prefix, asn, api_key, others, action, reason, enforced, established, over, records, denials, "
    "requests, first_at, last_at"
)
_CHALLENGES: Final = "ts, id, dimension, limit_name, subject, who, established, share, first"
_ROLLUPS: Final = {
    "decisions_1m": ("decisions_per_minute", _MINUTES),
    "denials_10m": ("denied_subjects", _DENIALS),
    "sightings_10m": ("sightings", _SIGHTINGS),
    "challenges_10m": ("challenges", _CHALLENGES),
}
"""Table -> (the view that reads it, and the rows where it has none, columns)."""
TABLES: Final = tuple(_ROLLUPS)
EDITION: Final = 1
"""Which of the tables a build has; more with each edition."""
_STALE: Final = f"""
SELECT toUnixTimestamp(slot) AS start_s, rows, fingerprint
FROM slot_states(from = {{from:DateTime64(3, 'UTC')}}, to = {{to:DateTime64(3, 'UTC')}})
WHERE (NOT current OR (edition < {EDITION} AND NOT sealed)) AND rows > 0
  AND newest < now64(3, 'UTC') - toIntervalSecond({{quiet_s:Int64}})
ORDER BY start_s DESC
"""  # noqa: S608 - a number
_SEALED: Final = "SELECT argMax(value, changed_at) FROM rollup_settings WHERE name = 'sealed_after_days'"


class Slot(NamedTuple):
    """A slot as it was when it was looked at.

    Attributes:
        start_s: its beginning, seconds since the epoch.
        rows, fingerprint: of what it consists.
    """

    start_s: int
    rows: int
    fingerprint: int


def stale_slots(clickhouse: ClickHouse, quiet_s: int = QUIET_S) -> list[Slot]:
    """Slots without a good roll-up that nothing was written to for `quiet_s` seconds, the latest first.

    Raises:
        StoreUnavailable: ClickHouse does not answer.
    """
    found = clickhouse.rows(_STALE, {"from": _EARLIEST, "to": _LATEST, "quiet_s": quiet_s})
    return [Slot(row["start_s"], row["rows"], row["fingerprint"]) for row in found]


def by_hour(slots: list[Slot]) -> list[list[Slot]]:
    """Slots in groups that are built together: rows are sorted by the hour, so a small hour is read once."""
    groups: list[list[Slot]] = []
    for slot in slots:
        last = groups[-1] if groups else []
        near = last and last[0].start_s // HOUR_S == slot.start_s // HOUR_S
        if near and sum(one.rows for one in last) + slot.rows <= ROWS_AT_ONCE:
            last.append(slot)
        else:
            groups.append([slot])
    return groups


def build(clickhouse: ClickHouse, slots: list[Slot], now_ms: int) -> None:
    """Build the roll-ups of some slots of one hour; they are in use when this returns, if nothing changed meanwhile.

    The rows come first, then the line that names their build; rows of a build that was never named are not read.

    Raises:
        StoreUnavailable: not everything is built; the slots are stale still.
    """
    number = (now_ms << 20) | secrets.randbits(20)
    start_s = slots[0].start_s // HOUR_S * HOUR_S
    span: dict[str, Any] = {"from": start_s, "to": start_s + HOUR_S}
    starts = ", ".join(f"toDateTime({slot.start_s}, 'UTC')" for slot in slots)
    source = "(from = toDateTime64({from}, 3, 'UTC'), to = toDateTime64({to}, 3, 'UTC'))".format(**span)
    for table, (view, columns) in _ROLLUPS.items():
        clickhouse.command(
            f"INSERT INTO {table} (slot, build, {columns}) SELECT slot, {number}, {columns} FROM {view}{source} "  # noqa: S608 - numbers and our own names
            f"WHERE slot IN ({starts})"
        )
    seen = ", ".join(f"({slot.start_s}, {slot.rows}, {slot.fingerprint})" for slot in slots)
    clickhouse.command(
        f"INSERT INTO rollups (slot, build, rows, fingerprint, edition, sealed_at) "  # noqa: S608 - numbers only
        f"SELECT slot, {number}, rows, fingerprint, {EDITION}, oldest + toIntervalDay(({_SEALED})) "
        f"FROM slot_states{source} WHERE (toUnixTimestamp(slot), rows, fingerprint) IN ({seen})"
    )


def refresh(clickhouse: ClickHouse, now_ms: int, quiet_s: int = QUIET_S) -> int:
    """Build what is stale and quiet now; how many slots that were.

    Raises:
        StoreUnavailable: ClickHouse does not answer; what was built stays.
    """
    slots = stale_slots(clickhouse, quiet_s)
    for group in by_hour(slots):
        build(clickhouse, group, now_ms)
    return len(slots)


def tidy(clickhouse: ClickHouse, now_ms: int) -> int:
    """Delete rows of builds that are not in use and older than an hour; how many there were.

    Raises:
        StoreUnavailable: ClickHouse does not answer.
    """
    before = (now_ms - HOUR_S * 1000) << 20
    found = 0
    for table in TABLES:
        where = f"build < {before} AND (slot, build) NOT IN (SELECT slot, build FROM rollups FINAL)"  # noqa: S608 - a number
        left = int(clickhouse.rows(f"SELECT count() AS n FROM {table} WHERE {where}")[0]["n"])  # noqa: S608 - numbers and our own names
        if left:
            clickhouse.command(f"ALTER TABLE {table} DELETE WHERE {where}")
        found += left
    return found
