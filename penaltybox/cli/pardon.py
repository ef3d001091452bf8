"""`penaltybox pardon SUBJECT`: one rung down the ladder, by hand."""

from __future__ import annotations

import asyncio

from penaltybox.cli.console import AsJson, PolicyFile, one_subject, out, print_json, settings
from penaltybox.cli.hand import Actor, Reason, Subject, actor_given, policy_now, reason_given, shown
from penaltybox.cli.still_denied import lift
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Command
from penaltybox.contracts.ids import ulid


def pardon(
    subject: Subject, *, reason: Reason, actor: Actor = "", policy_file: PolicyFile = None, as_json: AsJson = False
) -> None:
    """Take one subject a rung down, and lift what is in force against it, at once.

    The next step starts from the lower rung; `unban` forgets all of them.

        penaltybox pardon user:10086 --reason "first time, apologised"
    """
    values, at_ms = settings(), now_ms()
    command = Command(
        id=ulid(at_ms),
        ts=at_ms,
        verb="pardon",
        subject=one_subject(subject, values),
        actor=actor_given(actor),
        reason=reason_given(reason),
    )
    written, around = asyncio.run(lift(values, policy_now(policy_file, values), command))
    if as_json:
        penalties = [shown(penalty) for penalty in written]
        print_json({"subject": command.subject, "penalties": penalties, "banned_ranges": around.ranges})
        return
    for penalty in written:
        out.print(
            f"{around.freed()}, and goes from {penalty.from_} to {penalty.to}, by {command.actor}: {reason}.",
            markup=False,
        )
    for said in around.sentences():
        out.print(said, markup=False)
    if all(penalty.from_ == "none" for penalty in written):
        out.print("It had no rung. Is the subject the one you meant? penaltybox blocks lists who is denied.")
