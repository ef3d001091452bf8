"""What others wrap a program's line in: syslog, the journal, container runtimes.

Only the beginning of a line is looked at, and JSON only with keys that its writer alone sets: a client can write
neither. A format's own line is always tried first.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

_TEXT: Final = re.compile(
    rb"(?:"
    rb"(?:<\d{1,3}>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?:[^ :\[]+ )?[^ :\[]+(?:\[\d+\])?: "  # RFC 3164, journalctl
    rb"|<\d{1,3}>1 \S+ \S+ \S+ \S+ \S+ (?:-|\[.*?[^\\]\]) (?:\xef\xbb\xbf)?"  # RFC 5424
    rb"|\d{4}-\d\d-\d\dT\S+ std(?:out|err) [FP] "  # CRI: containerd, CRI-O
    rb"|\d{4}-\d\d-\d\dT\S+ [^ :\[]+ [^ :\[]+(?:\[\d+\])?: "  # rsyslog's and journalctl's ISO times
    rb")",
)


class _Docker(msgspec.Struct, frozen=True, gc=False):
    log: str
    stream: str
    time: str


class _Journal(msgspec.Struct, frozen=True, gc=False):
    message: str | list[int] = msgspec.field(name="MESSAGE")
    """Of bytes where it has characters that cannot be printed, which a client may have sent."""
    at: str = msgspec.field(name="__REALTIME_TIMESTAMP")


_docker = msgspec.json.Decoder(_Docker).decode
_journal = msgspec.json.Decoder(_Journal).decode


def unwrapped(line: bytes) -> bytes | None:
    """The line inside of one that was wrapped; None if it is not."""
    if line.startswith(b"{"):
        return _inner(line)
    match = _TEXT.match(line)
    return None if match is None else line[match.end() :]


def _inner(line: bytes) -> bytes | None:
    if b'"stream"' in line and b'"log"' in line:
        try:
            return _docker(line).log.rstrip("\r\n").encode("utf-8", "surrogatepass")
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return None
    if b'"__REALTIME_TIMESTAMP"' in line:
        try:
            message = _journal(line).message
            raw = bytes(message) if isinstance(message, list) else message.encode("utf-8", "surrogatepass")
        except (msgspec.MsgspecError, RecursionError, ValueError):
            return None
        return raw.rstrip(b"\r\n")
    return None
