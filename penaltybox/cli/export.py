"""`penaltybox export cloudevents | ocsf`: records of penaltybox in the forms that other tools read."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import typer

from penaltybox.cli.console import err, kafka_errors, settings
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent, ConfigurationError
from penaltybox.contracts.events import MAX_RECORD_BYTES, Decision, Outcome, Penalty
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import Topics
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from penaltybox.contracts.settings import Settings

app = typer.Typer(help="Decisions and penalties in the forms that other tools read.", no_args_is_help=True)
_Record = Decision | Outcome | Penalty
_Form = tuple["Callable[[Any, Canonicaliser], dict[str, Any]]", "Callable[[dict[str, Any]], list[str]]"]
_TOPICS: Final = ("decisions", "outcomes", "penalties")
_WRONG_SHOWN: Final = 20
_YEAR_10000_MS: Final = 253_402_300_800_000
_LONGEST: Final = 4 * MAX_RECORD_BYTES

_Topic = Annotated[
    str, typer.Argument(metavar="TOPIC|-", help="penalties, decisions or outcomes; - for records on standard input.")
]
_Since = Annotated[str, typer.Option(help="Only records since a time, e.g. -1h or 2026-12-01.")]


@app.callback()
def group() -> None:
    """Decisions and penalties in the forms that other tools read."""


@app.command()
def cloudevents(topic: _Topic = "penalties", *, since: _Since = "") -> None:
    """Write records as CloudEvents 1.0 in JSON, one a line.

    The record is the event's data; the event's id is the record's, so what comes twice is the same event. Its types are
    penaltybox.penalty.v1, penaltybox.decision.v1 and penaltybox.outcome.v1.

        penaltybox export cloudevents penalties --since -1h
    """
    from penaltybox.cli.exported_cloudevents import cloud_event, missing

    _export(topic, since, (cloud_event, missing))


@app.command()
def ocsf(topic: _Topic = "penalties", *, since: _Since = "") -> None:
    """Write records as OCSF events in JSON, one a line: decisions as HTTP activity, penalties as detection findings.

    All penalties of a subject are one finding, which is created, updated and closed. The record itself is in
    `unmapped`, so nothing is lost.

        penaltybox export ocsf penalties --since -1d
    """
    from penaltybox.cli.exported_ocsf import missing, ocsf_event

    if topic == "outcomes":
        raise ConfigurationError("export ocsf: got outcomes, wanted penalties or decisions; OCSF has no class for them")
    _export(topic, since, (ocsf_event, missing))


def _export(topic: str, since: str, form: _Form) -> None:
    values = settings()
    if topic not in (*_TOPICS, "-"):
        raise ConfigurationError(f"export: got {topic!r}, wanted one of {', '.join(_TOPICS)}, or - for standard input")
    since_ms = parse_time(since, "--since", now_ms()) if since else 0
    writer = _Writer(values, form, since_ms, sys.stdout.buffer)
    if topic == "-":
        for number, line in enumerate(_lines(sys.stdin.buffer), 1):
            writer.write(line, f"line {number}")
    else:
        with kafka_errors(values):
            asyncio.run(_topic(values, topic, writer))
    sys.stdout.buffer.flush()
    if writer.wrong:
        err.print(f"{writer.wrong:,} records were left out.", markup=False)
        raise typer.Exit(1)


def _lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Lines that are not blank; one that is too long is cut, and then no record."""
    while line := stream.readline(_LONGEST):
        if line.strip():
            yield line


async def _topic(values: Settings, name: str, writer: _Writer) -> None:
    from penaltybox.processors.topic_log import read_topic

    async for record in read_topic(values, getattr(Topics.named(values.topic_prefix), name)):
        if record.value is not None:
            writer.write(record.value, f"partition {record.partition}, offset {record.offset}")


class _Writer:
    """Writes records in their new form, and tells those that are none."""

    def __init__(self, values: Settings, form: _Form, since_ms: int, target: IO[bytes]) -> None:
        self.wrong = 0
        self._form, self._missing = form
        self._since_ms = since_ms
        self._target = target
        self._canonicaliser = Canonicaliser(values.ipv6_prefix, values.hashed_dimensions)

    def write(self, raw: bytes, where: str) -> None:
        """The record, if it is one of those that are wanted."""
        try:
            record = record_of(raw)
            if record.ts < self._since_ms:
                return
            event = self._form(record, self._canonicaliser)
        except BadEvent as error:
            self._tell(where, str(error))
            return
        lacks = self._missing(event)
        if lacks:
            self._tell(where, f"lacks {', '.join(lacks)}")
            return
        self._target.write(msgspec.json.encode(event) + b"\n")

    def _tell(self, where: str, says: str) -> None:
        self.wrong += 1
        if self.wrong <= _WRONG_SHOWN:
            err.print(f"{where}: {says}", markup=False, soft_wrap=True)


class _Kind(msgspec.Struct):
    """What tells records from each other."""

    subjects: msgspec.Raw = msgspec.Raw()
    label: msgspec.Raw = msgspec.Raw()
    trigger_id: msgspec.Raw = msgspec.Raw()


def record_of(raw: bytes) -> _Record:
    """A record from its wire form.

    Raises:
        BadEvent: it is no decision, outcome or penalty.
    """
    try:
        kind = msgspec.json.decode(raw, type=_Kind)
        wanted: Any = Penalty if kind.trigger_id else Outcome if kind.label else Decision
        record: _Record = msgspec.json.decode(raw, type=wanted)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadEvent("not_a_record", f"no decision, outcome or penalty: {error}") from error
    if not 0 < record.ts < _YEAR_10000_MS:
        raise BadEvent("bad_time", f"ts {record.ts} is no time in milliseconds")
    return record
