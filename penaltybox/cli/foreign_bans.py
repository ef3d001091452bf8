"""Ban lists of fail2ban and CrowdSec, read as they write them."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

from penaltybox.cli.block_files import WrongLine
from penaltybox.contracts.errors import ConfigurationError, cause, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FOR_GOOD: Final = None
UNSAID: Final = -1
"""The end of a ban whose list does not say it."""
_MOST_BYTES: Final = 512 << 20
_SQLITE: Final = b"SQLite format 3\x00"
_WITH_TIME: Final = re.compile(r"(\S+)\s+(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d+)? \+ (-?\d+) = .*")
_GO_DURATION: Final = re.compile(r"(\d+(?:\.\d*)?)(d|h|ms|m|s|us|µs|ns)")
_GO_MS: Final = {"d": 8.64e7, "h": 3.6e6, "m": 60_000.0, "s": 1000.0, "ms": 1.0, "us": 0.001, "µs": 0.001, "ns": 1e-6}
_KINDS: Final[dict[str, Literal["deny", "challenge"]]] = {"ban": "deny", "captcha": "challenge"}
_MOST_SECONDS: Final = 10**10


class ForeignBan(NamedTuple):
    """A ban of another program.

    Attributes:
        number: of its line, or its place in the file.
        address: an address or a range, as it stands there.
        action: `deny`; `challenge` for a captcha.
        until: its end, ms; `FOR_GOOD`, `UNSAID`.
    """

    number: int
    address: str
    action: Literal["deny", "challenge"]
    until: int | None


Rows: TypeAlias = "Iterator[ForeignBan | WrongLine]"


def read_fail2ban(file: Path) -> Rows:
    """fail2ban's database (`/var/lib/fail2ban/fail2ban.sqlite3`), or what `fail2ban-client` prints of its bans.

    That is `fail2ban-client banned`, in which no ends stand, or `fail2ban-client get JAIL banip --with-time`, whose
    times are in this machine's time zone.

    Raises:
        ConfigurationError: the file is none of these.
    """
    try:
        with file.open("rb") as opened:
            database = opened.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {cause(error)}") from error
    return _database(file) if database else _client(file)


def _database(file: Path) -> Rows:
    """The bans in force (table `bips`, since 0.11); of older ones the latest of each address."""
    current = "SELECT ip, timeofban, bantime FROM bips ORDER BY timeofban"
    older = "SELECT ip, MAX(timeofban), bantime FROM bans GROUP BY jail, ip"
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True)) as base:
            tables = {name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables & {"bips", "bans"}:
                raise ConfigurationError(f"{file}: no database of fail2ban's: wanted its table bips, or bans")
            for number, (ip, at_s, for_s) in enumerate(base.execute(current if "bips" in tables else older), 1):
                yield _fail2ban(number, str(ip), at_s, for_s)
    except sqlite3.Error as error:
        raise ConfigurationError(
            f"{file}: cannot be read as a database of fail2ban's (0.10 or later): {error}"
        ) from error


def _fail2ban(number: int, address: str, at_s: Any, for_s: Any) -> ForeignBan | WrongLine:
    if not (isinstance(at_s, int) and isinstance(for_s, int)) or max(abs(at_s), abs(for_s)) > _MOST_SECONDS:
        return WrongLine(number, f"times: got {shown(f'{at_s} + {for_s}')}, wanted seconds")
    return ForeignBan(number, address, "deny", FOR_GOOD if for_s < 0 else (at_s + for_s) * 1000)


def _client(file: Path) -> Rows:
    text = _text(file).strip()
    if text.startswith("["):
        try:
            jails = ast.literal_eval(text)
            addresses = [str(one) for jail in jails for listed in jail.values() for one in listed]
        except (ValueError, SyntaxError, TypeError, AttributeError, MemoryError, RecursionError) as error:
            raise ConfigurationError(f"{file}: not as `fail2ban-client banned` prints it") from error
        for number, address in enumerate(addresses, 1):
            yield ForeignBan(number, address, "deny", UNSAID)
        return
    for number, line in enumerate(text.splitlines(), 1):
        found = _WITH_TIME.fullmatch(line.strip())
        if found is None:
            yield WrongLine(number, f"got {shown(line)}, wanted ADDRESS TIME + SECONDS = TIME (banip --with-time)")
            continue
        try:
            at_s = int(datetime.strptime(found[2], "%Y-%m-%d %H:%M:%S").astimezone().timestamp())
        except (ValueError, OverflowError, OSError):
            yield WrongLine(number, f"got {shown(found[2])}, wanted a time")
            continue
        yield _fail2ban(number, found[1], at_s, int(found[3][:12]))


def read_crowdsec(file: Path) -> Rows:
    """`cscli decisions list -o json` or `-o raw` (CSV), decisions of its API, or a CSV for `cscli decisions import`.

    Durations are what was left when the file was written: its time of change is taken for that moment.

    Raises:
        ConfigurationError: the file is none of these.
    """
    text = _text(file)
    at_ms = int(file.stat().st_mtime * 1000)
    rows = _json_rows(text, file) if text.lstrip()[:1] in ("[", "{", "n", "") else _csv_rows(text, file)
    for number, row in enumerate(rows, 1):
        yield _crowdsec(number, row, at_ms)


def _json_rows(text: str, file: Path) -> list[dict[str, Any]]:
    try:
        alerts = json.loads(text or "null") or []
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: no JSON: {error}") from error
    if isinstance(alerts, dict):  # the API's stream of decisions, from its beginning
        alerts = alerts.get("new") or [] if "new" in alerts else alerts
    rows = []
    for alert in alerts if isinstance(alerts, list) else []:
        decisions = alert.get("decisions", [alert]) if isinstance(alert, dict) else []
        rows += [one for one in decisions or [] if isinstance(one, dict)]
    if alerts and not rows:
        raise ConfigurationError(f"{file}: no decisions in it, as `cscli decisions list -o json` writes them")
    return rows


def _csv_rows(text: str, file: Path) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text, newline=""))  # lines end as in CSV, not wherever Unicode sees an end
    try:
        names = {(name or "").strip() for name in reader.fieldnames or ()}
        if not (names & {"ip", "value"} and names & {"expiration", "duration"}):
            raise ConfigurationError(
                f"{file}: no header of CrowdSec's: wanted ip and expiration, or value and duration"
            )
        return [{str(name).strip(): value for name, value in row.items()} for row in reader]
    except csv.Error as error:
        raise ConfigurationError(f"{file}: no CSV: {error}") from error


def _crowdsec(number: int, row: dict[str, Any], at_ms: int) -> ForeignBan | WrongLine:
    def field(*names: str) -> str:
        return next((str(row[name]).strip() for name in names if row.get(name) not in (None, "")), "")

    scope, value = field("scope"), field("value", "ip")
    if not scope and value.partition(":")[0].lower() in ("ip", "range", "country", "as", "username"):
        scope, _, value = value.partition(":")
    kind = field("type", "action") or "ban"
    if field("simulated").lower() == "true":
        return WrongLine(number, f"{shown(value)}: simulated, so nobody is banned")
    if scope.lower() not in ("", "ip", "range"):
        return WrongLine(number, f"scope {shown(scope)}: only addresses and ranges are taken")
    if kind not in _KINDS:
        return WrongLine(number, f"type {shown(kind)}: wanted ban or captcha")
    left_ms = go_duration(field("duration", "expiration"))
    if left_ms is None:
        return WrongLine(number, f"duration: got {shown(field('duration', 'expiration'))}, wanted for example 3h59m45s")
    return ForeignBan(number, value, _KINDS[kind], at_ms + left_ms)


def go_duration(text: str) -> int | None:
    """Milliseconds of a duration as Go (`3h59m45.1s`, also negative) or CrowdSec (`30d`) writes it, or None."""
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text)
    parts = _GO_DURATION.findall(rest)
    if not parts or "".join(number + unit for number, unit in parts) != rest:
        return None
    total = sum(float(number) * _GO_MS[unit] for number, unit in parts)
    return sign * int(total) if total < _MOST_SECONDS * 1000 else None


def _text(file: Path) -> str:
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ConfigurationError(f"{file}: larger than {_MOST_BYTES >> 20} MiB")
        return file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file}: cannot be read: {cause(error)}") from error


READERS: Final[dict[str, Callable[[Path], Rows]]] = {"fail2ban": read_fail2ban, "crowdsec": read_crowdsec}
