"""Reading records that came from outside: everything that cannot be judged is a `BadEvent` with a reason."""

from __future__ import annotations

import json
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import AHEAD_MS, MAX_RECORD_BYTES, Decision, Outcome
from penaltybox.contracts.subjects import MAX_VALUE_BYTES, Canonicaliser, Names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_decode_decision = msgspec.json.Decoder(Decision).decode
_decode_lines = msgspec.json.Decoder(Decision).decode_lines
_encode_lines = msgspec.json.Encoder().encode_lines
_decode_outcome = msgspec.json.Decoder(Outcome).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_WHITESPACE: Final = b" \t\r\n"
_ts = attrgetter("ts")
_subjects = attrgetter("subjects")
_grounds = attrgetter("action", "reason", "violated")
_JUDGED: Final = ("deny", "challenge")


def decode_decision(raw: bytes, broker_ms: int, canonicaliser: Canonicaliser) -> Decision:
    """A decision from its wire form.

    Args:
        raw: JSON, at most 4 KiB.
        broker_ms: the broker's timestamp of the record, which bounds its `ts`.
        canonicaliser: judges the subjects.

    Raises:
        BadEvent: with the reason that its dead letter carries.
    """
    decision: Decision = _decode(raw, _decode_decision)
    _check_time(decision.ts, broker_ms)
    canonicaliser.names(decision.subjects)
    _check_reason(decision.action, decision.reason, decision.violated)
    if not is_plain(raw):
        _check_texts(decision)
    return decision


def decode_decisions(
    raws: Sequence[bytes | None], brokers_ms: Sequence[int], canonicaliser: Canonicaliser
) -> list[tuple[Decision, Names] | BadEvent]:
    """Many decisions at once, with the names of their subjects, each as `decode_decision` judges it.

    What cannot be judged is returned, not raised. When all records are in the form that our own publishers send,
    which is the common case, they are decoded and checked in a few calls for the whole run; otherwise one by one.
    """
    decisions = _decode_run(raws)
    if decisions is None:
        return [_judge(raw, broker_ms, canonicaliser) for raw, broker_ms in zip(raws, brokers_ms, strict=True)]
    found = _found(decisions, canonicaliser)
    if _fine(decisions, min(brokers_ms)):
        if all(found):
            return list(zip(decisions, found, strict=True))  # type: ignore[arg-type] # nothing is missing
        rows = zip(decisions, found, strict=True)
        return [(one, names) if names else _named(one, canonicaliser) for one, names in rows]
    judged: list[tuple[Decision, Names] | BadEvent] = []
    for decision, broker_ms, names in zip(decisions, brokers_ms, found, strict=True):
        try:
            _check_time(decision.ts, broker_ms)
            _check_reason(decision.action, decision.reason, decision.violated)
            judged.append((decision, names or canonicaliser.names(decision.subjects)))
        except BadEvent as error:
            judged.append(error)
    return judged


def _fine(decisions: Sequence[Decision], broker_ms: int) -> bool:
    """Whether nothing but their subjects can be wrong with decisions whose records have at least this timestamp."""
    try:
        _check_time(max(map(_ts, decisions)), broker_ms)
        judging = [one for one in decisions if one.action != "allow" or one.violated]
        for grounds in set(map(_grounds, judging)):
            _check_reason(*grounds)
    except BadEvent:
        return False
    return True


def _found(decisions: Sequence[Decision], canonicaliser: Canonicaliser) -> list[Names | None]:
    """The names of subjects that came together before; None for the others.

    One step at a time for all of them, in loops of the interpreter's own: these look-ups cost memory latency, and a
    tight loop waits for several at once.
    """
    spelled = list(map(_encode, map(_subjects, decisions)))
    list(map(hash, spelled))  # beforehand: the look-ups alone are a loop so tight that they overlap
    return list(map(canonicaliser.groups.get, spelled))


def decode_own_run(raws: Sequence[bytes | None], brokers_ms: Sequence[int]) -> list[Decision] | None:
    """Many decisions at once, judged in all but their subjects: for those who name every subject anyway.

    None when a record is not in the form that our own publishers send, or cannot be judged: `decode_decisions` then
    says which.
    """
    decisions = _decode_run(raws)
    if decisions is None:
        return None
    return decisions if _fine(decisions, min(brokers_ms)) else None


def _judge(raw: bytes | None, broker_ms: int, canonicaliser: Canonicaliser) -> tuple[Decision, Names] | BadEvent:
    try:
        return _named(decode_decision(raw or b"", broker_ms, canonicaliser), canonicaliser)
    except BadEvent as error:
        return error


