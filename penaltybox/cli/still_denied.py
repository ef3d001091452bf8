"""What goes on against an address when its own block is lifted: bans of ranges around it."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, NamedTuple

from penaltybox.cli.explanation import banned_by
from penaltybox.cli.hand import at_store, engine_at, execute
from penaltybox.contracts.clock import now_ms

if TYPE_CHECKING:
    from penaltybox.contracts.events import Command, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings


class Around(NamedTuple):
    """The banned ranges around a subject, in words; none if it is no address, or on the allowlist."""

    subject: str
    ranges: list[str]

    def freed(self) -> str:
        """What a lift did to it: it is free, or only its own block is gone."""
        return f"{self.subject} is free now" if not self.ranges else f"{self.subject} has no block of its own now"

    def sentences(self) -> list[str]:
        """What else is in force, and how that ends."""
        return [
            f"It is within {text}, which is banned by hand: that goes on. "
            f"penaltybox unban {text.partition(' ')[0]} lifts it for the range, "
            f"penaltybox allow add {shlex.quote(self.subject)} for this one."
            for text in self.ranges
        ]


async def lift(values: Settings, policy: Policy, command: Command) -> tuple[list[Penalty], Around]:
    """Take a step by hand that lifts; what was written, and what goes on all the same.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    return await execute(values, policy, command), await ranges_around(values, policy, command.subject)


async def ranges_around(values: Settings, policy: Policy, subject: str) -> Around:
    """What goes on against a canonical subject.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    from penaltybox.sinks.lists import HandLists

    if not subject.startswith("ip:") or "ip" in values.hashed_dimensions:
        return Around(subject, [])
    async with at_store(values) as store:
        engine = await engine_at(values, policy, store)
        if engine.allowlist.covers(subject, now_ms()):
            return Around(subject, [])
        banned = await HandLists(store.link, values.redis_prefix).banned()
    return Around(subject, banned_by(banned, subject, now_ms()))
