"""Apache's logs, and ModSecurity's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penaltybox.contracts.errors import ConfigurationError
from tests.producers.adapters.brief import told

HEAD = "[Sun May 17 10:05:03.123456 2026]"
CLIENT = "[client 203.0.113.7:51234]"


def _access(start: str = "203.0.113.7 - -", status: str = "429", rest: str = ' "-" "curl/8.5"') -> str:
    return f'{start} [17/May/2026:10:05:03 +0000] "POST /login?x=1 HTTP/1.1" {status} 227{rest}'


def _qos(number: str, rule: str, client: str = f" {CLIENT}") -> str:
    return f"{HEAD} [qos:error] [pid 7:tid 8]{client} mod_qos({number}): access denied, {rule}"


DENIED = "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | POST /login"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_access(), DENIED),
        (_access(rest=""), DENIED),
        (_access("shop.example:443 203.0.113.7 - -"), DENIED),
        (_access("203.0.113.7 - a user"), DENIED),
        (_access('203.0.113.7 - a\\"b'), DENIED),  # a name with a quote hides nobody
        (_access('203.0.113.7 - x [01/Jan/2020:00:00:00 +0000] \\"GET / HTTP/1.1\\" 200 1'), DENIED),
        (_access(rest=' "-" "curl\\" 200 1 \\"'), DENIED),
        (_access(rest=' "-" "curl" 12 more="x"'), DENIED),
        (_access(status="200"), "allow | ip=203.0.113.7 | 200 | POST /login"),
        (_access("2001:db8::7 - -", "503"), "allow | ip=2001:db8::7 | 503 | POST /login"),
        (_access(status="-"), "passed: a connection that ended before an answer"),
        (_access("host.example - -"), "unmatched: the client is no address"),
        (_access().replace("17/May", "32/May"), "unmatched: a time that does not exist"),
        (f"{HEAD} [evasive20:error] [pid 7:tid 8] {CLIENT} client denied by server configuration: /var/www/",
         "deny over_limit ip:mod_evasive | ip=203.0.113.7 | - | -"),
        (f"{HEAD} [evasive20:error] [pid 7] [client 2001:db8::7:51234] client denied by server configuration: /v",
         "deny over_limit ip:mod_evasive | ip=2001:db8::7 | - | -"),
        (f"{HEAD} [authz_core:error] [pid 7] {CLIENT} AH01630: client denied by server configuration: /v",
         "passed: another message of Apache's error log"),
        (_qos("031", "QS_SrvMaxConnPerIP rule: max=10, concurrent connections=11, c=203.0.113.7"),
         "deny over_limit ip:QS_SrvMaxConnPerIP | ip=203.0.113.7 | - | - | limit=10"),
        (_qos("031", "QS_SrvMaxConnPerIP rule: max=10, concurrent connections=11, c=203.0.113.7", ""),
         "deny over_limit ip:QS_SrvMaxConnPerIP | ip=203.0.113.7 | - | - | limit=10"),
        (_qos("067", "QS_ClientEventLimitCount rule: event=QS_Limit, max=20, current=21, age=0, c=203.0.113.7, id=x"),
         "deny over_limit ip:QS_ClientEventLimitCount | ip=203.0.113.7 | - | -"),
        (_qos("010", "QS_LocRequestLimit* rule: /app(10), concurrent requests=11, c=203.0.113.7, id=x"),
         "deny over_limit shared:QS_LocRequestLimit | ip=203.0.113.7 | - | -"),
        (_qos("010", "QS_LocRequestLimit* rule: /app, c=198.51.100.1, id=x", ""),
         "unmatched: the client is no address"),
        (f"{HEAD} [core:error] [pid 7] {CLIENT} AH00126: Invalid URI mod_qos(031): access denied, QS_X rule: c=1",
         "passed: another message of Apache's error log"),
        (f"{HEAD} [mpm_event:notice] [pid 1:tid 1] AH00489: configured",
         "passed: another message of Apache's error log"),
        ("AH00558: could not determine the name", "unmatched: not a line of Apache's access or error log"),
    ],
)  # fmt: skip
def test_apache(line: str, expected: str) -> None:
    """Statuses of the access log, and the error log's lines of the modules that limit by address."""
    assert told("apache", line) == expected


