"""`penaltybox allow add | remove | list | import | check`: whom nothing happens to."""

from __future__ import annotations

import asyncio
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.progress import Progress as Bar

from penaltybox.cli.allow_files import read_entries
from penaltybox.cli.console import (
    AsJson,
    PolicyFile,
    err,
    instant,
    one_subject,
    out,
    print_json,
    settings,
    table,
    typed_subject,
)
from penaltybox.cli.control import opened
from penaltybox.cli.hand import Actor, Reason, Subject, actor_given, end_given, policy_now, reason_given
from penaltybox.cli.list_changes import change_allowlist
from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent, ConfigurationError
from penaltybox.contracts.listing import allowed_range, as_address, listed_range, subject_text
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.sinks.lists import Allowed, HandLists

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Address, IPv6Address

    from penaltybox.contracts.policy import AllowEntry, Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.lists import Banned

app = typer.Typer(help="Whom nothing happens to: the allowlist, in force at once.", no_args_is_help=True)
_Entry = Annotated[
    str, typer.Argument(help="dimension:value, an address, or a range, e.g. user:10086 or 203.0.113.0/24.")
]
_For = Annotated[str, typer.Option("--for", help="For so long, e.g. 2h.")]
_Until = Annotated[str, typer.Option(help="Until a time, e.g. 2026-12-01T00:00:00Z.")]
_Force = Annotated[bool, typer.Option("--force", help="Also a range wider than /8, or /16 of IPv6.")]
_ERRORS_SHOWN = 20


