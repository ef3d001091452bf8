"""`penaltybox audit`: who did what by hand."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import AsJson, err, instant, kafka_errors, out, print_json, settings, table
from penaltybox.cli.control import opened
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.deeds import Deed

_MOST = 100_000
_DETAILS_SHOWN = 60


def audit(
    *,
    actor: Annotated[str, typer.Option(help="Only what this one did.")] = "",
    about: Annotated[str, typer.Option(help="Only about this subject, range or version.")] = "",
    since: Annotated[str, typer.Option(help="Since a time, e.g. -7d or 2026-12-01.")] = "",
    limit: Annotated[int, typer.Option(min=1, max=_MOST, help="How many, newest first.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List who did what by hand, newest first: steps on ladders, lists, quotas, policies, pauses, restores.

    Steps come from ClickHouse if it answers (it keeps 400 days), else from the penalties topic (90 days); all else from
    the control topic, which keeps every record for as long (90 days), and the last of each key for good. What Kafka
    does not know yet is there too, and marked.

        penaltybox audit --actor alice --since -7d
    """
    values = settings()
    since_ms = parse_time(since, "--since", now_ms()) if since else 0
    deeds = asyncio.run(_gather(values, since_ms))
    unique = {deed.id: deed for deed in sorted(deeds, key=lambda deed: deed.told)}
    found = sorted(
        (one for one in unique.values() if (not actor or one.actor == actor) and (not about or one.about == about)),
        key=lambda deed: (-deed.ts, deed.id),
    )[:limit]
    if as_json:
        for deed in found:
            print_json(deed._asdict())
        return
    if not found:
        out.print("Nobody has done anything by hand, as far as is remembered.")
        return
    rows = [
        (instant(deed.ts), deed.actor, deed.what + ("" if deed.told else " (not told to Kafka yet)"), deed.about,
         deed.details[:_DETAILS_SHOWN], deed.reason)
        for deed in found
    ]  # fmt: skip
    out.print(table("By hand", ["when", "who", "what", "about", "details", "reason"], rows))


async def _gather(values: Settings, since_ms: int) -> list[Deed]:
    """From everywhere; what does not answer is told.

    Raises:
        StoreUnavailable: neither ClickHouse nor Kafka answers: an empty list would be taken for an answer.
    """
    from penaltybox.processors.deeds import stored_steps, told_changes, told_steps
    from penaltybox.sinks.clickhouse.client import ClickHouse

    deeds: list[Deed] = []
    clickhouse = ClickHouse.of(values)
    stored = True
    try:
        deeds += stored_steps(clickhouse, since_ms, _MOST)
    except StoreUnavailable as error:
        stored = False
        err.print(f"Steps are read from Kafka, which remembers less: {error}", markup=False)
    finally:
        clickhouse.close()
    try:
        with kafka_errors(values):
            deeds += await told_changes(values, since_ms)
            # Beside ClickHouse too: what it has not got yet is on the topic.
            deeds += await told_steps(values, since_ms)
    except StoreUnavailable as error:
        if not stored:
            raise StoreUnavailable(f"neither ClickHouse nor Kafka says who did what: {error}") from error
        err.print(f"Changes of lists, quotas and policies are missing: {error}", markup=False)
    try:
        deeds += await _untold(values, since_ms)
    except StoreUnavailable as error:
        err.print(f"What Kafka does not know yet is missing: {error}", markup=False)
    return deeds


async def _untold(values: Settings, since_ms: int) -> list[Deed]:
    from penaltybox.contracts.keyspace import slot_of
    from penaltybox.processors.deeds import untold_changes, untold_steps
    from penaltybox.processors.state import decode_state
    from penaltybox.sinks.redis_store import RedisSubjectStore

    async with opened(values) as (link, untold):
        (waiting,) = await link.exchange(
            [("LRANGE", untold.keys.untold, "0", str(_MOST))], [slot_of(untold.keys.untold)]
        )
        store = RedisSubjectStore(link, values.redis_prefix)
        subjects = await store.pending(0, _MOST)
        states = [decode_state(blob) for blob in await store.read(subjects) if blob is not None]
    return untold_changes(waiting, since_ms) + untold_steps((one for state in states for one in state.outbox), since_ms)
