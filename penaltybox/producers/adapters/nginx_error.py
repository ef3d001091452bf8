"""nginx's error log: what `limit_req` and `limit_conn` refused, delayed, or would have (dry run)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.adapters.choices import KEYED_BY, keyed_by
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_SUCH_TIME,
    Adapter,
    Format,
    Passed,
    Reading,
    Unmatched,
    decoded,
    label,
)
from penaltybox.producers.adapters.times import Times

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read

_HEAD: Final = (
    ("time", r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) "),
    ("level", r"\[[a-z]+\] "),
    ("process", r"\d+#\d+: "),
)
_ANY: Final = Form(*_HEAD, ("message", r".*"))
# All up to the client's address is nginx's own or its configuration's. The request line is written as it came.
_LIMITED: Final = Form(
    *_HEAD,
    ("connection", r"\*\d+ "),
    ("message", r"(limiting requests|limiting connections|delaying request)"),
    ("dry run", r"(, dry run,?)?"),
    ("excess", r"(?:, excess: (\d+\.\d+),?)?"),
    ("zone", r' by zone "([^"]*)"'),
    ("action", r"(?: while [a-zA-Z0-9/ ]+)?"),
    ("client address", r", (?:udp )?client: ([^ ,]+)"),
    ("server", r'(?:, server: [^,]*+(?:,(?! request: ")[^,]*+)*+)?'),
    ("request", r'(?:, request: "([^"]*+(?:"(?!$|, (?:subrequest|upstream|host|referrer): )[^"]*+)*+)(?:".*)?)?'),
)
_STATUS: Final = 503
_MAX_ZONES: Final = 1000
_OTHER: Final = Passed("another message of nginx")
_NO_LINE: Final = Unmatched("not a line of nginx's error log")
_NO_FORM: Final = Unmatched("says that it is about a limit, in a form that is not nginx's")


class NginxError(Adapter):
    """Reads `limiting requests`, `limiting connections` and `delaying request`; other messages are passed over."""

    def __init__(self, options: Options) -> None:
        if len(options.reject_statuses) > 1:
            raise ConfigurationError(
                f"nginx-error: got --status {sorted(options.reject_statuses)}, wanted one, as limit_req_status sets it"
            )
        self._options = options
        self._times = Times(options.zone, options.now_ms)
        self._violated: dict[str, tuple[str]] = {}
        self._keyed_by = keyed_by(options)
        self._shared = frozenset(options.values.get("shared", "").split(","))
        self._status = next(iter(options.reject_statuses), _STATUS)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        text = decoded(line)
        match = _LIMITED.match(text)
        if match is None:
            return self._other(line, text)
        time, message, dry_run, excess, zone, client, request = match.groups()
        ts_ms = self._times.nginx(time)
        if ts_ms is None:
            return NO_SUCH_TIME
        ip = self._options.address(client)
        if ip is None:
            return NO_ADDRESS
        targets = self._options.targets
        target = targets.of_line(request) if request is not None else targets.unknown
        refused = message != "delaying request"
        return Reading(
            ts_ms=ts_ms,
            action="deny" if refused else "delay",
            reason="over_limit",
            violated=self._violated.get(zone) or self._named(zone),
            subjects={"ip": ip},
            scenario=target.scenario,
            route=target.route,
            status=self._status if refused and not dry_run else None,
            enforced=not dry_run,
            attrs={"excess": excess} if excess else {},
        )

    def _named(self, zone: str) -> tuple[str]:
        if len(self._violated) >= _MAX_ZONES:
            self._violated.clear()
        dimension = "shared" if zone in self._shared else self._keyed_by
        named = self._violated[zone] = (label(f"{dimension}:{zone}"),)
        return named

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        return _LIMITED.explain(decoded(line))

    @staticmethod
    def _other(line: bytes, text: str) -> Read:
        if _ANY.match(text) is None:
            return _NO_LINE
        about_limits = b": *" in line and (b" limiting requests" in line[:80] or b" delaying request" in line[:80])
        return _NO_FORM if about_limits else _OTHER


FORMAT: Final = Format(
    "nginx-error",
    NginxError,
    (
        (
            b'2026/05/17 10:05:03 [error] 31#31: *7 limiting requests, excess: 5.123 by zone "perip", '
            b'client: 203.0.113.7, server: shop.example, request: "POST /login HTTP/1.1", host: "shop.example"'
        ),
        (
            b'2026/05/17 10:05:04 [warn] 31#31: *8 delaying request, excess: 0.512, by zone "perip", '
            b'client: 203.0.113.8, server: , request: "GET /a?b=c HTTP/2.0", host: "shop.example"'
        ),
        (
            b'2026/05/17 10:05:05 [error] 31#31: *9 limiting requests, dry run, excess: 1.000 by zone "new", '
            b'client: 2001:db8::7, server: shop.example, request: "GET /", host: "shop.example"'
        ),
        (
            b'2026/05/17 10:05:06 [error] 31#31: *9 limiting connections by zone "conns", '
            b'client: 203.0.113.9, server: shop.example, request: "GET /big.iso HTTP/1.1", host: "shop.example"'
        ),
        b"2026/05/17 10:05:07 [notice] 1#1: signal process started",
    ),
    {"keyed-by": KEYED_BY, "shared": "zones that all requests share, with commas: nobody is charged for them"},
    programs=frozenset({"nginx", "openresty"}),
)
