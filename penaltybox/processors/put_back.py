"""What the control topic remembers, put back into an empty Redis: the pause, policy versions and switch, plans, lists.

Of each key the last record counts. The topic knows more than a store that was swapped in, so its word replaces what
is there; what it says nothing about stays.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec

from penaltybox.contracts.errors import BadEvent, ConfigurationError, PenaltyboxError
from penaltybox.contracts.keyspace import LISTS_CHANGED, POLICY_CHANGED
from penaltybox.contracts.policy_versions import SWITCH_KEY, VERSION_KEY, StoredPolicy, Switch, read_version
from penaltybox.contracts.subjects import parse_subject
from penaltybox.processors.generations import read_control
from penaltybox.sinks.customer_plans import CustomerPlan, CustomerPlans
from penaltybox.sinks.lists import Allowed, Banned, HandLists
from penaltybox.sinks.policy_versions import switching
from penaltybox.sinks.redis_store import pausing

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Iterator, Mapping

    from penaltybox.contracts.events import Control
    from penaltybox.contracts.policy import Policy
    from penaltybox.sinks.untold import Untold

log = logging.getLogger(__name__)
PLAN_KEY = "plan:"
ALLOW_KEY, CIDR_KEY = "allow:", "cidr:"
CHUNK = 500
Value = TypeVar("Value", Allowed, Banned)


class PutBack(NamedTuple):
    """What was put back.

    Attributes:
        paused: why new blocks are paused; None: they are not.
        policy: the policy in force; None: the control topic names none.
        plans: how many customers have a plan or limits of their own again.
        allowed: entries of the allowlist.
        banned: ranges of addresses.
    """

    paused: str | None
    policy: Policy | None
    plans: int
    allowed: int = 0
    banned: int = 0


async def newest_controls(records: AsyncIterable[Any]) -> dict[str, Control]:
    """Of each key the last record; what is no control is left out, a tombstone takes away what came before it.

    A record that comes again, with the id of an earlier one, is not a new one: who could not know whether it had
    arrived sent it twice, and meanwhile another one may have sent something newer.
    """
    newest: dict[str, Control] = {}
    seen: set[str] = set()
    async for record in records:
        key = (record.key or b"").decode("utf-8", "replace")
        if record.value is None:
            newest.pop(key, None)
        elif (control := read_control(record)) is not None:
            if control.id not in seen:
                newest[control.key] = control
            seen.add(control.id)
    return newest


async def put_back(controls: Mapping[str, Control], untold: Untold) -> PutBack:
    """Put back what these records say.

    Raises:
        StoreUnavailable: Redis did not answer; do it again.
    """
    paused = controls.get("pause")
    held = paused is not None and paused.kind == "pause"
    if paused is not None and held:
        await untold.commit([pausing(untold.keys, paused.reason, paused.actor, paused.ts)], [])
    policy = await _policies(controls, untold)
    plans = 0
    for key, control in controls.items():
        if key.startswith(PLAN_KEY) and control.kind == "override":
            plans += await _plan(key.removeprefix(PLAN_KEY), control, untold)
    allowed, banned = await _lists(controls, untold)
    return PutBack(paused.reason if paused is not None and held else None, policy, plans, allowed, banned)


async def _lists(controls: Mapping[str, Control], untold: Untold) -> tuple[int, int]:
    """The allowlist and the banned ranges; how many entries of each. A record without a value removes one."""
    lists = HandLists(untold.link, untold.keys.prefix)
    allowed = _entries(controls, ALLOW_KEY, Allowed)
    banned = _entries(controls, CIDR_KEY, Banned)
    removed = [one for one in await lists.allowed() if one not in allowed and ALLOW_KEY + one in controls]
    unbanned = [one for one in await lists.banned() if one not in banned and CIDR_KEY + one in controls]
    changes = [lists.allow(dict(part)) for part in _parts(list(allowed.items()))]
    changes += [lists.ban(dict(part)) for part in _parts(list(banned.items()))]
    changes += [lists.disallow(part) for part in _parts(removed)]
    changes += [lists.unban(part) for part in _parts(unbanned)]
    if changes:
        await untold.commit(changes, [], say=LISTS_CHANGED)
    return len(allowed), len(banned)


def _entries(controls: Mapping[str, Control], stem: str, kind: type[Value]) -> dict[str, Value]:
    found = {}
    for key, control in controls.items():
        if key.startswith(stem) and control.value:
            try:
                found[key.removeprefix(stem)] = msgspec.json.decode(control.value, type=kind)
            except (msgspec.MsgspecError, RecursionError) as error:
                log.warning("The record of %.100s is no entry of a list, left out: %s", key, error)
    return found


def _parts(some: list[Any]) -> Iterator[list[Any]]:
    for start in range(0, len(some), CHUNK):
        yield some[start : start + CHUNK]


async def _policies(controls: Mapping[str, Control], untold: Untold) -> Policy | None:
    versions: dict[str, StoredPolicy] = {}
    for key, control in controls.items():
        if key.startswith(VERSION_KEY) and control.kind == "policy":
            version = key.removeprefix(VERSION_KEY)
            try:
                versions[version] = read_version(control.value.encode(), version)
            except ConfigurationError as error:
                log.warning("Left out: %s", error)
    keys = untold.keys
    sets = [("SET", keys.policy_version(version), msgspec.json.encode(one)) for version, one in versions.items()]
    if sets:
        await untold.commit(sets, [])
    last = controls.get(SWITCH_KEY)
    if last is None or last.kind != "policy":
        return None
    stored = versions.get(last.value)
    if stored is None:
        log.error("The control topic names policy %s and does not have its text: apply one", last.value)
        return None
    try:
        policy = stored.policy()
    except PenaltyboxError as error:
        log.error("The policy in force is put back as it was, but this release cannot use it: %s", error)  # noqa: TRY400 - a sentence says it
        policy = None
    switch = Switch(version=last.value, ts=last.ts, actor=last.actor, reason=last.reason, verb="restore")
    await untold.commit(switching(keys, stored, switch), [], say=POLICY_CHANGED)
    return policy


async def _plan(subject: str, control: Control, untold: Untold) -> bool:
    """Whether a customer has a plan again."""
    try:
        plan = msgspec.json.decode(control.value, type=CustomerPlan)
        if parse_subject(subject) != subject:
            raise BadEvent("subject", "not canonical")  # noqa: TRY301 - told like the others
    except (msgspec.MsgspecError, RecursionError, BadEvent) as error:
        log.warning("The plan of %.100s is no plan, left out: %s", subject, error)
        return False
    await CustomerPlans(untold.link, untold.keys.prefix).put_back(subject, plan)
    return plan != CustomerPlan()
