"""`penaltybox pause | resume`: stop new blocks, and go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import out, settings
from penaltybox.cli.control import commit, control
from penaltybox.cli.hand import Actor, actor_name
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.keyspace import Keyspace

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings

__all__ = ["Actor", "actor_name", "pause", "resume"]


def pause(
    reason: Annotated[str, typer.Argument(help="Why; the workers log it.")],
    *,
    actor: Actor = "",
) -> None:
    """Pause new blocks, everywhere and at once.

    Workers stand still within a second and acknowledge nothing; existing blocks run on. Decisions wait in Kafka.

        penaltybox pause "rule user_abuse is too strict"
    """
    if not reason.strip():
        raise ConfigurationError("reason: got nothing, wanted a sentence for whoever finds the pause")
    from penaltybox.sinks.redis_store import pausing

    values, who = settings(), actor or actor_name()
    change = pausing(Keyspace(values.redis_prefix), reason, who, now_ms())
    asyncio.run(commit(values, [change], [control("pause", "pause", actor=who, reason=reason)]))
    out.print(f"Paused by {who}: {reason}. `penaltybox resume` goes on.", markup=False)


def resume(*, actor: Actor = "") -> None:
    """End a pause: workers go on where they stopped.

    What waited is judged late, if it waited for longer than the policy's `late_after`: such steps are never permanent.
    """
    values = settings()
    before = asyncio.run(_resume(values, actor or actor_name()))
    out.print(f"Resumed; it was paused: {before}" if before else "It was not paused.", markup=False)


async def _resume(values: Settings, actor: str) -> str:
    """Ends the pause, and returns why it was."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.redis_store import RedisSubjectStore, resuming

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        before = await store.pause_reason() or ""
    finally:
        await store.close()
    if before:
        record = control("resume", "pause", actor=actor, reason=before)
        await commit(values, [resuming(Keyspace(values.redis_prefix))], [record])
    return before
