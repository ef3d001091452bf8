"""What the commands that act on one subject by hand share: the step itself, and how it is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from penaltybox.contracts.events import Command, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

Subject = Annotated[str, typer.Argument(help="dimension:value, e.g. ip:203.0.113.7 or user:10086.")]
Reason = Annotated[str, typer.Option(help="Why; it stands in the audit trail.")]


def reason_given(reason: str) -> str:
    """The reason.

    Raises:
        ConfigurationError: there is none.
    """
    if not reason.strip():
        raise ConfigurationError("--reason: got nothing, wanted a sentence for the audit trail")
    return reason


def shown(penalty: Penalty) -> dict[str, object]:
    """A step as JSON."""
    return {"id": penalty.id, "from": penalty.from_, "to": penalty.to, "action": penalty.action, "ts": penalty.ts}


async def execute(values: Settings, policy: Policy, command: Command) -> list[Penalty]:
    """Takes the step: the same engine and the same versioned write as a worker's. Kafka may be away.

    Raises:
        StoreUnavailable: Redis is away, or has never seen a worker.
        GenerationMismatch: it was wiped or swapped.
    """
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.processors import hand
    from penaltybox.processors.engine import Engine
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    try:
        if await store.generation() is None:
            raise StoreUnavailable(
                "this Redis has never seen a worker, so nothing is in force here; is PENALTYBOX_REDIS_URL right? "
                "If it was wiped: penaltybox restore"
            )
        await store.join_generation()
        engine = Engine(policy, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions))
        return await hand.execute(engine, store, command, now_ms())
    finally:
        await store.close()
