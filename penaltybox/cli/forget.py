"""`penaltybox forget SUBJECT`: what is stored of one person or machine, erased everywhere it can be."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penaltybox.cli.console import AsJson, err, kafka_errors, one_subject, out, print_json, settings
from penaltybox.cli.control import commit, control, opened
from penaltybox.cli.hand import Actor, Reason, Subject, actor_given, at_store, reason_given
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.topics import Topics

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.erasure import Traces

_TURN_S: Final = 0.05


def forget(
    subject: Subject,
    *,
    reason: Reason,
    actor: Actor = "",
    tombstone: Annotated[
        bool, typer.Option(help="Also out of the compacted topics; without that a restore brings its ladder back.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be erased; erase nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Erase a subject: ladder, block, trust, plan and counters in Redis, rows in ClickHouse, its ladder in Kafka.

    Combinations that it is a part of too. Its block ends with that: it starts anew. What cannot be erased is said: the
    topics of events keep theirs until their retention, and so does the audit trail. That somebody was forgotten, why
    and by whom stands in the control topic, without the name.

        penaltybox forget user:10086 --reason "request of 1 December, case 4711" --dry-run
    """
    values = settings()
    who, why = actor_given(actor), reason_given(reason)
    name = one_subject(subject, values)
    traces = asyncio.run(_find(values, name))
    rows, missing = _rows(values, name)
    if not (dry_run or yes):
        typer.confirm(f"Erase {_summary(traces, rows)} of {name}? It cannot be undone", abort=True, err=True)
    left: list[str] = [f"ClickHouse: {missing}"] if missing else []
    if not dry_run:
        left += _erase(values, name, traces, rows, tombstone=tombstone)
        record = control("forget", f"forget:{ulid(now_ms())}", name.partition(":")[0], actor=who, reason=why)
        asyncio.run(commit(values, [], [record]))
    if as_json:
        print_json({"subject": name, "erased": not dry_run, "states": len(traces.subjects), "keys": len(traces.keys),
                    "allowlisted": traces.listed, "rows": rows, "left": left})  # fmt: skip
        raise typer.Exit(1 if left and not dry_run else 0)
    out.print(f"{'Would erase' if dry_run else 'Erased'} {_summary(traces, rows)} of {name}.", markup=False)
    for sentence in left:
        err.print(f"Not erased: {sentence}. Run it again when that is corrected.", markup=False)
    _say_what_stays(values)
    if left and not dry_run:
        raise typer.Exit(1)


async def _find(values: Settings, name: str) -> Traces:
    from penaltybox.processors.erasure import find_traces

    async with at_store(values) as store:
        return await find_traces(store, name)


def _rows(values: Settings, name: str) -> tuple[dict[str, int], str]:
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.erasure import count_rows

    clickhouse = ClickHouse.of(values)
    try:
        return count_rows(clickhouse, name), ""
    except StoreUnavailable as error:
        return {}, str(error).rstrip(".")
    finally:
        clickhouse.close()


def _erase(values: Settings, name: str, traces: Traces, rows: dict[str, int], *, tombstone: bool) -> list[str]:
    """Erases; sentences about what did not work. Redis first: no worker adds to it then."""
    left = []
    asyncio.run(_erase_keys(values, name, traces))
    if tombstone:
        try:
            asyncio.run(_send_tombstones(values, name, traces))
        except (StoreUnavailable, TimeoutError, OSError) as error:
            says = str(error).rstrip(".") or f"Kafka at {values.kafka} did not answer in time"
            left.append(f"its records in the compacted topics, from which a restore would bring it back: {says}")
    else:
        left.append("its ladder in Kafka, as you asked; a restore brings it back")
    if any(rows.values()):
        try:
            if not _delete_rows(values, name, rows):
                left.append("ClickHouse is still deleting its rows")
        except StoreUnavailable as error:
            left.append(f"rows in ClickHouse: {error}".rstrip("."))
    return left


async def _erase_keys(values: Settings, name: str, traces: Traces) -> None:
    from penaltybox.processors.erasure import erase_traces

    async with at_store(values) as store:
        await erase_traces(store, traces, name, now_ms())


async def _send_tombstones(values: Settings, name: str, traces: Traces) -> None:
    from penaltybox.cli.control import KAFKA_S
    from penaltybox.processors.announcements import kafka_sender
    from penaltybox.processors.erasure import tombstones
    from penaltybox.processors.untold import tell_untold

    sender, topics = kafka_sender(values), Topics.named(values.topic_prefix)
    try:
        with kafka_errors(values):
            async with asyncio.timeout(2 * KAFKA_S), opened(values) as (_, untold):
                await sender.start()
                while await untold.size():  # what waits may name it, and must not come afterwards
                    if not await tell_untold(untold, sender, topics):
                        await asyncio.sleep(_TURN_S)  # a worker is telling it
                await sender.send(tombstones(topics, traces, name))
    finally:
        await sender.stop()


def _delete_rows(values: Settings, name: str, rows: dict[str, int]) -> bool:
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.erasure import delete_rows

    clickhouse = ClickHouse.of(values)
    try:
        return delete_rows(clickhouse, name, rows)
    finally:
        clickhouse.close()


def _summary(traces: Traces, rows: dict[str, Any]) -> str:
    parts = [_counted(len(traces.subjects), "state"), _counted(len(traces.keys), "other key")]
    parts += ["its entry in the allowlist"] if traces.listed else []
    parts += [f"{_counted(count, 'row')} of {table}" for table, count in rows.items() if count]
    return ", ".join(parts)


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _say_what_stays(values: Settings) -> None:
    out.print("What stays, and until when:")
    names = ("decisions", "outcomes", "dead_letters", "penalties")
    kept = [f"control {values.penalties_retention} and until it is compacted"]
    kept += [f"{name.replace('_', ' ')} {getattr(values, f'{name}_retention')}" for name in names]
    out.print(f"  Kafka: {', '.join(kept)}; penalties and control are the audit trail.")
    out.print("  Redis: what a request with an idempotency key took, at most 24h; an empty state, 24h.")
    out.print("  Events that analytics has still to read become rows: run it again after the longest retention.")
    out.print("  Backups, spill files of publishers that are down, log files, and an entry of the policy file: yours.")
