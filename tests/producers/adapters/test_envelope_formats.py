"""CloudEvents and OCSF: events that others' tools carry."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.producers.adapters.brief import brief, told
from tests.producers.adapters.reading_of import adapter, reading

if TYPE_CHECKING:
    from pathlib import Path

DATA = {
    "v": 1,
    "id": "01K3ZB5Q0V7M2X8R4T6Y9WABCD",
    "ts": 1779012303123,
    "source": "shop/edge-1",
    "scenario": "login",
    "action": "deny",
    "reason": "over_limit",
    "violated": ["ip:login"],
    "subjects": {"user": "10086", "ip": "203.0.113.7"},
    "status": 429,
    "count": 3,
}
DENIED = "deny over_limit ip:login | user=10086,ip=203.0.113.7 | 429 | -"
NO_EVENT = "unmatched: not a CloudEvent: id, source, specversion 1.0 and type are required"


def _event(**fields: Any) -> dict[str, Any]:
    given = {
        "specversion": "1.0",
        "id": "e1",
        "source": "/shop",
        "type": "penaltybox.decision.v1",
        "datacontenttype": "application/json",
        "data": DATA,
    }
    return {name: value for name, value in (given | fields).items() if value is not None}


KAFKA = ["ce_specversion", "1.0", "ce_id", "e1", "ce_source", "/shop", "ce_type", "penaltybox.decision.v1"]
STRUCTURED = ["content-type", "application/cloudevents+json; charset=UTF-8"]


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (_event(), DENIED),
        (_event(data=json.dumps(DATA)), DENIED),
        (_event(data=None, data_base64=base64.b64encode(json.dumps(DATA).encode()).decode()), DENIED),
        ({"headers": KAFKA, "payload": json.dumps(DATA)}, DENIED),
        ({"headers": {"Ce-Specversion": "1.0", "ce-id": "e1", "ce-source": "/s", "ce-type": "penaltybox.decision.v1"},
          "body": DATA}, DENIED),
        ({"headers": STRUCTURED, "payload": json.dumps(_event())}, DENIED),
        ([_event(), _event(type="other"), _event()], f"{DENIED} & {DENIED}"),
        ([], "passed: an empty batch"),
        ([_event(id="")], NO_EVENT),
        (_event(specversion="0.3"), NO_EVENT),
        (_event(source=None), NO_EVENT),
        (_event(data=DATA | {"violated": []}), "unmatched: data that is no decision in its wire form"),
        (_event(data=DATA | {"subjects": {"ip": "host"}}), "unmatched: data that is no decision in its wire form"),
        (_event(data=None), "unmatched: data that is no decision in its wire form"),
        (_event(data=None, data_base64="%"), "unmatched: data that is no decision in its wire form"),
        (_event(type="com.example.order"), "passed: an event of another type; --option mapping=FILE reads those"),
        ({"headers": STRUCTURED, "payload": "x"}, "unmatched: not JSON, nor a JSON array of events"),
        ({"headers": ["ce_id"], "payload": "x"}, NO_EVENT),
        (7, "unmatched: not JSON, nor a JSON array of events"),
        ([_event()] * 1001, "unmatched: a batch of more than 1000 events"),
    ],
)  # fmt: skip
def test_cloudevents(document: Any, expected: str) -> None:
    """Structured, batched and binary events are the same decision; attributes that are required are."""
    assert told("cloudevents", json.dumps(document)) == expected


def test_a_decision_keeps_its_id_and_count() -> None:
    """Read from two places, it counts once."""
    found = reading("cloudevents", json.dumps(_event()).encode())
    assert (found.id, found.count, found.ts_ms) == (DATA["id"], 3, DATA["ts"])


def test_events_of_other_types_are_read_by_a_mapping(tmp_path: Path) -> None:
    """Fields are the event's; source and id together are its identity."""
    path = tmp_path / "mapping.yaml"
    path.write_text(
        "rules: [{match: {type: com.example.limited}, time: {from: time}, subjects: {ip: data.client}, action: deny, "
        "violated: ['ip:orders']}]"
    )
    log = adapter("cloudevents", values={"mapping": str(path)})
    event = _event(type="com.example.limited", time="2026-05-17T10:05:03Z", data={"client": "203.0.113.7"})
    first, other = (log.read(json.dumps(event | {"source": source}).encode()) for source in ("/a", "/b"))
    assert brief(first) == "deny over_limit ip:orders | ip=203.0.113.7 | - | -"
    assert len({first.id, other.id}) == 2  # type: ignore[union-attr]


