"""Policy versions in Redis: every known text, which one is in force, and the history of switches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.events import Control
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.keyspace import POLICY_CHANGED, Keyspace, slot_of
from penaltybox.contracts.policy_versions import SWITCH_KEY, VERSION_KEY, StoredPolicy, Switch
from penaltybox.links.policies import read_policy

if TYPE_CHECKING:
    from penaltybox.links.exchange import Command, Link
    from penaltybox.sinks.untold import Untold

MOST: Final = 1000
"""Switches that the history keeps."""


async def put_in_force(untold: Untold, stored: StoredPolicy, switch: Switch) -> None:
    """Store a version and switch to it; workers and limiters follow within a second, Kafka is told when it is there.

    Raises:
        StoreUnavailable: Redis did not answer; do it again.
    """
    records = [version_record(stored), switch_record(switch)]
    await untold.commit(switching(untold.keys, stored, switch), records, say=POLICY_CHANGED)


def switching(keys: Keyspace, stored: StoredPolicy, switch: Switch) -> list[Command]:
    """The commands of a switch: the text before whatever names it."""
    entry = msgspec.json.encode(switch)
    return [
        ("SET", keys.policy_version(stored.version), msgspec.json.encode(stored)),
        ("RPUSH", keys.policy_history, entry),
        ("LTRIM", keys.policy_history, -MOST, -1),
        ("SET", keys.policy, entry),
    ]


async def remember(untold: Untold, stored: StoredPolicy) -> None:
    """Store a version that is in use without having been applied, where it is not known yet.

    Raises:
        StoreUnavailable: Redis did not answer.
    """
    if await read_policy(untold.link, stored.version, untold.keys.prefix) is None:
        key = untold.keys.policy_version(stored.version)
        await untold.commit([("SET", key, msgspec.json.encode(stored), "NX")], [version_record(stored)])


async def history(link: Link, prefix: str = "pbx") -> list[Switch]:
    """All switches that are remembered, oldest first; entries that cannot be read are left out.

    Raises:
        StoreUnavailable: Redis did not answer.
    """
    key = Keyspace(prefix).policy_history
    (entries,) = await link.exchange([("LRANGE", key, 0, -1)], [slot_of(key)])
    found = []
    for entry in entries:
        try:
            found.append(msgspec.json.decode(entry, type=Switch))
        except (msgspec.MsgspecError, UnicodeDecodeError):
            continue
    return found


def version_record(stored: StoredPolicy) -> Control:
    """The control record of a version: its text and where it is from."""
    return Control(
        id=ulid(max(stored.ts, 1)),
        ts=max(stored.ts, 1),
        key=f"{VERSION_KEY}{stored.version}",
        kind="policy",
        value=msgspec.json.encode(stored).decode(),
        actor=stored.actor,
        reason=stored.reason,
    )


def switch_record(switch: Switch) -> Control:
    """The control record of a switch: the version that is in force from now on."""
    return Control(
        id=ulid(max(switch.ts, 1)),
        ts=max(switch.ts, 1),
        key=SWITCH_KEY,
        kind="policy",
        value=switch.version,
        actor=switch.actor,
        reason=switch.reason,
    )
