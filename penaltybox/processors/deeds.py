"""Who did what by hand: from the penalties topic (or ClickHouse, which remembers longer) and the control topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.events import Control, Penalty
from penaltybox.contracts.policy_versions import VERSION_KEY
from penaltybox.contracts.topics import Topics
from penaltybox.processors.generations import read_control
from penaltybox.processors.topic_log import read_topic

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.clickhouse.client import ClickHouse

NOBODY: Final = frozenset({"policy_in_use"})
"""Kinds of control records that workers write of themselves."""
STORED: Final = """
SELECT toUnixTimestamp64Milli(ts) AS at, id, actor, action, subject, from_rung, to_rung, note, evidence
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
            verb = str(penalty.evidence.get("verb", penalty.action))
            found.append(_step(penalty, verb))
    return found


def stored_steps(clickhouse: ClickHouse, since_ms: int, limit: int) -> list[Deed]:
    """Steps by hand in ClickHouse, newest first.

    Raises:
        StoreUnavailable: it does not answer.
    """
    rows = clickhouse.rows(STORED, {"since": since_ms, "limit": limit})
    return [
        Deed(row["at"], row["id"], row["actor"], _verb(row["evidence"], row["action"]), row["subject"],
             f"{row['from_rung']} → {row['to_rung']}", row["note"])
        for row in rows
    ]  # fmt: skip


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
    return [
        _step(one, str(one.evidence.get("verb", one.action)))._replace(told=False)
        for one in penalties
        if one.origin == "hand" and one.ts >= since_ms
    ]


def _step(penalty: Penalty, verb: str) -> Deed:
    rungs = f"{penalty.from_} → {penalty.to}"
    return Deed(penalty.ts, penalty.id, penalty.actor, verb, penalty.subject, rungs, penalty.note)


def _verb(evidence: str, action: str) -> str:
    try:
        found: Any = msgspec.json.decode(evidence)
    except msgspec.MsgspecError:
        return action
    return str(found.get("verb", action)) if isinstance(found, dict) else action


def _what(control: Control) -> str:
    if control.kind == "allow":
        return "allow add" if control.value else "allow remove"
    if control.kind == "cidr":
        return "ban range" if control.value else "unban range"
    return {"override": "quota", "retry": "dead-letters retry"}.get(control.kind, control.kind)


def _about(control: Control) -> str:
    return control.key.partition(":")[2] or control.value


def _details(control: Control) -> str:
    return control.value if control.kind in {"allow", "cidr", "override", "retry"} else ""
