"""Changes of the lists that are kept by hand: in force at once, recorded, and retroactive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from penaltybox.cli.console import instant, out, print_json
from penaltybox.cli.control import control, opened, tell
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import LISTS_CHANGED
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.sinks.lists import Allowed, Banned, HandLists

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from penaltybox.contracts.events import Control
    from penaltybox.contracts.policy import AllowEntry, Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.links.exchange import Link

CHUNK: Final = 500
"""Entries that are changed in one step."""


def ban_range(
    values: Settings,
    where: str,
    action: Literal["deny", "challenge"],
    until: int | None,
    actor: str,
    reason: str,
    *,
    as_json: bool,
) -> None:
    """Bans a range of addresses until a time (ms; None for good), and says so."""
    asyncio.run(put_ban(values, where, Banned(action, until, reason, actor)))
    if as_json:
        print_json({"range": where, "action": action, "until": until, "actor": actor, "reason": reason})
        return
    end = "until `penaltybox unban`" if until is None else f"until {instant(until)}"
    verb = "denied" if action == "deny" else "asked for a challenge"
    out.print(f"Every address of {where} is {verb} {end}, by {actor}: {reason}.", markup=False)
    if "ip" in values.hashed_dimensions:
        out.print("Addresses are hashed here: only limiters that see the address itself apply it.")


async def put_ban(values: Settings, where: str, value: Banned) -> None:
    """Bans a range of addresses: in force at once, recorded.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    told = msgspec.json.encode(value).decode()
    async with opened(values) as (link, untold):
        record = control("cidr", f"cidr:{where}", told, actor=value.actor, reason=value.reason)
        await untold.commit([_lists(values, link).ban({where: value})], [record], say=LISTS_CHANGED)
        await tell(values, untold)


async def put_bans(values: Settings, ranges: Mapping[str, Banned]) -> int:
    """Bans many ranges; what is banned as hard and as long already is left alone. How many were not.

    Raises:
        StoreUnavailable: Redis does not answer; say it again.
    """
    async with opened(values) as (link, untold):
        lists = _lists(values, link)
        there = await lists.banned()
        wanted = [(where, ban) for where, ban in ranges.items() if not _holds(there.get(where), ban)]
        for start in range(0, len(wanted), CHUNK):
            part = dict(wanted[start : start + CHUNK])
            records = [
                control("cidr", f"cidr:{where}", msgspec.json.encode(ban).decode(), actor=ban.actor, reason=ban.reason)
                for where, ban in part.items()
            ]
            await untold.commit([lists.ban(part)], records, say=LISTS_CHANGED)
        if wanted:
            await tell(values, untold)
        return len(wanted)


def _holds(there: Banned | None, ban: Banned) -> bool:
    """Whether what is there does as much, give or take a second."""
    if there is None or (there.action not in (ban.action, "deny")):
        return False
    return there.until is None or (ban.until is not None and there.until >= ban.until - 1000)


async def end_ban(values: Settings, where: str, actor: str, reason: str) -> bool:
    """Ends the ban of a range; whether it was banned.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    async with opened(values) as (link, untold):
        lists = _lists(values, link)
        if where not in await lists.banned():
            return False
        record = control("cidr", f"cidr:{where}", actor=actor, reason=reason)
        await untold.commit([lists.unban([where])], [record], say=LISTS_CHANGED)
        await tell(values, untold)
        return True


def unban_range(values: Settings, where: str, actor: str, reason: str, *, as_json: bool) -> None:
    """Ends the ban of a range, and says so."""
    found = asyncio.run(end_ban(values, where, actor, reason))
    if as_json:
        print_json({"range": where, "was_banned": found})
    elif found:
        out.print(f"{where} is not banned any more, by {actor}: {reason}.", markup=False)
    else:
        out.print(
            f"{where} was not banned as a range; penaltybox allow check says what covers an address.", markup=False
        )


async def change_allowlist(
    values: Settings,
    policy: Policy,
    add: Mapping[str, Allowed],
    remove: Sequence[str],
    *,
    actor: str,
    reason: str,
    kept: Mapping[str, Allowed] | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> int:
    """Sets and removes entries of the allowlist, and hides or shows the blocks that this is about.

    Args:
        values: where.
        policy: the policy in force: with it keys are written anew.
        add: entry -> what is known of it.
        remove: entries.
        actor: who.
        reason: why; stands in the records.
        kept: entries that are there already: only the blocks that they are about are looked at.
        progress: gets the number of entries that are in force.

    Returns:
        How many subjects' keys were hidden or came back.

    Raises:
        StoreUnavailable: Redis did not answer: what is in force is; say it again.
    """
    async with opened(values) as (link, untold):
        lists = _lists(values, link)
        steps = [
            (lists.allow(part), [_record(actor, reason, field, value) for field, value in part.items()])
            for part in _chunks(add)
        ]
        for start in range(0, len(remove), CHUNK):
            part = remove[start : start + CHUNK]
            steps.append((lists.disallow(part), [_record(actor, reason, field, None) for field in part]))
        done = 0
        for number, (command, records) in enumerate(steps, 1):
            await untold.commit([command], records, say=LISTS_CHANGED if number == len(steps) else "")
            done += len(records)
            progress(done)
        about = [
            entry
            for field, value in {**(kept or {}), **add}.items()
            if (entry := lists.entry(field, value)) is not None
        ]
        about += [entry for field in remove if (entry := lists.entry(field, Allowed())) is not None]
        changed = await _set_right(values, policy, link, about)
        await tell(values, untold)
        return changed


def _record(actor: str, reason: str, field: str, value: Allowed | None) -> Control:
    told = "" if value is None else msgspec.json.encode(value).decode()
    return control("allow", f"allow:{field}", told, actor=actor, reason=reason)


def _chunks(entries: Mapping[str, Allowed]) -> Iterator[dict[str, Allowed]]:
    pairs = list(entries.items())
    for start in range(0, len(pairs), CHUNK):
        yield dict(pairs[start : start + CHUNK])


async def _set_right(values: Settings, policy: Policy, link: Link, about: Sequence[AllowEntry]) -> int:
    """Hides the blocks of who is listed now, and shows those of who is not any more; workers do the same."""
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.listings import Listings
    from penaltybox.sinks.blocklist import Blocklist
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(link, values.redis_prefix)
    if await store.generation() is None:
        return 0  # no worker has ever been here, so nothing is blocked
    await store.join_generation()
    engine = Engine(policy, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
    listings = Listings(engine, store, Blocklist(link, values.redis_prefix), now_ms, _lists(values, link).entries)
    await listings.refresh()
    return await listings.set_right(about)


def _lists(values: Settings, link: Link) -> HandLists:
    return HandLists(link, values.redis_prefix, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
