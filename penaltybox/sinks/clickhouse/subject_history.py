"""The recorded past of one subject: its decisions, outcomes and penalties, as the structs that they were.

Values in ClickHouse are canonical; they are decoded again, so that the engine sees what came in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.events import Decision, Outcome, Penalty
from penaltybox.contracts.subjects import decode_value
from penaltybox.sinks.clickhouse.columns import OWN_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.sinks.clickhouse.client import ClickHouse

_FIELDS: Final = ("scenario", "route")
_MS: Final = "toUnixTimestamp64Milli"
_RANGE: Final = "ts >= fromUnixTimestamp64Milli({since:Int64}) AND ts <= fromUnixTimestamp64Milli({until:Int64})"
_PLACE: Final = f"{_MS}(ts) AS at, {_MS}(logged_at) AS logged, kafka_partition, kafka_offset"
_NEWEST: Final = "ORDER BY logged_at DESC, kafka_partition DESC, kafka_offset DESC LIMIT {limit:UInt32}"
_PENALTIES: Final = f"""
SELECT {_MS}(ts) AS at, id, subject, from_rung, to_rung, from_ms, to_ms, action, rule, policy_version, evidence,
       trigger_id, seq, origin, actor, note, shadow, late,
       if(isNull(until), NULL, {_MS}(assumeNotNull(until))) AS until_ms
FROM penalties FINAL WHERE subject = {{subject:String}} ORDER BY ts DESC, seq DESC LIMIT {{limit:UInt32}}
"""  # noqa: S608 - constants
_DECISIONS: Final = f"""
SELECT {_PLACE}, id, source, scenario, route, action, reason, violated, user, device, ip, api_key, others, established,
       enforced, count, attrs
FROM decisions FINAL WHERE {_RANGE} AND """  # noqa: S608 - constants
_OUTCOMES: Final = f"""
SELECT {_PLACE}, id, label, subjects, ref
FROM outcomes FINAL WHERE {_RANGE} AND has(subjects, {{subject:String}}) {_NEWEST}
"""  # noqa: S608 - constants
_ESTABLISHED: Final = f"""
SELECT user AS who, {_MS}(max(ts)) AS at
FROM decisions FINAL WHERE {_RANGE} AND established AND user != '' AND """  # noqa: S608 - constants


class Logged(NamedTuple):
    """A decision or outcome with the broker's timestamp and its place."""

    record: Decision | Outcome
    broker_ms: int
    partition: int
    offset: int


class Found(NamedTuple):
    """What a range holds of a subject; `more`: older ones in the range that were left out."""

    events: list[Logged]
    more: bool


def penalties_of(clickhouse: ClickHouse, subject: str, limit: int) -> list[Penalty]:
    """The newest penalties of a subject, oldest first.

    Raises:
        StoreUnavailable: ClickHouse does not answer, or has no tables.
    """
    rows = clickhouse.rows(_PENALTIES, {"subject": subject, "limit": limit})
    return [_penalty(row) for row in reversed(rows)]


def events_of(clickhouse: ClickHouse, subject: str, since_ms: int, until_ms: int, limit: int) -> Found:
    """Decisions and outcomes of a subject with a time in the range; the newest `limit` of each, oldest first.

    Raises:
        StoreUnavailable: as for `penalties_of`.
    """
    within = {"since": since_ms, "until": until_ms, "limit": limit + 1}
    condition, values = about(subject)
    rows = clickhouse.rows(f"{_DECISIONS}{condition} {_NEWEST}", within | values)
    told = clickhouse.rows(_OUTCOMES, within | {"subject": subject})
    events = [*map(_decision, rows[:limit]), *map(_outcome, told[:limit])]
    return Found(sorted(events, key=lambda one: one[1:]), max(len(rows), len(told)) > limit)


def established_on(
    clickhouse: ClickHouse, subject: str, since_ms: int, until_ms: int, limit: int
) -> list[tuple[str, int]]:
    """Established users that a subject was seen with, and when last; the latest `limit`, oldest first.

    Raises:
        StoreUnavailable: as for `penalties_of`.
    """
    condition, values = about(subject)
    sql = f"{_ESTABLISHED}{condition} GROUP BY user ORDER BY at DESC LIMIT {{limit:UInt32}}"
    rows = clickhouse.rows(sql, {"since": since_ms, "until": until_ms, "limit": limit} | values)
    return [(row["who"], row["at"]) for row in reversed(rows)]


def about(subject: str) -> tuple[str, dict[str, str]]:
    """The condition that a decision is about a subject (a combination: about all its parts), and its values."""
    dimensions, _, text = subject.partition(":")
    names = dimensions.split("+")
    parts = text.split("+") if len(names) > 1 else [text]
    conditions, values = [], {}
    for number, (name, part) in enumerate(zip(names, parts, strict=True)):
        key = f"v{number}"
        if name in OWN_COLUMNS:
            conditions.append(f"{name} = {{{key}:String}}")
        elif name in _FIELDS and len(names) > 1:
            conditions.append(f"{name} = {{{key}:String}}")
            part = decode_value(part)  # noqa: PLW2901 - columns of a decision's fields hold them as they are
        else:
            conditions.append(f"others[{{n{number}:String}}] = {{{key}:String}}")
            values[f"n{number}"] = name
        values[key] = part
    return " AND ".join(conditions), values


def _plain(dimension: str, canonical: str) -> str:
    return canonical if dimension == "ip" else decode_value(canonical)


def _decision(row: Mapping[str, Any]) -> Logged:
    subjects = {name: row[name] for name in OWN_COLUMNS if row[name]} | dict(row["others"])
    record = Decision(
        v=1,
        id=row["id"],
        ts=row["at"],
        source=row["source"],
        scenario=row["scenario"],
        route=row["route"],
        action=row["action"],
        reason=row["reason"] or None,
        violated=tuple(row["violated"]),
        subjects={name: _plain(name, value) for name, value in subjects.items()},
        established=None if row["established"] is None else bool(row["established"]),
        enforced=bool(row["enforced"]),
        count=row["count"],
        attrs=dict(row["attrs"]),
    )
    return Logged(record, row["logged"], row["kafka_partition"], row["kafka_offset"])


def _outcome(row: Mapping[str, Any]) -> Logged:
    pairs: Sequence[tuple[str, str, str]] = [text.partition(":") for text in row["subjects"]]
    subjects = {name: _plain(name, value) for name, _, value in pairs}
    record = Outcome(v=1, id=row["id"], ts=row["at"], label=row["label"], subjects=subjects, ref=row["ref"])
    return Logged(record, row["logged"], row["kafka_partition"], row["kafka_offset"])


def _penalty(row: Mapping[str, Any]) -> Penalty:
    return Penalty(
        id=row["id"],
        ts=row["at"],
        subject=row["subject"],
        from_=row["from_rung"],
        to=row["to_rung"],
        from_ms=row["from_ms"],
        to_ms=row["to_ms"],
        action=row["action"],
        until=row["until_ms"],
        rule=row["rule"],
        policy_version=row["policy_version"],
        evidence=msgspec.json.decode(row["evidence"]),
        trigger_id=row["trigger_id"],
        seq=row["seq"],
        origin=row["origin"],
        actor=row["actor"],
        note=row["note"],
        shadow=bool(row["shadow"]),
        late=bool(row["late"]),
    )
