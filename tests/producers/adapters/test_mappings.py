"""Any log by a mapping: text by patterns, JSON by conditions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.adapters.mapping import shipped
from penaltybox.producers.adapters.registry import load
from tests.producers.adapters.brief import told
from tests.producers.adapters.reading_of import options, reading

if TYPE_CHECKING:
    from pathlib import Path

TEXT = r"""
rules:
  - match: '(?P<at>\d+) denied (?P<who>\S+) (?P<client>\S+) "(?P<request>[^"]*)" (?P<code>\d+) left=(?P<left>\S*)'
    time: {from: at, format: unix_ms}
    subjects: {user: who, ip: client}
    action: deny
    violated: ["user:hourly"]
    route: {line: request}
    status: {from: code}
    remaining: {from: left}
    retry_after_s: 60
    attrs: {code: code}
  - match: '(?P<at>\d+) (?P<what>\w+) (?P<client>\S+)'
    time: {from: at, format: unix_ms}
    subjects: {ip: client}
    action: {from: what, values: {passed: allow, tried: deny, asked: challenge}}
    enforced: {from: what, values: {tried: false}}
    scenario: login
"""
LEFT = "remaining=0 | retry_after_s=60"
DOCUMENT = r"""
rules:
  - match: {kind: [limit, quota], "on": true}
    time: {from: at, format: unix}
    subjects: {ip: request.client.0, api_key: [request, "api.key"]}
    action: deny
    reason: {from: kind, values: {limit: over_limit, quota: over_limit}}
    violated: ["ip:per_minute", "api_key:quota"]
    route: {method: request.method, path: request.path}
    status: 429
    count: {from: times}
    id: id
