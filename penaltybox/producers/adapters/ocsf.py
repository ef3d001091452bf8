"""OCSF events in JSON, one a line: HTTP, network and API activity and detection findings of security controls."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penaltybox.contracts.errors import BadEvent
from penaltybox.producers.adapters.choices import known, number, refusals, status_of
from penaltybox.producers.adapters.own_records import carried
from penaltybox.producers.adapters.reading import NO_SUCH_TIME, Adapter, Format, Passed, Reading, Unmatched, label
from penaltybox.producers.adapters.times import Times

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read

CLASSES: Final = {2004: "detection_finding", 4001: "network_activity", 4002: "http_activity", 6003: "api_activity"}
_ALLOWED: Final = 1
_DENIED: Final = 2
_DISPOSITIONS: Final[dict[int, tuple[Any, bool]]] = {
    1: ("allow", True),  # Allowed
    2: ("deny", True),  # Blocked
    6: ("deny", True),  # Dropped
    8: ("allow", True),  # Approved
    14: ("delay", True),  # Delayed
    15: ("deny", False),  # Detected, without further action
    16: ("allow", True),  # No Action
    17: ("allow", True),  # Logged
    19: ("deny", False),  # Alert, but not blocked
    20: ("deny", False),  # Count
    21: ("deny", True),  # Reset
    22: ("challenge", True),  # Captcha
    23: ("challenge", True),  # Challenge
    24: ("deny", True),  # Access Revoked
    25: ("deny", True),  # Rejected
    26: ("deny", True),  # Unauthorized
}
"""`disposition_id` -> action, enforced."""
_JUDGED: Final = ("deny", "challenge")
_NO_JSON: Final = Unmatched("not an OCSF event in JSON (class_uid, time)")
_NO_ADDRESS: Final = Unmatched("no src_endpoint.ip that is an address")
_OTHER: Final = Passed("an event of another class")
_NO_OUTCOME: Final = Passed("an event that does not say what a security control did")


class _Rule(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None
    uid: str | None = None
    rate_limit: Any = None


class _Endpoint(msgspec.Struct, frozen=True, gc=False):
    ip: str | None = None


class _Url(msgspec.Struct, frozen=True, gc=False):
    path: str | None = None


class _Request(msgspec.Struct, frozen=True, gc=False):
    method: str | None = msgspec.field(name="http_method", default=None)
    url: _Url | None = None


class _Response(msgspec.Struct, frozen=True, gc=False):
    code: Any = None


class _Person(msgspec.Struct, frozen=True, gc=False):
    uid: str | None = None


class _Actor(msgspec.Struct, frozen=True, gc=False):
    user: _Person | None = None


class _Product(msgspec.Struct, frozen=True, gc=False):
    name: str | None = None


class _Metadata(msgspec.Struct, frozen=True, gc=False):
    uid: str | None = None
    product: _Product | None = None


class _Evidence(msgspec.Struct, frozen=True, gc=False):
    source: _Endpoint | None = msgspec.field(name="src_endpoint", default=None)


class _Unmapped(msgspec.Struct, frozen=True, gc=False):
    decision: msgspec.Raw = msgspec.field(name="penaltybox_decision", default=msgspec.Raw())


class _Event(msgspec.Struct, frozen=True, gc=False):
    class_uid: int
    time: int | float | str
    action: int | None = msgspec.field(name="action_id", default=None)
    disposition: int | None = msgspec.field(name="disposition_id", default=None)
    rule: _Rule | None = msgspec.field(name="firewall_rule", default=None)
    source: _Endpoint | None = msgspec.field(name="src_endpoint", default=None)
    request: _Request | None = msgspec.field(name="http_request", default=None)
    response: _Response | None = msgspec.field(name="http_response", default=None)
    actor: _Actor | None = None
    metadata: _Metadata | None = None
    evidences: list[_Evidence] | None = None
    count: Any = None
    unmapped: _Unmapped | None = None


_decode = msgspec.json.Decoder(_Event).decode


class Ocsf(Adapter):
    """Reads events. A rule with a rate limit, or 429, makes a refusal a limit's; else its reason is unknown."""

    longest: ClassVar[int] = 1 << 18

    def __init__(self, options: Options) -> None:
        self._options = options
        self._times = Times(options.zone, options.now_ms)
        self._refusals = refusals(options)

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        try:
            event = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_JSON
        if event.class_uid not in CLASSES:
            return _OTHER
        own = self._own(event)
        if own is not None:
            return own
        said = _DISPOSITIONS.get(event.disposition or 0)
        if said is None and event.action in (_ALLOWED, _DENIED):
            said = ("allow" if event.action == _ALLOWED else "deny", True)
        if said is None:
            return _NO_OUTCOME
        ts_ms = self._times.millis(event.time)
        if ts_ms is None:
            return NO_SUCH_TIME
        ip = self._address(event)
        return _NO_ADDRESS if ip is None else self._reading(event, ts_ms, ip, *said)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        try:
            _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"JSON: {error}"
        return ""

    def _own(self, event: _Event) -> Reading | None:
        """What `penaltybox export ocsf` has put beside it: the decision itself."""
        if event.unmapped is None or not event.unmapped.decision:
            return None
        try:
            return carried(bytes(event.unmapped.decision), self._options.canonicaliser)
        except BadEvent:
            return None

    def _address(self, event: _Event) -> str | None:
        sources = [event.source, *(one.source for one in event.evidences or ())]
        return next((self._options.address(one.ip) for one in sources if one is not None and one.ip), None)

    def _reading(self, event: _Event, ts_ms: int, ip: str, action: Any, enforced: bool) -> Reading:  # noqa: FBT001 - as the table has it
        rule, request = event.rule or _Rule(), event.request or _Request()
        status = status_of(event.response.code) if event.response else None
        passed = action == "allow"
        is_limit = not passed and (number(rule.rate_limit) is not None or status in self._refusals)
        path = known(request.url.path) if request.url else ""
        targets = self._options.targets
        target = targets.of(known(request.method), path) if path and request.method else targets.unknown
        user = event.actor.user.uid if event.actor and event.actor.user else None
        subject = self._options.subject("user", known(user))
        return Reading(
            ts_ms=ts_ms,
            action=action,
            reason="over_limit" if is_limit else "unknown" if action in _JUDGED else None,
            violated=(label(f"ip:{known(rule.name) or known(rule.uid) or 'ocsf'}"),) if is_limit else (),
            subjects=({"user": subject} if subject else {}) | {"ip": ip},
            scenario=target.scenario,
            route=target.route,
            status=status,
            enforced=enforced,
            limit=number(rule.rate_limit) if is_limit else None,
            count=min(max(number(event.count) or 1, 1), 1_000_000),
            id=_id(event.metadata),
        )


