"""From raw Kafka records to decoded events: what cannot be judged is counted and skipped, nothing else is lost.

Dead letters are produced by the penalties role alone; two producers would tell each twice.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

import msgspec

from penaltybox.contracts.decoding import decode_decision, decode_outcome, decode_own_run
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import DeadLetter, Penalty
from penaltybox.sinks.clickhouse.columns import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.contracts.topics import Topics

Table = Literal["decisions", "outcomes", "penalties", "dead_letters"]
TABLES: Final[tuple[Table, ...]] = ("decisions", "outcomes", "penalties", "dead_letters")
_INT32_MAX: Final = (1 << 31) - 1
_decode_penalty = msgspec.json.Decoder(Penalty).decode
_decode_letter = msgspec.json.Decoder(DeadLetter).decode


class Record(Protocol):
    """A record as fetched: `timestamp` is the broker's, in ms."""

    offset: int
    timestamp: int
    value: bytes | None


class Batch(NamedTuple):
    """Records of one partition in offset order, and whose they are.

    Attributes:
        table: where they go.
        incarnation: tells this life of the topic from earlier ones with the same name.
        partition: number of the partition.
        records: ascending offsets.
    """

    table: Table
    incarnation: str
    partition: int
    records: Sequence[Record]


class Decoded(NamedTuple):
    """The events of a batch with their offsets and broker times, and how many records were skipped for which reason."""

    events: list[Any]
    offsets: list[int]
    logged_ms: list[int]
    skipped: Counter[str]


def table_topics(topics: Topics) -> dict[str, Table]:
    """Topic name -> table."""
    return {
        topics.decisions: "decisions",
        topics.outcomes: "outcomes",
        topics.penalties: "penalties",
        topics.dead_letters: "dead_letters",
    }


def decode_fast(table: Table, records: Sequence[Record]) -> Decoded | None:
    """`decode` for a run of decisions as our own publishers send them, subjects not judged yet; None for all else."""
    if table != "decisions" or not records:
        return None
    logged_ms = [record.timestamp for record in records]
    events = decode_own_run([record.value for record in records], logged_ms)
    if events is None or not storable(max(event.ts for event in events)):
        return None
    return Decoded(events, [record.offset for record in records], logged_ms, Counter())


def decode(table: Table, records: Sequence[Record], canonicaliser: Canonicaliser) -> Decoded:
    """Decode records; one that cannot be judged, or stands outside ClickHouse's calendar, is counted and skipped."""
    judge = _JUDGES[table]
    decoded = Decoded([], [], [], Counter())
    for record in records:
        try:
            event = judge(record.value or b"", record.timestamp, canonicaliser)
        except BadEvent as error:
            decoded.skipped[error.reason] += 1
            continue
        if not storable(event.ts):
            decoded.skipped["out_of_calendar"] += 1
            continue
        decoded.events.append(event)
        decoded.offsets.append(record.offset)
        decoded.logged_ms.append(record.timestamp)
    return decoded


def _judge_penalty(raw: bytes, _broker_ms: int, _canonicaliser: Canonicaliser) -> Penalty:
    penalty: Penalty = _own(raw, _decode_penalty)
    return penalty


def _judge_letter(raw: bytes, _broker_ms: int, _canonicaliser: Canonicaliser) -> DeadLetter:
    letter: DeadLetter = _own(raw, _decode_letter)
    if not 0 <= letter.partition <= _INT32_MAX:
        raise BadEvent("wrong_type", f"partition {letter.partition} is no partition")
    return letter


def _own(raw: bytes, decoder: Callable[[bytes], Any]) -> Any:
    """A record of a topic that only we write, which anyone with access to the broker can write to as well."""
    if not raw:
        raise BadEvent("empty", "the record has no value")
    try:
        return decoder(raw)
    except msgspec.ValidationError as error:
        raise BadEvent("wrong_type", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvent("not_json", str(error)) from error
    except RecursionError as error:
        raise BadEvent("too_deep", "the record is nested too deeply") from error


_JUDGES: Final[dict[Table, Callable[[bytes, int, Canonicaliser], Any]]] = {
    "decisions": decode_decision,
    "outcomes": decode_outcome,
    "penalties": _judge_penalty,
    "dead_letters": _judge_letter,
}
