"""`penaltybox export`: records as CloudEvents and OCSF, from standard input."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from penaltybox.cli import exported_cloudevents, exported_ocsf
from penaltybox.cli.commands import app
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors import topic_log
from penaltybox.producers.adapters.reading import Options, Reading
from penaltybox.producers.adapters.registry import load
from penaltybox.producers.adapters.targets import Targets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from click.testing import Result

    from penaltybox.contracts.settings import Settings

DECISION: dict[str, Any] = {
    "v": 1,
    "id": "01K3ZB5Q0V7M2X8R4T6Y9WABCD",
    "ts": 1779012303123,
    "source": "shop/edge 1",
    "scenario": "login",
    "action": "deny",
    "reason": "over_limit",
    "violated": ["device:daily", "ip:login"],
    "subjects": {"user": "a@b", "ip": "203.0.113.7"},
    "route": "POST /login",
    "status": 429,
    "limit": 3,
    "count": 2,
}
PENALTY: dict[str, Any] = {
    "v": 1,
    "id": "5d2fa27c122a382d32bcca1308d3fe85",
    "ts": 1779012303123,
    "subject": "ip:203.0.113.7",
    "from": "none",
    "to": "1h",
    "to_ms": 3600000,
    "action": "deny",
    "until": 1779015903123,
    "rule": "ip_stuffing",
    "policy_version": "538d2193a646",
    "evidence": {"scenario": "login", "rules": ["ip_stuffing"]},
    "trigger_id": "01K3ZB5Q0V7M2X8R4T6Y9WABCD",
    "seq": 7,
}
OUTCOME = {"v": 1, "id": "o1", "ts": 1779012303123, "label": "payment_ok", "subjects": {"user": "10086"}}


def _run(form: str, *records: object, topic: str = "-", options: tuple[str, ...] = ()) -> Result:
    lines = "\n".join(one if isinstance(one, str) else json.dumps(one) for one in records)
    return CliRunner().invoke(app, ["export", form, topic, *options], input=lines, catch_exceptions=False)


def _events(form: str, *records: object) -> list[dict[str, Any]]:
    result = _run(form, *records)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_records_become_cloudevents() -> None:
    """Required attributes are there, ids are the records', and the data is the record."""
    decision, penalty, outcome = _events("cloudevents", DECISION, PENALTY, OUTCOME)
    assert decision == {
        "specversion": "1.0",
        "id": DECISION["id"],
        "source": "/penaltybox/shop/edge%201",
        "type": "penaltybox.decision.v1",
        "subject": "user:a%40b",
        "time": "2026-05-17T10:05:03.123Z",
        "datacontenttype": "application/json",
        "partitionkey": "user:a%40b",
        "data": DECISION,
    }
    assert (penalty["type"], penalty["subject"]) == ("penaltybox.penalty.v1", "ip:203.0.113.7")
    assert penalty["data"]["until"] == PENALTY["until"]
    assert (outcome["type"], outcome["subject"]) == ("penaltybox.outcome.v1", "user:10086")
    assert exported_cloudevents.missing({"id": "", "source": "/x"}) == ["id", "specversion", "type"]


def test_decisions_become_http_activity() -> None:
    """Class, activity and disposition are what OCSF calls them; the first violated limit is the rule."""
    (event,) = _events("ocsf", DECISION)
    assert (event["class_uid"], event["category_uid"], event["activity_id"], event["type_uid"]) == (4002, 4, 6, 400206)
    assert (event["action_id"], event["disposition_id"], event["disposition"]) == (2, 2, "Blocked")
    assert event["src_endpoint"] == {"ip": "203.0.113.7", "owner": {"uid": "a@b"}}
    assert event["http_request"]["url"] == {"path": "/login"}
    assert event["http_response"] == {"code": 429}
    assert event["firewall_rule"]["name"] == "device:daily"
    assert event["firewall_rule"]["rate_limit"] == 3
    assert event["metadata"]["product"]["vendor_name"] == "penaltybox"
    assert event["count"] == 2
    assert event["unmapped"]["penaltybox_decision"] == DECISION


@pytest.mark.parametrize(
    ("changes", "disposition", "severity"),
    [
        ({"action": "allow", "reason": None, "violated": []}, 1, 1),
        ({"action": "delay"}, 14, 1),
        ({"action": "challenge"}, 23, 2),
        ({"action": "shadow"}, 7, 2),
        ({"enforced": False}, 20, 2),
        ({"subjects": {"device": "d1"}, "route": "", "status": None}, 2, 2),
        ({"route": "PROPFIND /x"}, 2, 2),
        ({"route": "INVALID"}, 2, 2),
    ],
)
def test_every_decision_has_what_ocsf_requires(changes: dict[str, Any], disposition: int, severity: int) -> None:
    """Whatever a decision leaves out, nothing that is required is missing."""
    (event,) = _events("ocsf", {name: value for name, value in (DECISION | changes).items() if value is not None})
    assert exported_ocsf.missing(event) == []
    assert (event["disposition_id"], event["severity_id"]) == (disposition, severity)


