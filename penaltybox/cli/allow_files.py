"""Files of allowlist entries: one a line, CSV with a header, or the `ignoreip` lines of fail2ban."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError, cause
from penaltybox.processors.replay.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MOST_ENTRIES: Final = 1_000_000
_COLUMNS: Final = ("entry", "subject", "cidr", "ip", "address")
_SETTING: Final = re.compile(r"\s*([A-Za-z_.-]+)\s*=\s*(.*)")
_SHOWN: Final = 60
_NEVER: Final = frozenset({"", "-", "never", "always"})


class FileEntry(NamedTuple):
    """What a file says of an entry: its own end (ms) and note, if any."""

    until: int | None = None
    note: str = ""


def read_entries(
    file: Path, name: Callable[[str], str], now_ms: int
) -> tuple[dict[str, FileEntry], list[tuple[int, str]]]:
    """Entries by name, the last of each, and lines that are none: number and sentence.

    Args:
        file: UTF-8 text.
        name: canonical name of an entry; raises what it thinks of it.
        now_ms: an end before it is a mistake.

    Raises:
        ConfigurationError: no text, or more entries than anybody lists.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # Unicode knows more ends of lines, in a note
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {cause(error)}") from error
    found: dict[str, FileEntry] = {}
    wrong: list[tuple[int, str]] = []
    for number, text, until, note in _rows(lines):
        try:
            found[name(text)] = FileEntry(_end(until, now_ms), note.strip())
        except PenaltyboxError as error:
            wrong.append((number, str(error)))
        if len(found) > MOST_ENTRIES:
            raise ConfigurationError(f"{file}: more than {MOST_ENTRIES:,} entries; list ranges instead")
    return found, wrong


def _end(text: str, now_ms: int) -> int | None:
    if text.strip().lower() in _NEVER:
        return None
    end = parse_time(text, "until", now_ms)
    if end <= now_ms:
        raise ConfigurationError(f"until: {text.strip()} has passed")
    return end


def _rows(lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """(line number, entry, end, note)."""
    first = next((at for at, line in enumerate(lines) if _stripped(line)), len(lines))
    header = [cell.strip().lower() for cell in lines[first].split(",")] if first < len(lines) else []
    column = next((header.index(name) for name in _COLUMNS if name in header), None)
    if column is None:
        yield from _plain(lines)
        return
    for number, line in enumerate(lines[first + 1 :], first + 2):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            cells = next(csv.reader([line]), [])
        except csv.Error:  # longer than anything that can be listed
            cells = [line[:_SHOWN]] * (column + 1)
        named = dict(zip(header, cells, strict=False))
        yield number, cells[column] if column < len(cells) else "", named.get("until", ""), named.get("note", "")


def _plain(lines: list[str]) -> Iterator[tuple[int, str, str, str]]:
    """Entries between blanks and commas. Of lines NAME = VALUE only `ignoreip` is meant, with what continues it."""
    meant = True
    for number, line in enumerate(lines, 1):
        text = _stripped(line)
        setting = _SETTING.fullmatch(text)
        if setting is not None:
            meant = setting[1].lower() == "ignoreip"
            text = setting[2]
        elif text.startswith("["):
            meant, text = True, ""
        elif not line[:1].isspace():
            meant = True
        if meant:
            for entry in re.split(r"[\s,]+", text):
                if entry:
                    yield number, entry, "", ""


def _stripped(line: str) -> str:
    """Without comments: from # or ; at the start or after a blank."""
    return re.sub(r"(^|\s)[#;].*$", "", line).strip()
