"""`penaltybox pause | resume`: stop new blocks, and go on."""

from __future__ import annotations

import asyncio
import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import out, settings
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
    who = actor or _login()
    asyncio.run(_on_store(lambda store: store.pause(reason, who, now_ms())))
    out.print(f"Paused by {who}: {reason}. `penaltybox resume` goes on.", markup=False)


def resume() -> None:
    """End a pause: workers go on where they stopped.

    What waited is judged late, if it waited for longer than the policy's `late_after`: such steps are never permanent.
    """
    before: list[str | None] = []

    async def end(store: RedisSubjectStore) -> None:
        before.append(await store.pause_reason())
        await store.resume()

    asyncio.run(_on_store(end))
    out.print(f"Resumed; it was paused: {before[0]}" if before[0] else "It was not paused.", markup=False)


async def _on_store(act: Callable[[RedisSubjectStore], Awaitable[None]]) -> None:
    from penaltybox.sinks.connections import endpoint_of, open_link
    from penaltybox.sinks.redis_store import RedisSubjectStore

    values = settings()
    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        await act(store)
    finally:
        await store.close()


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "somebody"
