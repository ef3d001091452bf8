"""Durations as people write them in a policy: ``90s``, ``10m``, ``8h``, ``14d``."""

from __future__ import annotations

import re

from penaltybox.contracts.errors import ConfigurationError, shown

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_FORM = re.compile(r"([0-9]{1,12})(ms|s|m|h|d|w)")
LONGEST_MS = 3650 * 86_400_000


def parse_duration(text: object, where: str = "duration", most_ms: int = LONGEST_MS) -> int:
    """Milliseconds of a duration such as ``10m``.

    Args:
        text: digits and one unit of ms, s, m, h, d, w.
        where: path in the file, for the message.
        most_ms: the longest that is allowed here.

    Raises:
        ConfigurationError: not of that form, zero, or longer than `most_ms`, which is at most ten years.
    """
    match = _FORM.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ConfigurationError(
            f"{where}: got {shown(text)}, wanted a duration like 90s, 10m, 8h or 14d (a number and one of ms s m h d w)"
        )
    value = int(match[1]) * _UNITS_MS[match[2]]
    if not 0 < value <= most_ms:
        raise ConfigurationError(f"{where}: got {text!r}, wanted more than zero and at most {format_duration(most_ms)}")
    return value


def format_duration(value_ms: int) -> str:
    """The shortest exact form of a duration: ``300000`` is ``5m``, ``90000`` is ``90s``."""
    for unit in ("w", "d", "h", "m", "s"):
        size = _UNITS_MS[unit]
        if value_ms >= size and value_ms % size == 0:
            return f"{value_ms // size}{unit}"
    return f"{value_ms}ms"
