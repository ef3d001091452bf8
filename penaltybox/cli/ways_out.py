"""What ends or lifts what is in force against a subject: by itself, by a command, by a challenge that is passed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import msgspec

from penaltybox.contracts.durations import format_duration

if TYPE_CHECKING:
    from penaltybox.cli.explanation import Explanation
    from penaltybox.contracts.policy import Policy

_PASSES = ("user", "device")


class WayOut(msgspec.Struct, kw_only=True):
    """One way: `by` is ``time``, ``command``, ``outcome`` or ``listing``; `at` is when, if time does it (ms)."""

    by: str
    says: str
    at: int | None = None
    command: str = ""


def ways_out(one: Explanation, policy: Policy) -> list[WayOut]:
    """How what is in force against a subject ends. Empty when nothing is."""
    found = []
    for hold in one.in_force:
        what = "block" if hold.action == "deny" else "challenge"
        if hold.until is None:
            found.append(WayOut(by="time", says=f"the {what} is permanent: it does not end by itself"))
        else:
            found.append(WayOut(by="time", says=f"the {what} ends by itself", at=hold.until))
    for text in one.banned_ranges:
        where = text.partition(" ")[0]
        found.append(
            WayOut(
                by="command",
                says=f"its range {text} is banned by hand; this lifts the ban of the range",
                command=f'penaltybox unban {where} --reason "…"',
            )
        )
    if one.banned_ranges and not one.allowlisted:
        found.append(
            WayOut(
                by="listing",
                says="lets this address alone through",
                command=f'penaltybox allow add {shlex.quote(one.subject)} --reason "…"',
            )
        )
    if not (one.in_force or one.strays):
        return found
    if any(hold.action == "challenge" for hold in one.in_force):
        found.append(_challenge(one.subject, policy))
    subject = shlex.quote(one.subject)
    found.append(
        WayOut(
            by="command",
            says="lifts all of it at once, and forgets its rung (--keep-level keeps it)",
            command=f'penaltybox unban {subject} --reason "…" --grace 1h',
        )
    )
    return found


def _challenge(subject: str, policy: Policy) -> WayOut:
    dimension = subject.partition(":")[0]
    if dimension in _PASSES:
        return WayOut(by="outcome", says="an outcome challenge_passed of this subject lifts the challenge")
    exempt = format_duration(policy.pass_ms)
    return WayOut(
        by="outcome",
        says=f"no outcome lifts a challenge of {dimension}; an outcome challenge_passed exempts its user and device "
        f"from challenges of the address for {exempt}"
        if dimension == "ip"
        else f"no outcome lifts a challenge of {dimension}: only users and devices pass challenges",
    )
