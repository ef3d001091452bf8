"""`penaltybox dead-letters show | retry`: records that could not be judged."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penaltybox.cli.console import AsJson, err, instant, kafka_errors, one_line, out, print_json, settings
from penaltybox.cli.control import commit, control
from penaltybox.cli.hand import Actor, Reason, actor_given, reason_given
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import Topics
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.announcements import Message
    from penaltybox.processors.dead_letters import Placed

app = typer.Typer(help="Records that could not be judged: looked at, and tried again.", no_args_is_help=True)
_PLACE = re.compile(r"([0-9]{1,6}):([0-9]{1,19})")
_Why = Annotated[str, typer.Option("--because", help="Only those with this reason, e.g. not_json.")]
_Since = Annotated[str, typer.Option(help="Only those since a time, e.g. -2h or 2026-12-01.")]
_RAW_SHOWN = 160
_MOST_RETRIED = 100_000


@app.command("show")
def show(
    *,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many, newest first.")] = 20,
    because: _Why = "",
    since: _Since = "",
    as_json: AsJson = False,
) -> None:
    """Show dead letters, newest first: why, where the record was, and its bytes, escaped.

    The place (partition:offset) names one for `retry --at`.

        penaltybox dead-letters show --because not_json
    """
    from penaltybox.processors.dead_letters import newest_letters

    values = settings()
    with kafka_errors(values):
        found = asyncio.run(newest_letters(values, limit, _wanted(because, since, ())))
    if as_json:
        for one in found:
            letter = one.letter
            print_json(
                {"place": _place(one), "ts": letter.ts, "reason": letter.reason, "detail": letter.detail,
                 "topic": letter.topic, "partition": letter.partition, "offset": letter.offset,
                 "raw_base64": base64.b64encode(letter.raw).decode()}
            )  # fmt: skip
        return
    if not found:
        out.print("No dead letters.")
        return
    for one in found:
        letter = one.letter
        head = f"{_place(one)}  {instant(letter.ts)}  {letter.reason}: {letter.detail}"
        where = f"{letter.topic} partition {letter.partition}, offset {letter.offset}, {len(letter.raw):,} bytes"
        out.print(one_line(head), markup=False, soft_wrap=True)
        out.print(one_line(f"    {where}: {escaped(letter.raw)}"), markup=False, soft_wrap=True)


@app.command("retry")
def retry(
    *,
    because: _Why = "",
    since: _Since = "",
    at: Annotated[list[str] | None, typer.Option(help="PARTITION:OFFSET of one, as shown; may be repeated.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that are there.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Also those that still could not be judged.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent; send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    reason: Reason,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Put the raw bytes of dead letters on their topics again, once what was wrong is corrected.

    Only what can be judged now is sent, unless forced. What has been judged meanwhile counts once: ids say so. Events
    older than the window of a rule no longer lead to anything, and late ones never to a permanent block.

        penaltybox dead-letters retry --because bad_ip --since -2h --reason "publisher corrected" --dry-run
    """
    from penaltybox.processors.dead_letters import newest_letters, verdict

    values, who, why = settings(), actor_given(actor), reason_given(reason)
    if not (because or since or at or everything):
        raise ConfigurationError("which ones? Got none of --because, --since, --at; --all takes all of them")
    places = tuple(_read_place(text) for text in at or ())
    wanted = _wanted(because, since, places) or (lambda _: True)
    with kafka_errors(values):
        found = asyncio.run(newest_letters(values, _MOST_RETRIED, wanted))
    check_places(places, found)
    topics = Topics.named(values.topic_prefix)
    canonicaliser, at_ms = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions), now_ms()
    judged = [(one, verdict(one.letter, topics, canonicaliser, at_ms, force=force)) for one in reversed(found)]
    messages = [one.message for _, one in judged if one.message is not None]
    left = [(place, one.says) for place, one in judged if one.message is None]
    for place, says in left[:20]:
        err.print(one_line(f"{_place(place)}: left out, {says}"), markup=False, soft_wrap=True)
    if messages and not dry_run:
        if not yes:
            typer.confirm(f"Send {len(messages):,} records to their topics again?", abort=True, err=True)
        asyncio.run(_send(values, messages, who, why))
    if as_json:
        print_json({"sent": 0 if dry_run else len(messages), "would_send": len(messages), "left_out": len(left)})
        return
    verb = "would be" if dry_run else "are"
    out.print(f"{len(messages):,} records {verb} on their topics again, {len(left):,} left out.")


async def _send(values: Settings, messages: list[Message], actor: str, reason: str) -> None:
    from penaltybox.processors.announcements import kafka_sender
    from penaltybox.processors.dead_letters import resend

    sender = kafka_sender(values)
    try:
        with kafka_errors(values):
            await sender.start()
            await resend(sender, messages, lambda _: None)
    finally:
        await sender.stop()
    value = msgspec.json.encode({"records": len(messages)}).decode()
    await commit(values, [], [control("retry", f"retry:{ulid(now_ms())}", value, actor=actor, reason=reason)])


def _wanted(because: str, since: str, places: tuple[tuple[int, int], ...]) -> Callable[[Placed], bool] | None:
    if not (because or since or places):
        return None
    since_ms = parse_time(since, "--since", now_ms()) if since else 0

    def wanted(one: Placed) -> bool:
        return (
            (not because or one.letter.reason == because)
            and one.letter.ts >= since_ms
            and (not places or (one.partition, one.offset) in places)
        )

    return wanted


def _read_place(text: str) -> tuple[int, int]:
    match = _PLACE.fullmatch(text)
    if match is None:
        raise ConfigurationError(f"--at: got {text!r}, wanted PARTITION:OFFSET as `dead-letters show` prints it")
    return int(match[1]), int(match[2])


def check_places(places: Iterable[tuple[int, int]], found: Iterable[Placed]) -> None:
    """Who names a dead letter is told if there is none.

    Raises:
        ConfigurationError: at one of the places none was found.
    """
    there = {(one.partition, one.offset) for one in found}
    absent = [f"{partition}:{offset}" for partition, offset in places if (partition, offset) not in there]
    if absent:
        raise ConfigurationError(
            f"--at: there is no such dead letter at {', '.join(absent)}; `penaltybox dead-letters show` lists "
            "those that there are. Nothing was sent."
        )


def _place(one: Placed) -> str:
    return f"{one.partition}:{one.offset}"


def escaped(raw: bytes) -> str:
    """The beginning of a record's bytes, so that no terminal obeys them."""
    text = repr(raw[:_RAW_SHOWN])[2:-1]
    return f"{text}…" if len(raw) > _RAW_SHOWN else text
