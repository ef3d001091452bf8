"""`penaltybox pause | resume`: stop new blocks, and go on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penaltybox.cli.console import AsJson, out, print_json, settings
from penaltybox.cli.control import commit, control
from penaltybox.cli.hand import Actor, Reason, actor_given, reason_given
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.keyspace import Keyspace

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings


def pause(*, reason: Reason, actor: Actor = "", as_json: AsJson = False) -> None:
    """Pause new blocks, everywhere and at once.

    Workers stand still within a second and acknowledge nothing; existing blocks run on. Decisions wait in Kafka.

        penaltybox pause --reason "rule user_abuse is too strict"
    """
    from penaltybox.sinks.redis_store import pausing

    values, who, why = settings(), actor_given(actor), reason_given(reason)
    before = asyncio.run(_paused(values))
    change = pausing(Keyspace(values.redis_prefix), why, who, now_ms())
    asyncio.run(commit(values, [change], [control("pause", "pause", actor=who, reason=why)]))
    if as_json:
        print_json({"paused": True, "before": before, "actor": who, "reason": why})
        return
    out.print(f"Paused by {who}: {why}. `penaltybox resume` goes on.", markup=False)
    if before:
        out.print(f"It was paused already: {before}. One resume ends both.", markup=False)


def resume(*, reason: Reason, actor: Actor = "", as_json: AsJson = False) -> None:
    """End a pause: workers go on where they stopped.

    What waited is judged late, if it waited for longer than the policy's `late_after`: such steps are never permanent.

        penaltybox resume --reason "rule user_abuse is corrected"
    """
    values, who, why = settings(), actor_given(actor), reason_given(reason)
    before = asyncio.run(_resume(values, who, why))
    if as_json:
        print_json({"paused": False, "was_paused": bool(before), "before": before, "actor": who, "reason": why})
        return
    out.print(f"Resumed; it was paused: {before}" if before else "It was not paused.", markup=False)


async def _paused(values: Settings) -> str:
    """Why new blocks are paused; empty: they are not."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        return await store.pause_reason() or ""
    finally:
        await store.close()


async def _resume(values: Settings, actor: str, reason: str) -> str:
    """Ends the pause, and returns why it was."""
    from penaltybox.sinks.redis_store import resuming

    before = await _paused(values)
    if before:
        record = control("resume", "pause", actor=actor, reason=reason)
        await commit(values, [resuming(Keyspace(values.redis_prefix))], [record])
    return before
