"""ModSecurity: its messages in Apache's and nginx's error log, and its JSON audit log (versions 2 and 3).

Most of its rules are about attacks and are nobody's limit: those refusals are told with the reason `unknown`. A limit
is what refuses with 429 (or ``--status``), and the rules that ``--option rules`` names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.adapters.apache_errors import error_line
from penaltybox.producers.adapters.choices import KEYED_BY, keyed_by, refusals, status_of
from penaltybox.producers.adapters.forms import Form
from penaltybox.producers.adapters.months import iso
from penaltybox.producers.adapters.reading import (
    NO_ADDRESS,
    NO_TIME,
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
    from penaltybox.producers.adapters.targets import Target

_NGINX: Final = Form(
    ("time", r"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) "),
    ("level", r"\[[a-z]+\] "),
    ("process", r"\d+#\d+: "),
    ("connection", r"\*\d+ "),
    ("client address", r"\[client ([^\] ]+)\] "),
    ("message", r"(ModSecurity: .*)"),
)
_MESSAGE: Final = re.compile(
    r"(?:\[client [^\]]*\] )?ModSecurity: (?:(Warning)\.|Access denied with (?:code (\d{3}) )?).*?"
    r'\[file "[^"]*"\] \[line "\d+"\] \[id "(\d+)"\]',
    re.ASCII,
)
_CTIME: Final = re.compile(r"[A-Z][a-z][a-z] ([A-Z][a-z][a-z]) ([ \d]\d) (\d\d:\d\d:\d\d) (\d{4})", re.ASCII)
_AUDIT_TIME: Final = re.compile(r"(\d\d/[A-Z][a-z][a-z]/\d{4}:\d\d:\d\d:\d\d)(?:\.\d+)? ([+-]\d{4})", re.ASCII)
_AUDIT_RULE: Final = re.compile(r'\[file "[^"]*"\] \[line "\d+"\] \[id "(\d+)"\]', re.ASCII)
_NO_LINE: Final = Unmatched("not a line of an error log, nor a JSON audit log of ModSecurity")
_OTHER: Final = Passed("another message")
_WARNING: Final = Passed("a warning of a rule that is no limit")


class _Details(msgspec.Struct, frozen=True, gc=False):
    rule: str | int = msgspec.field(name="ruleId", default="")


class _Told(msgspec.Struct, frozen=True, gc=False):
    details: _Details = msgspec.field(default_factory=_Details)


class _Request(msgspec.Struct, frozen=True, gc=False):
    method: str = ""
    uri: str = ""
    line: str = msgspec.field(name="request_line", default="")


class _Response(msgspec.Struct, frozen=True, gc=False):
    code: Any = msgspec.field(name="http_code", default=None)
    status: Any = None


class _Producer(msgspec.Struct, frozen=True, gc=False):
    engine: str = msgspec.field(name="secrules_engine", default="")


class _Transaction(msgspec.Struct, frozen=True, gc=False):
    client: str = msgspec.field(name="client_ip", default="")
    remote: str = msgspec.field(name="remote_address", default="")
    stamp: str = msgspec.field(name="time_stamp", default="")
    time: str = ""
    interrupted: bool | None = msgspec.field(name="is_interrupted", default=None)
    request: _Request | None = None
    response: _Response | None = None
    producer: _Producer | None = None
    messages: list[_Told] = []


class _Action(msgspec.Struct, frozen=True, gc=False):
    intercepted: bool = False


class _AuditData(msgspec.Struct, frozen=True, gc=False):
    messages: list[str] = []
    action: _Action | None = None


class _Audit(msgspec.Struct, frozen=True, gc=False):
    transaction: _Transaction
    request: _Request | None = None
    response: _Response | None = None
    audit_data: _AuditData | None = None


_decode = msgspec.json.Decoder(_Audit).decode


class ModSecurity(Adapter):
    """Reads error logs and audit logs, line by line whichever it is."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._times = Times(options.zone, options.now_ms)
        self._refusals = refusals(options)
        self._keyed_by = keyed_by(options)
        rules = [one.strip() for one in options.values.get("rules", "").split(",") if one.strip()]
        if not all(one.isdigit() for one in rules):
            raise ConfigurationError(
                f"--option rules: got {','.join(rules)!r}, wanted ids of rules, such as 900220,900221"
            )
        self._rules = frozenset(rules)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        if line.startswith(b"{"):
            return self._audit(line)
        text = decoded(line)
        match = _NGINX.match(text)
        if match is not None:
            time, client, message = match.groups()
            return self._message(self._times.nginx(time), client, message)
        error = error_line(text, self._times)
        if error is None:
            return _NO_LINE
        return self._message(error.ts_ms, error.client, error.message)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        return _NGINX.explain(decoded(line)) if line[:1].isdigit() else ""

    def _message(self, ts_ms: int | None, client: str, message: str) -> Read:
        match = _MESSAGE.match(message)
        if match is None:
            return _OTHER
        warning, code, rule = match.groups()
        host, _, port = client.rpartition(":")
        ip = self._options.endpoint(client) or (self._options.address(host) if port.isdigit() else None)
        target = self._options.targets.unknown
        return self._reading(ts_ms, ip, rule, status_of(code), target, denied=not warning)

    def _audit(self, line: bytes) -> Read:
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_LINE
        about = found.transaction
        data = found.audit_data or _AuditData()
        answer = about.response or found.response or _Response()
        status = status_of(answer.code if answer.code is not None else answer.status)
        rules = [str(one.details.rule) for one in about.messages]
        rules += [match[1] for one in data.messages if (match := _AUDIT_RULE.search(one))]
        rule = next((one for one in rules if one in self._rules), rules[-1] if rules else "")
        engine = about.producer.engine if about.producer else ""
        if data.action is not None or about.interrupted is not None:
            denied = bool(about.interrupted or (data.action is not None and data.action.intercepted))
        else:  # version 3 up to 3.0.14 does not say so
            denied = engine != "DetectionOnly" and bool(rules) and (status or 0) >= 400  # noqa: PLR2004 - refused
        ip = self._options.address(about.client or about.remote)
        return self._reading(self._time(about), ip, rule, status, self._target(found), denied=denied)

    def _reading(
        self, ts_ms: int | None, ip: str | None, rule: str, status: int | None, target: Target, *, denied: bool
    ) -> Read:
        is_limit = rule in self._rules or (denied and status in self._refusals)
        if not denied and not is_limit:
            return _WARNING
        if ts_ms is None or ip is None:
            return NO_TIME if ts_ms is None else NO_ADDRESS
        return Reading(
            ts_ms=ts_ms,
            action="deny",
            reason="over_limit" if is_limit else "unknown",
            violated=(label(f"{self._keyed_by}:{rule or 'modsecurity'}"),) if is_limit else (),
            subjects={"ip": ip},
            scenario=target.scenario,
            route=target.route,
            status=status if denied else None,
            enforced=denied,
            attrs={"rule": rule} if rule.isdigit() and not is_limit else {},
        )

    def _time(self, about: _Transaction) -> int | None:
        match = _CTIME.fullmatch(about.stamp)
        if match is not None:
            month, day, time, year = match.groups()
            return self._times.rfc3339(iso(year, month, day, time))
        match = _AUDIT_TIME.fullmatch(about.time)
        return None if match is None else self._times.apache(f"{match[1]} {match[2]}")

    def _target(self, found: _Audit) -> Target:
        request = found.transaction.request or found.request
        if request is None:
            return self._options.targets.unknown
        if request.line:
            return self._options.targets.of_line(request.line)
        return self._options.targets.of(request.method, request.uri)


