"""JSON whose writer may have put it together by hand.

Formats in which people write the JSON themselves around values (``{"ip":"$ip","agent":"$agent"}``) escape nothing, so a
client that sends quotes can add keys of its own. It cannot take the true key away: it then stands twice, which no
JSON encoder does.
"""

from __future__ import annotations

import json
from typing import Any, Final

import msgspec

_WHITESPACE: Final = b" \t\r\n"
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def object_of(line: bytes) -> dict[str, Any] | None:
    """The object of a line; None if it is none, or if a key stands twice in one object."""
    try:
        found = _decode(line)
        if not isinstance(found, dict):
            return None
        # Decoding drops keys that stand twice. What comes out as it went in has none; the rest is looked at closely.
        same = _encode(found) == line or _encode(found).translate(None, _WHITESPACE) == line.translate(
            None, _WHITESPACE
        )
        return found if same or _unique(line) else None
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _unique(line: bytes) -> bool:
    unique = True

    def pairs(given: list[tuple[str, Any]]) -> None:
        nonlocal unique
        unique = unique and len({name for name, _ in given}) == len(given)

    try:
        json.loads(line, object_pairs_hook=pairs)
    except (ValueError, RecursionError):
        return False
    return unique