@app.command("add")
def add(
    entry: _Entry,
    *,
    for_: _For = "",
    until: _Until = "",
    reason: Reason,
    actor: Actor = "",
    force: _Force = False,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """List a subject or a range: nothing counts against it, and what is in force against it is hidden.

    It wins over every ban, also inside a banned range. When the listing ends, a block that still runs is back. An IPv6
    address lists the prefix that counts (/64).

        penaltybox allow add 203.0.113.0/24 --for 2h --reason "office, load test"
    """
    values = settings()
    who, why, end = actor_given(actor), reason_given(reason), end_given(for_, until)
    name = entry_name(entry, values, force=force)
    value = Allowed(end, why, who)
    hidden = asyncio.run(
        change_allowlist(values, policy_now(policy_file, values), {name: value}, (), actor=who, reason=why)
    )
    if as_json:
        print_json({"entry": name, "until": end, "note": why, "actor": who, "hidden": hidden})
        return
    out.print(f"{name} is allowlisted {_end(end)}, by {who}: {why}.", markup=False)
    if hidden:
        out.print(f"{hidden:,} blocks and challenges are hidden; those that still run then are back when it ends.")


@app.command("remove")
def remove(
    entry: _Entry, *, reason: Reason, actor: Actor = "", policy_file: PolicyFile = None, as_json: AsJson = False
) -> None:
    """Take an entry off: blocks of its subjects that still run are back at once.

    penaltybox allow remove 203.0.113.0/24 --reason "load test is over"
    """
    values = settings()
    who, why = actor_given(actor), reason_given(reason)
    name, policy = entry_name(entry, values, force=True), policy_now(policy_file, values)
    there = asyncio.run(_allowed(values))
    if name not in there:
        own = any(name in {one.subject, one.cidr} for one in policy.allow)
        hint = "it stands in the policy file, which is the place to remove it" if own else "penaltybox allow list"
        raise ConfigurationError(f"{name} is not on the list that is kept by hand; {hint}")
    back = asyncio.run(change_allowlist(values, policy, {}, [name], actor=who, reason=why))
    if as_json:
        print_json({"entry": name, "removed": True, "back": back})
        return
    out.print(f"{name} is not allowlisted any more, by {who}: {why}.", markup=False)
    if back:
        out.print(f"{back:,} blocks and challenges that still run are back.")


@app.command("list")
def list_(*, policy_file: PolicyFile = None, as_json: AsJson = False) -> None:
    """List the allowlist, the policy's own entries and those added by hand, and the ranges that are banned."""
    values = settings()
    policy = policy_now(policy_file, values)
    allowed, banned = asyncio.run(_both(values))
    now = now_ms()
    rows = [(one.subject or one.cidr, one.until, one.note, "policy", "") for one in policy.allow]
    rows += [(name, value.until, value.note, "hand", value.actor) for name, value in sorted(allowed.items())]
    if as_json:
        for name, until, note, source, actor in rows:
            print_json({"list": "allow", "entry": name, "until": until, "note": note, "from": source, "actor": actor})
        for name, ban in sorted(banned.items()):
            print_json({"list": "cidr", "entry": name, "until": ban.until, "action": ban.action,
                        "reason": ban.reason, "actor": ban.actor})  # fmt: skip
        return
    if not rows:
        out.print("Nobody is allowlisted.")
    else:
        shown = [(name, _ends(until, now), note, source, actor) for name, until, note, source, actor in rows]
        out.print(table("Allowlisted", ["entry", "until", "note", "from", "by"], shown))
    if banned:
        bans = [
            (name, ban.action, _ends(ban.until, now), ban.reason, ban.actor) for name, ban in sorted(banned.items())
        ]
        out.print()
        out.print(table("Banned ranges", ["range", "what", "until", "reason", "by"], bans))


@app.command("check")
def check(subject: Subject, *, policy_file: PolicyFile = None, as_json: AsJson = False) -> None:
    """Say whether a subject or address is allowlisted or in a banned range, by which entry and until when.

    penaltybox allow check ip:203.0.113.7
    """
    values = settings()
    name = one_subject(subject, values)
    found = asyncio.run(_covering(values, policy_now(policy_file, values), name, as_address(subject) or ""))
    if as_json:
        allowed = [{"entry": _name(one), "until": one.until, "note": one.note, "from": source}
                   for one, source in found.entries]  # fmt: skip
        banned = [{"range": where, "action": ban.action, "until": ban.until} for where, ban in found.bans]
        print_json({"subject": name, "allowlisted": bool(allowed), "allow": allowed, "banned": banned})
        return
    for one, source in found.entries:
        place = "the policy" if source == "policy" else "the list kept by hand"
        note = f": {one.note}" if one.note else ""
        out.print(f"{name} is allowlisted {_end(one.until)}, by {_name(one)} in {place}{note}.", markup=False)
    for where, ban in found.bans:
        verb = "denied" if ban.action == "deny" else "asked for a challenge"
        wins = "; the allowlist wins" if found.entries else ""
        out.print(f"{name} is in {where}, which is {verb} {_end(ban.until)}: {ban.reason}{wins}.", markup=False)
    if not found.entries:
        out.print(f"{name} is not allowlisted.", markup=False)


@app.command("import")
def import_(
    file: Annotated[str, typer.Argument(help="UTF-8 text.")],
    *,
    for_: _For = "",
    until: _Until = "",
    reason: Reason,
    actor: Actor = "",
    force: _Force = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be listed; change nothing.")] = False,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """List everything in a file: one entry a line, CSV with a header entry,until,note, or fail2ban's ignoreip lines.

    Lines that are none are told with their numbers, the others are listed; the exit code is 1 then. What stands there
    until the same time with the same note is left alone, so importing a file again changes, and records, nothing.

        penaltybox allow import offices.csv --reason "offices, ticket 4711" --dry-run
    """
    values = settings()
    who, why, end = actor_given(actor), reason_given(reason), end_given(for_, until)
    canonicaliser = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)
    entries, wrong = read_entries(
        Path(file), lambda text: entry_name(text, values, canonicaliser, force=force), now_ms()
    )
    new = {name: Allowed(one.until if one.until is not None else end, one.note or why, who)
           for name, one in entries.items()}  # fmt: skip
    there = asyncio.run(_allowed(values)) if new else {}
    kept = {name: value for name, value in new.items() if name in there and _alike(there[name], value)}
    new = {name: value for name, value in new.items() if name not in kept}
    hidden = 0
    if (new or kept) and not dry_run:
        with Bar(console=err, transient=True, disable=as_json or not err.is_terminal) as bar:
            task = bar.add_task("entries", total=len(new))
            hidden = asyncio.run(
                change_allowlist(
                    values, policy_now(policy_file, values), new, (), actor=who, reason=why, kept=kept,
                    progress=lambda done: bar.update(task, completed=done),
                )
            )  # fmt: skip
    if as_json:
        print_json({"listed": 0 if dry_run else len(new), "would_list": len(new), "already": len(kept),
                    "hidden": hidden, "wrong": [{"line": line, "says": says} for line, says in wrong]})  # fmt: skip
    else:
        for line, says in wrong[:_ERRORS_SHOWN]:
            err.print(f"{file}:{line}: {says}", markup=False)
        if len(wrong) > _ERRORS_SHOWN:
            err.print(f"… and {len(wrong) - _ERRORS_SHOWN:,} more lines that are no entry")
        verb = "would be" if dry_run else "are"
        out.print(
            f"{len(new):,} entries {verb} allowlisted, {len(kept):,} were already, {hidden:,} blocks hidden, "
            f"{len(wrong):,} lines left out."
        )
    if wrong:
        raise typer.Exit(1)


def _alike(there: Allowed, wanted: Allowed) -> bool:
    """Whether an entry stands there as it is wanted, by whomever."""
    return (there.until, there.note) == (wanted.until, wanted.note)


class Covering(NamedTuple):
    """Entries in force on a subject, each with where it stands, and banned ranges around its address."""

    entries: list[tuple[AllowEntry, str]]
    bans: list[tuple[str, Banned]]


def entry_name(text: str, values: Settings, canonicaliser: Canonicaliser | None = None, *, force: bool = False) -> str:
    """The field of the list that what a person typed means.

    Args:
        text: as typed.
        values: how subjects are written.
        canonicaliser: one of those settings, for who asks about many.
        force: a range may be wide.

    Raises:
        ConfigurationError: neither a subject nor an address nor a range, or too wide a one.
    """
    canonicaliser = canonicaliser or Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)
    given = text.strip()
    where = allowed_range(given, canonicaliser, force=force)
    if where is not None:
        return where
    try:
        return typed_subject(subject_text(given), values, canonicaliser)
    except BadEvent as error:
        raise ConfigurationError(str(error)) from error


async def _covering(values: Settings, policy: Policy, subject: str, address: str) -> Covering:
    async with opened(values) as (link, _):
        lists = HandLists(link, values.redis_prefix, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
        listed, banned = await lists.entries(), await lists.banned()
    now = now_ms()
    entries = [
        (one, source)
        for source, some in (("policy", policy.allow), ("hand", listed))
        for one in Allowlist(tuple(some)).matching(subject)
        if one.until is None or one.until > now
    ]
    here = ip_address(address.removeprefix("ip:")) if address else None
    here = getattr(here, "ipv4_mapped", None) or here
    return Covering(entries, bans_on(banned, here, now))


def bans_on(banned: Mapping[str, Banned], here: IPv4Address | IPv6Address | None, now: int) -> list[tuple[str, Banned]]:
    """The bans in force that hold an address; none for a subject that is no address."""
    return [
        (where, ban)
        for where, ban in banned.items()
        if here is not None
        and (ban.until is None or ban.until > now)
        and (network := listed_range(where)) is not None
        and here in network
    ]


async def _allowed(values: Settings) -> dict[str, Allowed]:
    async with opened(values) as (link, _):
        return await HandLists(link, values.redis_prefix).allowed()


async def _both(values: Settings) -> tuple[dict[str, Allowed], dict[str, Banned]]:
    async with opened(values) as (link, _):
        lists = HandLists(link, values.redis_prefix)
        return await lists.allowed(), await lists.banned()


def _name(entry: AllowEntry) -> str:
    return entry.subject or entry.cidr


def _end(until: int | None) -> str:
    return "until it is removed" if until is None else f"until {instant(until)}"


def _ends(until: int | None, now: int) -> str:
    if until is None:
        return "removed"
    return f"{instant(until)}{' (ended)' if until <= now else ''}"
