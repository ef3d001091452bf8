"""`penaltybox unban SUBJECT`: lift what is in force against one subject, by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import AsJson, PolicyFile, out, print_json, settings, typed_subject
from penaltybox.cli.hand import Actor, Reason, Subject, actor_given, policy_now, reason_given, shown
from penaltybox.cli.list_changes import unban_range
from penaltybox.cli.still_denied import lift
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Command
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.listing import banned_range, subject_text
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from penaltybox.cli.still_denied import Around
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.settings import Settings


def unban(
    subject: Subject,
    *,
    reason: Reason,
    actor: Actor = "",
    grace: Annotated[str, typer.Option(help="Nothing counts against it for so long, e.g. 1h.")] = "",
    keep_level: Annotated[
        bool, typer.Option("--keep-level", help="Its rung stays as a prior for the next step; else it starts anew.")
    ] = False,
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Lift block and challenge of one subject, or the ban of a range, at once.

    What it did until now counts no more. The lift is recorded in the penalties topic, with reason and actor, by the
    next worker that runs; Kafka may be down now.

        penaltybox unban device:a1b2c3d4 --reason "support ticket 4711" --grace 1h
    """
    values = settings()
    where = banned_range(subject, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions), force=True)
    if where is not None:
        if grace or keep_level:
            raise ConfigurationError(
                f"{where} is a range, which has no ladder: --grace and --keep-level are for subjects"
            )
        unban_range(values, where, actor_given(actor), reason_given(reason), as_json=as_json)
        return
    command = unban_command(
        values, subject, actor=actor_given(actor), reason=reason_given(reason), grace=grace, keep_level=keep_level
    )
    written, around = asyncio.run(lift(values, policy_now(policy_file, values), command))
    if as_json:
        penalties = [shown(penalty) for penalty in written]
        print_json({"subject": command.subject, "penalties": penalties, "banned_ranges": around.ranges})
        return
    out.print(sentence(command, around), markup=False)
    for said in around.sentences():
        out.print(said, markup=False)
    if not around.ranges and not lifted(written):
        out.print(
            "Nothing was in force against it. Is the subject the one you meant? penaltybox blocks lists them all."
        )


def unban_command(values: Settings, subject: str, *, actor: str, reason: str, grace: str, keep_level: bool) -> Command:
    """The command that lifts what is in force against a subject, as a person types it; `grace` is a duration or empty.

    Raises:
        ConfigurationError: no subject, or no duration.
        BadEvent: no subject.
    """
    at_ms = now_ms()
    return Command(
        id=ulid(at_ms),
        ts=at_ms,
        verb="unban",
        subject=typed_subject(subject_text(subject), values),
        actor=actor,
        reason=reason,
        keep_level=keep_level,
        grace_ms=parse_duration(grace, "--grace") if grace else 0,
    )


def sentence(command: Command, around: Around) -> str:
    """What an unban did, for people."""
    rung = "keeps its rung as a prior" if command.keep_level else "starts anew"
    return f"{around.freed()}, by {command.actor}: {command.reason}. It {rung}."


def lifted(written: list[Penalty]) -> bool:
    """Whether anything was in force."""
    return any("lifts" in penalty.evidence for penalty in written)
