"""Records as OCSF events: decisions as HTTP activity, penalties as detection findings, by the security control profile.

Ids and requirements are those of https://schema.ocsf.io: base event, `network`, `http_activity`, `finding`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox import __version__
from penaltybox.contracts.events import Decision, Penalty
from penaltybox.contracts.subjects import decode_value, most_specific

if TYPE_CHECKING:
    from penaltybox.contracts.subjects import Canonicaliser

VERSION: Final = "1.6.0"
"""Of the schema."""
_HTTP: Final = 4002
_FINDING: Final = 2004
_METHODS: Final = {
    "CONNECT": 1,
    "DELETE": 2,
    "GET": 3,
    "HEAD": 4,
    "OPTIONS": 5,
    "POST": 6,
    "PUT": 7,
    "TRACE": 8,
}
_OTHER: Final = 99
_ALLOWED: Final = (1, "Allowed")
_DENIED: Final = (2, "Denied")
_Outcome = tuple[tuple[int, str], tuple[int, str]]
_COUNTED: Final[_Outcome] = (_ALLOWED, (20, "Count"))
_DECIDED: Final[dict[str, _Outcome]] = {
    "allow": (_ALLOWED, (1, "Allowed")),
    "delay": (_ALLOWED, (14, "Delayed")),
    "challenge": (_DENIED, (23, "Challenge")),
    "deny": (_DENIED, (2, "Blocked")),
    "shadow": (_DENIED, (7, "Custom Action")),
}
_TAKEN: Final[dict[str, _Outcome]] = {
    "warn": (_ALLOWED, (19, "Alert")),
    "challenge": (_DENIED, (23, "Challenge")),
    "deny": (_DENIED, (2, "Blocked")),
    "lift": (_ALLOWED, (1, "Allowed")),
    "note": (_ALLOWED, (17, "Logged")),
}
_INFORMATIONAL: Final = (1, "Informational")
_LOW: Final = (2, "Low")
_MEDIUM: Final = (3, "Medium")
_HIGH: Final = (4, "High")
_BASE: Final = ("activity_id", "category_uid", "class_uid", "metadata", "severity_id", "time", "type_uid")
_REQUIRED: Final = {_HTTP: _BASE, _FINDING: (*_BASE, "finding_info")}
_ONE_OF: Final = {_HTTP: (("dst_endpoint", "src_endpoint"), ("http_request", "http_response")), _FINDING: ()}
_INNER: Final = {
    "metadata": ("product", "version"),
    "metadata.product": ("name", "vendor_name"),
    "finding_info": ("title", "uid"),
    "finding_info.analytic": ("type_id",),
    "http_response": ("code",),
}


def ocsf_event(record: Decision | Penalty, canonicaliser: Canonicaliser) -> dict[str, Any]:
    """The record as an event; the record itself is in `unmapped`, so nothing is lost."""
    return _decision(record, canonicaliser) if isinstance(record, Decision) else _penalty(record)


def missing(event: dict[str, Any]) -> list[str]:
    """The attributes that the event's class requires and it lacks, objects inside of it included."""
    kind = event["class_uid"]
    found = [name for name in _REQUIRED[kind] if event.get(name) is None]
    found += [" or ".join(names) for names in _ONE_OF[kind] if not any(name in event for name in names)]
    for path, names in _INNER.items():
        inner: Any = event
        for key in path.split("."):
            inner = inner.get(key) if isinstance(inner, dict) else None
        if inner is not None:
            found += [f"{path}.{name}" for name in names if inner.get(name) in (None, "")]
    if event.get("type_uid") != kind * 100 + event.get("activity_id", 0):
        found.append("type_uid = class_uid * 100 + activity_id")
    return found


