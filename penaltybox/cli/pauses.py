"""`penaltybox pause | resume`: stop new blocks, and go on."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from penaltybox.cli.console import out, settings
from penaltybox.cli.control import record
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Control
from penaltybox.contracts.ids import ulid

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penaltybox.contracts.settings import Settings
    from penaltybox.sinks.redis_store import RedisSubjectStore

Actor = Annotated[str, typer.Option(help="Who does it; else the login name.", show_default=False)]


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
    values, who = settings(), actor or actor_name()
    asyncio.run(_on_store(values, lambda store: store.pause(reason, who, now_ms())))
    out.print(f"Paused by {who}: {reason}. `penaltybox resume` goes on.", markup=False)
    _record(values, "pause", reason, who)


def resume(*, actor: Actor = "") -> None:
    """End a pause: workers go on where they stopped.

    What waited is judged late, if it waited for longer than the policy's `late_after`: such steps are never permanent.
    """
    values, before = settings(), [""]

    async def end(store: RedisSubjectStore) -> None:
        before[0] = await store.pause_reason() or ""
        await store.resume()

    asyncio.run(_on_store(values, end))
    out.print(f"Resumed; it was paused: {before[0]}" if before[0] else "It was not paused.", markup=False)
    if before[0]:
        _record(values, "resume", before[0], actor or actor_name())


async def _on_store(values: Settings, act: Callable[[RedisSubjectStore], Awaitable[None]]) -> None:
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        await act(store)
    finally:
        await store.close()


def _record(values: Settings, kind: Literal["pause", "resume"], reason: str, actor: str) -> None:
    """So that a restore puts the pause back."""
    at_ms = now_ms()
    record(values, Control(id=ulid(at_ms), ts=at_ms, key="pause", kind=kind, actor=actor, reason=reason))


def actor_name() -> str:
    """The login name of whoever runs the command."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
