"""The head of Apache's error log lines, and what ModSecurity, mod_evasive and mod_qos write behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.months import iso

if TYPE_CHECKING:
    from penaltybox.producers.adapters.times import Times

FORM: Final = Form(
    ("time", r"\[[A-Z][a-z][a-z] ([A-Z][a-z][a-z]) ([ \d]\d) (\d\d:\d\d:\d\d(?:\.\d+)?) (\d{4})\] "),
    ("module and level", r"\[(?:([a-z0-9_\-]+):)?[a-z0-9]+\] "),
    ("process", r"(?:\[pid \d+(?::tid \d+)?\] )?"),
    ("error", r"(?:\(\d+\)[^:\[]+: )?"),
    ("client address and port", r"(?:\[(?:client|remote) ([^\] ]+)\] )?"),
    ("message", r"(.*)"),
)


class ErrorLine(NamedTuple):
    """A line: when, of which module (may be empty), about which client (``address:port``, may be empty), and what."""

    ts_ms: int | None
    module: str
    client: str
    message: str


def error_line(text: str, times: Times) -> ErrorLine | None:
    """``[Mon Nov 30 12:00:00.123 2026] [evasive20:error] [pid 7:tid 8] [client 203.0.113.7:51234] …``; else None."""
    match = FORM.match(text)
    if match is None:
        return None
    month, day, time, year, module, client, message = match.groups()
    return ErrorLine(times.rfc3339(iso(year, month, day, time)), module or "", client or "", message)
