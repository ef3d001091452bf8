"""Who did what by hand: from the penalties topic (or ClickHouse, which remembers longer) and the control topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.events import Control, Penalty
from penaltybox.contracts.policy_versions import VERSION_KEY
from penaltybox.contracts.topics import Topics
from penaltybox.processors.generations import read_control
from penaltybox.processors.replay.times import iso
from penaltybox.processors.topic_log import read_topic
from penaltybox.sinks.lists import Allowed, Banned

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.clickhouse.client import ClickHouse

NOBODY: Final = frozenset({"policy_in_use"})
"""Kinds of control records that workers write of themselves."""
STORED: Final = """
SELECT toUnixTimestamp64Milli(ts) AS at, id, actor, action, subject, from_rung, to_rung, note, evidence,
       if(isNull(until), NULL, toUnixTimestamp64Milli(assumeNotNull(until))) AS until_ms
FROM penalties FINAL WHERE origin = 'hand' AND ts >= fromUnixTimestamp64Milli({since:Int64})
ORDER BY ts DESC LIMIT {limit:UInt32}
"""


class Deed(NamedTuple):
    """One thing that somebody did.

    Attributes:
        ts: when, ms.
        id: of its record.
        actor: who.
        what: in words, e.g. ``ban``, ``allow add``.
        about: subject, range or policy version.
        details: from which rung to which, an end, a count.
        reason: why.
        told: whether Kafka has it.
    """

    ts: int
    id: str
    actor: str
    what: str
    about: str
    details: str
    reason: str
    told: bool = True


async def told_steps(settings: Settings, since_ms: int) -> list[Deed]:
    """Steps by hand on the penalties topic, as long as it keeps them.

    Raises:
        KafkaError: the broker cannot be reached.
    """
    found = []
    async for record in read_topic(settings, Topics.named(settings.topic_prefix).penalties):
        if record.value is None or b'"hand"' not in record.value:
            continue
        try:
            penalty = msgspec.json.decode(record.value, type=Penalty)
        except (msgspec.MsgspecError, RecursionError):
            continue  # others may write there too
        if penalty.origin == "hand" and penalty.ts >= since_ms:
            found.append(_step(penalty))
    return found


def stored_steps(clickhouse: ClickHouse, since_ms: int, limit: int) -> list[Deed]:
    """Steps by hand in ClickHouse, newest first.

    Raises:
        StoreUnavailable: it does not answer.
    """
    rows = clickhouse.rows(STORED, {"since": since_ms, "limit": limit})
    return [_stored(row) for row in rows]


async def told_changes(settings: Settings, since_ms: int) -> list[Deed]:
    """What the control topic says was done by hand.

    Raises:
        KafkaError: the broker cannot be reached.
    """
    topic = Topics.named(settings.topic_prefix).control
    records = [record async for record in read_topic(settings, topic) if record.value is not None]
    controls = [control for record in records if (control := read_control(record)) is not None]
    return changes(controls, since_ms)


def changes(controls: Iterable[Control], since_ms: int, *, told: bool = True) -> list[Deed]:
    """Control records as deeds, but those of workers, and texts of policy versions: the switch is the deed."""
    return [
        Deed(one.ts, one.id, one.actor, _what(one), _about(one), _details(one), one.reason, told)
        for one in controls
        if one.kind not in NOBODY and one.actor != "worker" and one.ts >= since_ms
        and not one.key.startswith(VERSION_KEY)
    ]  # fmt: skip


def untold_changes(records: Sequence[bytes], since_ms: int) -> list[Deed]:
    """Records that wait in Redis for Kafka."""
    controls = []
    for record in records:
        try:
            controls.append(msgspec.json.decode(record, type=Control))
        except msgspec.MsgspecError:
            continue
    return changes(controls, since_ms, told=False)


def untold_steps(penalties: Iterable[Penalty], since_ms: int) -> list[Deed]:
    """Steps by hand in outboxes."""
    return [_step(one)._replace(told=False) for one in penalties if one.origin == "hand" and one.ts >= since_ms]


def _step(penalty: Penalty) -> Deed:
    verb = str(penalty.evidence.get("verb", penalty.action))
    details = _rungs(verb, penalty.from_, penalty.to, penalty.until, penalty.evidence)
    return Deed(penalty.ts, penalty.id, penalty.actor, verb, penalty.subject, details, penalty.note)


def _stored(row: Mapping[str, Any]) -> Deed:
    try:
        found: Any = msgspec.json.decode(row["evidence"])
    except msgspec.MsgspecError:
        found = None
    evidence = found if isinstance(found, dict) else {}
    verb = str(evidence.get("verb", row["action"]))
    details = _rungs(verb, row["from_rung"], row["to_rung"], row["until_ms"], evidence)
    return Deed(row["at"], row["id"], row["actor"], verb, row["subject"], details, row["note"])


def _rungs(verb: str, before: str, after: str, until: int | None, evidence: Mapping[str, Any]) -> str:
    """What a step did: ``none → 5m, until 2026-12-01T10:00:00Z``; ``+5 points of trust``."""
    if verb == "grant":
        points = evidence.get("points")
        return f"{points:+} points of trust" if isinstance(points, int) else ""
    grace = f", grace {evidence['grace']}" if evidence.get("grace") else ""
    return f"{before} → {after}{f', {_end(until)}' if verb == 'ban' else ''}{grace}"


def _end(until: int | None) -> str:
    return "for good" if until is None else f"until {iso(until)}"


def _what(control: Control) -> str:
    if control.kind == "allow":
        return "allow add" if control.value else "allow remove"
    if control.kind == "cidr":
        return "ban range" if control.value else "unban range"
    return {"override": "quota", "retry": "dead-letters retry"}.get(control.kind, control.kind)


def _about(control: Control) -> str:
    return control.key.partition(":")[2] or control.value


def _details(control: Control) -> str:
    """What of a change its kind and name do not say, in words; as it stands there, if it cannot be read."""
    try:
        if control.kind == "allow" and control.value:
            entry = msgspec.json.decode(control.value, type=Allowed)
            return _end(entry.until) + (f": {entry.note}" if entry.note not in ("", control.reason) else "")
        if control.kind == "cidr" and control.value:
            ban = msgspec.json.decode(control.value, type=Banned)
            return f"{ban.action} {_end(ban.until)}"
    except msgspec.MsgspecError:
        return control.value
    return control.value if control.kind in {"override", "retry"} else ""
