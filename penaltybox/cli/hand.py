"""What the commands that act by hand share: who and why, the step itself, and how it is shown."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penaltybox.cli.console import policy_of, settings
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import LONGEST_MS, parse_duration
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penaltybox.contracts.events import Command, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.engine import Engine
    from penaltybox.sinks.redis_store import RedisSubjectStore

MAX_REASON: Final = 512
MAX_ACTOR: Final = 128
Actor = Annotated[str, typer.Option(help="Who does it; wanted, unless PENALTYBOX_ACTOR says it.", show_default=False)]
Subject = Annotated[str, typer.Argument(help="dimension:value, e.g. ip:203.0.113.7 or user:10086.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the audit trail.")]


def reason_given(reason: str) -> str:
    """The reason.

    Raises:
        ConfigurationError: there is none, or it is no line of text.
    """
    if not reason.strip():
        raise ConfigurationError("--reason: got nothing, wanted a sentence for the audit trail")
    if len(reason) > MAX_REASON or not reason.isprintable():
        raise ConfigurationError(f"--reason: wanted one line of at most {MAX_REASON} printable characters")
    return reason


def actor_given(actor: str) -> str:
    """Who acts: the option, else PENALTYBOX_ACTOR. A login name is none: `root` and `deploy` are shared.

    Raises:
        ConfigurationError: neither is given, or it is a name that no list could show.
    """
    name = (actor or settings().actor).strip()
    if not name:
        raise ConfigurationError(
            "--actor: got nothing, wanted who does this, for the audit trail; PENALTYBOX_ACTOR=alice in the "
            "environment says it for every command"
        )
    if len(name) > MAX_ACTOR or not name.isprintable():
        raise ConfigurationError(f"--actor: wanted at most {MAX_ACTOR} printable characters")
    return name


def end_given(for_: str, until: str) -> int | None:
    """The end (ms) that ``--for`` or ``--until`` says; None when neither is given.

    Raises:
        ConfigurationError: both, no time, or one that has passed.
    """
    if for_ and until:
        raise ConfigurationError("--for and --until: got both, wanted one of them")
    at_ms = now_ms()
    if for_:
        return at_ms + parse_duration(for_, "--for")
    if not until:
        return None
    end = parse_time(until, "--until", at_ms)
    if end <= at_ms:
        raise ConfigurationError(f"--until: got {until}, which has passed")
    if end > at_ms + LONGEST_MS:
        raise ConfigurationError(f"--until: got {until}, which is over ten years away; leave it out if it is for good")
    return end


def shown(penalty: Penalty) -> dict[str, object]:
    """A step as JSON."""
    return {"id": penalty.id, "from": penalty.from_, "to": penalty.to, "action": penalty.action, "ts": penalty.ts}


def policy_now(path: Path | None, values: Settings) -> Policy:
    """The policy that ``--policy`` names; else the one in force, which Redis has; else the settings' file."""
    if path is not None:
        return policy_of(path, values)
    return asyncio.run(policy_in_force(values))


async def policy_in_force(values: Settings) -> Policy:
    """The policy in force, which Redis has; else the settings' file.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.links.policies import read_in_force

    link = open_link(endpoint_of(values))
    try:
        found = await read_in_force(link, values.redis_prefix)
    finally:
        await link.close()
    return found.policy if found is not None else await asyncio.to_thread(policy_of, None, values)


@asynccontextmanager
async def at_store(values: Settings) -> AsyncIterator[RedisSubjectStore]:
    """The store that workers write, joined; closed afterwards.

    Raises:
        StoreUnavailable: Redis is away, or has never seen a worker.
        GenerationMismatch: it was wiped or swapped.
    """
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        if await store.generation() is None:
            raise StoreUnavailable(
                "this Redis has never seen a worker, so nothing is in force here; is PENALTYBOX_REDIS_URL right? "
                "If it was wiped: penaltybox restore"
            )
        await store.join_generation()
        yield store
    finally:
        await store.close()


async def engine_at(values: Settings, policy: Policy, store: RedisSubjectStore) -> Engine:
    """An engine as workers have it: the policy, and what is allowlisted beside it."""
    from penaltybox.processors.engine import Engine
    from penaltybox.sinks.lists import HandLists

    engine = Engine(policy, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
    engine.list_also(await HandLists(store.link, values.redis_prefix, engine.canonicaliser).entries())
    return engine


async def execute(values: Settings, policy: Policy, command: Command) -> list[Penalty]:
    """Takes the step: the same engine and the same versioned write as a worker's. Kafka may be away.

    Raises:
        StoreUnavailable: Redis is away, or has never seen a worker.
        GenerationMismatch: it was wiped or swapped.
    """
    from penaltybox.processors import hand

    async with at_store(values) as store:
        return await hand.execute(await engine_at(values, policy, store), store, command, now_ms())