def test_what_is_wrong_with_an_event_is_explained() -> None:
    """Which attribute is missing, or what of the data is wrong."""
    log = adapter("cloudevents")
    assert log.explain(json.dumps(_event(source=None)).encode()) == "missing: source"
    assert "violated" in log.explain(json.dumps(_event(data=DATA | {"violated": []})).encode())
    assert log.explain(b"7").startswith("wanted an object")
    assert log.explain(json.dumps([_event()]).encode()) == ""


def _ocsf(**fields: Any) -> str:
    given = {
        "class_uid": 4002,
        "time": 1779012303123,
        "action_id": 2,
        "disposition_id": 2,
        "src_endpoint": {"ip": "203.0.113.7"},
        "http_request": {"http_method": "POST", "url": {"path": "/login"}, "x_forwarded_for": ["198.51.100.1"]},
        "http_response": {"code": 403},
        "firewall_rule": {"name": "per-ip", "rate_limit": 100},
    }
    return json.dumps(given | fields)


LIMITED = "over_limit ip:per-ip | ip=203.0.113.7 | 403 | POST /login | limit=100"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_ocsf(), f"deny {LIMITED}"),
        (_ocsf(disposition_id=20, action_id=1), f"deny {LIMITED.replace(' |', ' (dry run) |', 1)}"),
        (_ocsf(disposition_id=22), f"challenge {LIMITED}"),
        (_ocsf(disposition_id=14), f"delay {LIMITED}"),
        (_ocsf(disposition_id=None), f"deny {LIMITED}"),
        (_ocsf(firewall_rule={"uid": "r1"}), "deny unknown | ip=203.0.113.7 | 403 | POST /login"),
        (_ocsf(firewall_rule=None, http_response={"code": 429}),
         "deny over_limit ip:ocsf | ip=203.0.113.7 | 429 | POST /login"),
        (_ocsf(disposition_id=1, action_id=1, actor={"user": {"uid": "10086"}}),
         "allow | user=10086,ip=203.0.113.7 | 403 | POST /login"),
        (_ocsf(class_uid=2004, src_endpoint=None, evidences=[{}, {"src_endpoint": {"ip": "2001:db8::7"}}]),
         f"deny {LIMITED.replace('203.0.113.7', '2001:db8::7')}"),
        (_ocsf(class_uid=3002), "passed: an event of another class"),
        (_ocsf(disposition_id=0, action_id=0), "passed: an event that does not say what a security control did"),
        (_ocsf(disposition_id=27, action_id=None), "passed: an event that does not say what a security control did"),
        (_ocsf(src_endpoint={"ip": "host"}), "unmatched: no src_endpoint.ip that is an address"),
        (_ocsf(time=0), "unmatched: a time that does not exist"),
        (_ocsf(unmapped={"penaltybox_decision": DATA}), DENIED),
        (_ocsf(unmapped={"penaltybox_decision": {}}), f"deny {LIMITED}"),
        ('{"class_uid":"x"}', "unmatched: not an OCSF event in JSON (class_uid, time)"),
    ],
)  # fmt: skip
def test_ocsf(line: str, expected: str) -> None:
    """Dispositions are actions; a rule with a rate limit, or 429, is a limit's."""
    assert told("ocsf", line) == expected


def test_an_event_of_ocsf_is_known_by_product_and_uid() -> None:
    """Read from two places it counts once."""
    about = {"uid": "e1", "product": {"name": "edge"}}
    first = reading("ocsf", _ocsf(metadata=about, count=5).encode())
    assert first.count == 5
    assert first.id == reading("ocsf", _ocsf(metadata=about).encode()).id != ""
    assert first.id != reading("ocsf", _ocsf(metadata=about | {"uid": "e2"}).encode()).id
