"""`penaltybox grant SUBJECT`: trust by hand, or its opposite."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from penaltybox.cli.console import AsJson, PolicyFile, one_subject, out, print_json, settings
from penaltybox.cli.hand import Actor, Reason, Subject, actor_given, execute, policy_now, reason_given, shown
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Command
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.subjects import TRUSTED


def grant(
    subject: Subject,
    *,
    points: Annotated[int, typer.Option(help="Points of trust; below zero takes them away.", min=-1000, max=1000)],
    reason: Reason,
    actor: Actor = "",
    policy_file: PolicyFile = None,
    as_json: AsJson = False,
) -> None:
    """Give a user, device or API key trust, as good outcomes do, or take it away.

    What points are worth is in the policy (`trust`): a larger or smaller quota, and whether the subject counts as
    established. The inline limiter sees it with the next request. It is recorded in the penalties topic.

        penaltybox grant user:10086 --points 10 --reason "partner, contract 4711"
    """
    values, at_ms = settings(), now_ms()
    who, why = actor_given(actor), reason_given(reason)
    policy = policy_now(policy_file, values)
    name = one_subject(subject, values)
    if name.partition(":")[0] not in TRUSTED:
        raise ConfigurationError(f"subject: got {name}, wanted a user, device or api_key; others earn no trust")
    if not points:
        raise ConfigurationError("--points: got 0, wanted points to add or to take away")
    command = Command(
        id=ulid(at_ms),
        ts=at_ms,
        verb="grant",
        subject=name,
        actor=who,
        reason=why,
        points=points,
    )
    written = asyncio.run(execute(values, policy, command))
    if as_json:
        print_json({"subject": name, "points": points, "penalties": [shown(penalty) for penalty in written]})
        return
    out.print(f"{name} has {points:+} points of trust more, by {command.actor}: {reason}.", markup=False)
    out.print(f"What that makes of it: penaltybox explain {name}", markup=False)
