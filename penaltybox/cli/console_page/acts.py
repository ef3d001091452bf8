"""Bans and unbans from the page: the commands' own functions, so the same engine, checks and audit trail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.cli import ban as banning
from penaltybox.cli import unban as unbanning
from penaltybox.cli.console_page.answers import Done
from penaltybox.cli.hand import actor_given, end_given, policy_in_force, reason_given
from penaltybox.cli.list_changes import end_ban, put_ban
from penaltybox.cli.still_denied import lift
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.listing import banned_range
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.sinks.lists import Banned

if TYPE_CHECKING:
    from penaltybox.cli.console_page.answers import BanBody, UnbanBody
    from penaltybox.contracts.settings import Settings

_NOTHING: Final = "Nothing was in force against it. Is the subject the one you meant?"


async def ban(values: Settings, body: BanBody) -> Done:
    """Denies a subject, or a range of addresses.

    Raises:
        ConfigurationError: something in the body cannot be; the message says what was wanted.
        BadEvent: no subject.
        StoreUnavailable: Redis is away, or has never seen a worker.
    """
    who, why, end = actor_given(body.actor), reason_given(body.reason), end_given(body.for_, "")
    where = banned_range(body.subject, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
    if where is not None:
        if body.level:
            raise ConfigurationError(f"--level: {where} is a range, which has no ladder; a duration ends it")
        await put_ban(values, where, Banned("deny", end, why, who))
        until = "until somebody lifts it" if end is None else f"for {body.for_}"
        return Done(subject=where, says=f"Every address of {where} is denied {until}, by {who}: {why}.", actor=who)
    policy = await policy_in_force(values)
    command = banning.ban_command(values, policy, body.subject, level=body.level, end=end, actor=who, reason=why)
    done = await banning.ban_subject(values, policy, command)
    says = " ".join(banning.sentences(done, command))
    return Done(subject=command.subject, says=says, actor=who, penalties=[penalty.id for penalty in done.written])


async def unban(values: Settings, body: UnbanBody) -> Done:
    """Lifts what is in force against a subject, or the ban of a range; raises as `ban` does."""
    who, why = actor_given(body.actor), reason_given(body.reason)
    where = banned_range(body.subject, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions), force=True)
    if where is not None:
        if body.grace or body.keep_level:
            raise ConfigurationError(f"{where} is a range, which has no ladder: grace and rung are for subjects")
        found = await end_ban(values, where, who, why)
        says = f"{where} is not banned any more, by {who}: {why}." if found else f"{where} was not banned as a range."
        return Done(subject=where, says=says, actor=who)
    command = unbanning.unban_command(
        values, body.subject, actor=who, reason=why, grace=body.grace, keep_level=body.keep_level
    )
    written, around = await lift(values, await policy_in_force(values), command)
    says = " ".join([unbanning.sentence(command, around), *around.sentences()])
    if not around.ranges and not unbanning.lifted(written):
        says += f" {_NOTHING}"
    return Done(subject=command.subject, says=says, actor=who, penalties=[penalty.id for penalty in written])