def _message(what: str = "Access denied with code 429 (phase 1).", rule: str = "900220") -> str:
    return (
        f"{HEAD} [security2:error] [pid 7:tid 8] {CLIENT} [client 203.0.113.7] ModSecurity: {what} Operator GT matched "
        f'10 at IP:logins. [file "/etc/x.conf"] [line "12"] [id "{rule}"] [msg "m"] [data "[id \\"1\\"]"] '
        '[hostname "shop"] [uri "/login"] [unique_id "a"]'
    )


def _audit(**fields: Any) -> str:
    about = {
        "client_ip": "203.0.113.7",
        "time_stamp": "Sun May 17 10:05:03 2026",
        "request": {"method": "POST", "uri": "/login?x=1", "headers": {"X-Forwarded-For": "198.51.100.1"}},
        "response": {"http_code": 429, "headers": {}},
        "producer": {"secrules_engine": "Enabled"},
        "messages": [{"message": "m", "details": {"ruleId": "900220"}}],
    }
    return json.dumps({"transaction": about | fields})


NGINX = (
    "2026/05/17 10:05:03 [error] 1#1: *7 [client 203.0.113.7] ModSecurity: Access denied with code 429 (phase 1). "
    'Matched [file "x"] [line "1"] [id "900220"] [uri "/"], client: 198.51.100.1, server: , request: "GET / H"'
)
LIMITED = "deny over_limit ip:900220 | ip=203.0.113.7 | 429"
ATTACK = {"response": {"http_code": 403}, "messages": [{"details": {"ruleId": "942100"}}]}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_message(), f"{LIMITED} | -"),
        (_message("Access denied with code 403 (phase 2)."), "deny unknown | ip=203.0.113.7 | 403 | - | rule=900220"),
        (_message("Access denied with connection close (phase 2)."),
         "deny unknown | ip=203.0.113.7 | - | - | rule=900220"),
        (_message("Warning."), "passed: a warning of a rule that is no limit"),
        (_message().replace("ModSecurity:", "Other:"), "passed: another message"),
        (NGINX, f"{LIMITED} | -"),
        (_audit(), f"{LIMITED} | POST /login"),
        (_audit(**ATTACK), "deny unknown | ip=203.0.113.7 | 403 | POST /login | rule=942100"),
        (_audit(**ATTACK, producer={"secrules_engine": "DetectionOnly"}),
         "passed: a warning of a rule that is no limit"),
        (_audit(**ATTACK, is_interrupted=False), "passed: a warning of a rule that is no limit"),
        (_audit(messages=[]), "passed: a warning of a rule that is no limit"),
        (_audit(client_ip="unix"), "unmatched: the client is no address"),
        (_audit(time_stamp="soon"), "unmatched: no time, or one that does not exist"),
        ("--a1b2c3-A--", "unmatched: not a line of an error log, nor a JSON audit log of ModSecurity"),
        ('{"transaction":7}', "unmatched: not a line of an error log, nor a JSON audit log of ModSecurity"),
    ],
)  # fmt: skip
def test_modsecurity(line: str, expected: str) -> None:
    """A refusal with 429 is a limit's; attacks are refused for another reason; warnings are none."""
    assert told("modsecurity", line) == expected


def test_rules_that_are_limits_can_be_named() -> None:
    """Whatever the status; a warning of theirs is a dry run."""
    values = {"rules": "900220, 900221"}
    assert told("modsecurity", _message("Access denied with code 403 (phase 2)."), values=values) == (
        "deny over_limit ip:900220 | ip=203.0.113.7 | 403 | -"
    )
    dry_run = "deny over_limit ip:900220 (dry run) | ip=203.0.113.7 | - | -"
    assert told("modsecurity", _message("Warning."), values=values) == dry_run
    line = _audit(producer={"secrules_engine": "DetectionOnly"}, response={"http_code": 200})
    assert told("modsecurity", line, values=values) == f"{dry_run[:-1]}POST /login"
    with pytest.raises(ConfigurationError, match="ids of rules"):
        told("modsecurity", line, values={"rules": "logins"})
