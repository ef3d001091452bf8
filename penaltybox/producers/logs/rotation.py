"""Names of rotated logs: which belong together, and in what order they were written."""

from __future__ import annotations

import re
from typing import Final

_COMPRESSED: Final = re.compile(r"\.(?:gz|zst|zstd)$")
_NUMBERED: Final = re.compile(r"(?P<stem>.+)\.(?P<number>\d{1,5})")
_DATED: Final = re.compile(
    r"(?P<stem>.+?)[.\-_](?P<date>\d{4}-?\d\d-?\d\d(?:[T_\-.]?\d\d[:\-]?\d\d(?:[:\-]?\d\d)?|[T_\-.]?\d\d)?)"
    r"(?P<end>\.[a-z]+)?"
)
_PLAIN: Final = (2, "", 0)
_Key = tuple[int, str, int]


def series(name: str) -> tuple[str, _Key]:
    """What a file is a part of, and its place in it: ``access.log.2.gz`` is of ``access.log``, before ``access.log.1``.

    Numbers count backwards, dates forwards; the file without either is the newest.
    """
    bare = _COMPRESSED.sub("", name)
    dated = _DATED.fullmatch(bare)
    if dated is not None:
        return f"{dated['stem']}{dated['end'] or ''}", (0, re.sub(r"\D", "", dated["date"]), 0)
    numbered = _NUMBERED.fullmatch(bare)
    if numbered is not None:
        return numbered["stem"], (1, "", -int(numbered["number"]))
    return bare, _PLAIN


def grouped(names: list[str]) -> list[list[str]]:
    """The names by what they are parts of, each group from its oldest to its newest."""
    groups: dict[str, list[tuple[_Key, str]]] = {}
    for name in sorted(names):
        stem, key = series(name)
        groups.setdefault(stem, []).append((key, name))
    return [[name for _, name in sorted(group)] for group in groups.values()]