def _named(decision: Decision, canonicaliser: Canonicaliser) -> tuple[Decision, Names] | BadEvent:
    try:
        return decision, canonicaliser.names(decision.subjects)
    except BadEvent as error:
        return error


def _decode_run(raws: Sequence[bytes | None]) -> list[Decision] | None:
    """The decisions of a run whose records all have our own form; None when they must be read one by one."""
    if not raws or not all(raws):
        return None
    given = cast("Sequence[bytes]", raws)
    lines = b"\n".join(given) + b"\n"
    if not is_plain(lines) or lines.count(b"\n") != len(given) or max(map(len, given)) > MAX_RECORD_BYTES:
        return None
    try:
        decisions = _decode_lines(lines)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return decisions if len(decisions) == len(given) and _encode_lines(decisions) == lines else None


def decode_outcome(raw: bytes, broker_ms: int, canonicaliser: Canonicaliser) -> Outcome:
    """An outcome from its wire form; arguments and errors as for `decode_decision`."""
    outcome: Outcome = _decode(raw, _decode_outcome)
    _check_time(outcome.ts, broker_ms)
    canonicaliser.names(outcome.subjects)
    _check_printable("id", outcome.id)
    _check_printable("ref", outcome.ref)
    return outcome


def _decode(raw: bytes, decode: Callable[[bytes], Any]) -> Any:
    if not raw:
        raise BadEvent("empty", "the record has no value")
    if len(raw) > MAX_RECORD_BYTES:
        raise BadEvent("too_large", f"the record has {len(raw)} bytes, the limit is {MAX_RECORD_BYTES}")
    try:
        event = decode(raw)
        # Our own publishers send exactly this form, so nothing can hide in it; anything else is looked at closely.
        plain = _encode(event) == raw or _round_trips(raw)
    except msgspec.ValidationError as error:
        raise BadEvent("wrong_type", str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadEvent("not_json", str(error)) from error
    except RecursionError as error:
        raise BadEvent("too_deep", "the record is nested too deeply") from error
    if not plain:
        _check_keys(raw)
    return event


def _round_trips(raw: bytes) -> bool:
    """Whether decoding loses nothing but whitespace: then no key stands twice. Six times cheaper than looking.

    It also reads what the typed decoder skips: an unknown field may hold bytes that are no text.
    """
    return _encode(_decode_any(raw)).translate(None, _WHITESPACE) == raw.translate(None, _WHITESPACE)


def _check_keys(raw: bytes) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise BadEvent("duplicate_keys", "a key stands twice in one object; which value counts is anyone's guess")
        return found

    try:
        json.loads(raw, object_pairs_hook=unique)
    except RecursionError as error:
        raise BadEvent("too_deep", "the record is nested too deeply") from error
    except ValueError as error:
        raise BadEvent("not_json", str(error)) from error


def _check_time(ts: int, broker_ms: int) -> None:
    if ts > broker_ms + AHEAD_MS:
        raise BadEvent(
            "from_the_future", f"ts {ts} is {ts - broker_ms} ms ahead of the broker's clock, limit {AHEAD_MS}"
        )


def _check_reason(action: str, reason: str | None, violated: Sequence[str]) -> None:
    if action in _JUDGED:
        if reason is None:
            raise BadEvent("no_reason", f"a decision to {action} needs a reason")
        if reason == "over_limit" and not violated:
            raise BadEvent("no_violated", "an over_limit decision must name the limits it violated")
    for limit in violated:
        if ":" not in limit:
            raise BadEvent("bad_violated", f"violated: got {limit[:64]!r}, wanted <dimension>:<limit name>")


def is_plain(raw: bytes) -> bool:
    """Whether it is ASCII without an escape: then every text in it is printable, for JSON admits no bare controls."""
    return raw.isascii() and b"\\" not in raw and b"\x7f" not in raw


def _check_texts(decision: Decision) -> None:
    _check_printable("id", decision.id)
    _check_printable("source", decision.source)
    _check_printable("scenario", decision.scenario)
    _check_printable("route", decision.route)
    for limit in decision.violated:
        _check_printable("violated", limit)
    if decision.attrs:
        _check_short("attrs", decision.attrs)
        _check_short("attrs", decision.attrs.values())


def _check_printable(field: str, text: str) -> None:
    if not text.isprintable():
        raise BadEvent("control_characters", f"{field} has characters that cannot be printed")


def _check_short(field: str, texts: Iterable[str]) -> None:
    for text in texts:
        _check_printable(field, text)
        if not text.isascii() and len(text.encode()) > MAX_VALUE_BYTES:
            raise BadEvent("value_too_long", f"{field} has a value longer than {MAX_VALUE_BYTES} bytes")
