"""The two messages of Envoy's rate limit service, read and written by the rules of protocol buffers.

Of `envoy.service.ratelimit.v3` the fields that are used here, by their numbers; unknown ones are skipped, as the rules
say. Two messages are no reason for generated code and the package that it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import PenaltyboxError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MOST_BITS: Final = 70
_LENGTHS: Final = {_FIXED64: 8, _FIXED32: 4}
OK: Final = 1
OVER_LIMIT: Final = 2
_UNITS: Final = {1: 1, 60: 2, 3600: 3, 86_400: 4}


class WrongMessage(PenaltyboxError):  # noqa: N818 - the caller's, as BadEvent is
    """Bytes that are no message."""


class Question(NamedTuple):
    """A `RateLimitRequest`: a domain, descriptors (pairs of key and value each), and how much is taken."""

    domain: str
    descriptors: tuple[tuple[tuple[str, str], ...], ...]
    hits: int


class Status(NamedTuple):
    """What is told about a descriptor: whether it is over, its limit, what is left, and seconds until it is whole."""

    over: bool
    limit: int = 0
    window_s: int = 0
    remaining: int = 0
    reset_s: int = 0


def read_question(raw: bytes) -> Question:
    """A `RateLimitRequest`.

    Raises:
        WrongMessage: it is none.
    """
    domain, hits, descriptors = "", 0, []
    for number, value in _fields(raw):
        if number == 1:
            domain = _text(value)
        elif number == 2:  # noqa: PLR2004 - field numbers, of the message
            descriptors.append(tuple(_entry(one) for key, one in _fields(_part(value)) if key == 1))
        elif number == 3 and isinstance(value, int):  # noqa: PLR2004 - as above
            hits = value
    return Question(domain, tuple(descriptors), hits or 1)


def _entry(raw: int | bytes) -> tuple[str, str]:
    found = {number: _text(value) for number, value in _fields(_part(raw)) if number in (1, 2)}
    return found.get(1, ""), found.get(2, "")


def read_answer(raw: bytes) -> tuple[bool, tuple[Status, ...]]:
    """Of a `RateLimitResponse` whether the request is over a limit, and what is told of each descriptor.

    Raises:
        WrongMessage: it is none.
    """
    over, statuses = False, []
    for number, value in _fields(raw):
        if number == 1:
            over = value == OVER_LIMIT
        elif number == 2:  # noqa: PLR2004 - as above
            status = dict(_fields(_part(value)))
            limit = dict(_fields(_part(status.get(2, b""))))
            window_s = next((seconds for seconds, unit in _UNITS.items() if unit == limit.get(2)), 0)
            statuses.append(
                Status(status.get(1) == OVER_LIMIT, _number(limit.get(1)), window_s, _number(status.get(3)))
            )
    return over, tuple(statuses)


def write_answer(
    *,
    over: bool,
    statuses: Sequence[Status],
    response_headers: Sequence[tuple[str, str]] = (),
    request_headers: Sequence[tuple[str, str]] = (),
    body: bytes = b"",
) -> bytes:
    """A `RateLimitResponse`.

    Args:
        over: the request is refused.
        statuses: one per descriptor.
        response_headers: for the client.
        request_headers: for the application.
        body: for a client that is refused.
    """
    out = _int(1, OVER_LIMIT if over else OK)
    out += b"".join(_bytes(2, _status(one)) for one in statuses)
    out += b"".join(_bytes(3, _header(*one)) for one in response_headers)
    out += b"".join(_bytes(4, _header(*one)) for one in request_headers)
    return out + (_bytes(5, body) if body else b"")


def write_question(question: Question) -> bytes:
    """A `RateLimitRequest`, for whoever asks."""
    out = _bytes(1, question.domain.encode())
    for descriptor in question.descriptors:
        out += _bytes(2, b"".join(_bytes(1, _header(key, value)) for key, value in descriptor))
    return out + _int(3, question.hits)


def _status(one: Status) -> bytes:
    out = _int(1, OVER_LIMIT if one.over else OK)
    if one.limit:
        out += _bytes(2, _int(1, one.limit) + _int(2, _UNITS.get(one.window_s, 0)))
    return out + _int(3, one.remaining) + _bytes(4, _int(1, one.reset_s))


def _header(key: str, value: str) -> bytes:
    return _bytes(1, key.encode()) + _bytes(2, value.encode())


def _int(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(raw):
        tag, at = _read_varint(raw, at)
        kind = tag & 7
        value: int | bytes
        if kind == _VARINT:
            value, at = _read_varint(raw, at)
        elif kind == _BYTES or kind in _LENGTHS:
            length = _LENGTHS.get(kind, 0)
            if kind == _BYTES:
                length, at = _read_varint(raw, at)
            value, at = raw[at : at + length], at + length
            if at > len(raw):
                raise WrongMessage("a message of Envoy's breaks off")
        else:
            raise WrongMessage(f"a message of Envoy's has a field of kind {kind}")
        yield tag >> 3, value


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < _MOST_BITS:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number
            return value, at
        shift += 7
    raise WrongMessage("a message of Envoy's breaks off in a number")


def _part(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise WrongMessage("a message of Envoy's has a number where a part is wanted")
    return value


def _text(value: int | bytes) -> str:
    return _part(value).decode("utf-8", "replace")


def _number(value: int | bytes | None) -> int:
    return value if isinstance(value, int) else 0
