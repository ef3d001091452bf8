"""What is to be done about the bans of another program: subjects to deny, ranges to ban."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.cli.block_files import BlockLine, WrongLine
from penaltybox.cli.foreign_bans import UNSAID
from penaltybox.contracts.durations import LONGEST_MS
from penaltybox.contracts.errors import BadEvent, ConfigurationError, PenaltyboxError, shown
from penaltybox.contracts.listing import as_address, as_range, banned_range
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.feed.list_entries import range_name
from penaltybox.sinks.lists import Banned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.cli.foreign_bans import ForeignBan
    from penaltybox.contracts.settings import Settings


class Plan(NamedTuple):
    """What an import does.

    Attributes:
        lines: subjects to deny.
        ranges: to ban; a challenge is a range too, if only of one address, because no hand asks a subject for one.
        wrong: what is not taken, and why.
        ended: bans that are over.
    """

    lines: list[BlockLine]
    ranges: dict[str, Banned]
    wrong: list[WrongLine]
    ended: int


class Terms(NamedTuple):
    """What holds for all of an import.

    Attributes:
        at_ms: now.
        for_ms: how long bans last whose list does not say it; None: it was not said, and they are not taken.
        actor: who.
        reason: why.
    """

    at_ms: int
    for_ms: int | None
    actor: str
    reason: str


def plan(bans: Iterable[ForeignBan | WrongLine], values: Settings, terms: Terms, name: Callable[[str], str]) -> Plan:
    """Sorts bans out; of several of one subject or range the one that ends last counts.

    Args:
        bans: as they were read.
        values: how addresses count.
        terms: of the import.
        name: canonical name of a subject.
    """
    made = Plan([], {}, [], 0)
    canonicaliser = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)
    ended = 0
    lines: dict[str, BlockLine] = {}
    for ban in bans:
        if isinstance(ban, WrongLine):
            made.wrong.append(ban)
            continue
        try:
            until = _until(ban, terms)
            if until is not None and until <= terms.at_ms:
                ended += 1
                continue
            where = _range(ban, canonicaliser)
            if where is None:
                line = BlockLine(ban.number, name(f"ip:{_bare(ban.address)}"), until, "")
                if line.subject not in lines or _later(until, lines[line.subject].until):
                    lines[line.subject] = line
            elif where not in made.ranges or _weight(ban.action, until) > _weight(
                made.ranges[where].action, made.ranges[where].until
            ):
                made.ranges[where] = Banned(ban.action, until, terms.reason, terms.actor)
        except (PenaltyboxError, BadEvent) as error:
            made.wrong.append(WrongLine(ban.number, str(error)))
    return made._replace(lines=list(lines.values()), ended=ended)


def _until(ban: ForeignBan, terms: Terms) -> int | None:
    if ban.until == UNSAID:
        if terms.for_ms is None:
            raise ConfigurationError(f"{shown(ban.address)}: no end is said; --for 1h says how long such bans last")
        return terms.at_ms + terms.for_ms
    return None if ban.until is None or ban.until > terms.at_ms + LONGEST_MS else ban.until


def _range(ban: ForeignBan, canonicaliser: Canonicaliser) -> str | None:
    """The range to ban; None for an address to deny."""
    if as_range(ban.address) is None and as_address(ban.address) is None:
        raise ConfigurationError(f"got {shown(ban.address)}, wanted an address or a range of addresses")
    where = banned_range(ban.address, canonicaliser)
    return range_name(ban.address) if where is None and ban.action == "challenge" else where


def _bare(address: str) -> str:
    network = as_range(address)
    return address.removeprefix("ip:") if network is None else str(network.network_address)


def _later(one: int | None, other: int | None) -> bool:
    return other is not None and (one is None or one > other)


def _weight(action: str, until: int | None) -> tuple[bool, int]:
    return action == "deny", 1 << 62 if until is None else until


def ban_ranges(values: Settings, ranges: dict[str, Banned]) -> int:
    """Bans what is not banned as hard and as long already; how many that were.

    Raises:
        StoreUnavailable: Redis does not answer; import the file again.
    """
    from penaltybox.cli.list_changes import put_bans

    return asyncio.run(put_bans(values, ranges))