@pytest.mark.parametrize(
    ("changes", "activity", "disposition", "severity", "alert"),
    [
        ({}, 1, 2, 3, True),
        ({"from": "5m"}, 2, 2, 3, True),
        ({"until": None, "to": "permanent"}, 1, 2, 4, True),
        ({"action": "warn", "to": "warn"}, 1, 19, 2, False),
        ({"action": "challenge"}, 1, 23, 2, True),
        ({"action": "lift", "from": "1h", "to": "none", "origin": "hand", "rule": "", "actor": "ann"}, 3, 1, 1, False),
        ({"action": "note"}, 1, 17, 1, False),
        ({"shadow": True}, 1, 20, 1, False),
        ({"subject": "user:a%40b"}, 1, 2, 3, True),
    ],
)
def test_penalties_become_detection_findings(
    changes: dict[str, Any], activity: int, disposition: int, severity: int, *, alert: bool
) -> None:
    """A subject's penalties are one finding, created, updated and closed."""
    (event,) = _events("ocsf", PENALTY | changes)
    assert exported_ocsf.missing(event) == []
    assert (event["class_uid"], event["type_uid"]) == (2004, 200400 + activity)
    assert (event["disposition_id"], event["severity_id"], event["is_alert"]) == (disposition, severity, alert)
    assert event["finding_info"]["uid"] == (PENALTY | changes)["subject"]
    assert event["unmapped"]["penaltybox_penalty"]["id"] == PENALTY["id"]


def test_what_ocsf_requires_is_checked() -> None:
    """Attributes of the class, one of several, objects inside, and the arithmetic of type_uid."""
    event = _events("ocsf", DECISION)[0]
    broken = event | {"time": None, "type_uid": 1, "metadata": {"product": {"name": "x"}, "version": "1"}}
    for name in ("src_endpoint", "dst_endpoint", "http_request", "http_response"):
        del broken[name]
    assert exported_ocsf.missing(broken) == [
        "time",
        "dst_endpoint or src_endpoint",
        "http_request or http_response",
        "metadata.product.vendor_name",
        "type_uid = class_uid * 100 + activity_id",
    ]


@pytest.mark.parametrize("form", ["cloudevents", "ocsf"])
def test_what_is_exported_can_be_ingested(form: str) -> None:
    """A decision that went out and came back is the same decision."""
    adapter = load(form).make(Options(Canonicaliser(), Targets()))
    found = adapter.read(_run(form, DECISION).stdout.strip().encode())
    assert isinstance(found, Reading)
    assert (found.id, found.violated, found.subjects) == (
        DECISION["id"],
        ("device:daily", "ip:login"),
        DECISION["subjects"],
    )


def test_records_that_are_none_are_left_out() -> None:
    """The others are written, and the exit code says that some are missing."""
    wrong = ['{"x":1}', "no json", DECISION | {"ts": 1 << 51}, DECISION | {"subjects": {"ip": "host", "device": ""}}]
    result = _run("cloudevents", *wrong, "", DECISION, "x" * 20_000)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 1


def test_only_what_is_new_enough() -> None:
    """`--since` counts by the record's own time."""
    result = _run("cloudevents", DECISION, options=("--since", "2026-05-18"))
    assert (result.exit_code, result.stdout) == (0, "")


def test_topics_that_do_not_fit_are_refused() -> None:
    """The message says which there are."""
    with pytest.raises(ConfigurationError, match="decisions, outcomes, penalties, or -"):
        _run("cloudevents", topic="ladders")
    with pytest.raises(ConfigurationError, match="no class"):
        _run("ocsf", topic="outcomes")


def test_a_topic_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of the topic that the settings name; tombstones are nothing, a wrong record is told with its place."""
    asked: list[str] = []

    async def records(_: Settings, topic: str) -> AsyncIterator[SimpleNamespace]:
        asked.append(topic)
        for offset, value in enumerate([json.dumps(PENALTY).encode(), None, b"{}"]):
            yield SimpleNamespace(partition=1, offset=offset, value=value)

    monkeypatch.setattr(topic_log, "read_topic", records)
    monkeypatch.setenv("PENALTYBOX_TOPIC_PREFIX", "mine")
    result = _run("cloudevents", topic="penalties")
    assert (result.exit_code, asked) == (1, ["mine.penalties"])
    assert json.loads(result.stdout)["id"] == PENALTY["id"]
    assert "partition 1, offset 2: no decision, outcome or penalty" in result.stderr
