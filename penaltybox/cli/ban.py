"""`penaltybox ban SUBJECT`: deny one subject by hand, or a range of addresses."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from penaltybox.cli.console import AsJson, PolicyFile, instant, out, print_json, settings, typed_subject
from penaltybox.cli.hand import (
    Actor,
    Reason,
    actor_given,
    at_store,
    end_given,
    engine_at,
    policy_now,
    reason_given,
    shown,
)
from penaltybox.cli.list_changes import ban_range
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Command
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.listing import banned_range, subject_text
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.blocklist import Block


def ban(
    subject: Annotated[
        str, typer.Argument(help="dimension:value, e.g. user:10086, or a range such as ip:203.0.113.0/24.")
    ],
    *,
    level: Annotated[str, typer.Option(help="A rung of the ladder, e.g. 1h; else the next one up that denies.")] = "",
    for_: Annotated[str, typer.Option("--for", help="Its own duration instead of the rung's, e.g. 36h.")] = "",
    until: Annotated[str, typer.Option(help="Its own end instead, e.g. 2026-12-01T00:00:00Z.")] = "",
    challenge: Annotated[
        bool, typer.Option("--challenge", help="A range: ask its addresses for a challenge instead of denying them.")
    ] = False,
    reason: Reason,
    actor: Actor = "",
    force: Annotated[bool, typer.Option("--force", help="Also a range wider than /8, or /16 of IPv6.")] = False,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Deny a subject at once, whatever its rung, its cap and who shares it; or a range of addresses.

    A ban stands on the ladder like a step by a rule, in the penalties topic too. A range has no ladder: it is denied
    until its end, or until `unban` of the same range. Programs that only GET block keys do not see bans of ranges
    (docs/keys.md); the limiters and the decision service do, within a second. The allowlist wins over both.

        penaltybox ban user:10086 --for 36h --reason "chargeback, ticket 4711"

        penaltybox ban ip:203.0.113.0/24 --reason "scanner"
    """
    values = settings()
    canonicaliser = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)
    end = end_given(for_, until)
    who, why = actor_given(actor), reason_given(reason)
    where = banned_range(subject, canonicaliser, force=force)
    if where is not None:
        if level:
            raise ConfigurationError(f"--level: {where} is a range, which has no ladder; --for or --until end it")
        ban_range(values, where, "challenge" if challenge else "deny", end, who, why, as_json=as_json)
        return
    if challenge:
        raise ConfigurationError("--challenge: wanted a range; a subject is denied by hand, rules ask for challenges")
    policy = policy_now(policy_file, values)
    command = ban_command(values, policy, subject, level=level, end=end, actor=who, reason=why)
    _tell(asyncio.run(ban_subject(values, policy, command)), command, as_json=as_json)


def ban_command(
    values: Settings, policy: Policy, subject: str, *, level: str, end: int | None, actor: str, reason: str
) -> Command:
    """The command that denies a subject.

    Args:
        values: how subjects count.
        policy: whose rungs there are.
        subject: as a person types it; no range.
        level: a rung; empty: the next one up that denies.
        end: its own end (ms); None: the rung's.
        actor: who.
        reason: why.

    Raises:
        ConfigurationError: no such rung, or no subject.
        BadEvent: no subject.
    """
    at_ms = now_ms()
    if level and level not in (rungs := [rung.name for rung in policy.ladder.rungs]):
        raise ConfigurationError(f"--level: got {level!r}, wanted a rung of the policy: {', '.join(rungs)}")
    return Command(
        id=ulid(at_ms),
        ts=at_ms,
        verb="ban",
        subject=typed_subject(subject_text(subject), values),
        actor=actor,
        reason=reason,
        level=level,
        for_ms=None if end is None else end - at_ms,
    )


class Banning(NamedTuple):
    """What a ban did.

    Attributes:
        written: the steps.
        listed: the subject is on the allowlist, so that nothing is denied.
        before: the block that it took the place of.
    """

    written: list[Penalty]
    listed: bool
    before: Block | None = None


async def ban_subject(values: Settings, policy: Policy, command: Command) -> Banning:
    """Takes the step.

    Raises:
        StoreUnavailable: Redis is away, or has never seen a worker.
        GenerationMismatch: it was wiped or swapped.
    """
    from penaltybox.processors import hand
    from penaltybox.sinks.blocklist import Blocklist

    async with at_store(values) as store:
        engine = await engine_at(values, policy, store)
        (before,) = await Blocklist(store.link, values.redis_prefix).lookup([command.subject])
        written = await hand.execute(engine, store, command, now_ms())
        return Banning(written, engine.allowlist.covers(command.subject, now_ms()), before)


def _tell(done: Banning, command: Command, *, as_json: bool) -> None:
    written, listed, _ = done
    if as_json:
        print_json(
            {
                "subject": command.subject,
                "allowlisted": listed,
                "penalties": [{**shown(penalty), "until": penalty.until} for penalty in written],
            }
        )
        return
    for sentence in sentences(done, command):
        out.print(sentence, markup=False)


def sentences(done: Banning, command: Command) -> list[str]:
    """What a ban did, for people."""
    said, before = [], done.before
    for penalty in done.written:
        end = "permanently" if penalty.until is None else f"until {instant(penalty.until)}"
        what = f"is denied {end}" if penalty.action == "deny" else f"has a {penalty.action} {end}"
        said.append(f"{command.subject} {what}, rung {penalty.to}, by {command.actor}: {command.reason}.")
        if penalty.until is not None and before is not None and before.kind == "deny":
            sooner = before.until is None or before.until > penalty.until
            was = "permanently" if before.until is None else f"until {instant(before.until)}"
            said += [f"That ends sooner than before: it was denied {was}, by {before.rule or 'nobody'}."] * sooner
    if done.listed:
        said.append(
            "It is on the allowlist, which wins: nothing is denied until the listing ends "
            f"(penaltybox allow check {command.subject})."
        )
    return said
