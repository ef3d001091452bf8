"""Fenced blocks of a Markdown page: what a reader would run, and what it says that he will see."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

RUNNABLE = ("sh", "python", "js")
_MOVING = (
    (re.compile(r"20(?:2[4-9]|[3-9]\d)-\d\d-\d\d \d\d:\d\d:\d\dZ"), "INSTANT"),
    (re.compile(r"\d+m(?: \d+s)? left"), "SPAN left"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "HASH"),
    (re.compile(r"\buser=(?:ann|ben|cat|dan)\b"), "user=SOMEBODY"),  # which of them comes last is chance
    (re.compile(r"(?<=\"until\":)\d{13}\b"), "MILLIS"),
    (re.compile(r"(?<='Retry-After': ')\d+"), "SECONDS"),
)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        line: of the opening fence, from 1.
        language: after the fence.
        text: between the fences.
        shown: why it is not run, from a comment `<!-- shown: why -->` above it.
        needs: a program that it needs beside the usual ones, from `<!-- needs: program -->`.
        expected: the ```text block directly below, if there is one.
    """

    line: int
    language: str
    text: str
    shown: str = ""
    needs: str = ""
    expected: str = ""

    def meets(self, output: str) -> bool:
        """Whether an output is the expected one: times and hashes differ, spacing may, `…` is any number of lines."""
        return self.pattern.fullmatch(normal(output)) is not None

    @property
    def pattern(self) -> re.Pattern[str]:
        """The expected output as a pattern over normal text."""
        lines = [
            r"(?:.*\n)*?" if line.strip() == "…" else re.escape(line) + r"\n"
            for line in normal(self.expected).splitlines()
        ]
        return re.compile("".join(lines))


def normal(text: str) -> str:
    """Text without what differs from run to run: present times, what is left, hashes, spacing."""
    for pattern, name in _MOVING:
        text = pattern.sub(name, text)
    return "".join(f"{' '.join(line.split())}\n" for line in text.splitlines())


def fenced_blocks(path: Path) -> list[Block]:
    """All fenced blocks of a page, in order; an expected output is part of the block above it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[Block] = []
    at, closed_at = 0, -1
    while at < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[at])
        if fence is None:
            at += 1
            continue
        end = lines.index("```", at + 1)
        text = "\n".join(lines[at + 1 : end]) + "\n"
        if fence[1] == "text" and closed_at == at - 1 and found:
            last = found.pop()
            found.append(Block(last.line, last.language, last.text, last.shown, last.needs, text))
        else:
            above = re.fullmatch(r"<!-- (shown|needs): (.+) -->", lines[at - 1]) if at else None
            marks = {above[1]: above[2]} if above else {}
            found.append(Block(at + 1, fence[1], text, **marks))
        at, closed_at = end + 1, end
    return found
