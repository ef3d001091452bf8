"""The form of a text line: named parts in a fixed order, matched as one pattern, explained part by part."""

from __future__ import annotations

import re
from typing import Final

_SHOWN: Final = 60


class Form:
    r"""A line's parts, in order: (name for people, pattern). Together they must match the whole line.

    Patterns are anchored by what stands before them. A pattern that crosses text of a client must not be able to skip
    to a later part: use ``[^"\\]`` and the like, possessive (``*+``) where possible, and a lazy ``.*?`` only behind
    the subject.
    """

    def __init__(self, *parts: tuple[str, str]) -> None:
        self._parts: Final = parts
        self._pattern: Final = re.compile("".join(pattern for _, pattern in parts), re.ASCII)
        self.match: Final = self._pattern.fullmatch
        """The match of a whole line, or None; groups are those of the parts."""

    def explain(self, text: str) -> str:
        """How far the parts match: ``time: '…'; level: '…'; client address: wanted …, found …``."""
        for count in range(len(self._parts), -1, -1):
            pattern = "".join(f"(?P<_{number}>{part})" for number, (_, part) in enumerate(self._parts[:count]))
            match = re.match(pattern, text, re.ASCII)
            if match is None:
                continue
            told = [f"{name}: {match[f'_{number}']!r}" for number, (name, _) in enumerate(self._parts[:count])]
            rest = text[match.end() : match.end() + _SHOWN]
            if count < len(self._parts):
                name, pattern = self._parts[count]
                told.append(f"{name}: wanted {pattern}, found {rest!r}")
            elif rest:
                told.append(f"then wanted the end, found {rest!r}")
            return "; ".join(told)
        return ""
