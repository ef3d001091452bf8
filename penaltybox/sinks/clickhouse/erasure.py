"""Rows about one subject, counted and deleted, in every table that has some."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.subjects import decode_value

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.sinks.clickhouse.client import ClickHouse

_OWN: Final = ("user", "device", "ip", "api_key")
_SAFE: Final = re.compile(r"[A-Za-z0-9_.~%:/+-]+")
"""Canonical subjects have no other characters, so they can stand in a statement."""
PATIENCE_S: Final = 120.0
_PENDING: Final = "SELECT count() AS left FROM system.mutations WHERE database = currentDatabase() AND NOT is_done"


def conditions(subject: str) -> dict[str, str]:
    """Table -> which of its rows are about a canonical subject, combinations of it included.

    Raises:
        PenaltyboxError: the subject is not canonical.
    """
    if not _SAFE.fullmatch(subject):
        raise PenaltyboxError(f"subject {subject!r} is not canonical, so no statement is made with it")
    dimension, _, value = subject.partition(":")
    pair = f"('{dimension}', '{value}')"
    parts = (
        "has(arrayZip(splitByChar('+', splitByChar(':', {0})[1]), arrayResize(splitByChar('+', "
        "substring({0}, position({0}, ':') + 1)), length(splitByChar('+', splitByChar(':', {0})[1])))), {1})"
    )
    about = f"(subject = '{subject}' OR {parts.format('subject', pair)})"
    own = f"`{dimension}` = '{value}'" if dimension in _OWN else f"others['{dimension}'] = '{value}'"
    raw = decode_value(value).encode()
    text = "".join(f"\\x{byte:02x}" for byte in b'"' + raw + b'"')
    return {
        "decisions": f"({own} OR {about})",
        "outcomes": f"has(subjects, '{subject}')",
        "penalties": about,
        "dead_letters": f"position(raw, '{text}') > 0",
        "denials_10m": about,
        "sightings_10m": own,
        "challenges_10m": f"({about} OR who = '{subject}')",
    }


def count_rows(clickhouse: ClickHouse, subject: str) -> dict[str, int]:
    """Table -> rows about the subject.

    Raises:
        StoreUnavailable: ClickHouse does not answer, or has no tables.
    """
    return {
        table: int(clickhouse.rows(f"SELECT count() AS found FROM {table} WHERE {where}")[0]["found"])  # noqa: S608 - canonical text only
        for table, where in conditions(subject).items()
    }


def delete_rows(
    clickhouse: ClickHouse, subject: str, found: dict[str, int], sleep: Callable[[float], None] = time.sleep
) -> bool:
    """Deletes the rows that were found; False when ClickHouse is still at it after two minutes.

    Raises:
        StoreUnavailable: ClickHouse does not answer, or refuses.
    """
    for table, where in conditions(subject).items():
        if found[table]:
            clickhouse.command(f"ALTER TABLE {table} DELETE WHERE {where}")
    until = time.monotonic() + PATIENCE_S
    while int(clickhouse.rows(_PENDING)[0]["left"]):
        if time.monotonic() > until:
            return False
        sleep(0.1)
    return True