def _id(about: _Metadata | None) -> str:
    """An event is known by who logged it and its uid."""
    if about is None or not about.uid:
        return ""
    product = known(about.product.name) if about.product else ""
    parts = f"{product}\0{about.uid}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(parts, digest_size=16).hexdigest()


FORMAT: Final = Format(
    "ocsf",
    Ocsf,
    (
        (
            b'{"class_uid":4002,"category_uid":4,"activity_id":6,"type_uid":400206,"time":1779012303123,"severity_id":1,'
            b'"action_id":2,"disposition_id":2,"metadata":{"version":"1.6.0","uid":"e1","product":{"name":"edge"}},'
            b'"src_endpoint":{"ip":"203.0.113.7","port":40112},"http_request":{"http_method":"POST","url":'
            b'{"path":"/login"}},"http_response":{"code":429},"firewall_rule":{"name":"per-ip","rate_limit":100}}'
        ),
        (
            b'{"class_uid":4002,"activity_id":3,"time":1779012304000,"action_id":1,"disposition_id":20,'
            b'"metadata":{"version":"1.6.0","product":{"name":"edge"}},"src_endpoint":{"ip":"2001:db8::7"},'
            b'"http_request":{"http_method":"GET","url":{"path":"/cart"}},"firewall_rule":{"name":"t","rate_limit":5}}'
        ),
        b'{"class_uid":3002,"time":1779012305000,"activity_id":1}',
    ),
)
