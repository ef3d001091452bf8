"""`penaltybox restore`: an empty Redis gets back what the topics remember."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import AsJson, kafka_errors, out, print_json, settings
from penaltybox.cli.hand import Actor, Reason, actor_given, reason_given
from penaltybox.contracts.clock import now_ms

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.restore import Restored


def restore(
    *,
    reason: Reason,
    actor: Actor = "",
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put pause, policy, plans, ladders and blocks back into Redis, from the topics control and ladders.

    To be run when Redis was wiped or swapped: the workers stand still then, and go on when it is done. What Redis has
    already, and newer, stays. Counters within their windows are lost; ladders, blocks, trust and grace are not.

        penaltybox restore --reason "the failover lost its disk"
    """
    values, who, why = settings(), actor_given(actor), reason_given(reason)
    if not yes:
        typer.confirm(
            f"Restore {values.redis_prefix}:* at the Redis of the settings, and begin a new generation?", abort=True
        )
    with kafka_errors(values):
        done = asyncio.run(_restore(values, who, why))
    if as_json:
        print_json(done._asdict())
        return
    out.print(f"{done.ladders:,} subjects are back, {done.blocked:,} of them blocked or challenged now.")
    if done.kept:
        out.print(f"Of {done.kept:,} subjects Redis had something newer, which stays.")
    if done.paused:
        out.print(f"New blocks are paused, as before: {done.paused}. `penaltybox resume` goes on.", markup=False)
    if done.policy:
        out.print(f"Policy {done.policy} is in force, as before.")
    if done.plans:
        out.print(f"{done.plans:,} customers have their plan or own limits again.")
    if done.allowed or done.banned:
        out.print(f"{done.allowed:,} entries of the allowlist and {done.banned:,} banned ranges are back.")
    out.print(f"Generation {done.generation}; workers go on within seconds.")


async def _restore(values: Settings, actor: str, reason: str) -> Restored:
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.links.exposition import exposed
    from penaltybox.processors.announcements import kafka_sender
    from penaltybox.processors.meters import restore_progress
    from penaltybox.processors.penalties import make_engine
    from penaltybox.processors.restore import restore as put_back
    from penaltybox.sinks.redis_store import RedisSubjectStore

    store = RedisSubjectStore(open_link(endpoint_of(values)), values.redis_prefix)
    sender = kafka_sender(values)
    try:
        await sender.start()
        with exposed(values, "restore") as registry:
            return await put_back(
                values,
                store,
                sender,
                make_engine(values),
                now_ms(),
                actor=actor,
                reason=reason,
                progress=restore_progress(registry),
            )
    finally:
        await sender.stop()
        await store.close()
