"""The allowlist that was kept by hand, as the control topic tells it: who was listed when.

Live workers follow the list in Redis, which no replay asks. Each change is in the control topic (kind ``allow``, key
``allow:<entry>``; no value takes an entry off), so a replay makes the same changes at their times, on both sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.policy import AllowEntry  # noqa: TC001 - msgspec reads a change's fields
from penaltybox.contracts.topics import Topics
from penaltybox.processors.generations import read_control
from penaltybox.processors.put_back import ALLOW_KEY
from penaltybox.processors.topic_log import read_topic
from penaltybox.sinks.lists import Allowed, allow_entry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.settings import Settings
    from penaltybox.contracts.subjects import Canonicaliser

TOGETHER_MS: Final = 1000
"""Changes of an import are made in steps of this: each step costs a walk over all entries."""


class ListChange(msgspec.Struct, frozen=True):
    """Entries that are listed from here on, by their names; None takes one off."""

    entries: dict[str, AllowEntry | None]
    id: str = ""
    """As every event of a replay has one."""


async def read_list_changes(settings: Settings, canonicaliser: Canonicaliser) -> list[tuple[int, ListChange]]:
    """(ms, change) by time, from the control topic of these settings; empty where there is none.

    Raises:
        KafkaError: the broker cannot be reached, or refuses.
    """
    topic = Topics.named(settings.topic_prefix).control
    return list_changes([record async for record in read_topic(settings, topic)], canonicaliser)


def list_changes(records: Iterable[Any], canonicaliser: Canonicaliser) -> list[tuple[int, ListChange]]:
    """The same of records (`key`, `value`, `timestamp`) in the order of the topic."""
    made: list[tuple[int, str, AllowEntry | None]] = []
    seen: set[str] = set()
    for record in records:
        key = (record.key or b"").decode("utf-8", "replace")
        if not key.startswith(ALLOW_KEY):
            continue
        name = key.removeprefix(ALLOW_KEY)
        if record.value is None:  # its subject was forgotten
            made.append((record.timestamp, name, None))
            continue
        control = read_control(record)
        if control is None or control.kind != "allow" or control.id in seen:
            continue
        seen.add(control.id)
        made.append((control.ts, name, _entry(name, control.value, canonicaliser)))
    found: list[tuple[int, ListChange]] = []
    for ms, name, entry in sorted(made, key=lambda one: one[0]):
        if not found or ms > found[-1][0] + TOGETHER_MS or name in found[-1][1].entries:
            found.append((ms, ListChange({})))
        found[-1][1].entries[name] = entry
    return found


def _entry(name: str, value: str, canonicaliser: Canonicaliser) -> AllowEntry | None:
    if not value:
        return None
    try:
        return allow_entry(name, msgspec.json.decode(value, type=Allowed), canonicaliser)
    except msgspec.MsgspecError:
        return None  # live workers could not read it either