"""


def _file(folder: Path, text: str) -> dict[str, str]:
    path = folder / "mapping.yaml"
    path.write_text(text, encoding="utf-8")
    return {"mapping": str(path)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('1779012303123 denied ann 203.0.113.7 "POST /login?x=1 HTTP/1.1" 429 left=0',
         f"deny over_limit user:hourly | user=ann,ip=203.0.113.7 | 429 | POST /login | {LEFT} | code=429"),
        ('1779012303123 denied - 2001:db8::7 "x" 999 left=-',
         "deny over_limit user:hourly | ip=2001:db8::7 | - | INVALID | retry_after_s=60 | code=999"),
        ("1779012303123 passed 203.0.113.7", "allow | ip=203.0.113.7 | - | -"),
        ("1779012303123 tried 203.0.113.7", "deny unknown (dry run) | ip=203.0.113.7 | - | -"),
        ("1779012303123 asked 203.0.113.7", "challenge unknown | ip=203.0.113.7 | - | -"),
        ("1779012303123 other 203.0.113.7", "passed: a value that the mapping leaves out"),
        ("1779012303123 passed host.example", "unmatched: no subject, or one that cannot be true"),
        ("99999999999999999999 passed 203.0.113.7", "unmatched: no time, or not in the format that the mapping names"),
        ("1779012303123 passed 203.0.113.7 more",
         "unmatched: no rule of the mapping has a pattern that matches the whole line"),
        ("1" * 4097, "unmatched: longer than 4096 characters"),
    ],
)  # fmt: skip
def test_text(line: str, expected: str, tmp_path: Path) -> None:
    """The first rule whose pattern matches the whole line makes the decision."""
    assert told("regex", line, values=_file(tmp_path, TEXT)) == expected


def _document(**fields: Any) -> str:
    asked = {"client": ["203.0.113.7", "10.0.0.1"], "api.key": "k1", "method": "GET", "path": "/a/7?x=1"}
    return json.dumps({"kind": "limit", "on": True, "at": 1779012303.123, "request": asked, "times": 3} | fields)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_document(),
         "deny over_limit ip:per_minute api_key:quota | ip=203.0.113.7,api_key=k1 | 429 | GET /a/{n}"),
        (_document(at="1779012303.123", kind="quota", request={"client": ["203.0.113.7"]}),
         "deny over_limit ip:per_minute api_key:quota | ip=203.0.113.7 | 429 | -"),
        (_document(request={"client": "203.0.113.7"}), "unmatched: no subject, or one that cannot be true"),
        (_document(request={"client": [["203.0.113.7"]]}), "unmatched: no subject, or one that cannot be true"),
        (_document(at=True), "unmatched: no time, or not in the format that the mapping names"),
        (_document(at=10**40), "unmatched: no time, or not in the format that the mapping names"),
        (_document(on=False), "unmatched: no rule of the mapping fits"),
        (_document(kind=None), "unmatched: no rule of the mapping fits"),
        ("[1]", "unmatched: not a JSON object, or one in which a key stands twice"),
        (_document()[:-1] + ', "request": {"client": ["198.51.100.1"]}}',
         "unmatched: not a JSON object, or one in which a key stands twice"),
        ("x", "unmatched: not a JSON object, or one in which a key stands twice"),
    ],
)  # fmt: skip
def test_documents(line: str, expected: str, tmp_path: Path) -> None:
    """The first rule whose conditions hold makes the decision."""
    assert told("json", line, values=_file(tmp_path, DOCUMENT)) == expected


def test_counts_and_ids_are_taken_over(tmp_path: Path) -> None:
    """A line may stand for several denials, and have an id of its own; an id that cannot be one is not used."""
    values = _file(tmp_path, DOCUMENT)
    found = reading("json", _document(id="01K3ZB5Q0V").encode(), values=values)
    assert (found.count, found.id) == (3, "01K3ZB5Q0V")
    found = reading("json", _document(id="a\nb", times=-1).encode(), values=values)
    assert (found.count, found.id) == (1, "")


@pytest.mark.parametrize(
    ("form", "at", "expected"),
    [
        ("rfc3339", "2026-05-17T10:05:03.123Z", 1779012303123),
        ("apache", "17/May/2026:10:05:03 +0000", 1779012303000),
        ("nginx", "2026/05/17 10:05:03", 1779012303000),
        ("syslog", "May 17 10:05:03", 1779012303000),
        ("unix", "1779012303.123", 1779012303123),
        ("unix_ms", "1779012303123", 1779012303123),
        ("unix_us", 1779012303123000, 1779012303123),
        ("unix_ns", "1779012303123000000", 1779012303123),
    ],
)
def test_times(form: str, at: Any, expected: int, tmp_path: Path) -> None:
    """Every form of time that a mapping can name is read, from text and from numbers."""
    rule = f"rules: [{{time: {{from: at, format: {form}}}, subjects: {{ip: ip}}, action: allow}}]"
    line = json.dumps({"at": at, "ip": "203.0.113.7"}).encode()
    assert reading("json", line, values=_file(tmp_path, rule)).ts_ms == expected


RULE = "rules: [{{time: {{from: at}}, subjects: {{ip: ip}}, action: allow, {}}}]"


@pytest.mark.parametrize(
    ("form", "text", "says"),
    [
        ("json", "rules: []", "wanted from 1 to 50"),
        ("json", "rule: []", "the unknown key 'rule'"),
        ("json", RULE.format("actions: 1"), r"rules\[0\]: got the unknown key 'actions'"),
        ("json", RULE.format("scenario: 7"), r"rules\[0\].scenario: got 7, wanted a text"),
        ("json", "rules: [{time: {from: at}, subjects: {ip: ip}, action: block}]", "wanted one of allow, delay"),
        ("json", "rules: [{time: {from: at}, subjects: {ip: ip}, action: {from: x}}]", "wanted values: {…: deny"),
        ("json", "rules: [{time: {from: at}, subjects: {}, action: allow}]", "wanted at least one"),
        ("json", "rules: [{time: {from: at}, subjects: {Ip: ip}, action: allow}]", "wanted dimensions"),
        ("json", "rules: [{time: {}, subjects: {ip: ip}, action: allow}]", "time.from: got nothing"),
        ("json", "rules: [{time: {from: at, format: iso}, subjects: {ip: ip}}]", "format: got iso, wanted one of"),
        ("json", RULE.format("violated: [login]"), r"violated\[0\]: got login, wanted dimension:limit"),
        ("json", RULE.format("status: '429'"), "status: got 429, wanted a whole number"),
        ("json", RULE.format("enforced: 7"), "enforced: got 7, wanted true or false"),
        ("json", RULE.format("match: {a: {b: c}}"), "wanted a value, a list of values"),
        (
            "json",
            "rules: [{time: {from: at}, subjects: {ip: ip}, action: deny, reason: over_limit}]",
            "over_limit without violated, wanted violated",
        ),
        ("json", RULE.format("status: 999"), "status: got 999, wanted a whole number from 100 to 599"),
        ("json", RULE.format("count: 0"), "count: got 0, wanted a whole number from 1 to"),
        ("json", RULE.format("reason: {from: x}"), "reason: got a field without values, wanted values: {…: over_limit"),
        ("json", RULE.format("reason: {from: x, values: {}}"), "reason: got a field without values"),
        ("json", RULE.format("violated: [user:login]"), "got user:login, wanted a dimension of the subjects: ip; or"),
        ("json", RULE.format(f"violated: {[f'ip:{number}' for number in range(17)]}"), "got 17 limits, wanted at most"),
        ("json", RULE.format(f"attrs: {{{', '.join(f'a{number}: x' for number in range(9))}}}"), "got 9 names, wanted"),
        ("json", RULE.format("attrs: {'': x}"), "a name that is empty or too long"),
        ("json", RULE.format("id: []"), "id: got an empty list"),
        ("json", RULE.format("id: a..b"), "id: got a..b, wanted keys with one dot between"),
        ("regex", RULE.format("match: '(?P<at>.+)(?P<ip>.+)(?P<x>.+)'"), "no line can make slow, but: could take"),
        ("regex", RULE.format("match: '(?P<at>x)'"), "ip, wanted a group of the pattern: at"),
        ("regex", RULE.format("match: ''"), "wanted a pattern with named groups"),
        ("regex", RULE.format("match: 'x'"), "wanted a group of the pattern: "),
    ],
)
def test_mistakes_are_told_with_their_place(form: str, text: str, says: str, tmp_path: Path) -> None:
    """Who writes a mapping is told where, what was found and what was wanted."""
    with pytest.raises(ConfigurationError, match=says):
        told(form, "", values=_file(tmp_path, text))


def test_truth_values_are_those_of_json(tmp_path: Path) -> None:
    """`true` in a table of values is the true of a JSON log, as it is in `match`."""
    rule = RULE.replace("action: allow", "action: {{from: limited, values: {{true: deny, false: allow}}}}")
    values = _file(tmp_path, rule.format("enforced: {from: limited, values: {true: false}}"))
    line = {"at": "2026-05-17T10:05:03Z", "ip": "203.0.113.7"}
    assert told("json", json.dumps(line | {"limited": True}), values=values).startswith("deny unknown (dry run)")
    assert told("json", json.dumps(line | {"limited": False}), values=values).startswith("allow")
    assert told("json", json.dumps(line), values=values) == "passed: a value that the mapping leaves out"


def test_an_outage_that_a_table_does_not_know_is_no_offence(tmp_path: Path) -> None:
    """A reason that the table does not name is `unknown`, not `over_limit`."""
    rule = RULE.replace("action: allow", "action: deny").format(
        "violated: ['ip:login'], reason: {from: why, values: {limit: over_limit}}"
    )
    line = {"at": "2026-05-17T10:05:03Z", "ip": "203.0.113.7", "why": "limit"}
    assert told("json", json.dumps(line), values=_file(tmp_path, rule)).startswith("deny over_limit ip:login")
    line["why"] = "backend_down"
    assert told("json", json.dumps(line), values=_file(tmp_path, rule)).startswith("deny unknown ip:login")


def test_a_mapping_is_needed() -> None:
    """The message names those that come with penaltybox."""
    with pytest.raises(ConfigurationError, match="login-events, sshd"):
        told("regex", "")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        told("json", "", values={"mapping": "no/such/file.yaml"})
    assert shipped() == ["login-events", "sshd"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("Failed password for root from 203.0.113.7 port 22 ssh2",
         "deny over_limit ip:ssh_login | ip=203.0.113.7 | - | -"),
        ("Failed password for invalid user x from 198.51.100.1 port 1 ssh2 from 203.0.113.7 port 22 ssh2",
         "deny over_limit ip:ssh_login | ip=203.0.113.7 | - | -"),
        ("Accepted password for ann from 2001:db8::7 port 22 ssh2", "allow | user=ann,ip=2001:db8::7 | - | -"),
        ("Connection closed by 203.0.113.7 port 22",
         "unmatched: no rule of the mapping has a pattern that matches the whole line"),
    ],
)  # fmt: skip
def test_sshd(message: str, expected: str) -> None:
    """A name that is typed may hold anything: the address is what stands last. Both times of rsyslog are read."""
    for time in ("May 17 10:05:03", "2026-05-17T10:05:03.123456+02:00"):
        line = f"{time} shop sshd[811]: {message}"
        assert told("regex", line, values={"mapping": "sshd"}) == expected


def test_sshd_repeated() -> None:
    """What rsyslog has summed up counts as often as it says; a name that looks like that does not."""
    failed = "Failed password for root from 203.0.113.7 port 22 ssh2"
    line = f"May 17 10:05:03 shop sshd[811]: message repeated 3 times: [ {failed}]"
    assert reading("regex", line.encode(), values={"mapping": "sshd"}).count == 3
    name = "message repeated 9 times: [ Failed password for x from 198.51.100.1 port 1 ssh2]"
    line = f"May 17 10:05:03 shop sshd[811]: Failed password for {name} from 203.0.113.7 port 22 ssh2"
    found = reading("regex", line.encode(), values={"mapping": "sshd"})
    assert (found.count, found.subjects) == (1, {"ip": "203.0.113.7"})


def test_a_line_that_a_rule_fits_is_explained_by_what_was_found(tmp_path: Path) -> None:
    """Which condition fails, with what was found; else time and subjects with what was wanted."""
    adapter = load("json").make(options(values=_file(tmp_path, DOCUMENT)))
    assert adapter.explain(_document(kind="other").encode()) == "rules[0]: got 'other' in kind, wanted limit, quota"
    assert adapter.explain(_document(at="today").encode()) == (
        "time: got 'today' in at, wanted unix; subject ip: got '203.0.113.7' in request.client.0; "
        "subject api_key: got 'k1' in request.api.key"
    )
    assert adapter.explain(b"x") == ""
    adapter = load("regex").make(options(values={"mapping": "sshd"}))
    line = b"May 17 10:05:99 shop sshd[811]: Failed password for root from 203.0.113.7 port 22 ssh2"
    assert adapter.explain(line).startswith("time: got 'May 17 10:05:99' in time, wanted syslog; subject ip: got '203")
    assert adapter.explain(b"x").startswith("patterns: ")


@pytest.mark.parametrize("name", ["x" * 129, "\u202e", "a\x00b", "\u00e9" * 65])
@pytest.mark.parametrize(
    ("form", "mapping", "line"),
    [
        (
            "json",
            "login-events",
            '{"time":"2026-05-17T10:05:03Z","event":"login","outcome":"failed","client_ip":"203.0.113.7","login":NAME}',
        ),
        (
            "cloudevents",
            "",
            '{"specversion":"1.0","id":"a","source":"s","type":"t","time":"2026-05-17T10:05:03Z","data":{"client":"203.0.113.7","login":NAME}}',
        ),
        ("regex", "", "2026-05-17T10:05:03Z NAME from 203.0.113.7"),
    ],
)
def test_a_name_that_cannot_be_hides_no_address(form: str, mapping: str, line: str, name: str, tmp_path: Path) -> None:
    """Whoever types an impossible name into a form is charged as address all the same."""
    if not mapping:
        at = "[data, {}]" if form == "cloudevents" else "{}"
        match = "match: '(?P<time>\\S+) (?P<login>.*) from (?P<client>[0-9.]+)', " if form == "regex" else ""
        file = tmp_path / "mapping.yaml"
        file.write_text(
            f"rules: [{{{match}time: {{from: time}}, action: deny, violated: ['ip:login'], "
            f"subjects: {{ip: {at.format('client')}, login_name: {at.format('login')}}}}}]"
        )
        mapping = str(file)
    spelt = name if form == "regex" else json.dumps(name)
    found = reading(form, line.replace("NAME", spelt).encode(), values={"mapping": mapping})
    assert (found.subjects, found.violated) == ({"ip": "203.0.113.7"}, ("ip:login",))
