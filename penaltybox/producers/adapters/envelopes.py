"""What others wrap a program's line in: syslog, the journal, container runtimes.

Only the beginning of a line is looked at, and JSON only with keys that its writer alone sets: a client can write
neither. A format's own line is always tried first. Syslog and the journal hold the lines of many programs, some of
which write down what clients say: so of these a line is taken only if it is of a program that the format names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.producers.adapters.reading import Passed

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

ANY: Final = "*"
"""In place of programs' names: whoever writes there is believed."""
OTHERS: Final = Passed("lines of other programs; --program says whose are read")
_TEXT: Final = re.compile(
    rb"(?:"
    rb"(?:<\d{1,3}>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:[^ :\[]+ )?([^ :\[]+)(?:\[\d+\])?: "  # RFC 3164
    rb"|<\d{1,3}>1 \S+ \S+ (\S+) \S+ \S+ (?:-|\[.*?[^\\]\]) (?:\xef\xbb\xbf)?"  # RFC 5424
    rb"|\d{4}-\d\d-\d\dT\S+ std(?:out|err) [FP] "  # CRI: containerd, CRI-O
    rb"|\d{4}-\d\d-\d\dT\S+ [^ :\[]+ ([^ :\[]+)(?:\[\d+\])?: "  # rsyslog's and journalctl's ISO times
    rb")",
)


class Wrapped(NamedTuple):
    """The line inside, and the program that wrote it; None where a file holds those of one program only."""

    line: bytes
    program: str | None


class _Docker(msgspec.Struct, frozen=True, gc=False):
    log: str
    stream: str
    time: str


class _Journal(msgspec.Struct, frozen=True, gc=False):
    message: str | list[int] = msgspec.field(name="MESSAGE")
    """Of bytes where it has characters that cannot be printed, which a client may have sent."""
    at: str = msgspec.field(name="__REALTIME_TIMESTAMP")
    identifier: str = msgspec.field(name="SYSLOG_IDENTIFIER", default="")
    command: str = msgspec.field(name="_COMM", default="")


_docker = msgspec.json.Decoder(_Docker).decode
_journal = msgspec.json.Decoder(_Journal).decode


def inside(line: bytes, programs: AbstractSet[str]) -> bytes | Passed | None:
    """The line inside of one that was wrapped; `OTHERS` if it is another program's; None if it is not wrapped."""
    found = unwrapped(line)
    if found is None:
        return None
    return found.line if found.program is None or found.program in programs or ANY in programs else OTHERS


def unwrapped(line: bytes) -> Wrapped | None:
    """The line inside of one that was wrapped, whoever wrote it; None if it is not."""
    if line.startswith(b"{"):
        return _inner(line)
    match = _TEXT.match(line)
    if match is None:
        return None
    tag = match[match.lastindex] if match.lastindex else None
    return Wrapped(line[match.end() :], None if tag is None else tag.decode("utf-8", "backslashreplace"))


def _inner(line: bytes) -> Wrapped | None:
    if b'"stream"' in line and b'"log"' in line:
        try:
            return Wrapped(_docker(line).log.rstrip("\r\n").encode("utf-8", "surrogatepass"), None)
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
    if b'"__REALTIME_TIMESTAMP"' in line:
        try:
            found = _journal(line)
            message = found.message
            raw = bytes(message) if isinstance(message, list) else message.encode("utf-8", "surrogatepass")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        return Wrapped(raw.rstrip(b"\r\n"), found.identifier or found.command)
    return None