def _decision(record: Decision, canonicaliser: Canonicaliser) -> dict[str, Any]:
    method, _, path = record.route.rpartition(" ")
    activity = _METHODS.get(method, _OTHER if method else 0)
    passed = record.action in ("allow", "delay")
    outcome = _DECIDED[record.action] if record.enforced or passed else _COUNTED
    said = " ".join((record.action, record.reason or "", *record.violated)).strip()
    event = _head(_HTTP, (4, "Network Activity"), "HTTP Activity", activity, _INFORMATIONAL if passed else _LOW)
    event |= _outcome(outcome) | {
        "activity_name": method.capitalize() if activity != _OTHER else method,
        "time": record.ts,
        "message": said,
        "status_id": 1 if outcome[0] is _ALLOWED else 2,
        "metadata": _metadata(record.id, "decisions"),
        "src_endpoint": _endpoint(record, canonicaliser),
        "dst_endpoint": {"svc_name": record.source},
        "http_request": {"uid": record.id} | ({"http_method": method} if method else {}) | _url(path),
        "unmapped": {"penaltybox_decision": msgspec.to_builtins(record)},
    }
    if not event["activity_name"]:
        event["activity_name"] = "Unknown"
    if record.status is not None:
        event["http_response"] = {"code": record.status}
    if record.count > 1:
        event["count"] = record.count
    if record.violated:
        limit = {} if record.limit is None else {"rate_limit": record.limit}
        event["firewall_rule"] = {"name": record.violated[0], "uid": record.violated[0], "type": "rate limit"} | limit
    return event


def _penalty(record: Penalty) -> dict[str, Any]:
    outcome = _COUNTED if record.shadow else _TAKEN[record.action]
    ended = record.action == "lift"
    activity = 3 if ended else 1 if record.from_ == "none" else 2
    dimension, _, value = record.subject.partition(":")
    title = f"{record.subject}: {record.action} {record.to}, by {record.rule or record.actor or record.origin}"
    event = _head(_FINDING, (2, "Findings"), "Detection Finding", activity, _severity(record))
    event |= _outcome(outcome) | {
        "activity_name": ("Create", "Update", "Close")[activity - 1],
        "time": record.ts,
        "message": title,
        "status_id": 4 if ended else 1,
        "is_alert": not record.shadow and record.action in ("challenge", "deny"),
        "metadata": _metadata(record.id, "penalties"),
        "finding_info": {
            "uid": record.subject,  # a subject's penalties are one finding: created, updated, closed
            "title": title,
            "desc": record.note or title,
            "created_time": record.ts,
            "analytic": _analytic(record),
        },
        "evidences": [{"data": dict(record.evidence)} | _source(dimension, value)],
        "unmapped": {"penaltybox_penalty": msgspec.to_builtins(record)},
    }
    return event


def _analytic(record: Penalty) -> dict[str, Any]:
    name = record.rule or record.origin
    return {"name": name, "uid": name, "type_id": 1, "type": "Rule", "version": record.policy_version}


def _head(kind: int, category: tuple[int, str], name: str, activity: int, severity: tuple[int, str]) -> dict[str, Any]:
    return {
        "class_uid": kind,
        "class_name": name,
        "category_uid": category[0],
        "category_name": category[1],
        "activity_id": activity,
        "type_uid": kind * 100 + activity,
        "severity_id": severity[0],
        "severity": severity[1],
    }


def _outcome(outcome: _Outcome) -> dict[str, Any]:
    (action_id, action), (disposition_id, disposition) = outcome
    return {"action_id": action_id, "action": action, "disposition_id": disposition_id, "disposition": disposition}


def _metadata(uid: str, log_name: str) -> dict[str, Any]:
    product = {"name": "penaltybox", "vendor_name": "penaltybox", "version": __version__}
    return {"version": VERSION, "uid": uid, "product": product, "log_name": log_name, "profiles": ["security_control"]}


def _endpoint(record: Decision, canonicaliser: Canonicaliser) -> dict[str, Any]:
    subjects = record.subjects
    dimension = most_specific(subjects)
    user = {"owner": {"uid": subjects["user"]}} if "user" in subjects else {}
    if "ip" in subjects and "ip" not in canonicaliser.hashed:
        return {"ip": subjects["ip"]} | user
    return {"uid": canonicaliser.subject(dimension, subjects[dimension])} | user


def _url(path: str) -> dict[str, Any]:
    return {"url": {"path": path}} if path.startswith("/") else {}


def _source(dimension: str, value: str) -> dict[str, Any]:
    if dimension == "ip":
        return {"src_endpoint": {"ip": value}}
    return {"user": {"uid": decode_value(value)}} if dimension == "user" else {}


def _severity(record: Penalty) -> tuple[int, str]:
    if record.shadow or record.action in ("lift", "note"):
        return _INFORMATIONAL
    if record.action != "deny":
        return _LOW
    return _MEDIUM if record.until is not None else _HIGH