_WHERE: Final = b'[file "/etc/modsecurity/limits.conf"] [line "12"] [id "900220"] [msg "Too many logins"] '
FORMAT: Final = Format(
    "modsecurity",
    ModSecurity,
    (
        (
            b"[Sun May 17 10:05:03.123456 2026] [security2:error] [pid 7:tid 8] [client 203.0.113.7:51234] "
            b"[client 203.0.113.7] ModSecurity: Access denied with code 429 (phase 1). Operator GT matched 10 at "
            b"IP:logins. " + _WHERE + b'[hostname "shop.example"] [uri "/login"] [unique_id "aK1"]'
        ),
        (
            b"2026/05/17 10:05:04 [error] 31#31: *7 [client 203.0.113.8] ModSecurity: Access denied with code 403 "
            b"(phase 2). Matched \"Operator `Ge' with parameter `5' against variable `TX:score' (Value: `8' ) "
            + _WHERE.replace(b"900220", b"949110")
            + b'[uri "/"], client: 203.0.113.8, server: , request: "GET / HTTP/1.1"'
        ),
        (
            b'{"transaction":{"client_ip":"2001:db8::7","time_stamp":"Sun May 17 10:05:05 2026","client_port":40112,'
            b'"unique_id":"1779","is_interrupted":true,"request":{"method":"POST","http_version":"1.1",'
            b'"uri":"/login?x=1","headers":{"Host":"shop.example"}},"response":{"http_code":429,"headers":{}},'
            b'"producer":{"modsecurity":"ModSecurity v3.0.14 (Linux)","secrules_engine":"Enabled"},"messages":'
            b'[{"message":"Too many logins","details":{"ruleId":"900220","lineNumber":"12","data":""}}]}}'
        ),
        (
            b'{"transaction":{"time":"17/May/2026:10:05:06.123456 +0000","transaction_id":"aK2",'
            b'"remote_address":"203.0.113.9","remote_port":5},"request":{"request_line":"GET / HTTP/1.1",'
            b'"headers":{}},"response":{"protocol":"HTTP/1.1","status":403},"audit_data":{"messages":["Access denied '
            b'with code 403 (phase 2). [file \\"x\\"] [line \\"1\\"] [id \\"930120\\"]"],'
            b'"action":{"intercepted":true,"phase":2}}}'
        ),
    ),
    {"keyed-by": KEYED_BY, "rules": "ids of the rules that are limits, with commas: also their warnings, as dry runs"},
    programs=frozenset({"apache", "apache2", "httpd", "modsecurity", "nginx"}),
)
