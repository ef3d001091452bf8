"""Logs of AWS: WAF, Application Load Balancer, CloudFront, API Gateway."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.producers.adapters.brief import brief, told
from tests.producers.adapters.reading_of import adapter

LIMIT = {"rateBasedRuleName": "per-ip", "limitKey": "IP", "maxRateAllowed": "100", "evaluationWindowSec": "120",
         "limitValue": "203.0.113.7"}  # fmt: skip
COUNTED = {"ruleId": "per-ip", "action": "COUNT"}


def _waf(action: str = "BLOCK", rule: str = "per-ip", kind: str = "RATE_BASED", **fields: Any) -> str:
    asked = {"clientIp": "203.0.113.7", "uri": "/login", "args": "x=1", "httpMethod": "POST",
             "headers": [{"name": "X-Forwarded-For", "value": "198.51.100.1"}]}  # fmt: skip
    given = {"timestamp": 1779012303123, "action": action, "terminatingRuleId": rule, "terminatingRuleType": kind,
             "rateBasedRuleList": [], "ruleGroupList": [], "httpRequest": asked}  # fmt: skip
    return json.dumps(given | fields)


def _group(**fields: Any) -> list[dict[str, Any]]:
    return [{"ruleGroupId": "g", "terminatingRule": None, "nonTerminatingMatchingRules": []} | fields]


LIMITED = "over_limit ip:per-ip | ip=203.0.113.7 | - | POST /login | limit=100 | window_s=120"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_waf(rateBasedRuleList=[LIMIT]), f"deny {LIMITED}"),
        (_waf(timestamp="1779012303123", rateBasedRuleList=[LIMIT]), f"deny {LIMITED}"),
        (_waf(responseCodeSent="429"), "deny over_limit ip:per-ip | ip=203.0.113.7 | 429 | POST /login"),
        (_waf("CHALLENGE", rateBasedRuleList=[LIMIT]), f"challenge {LIMITED}"),
        (_waf("CAPTCHA", rateBasedRuleList=[LIMIT]), f"challenge {LIMITED}"),
        (_waf(rule="g", kind="GROUP", rateBasedRuleList=[LIMIT],
              ruleGroupList=_group(terminatingRule={"ruleId": "per-ip", "action": "BLOCK"})), f"deny {LIMITED}"),
        (_waf("ALLOW", "Default_Action", "REGULAR", rateBasedRuleList=[LIMIT],
              nonTerminatingMatchingRules=[COUNTED]),
         f"allow | ip=203.0.113.7 | - | POST /login & deny {LIMITED.replace(' |', ' (dry run) |', 1)}"),
        (_waf("ALLOW", "Default_Action", "REGULAR", rateBasedRuleList=[LIMIT],
              ruleGroupList=_group(nonTerminatingMatchingRules=[COUNTED])),
         f"allow | ip=203.0.113.7 | - | POST /login & deny {LIMITED.replace(' |', ' (dry run) |', 1)}"),
        (_waf("ALLOW", "Default_Action", "REGULAR", nonTerminatingMatchingRules=[{"ruleId": "x", "action": "COUNT"}]),
         "allow | ip=203.0.113.7 | - | POST /login"),
        (_waf(rule="sqli", kind="REGULAR"), "deny unknown | ip=203.0.113.7 | - | POST /login | rule=sqli"),
        (_waf("CAPTCHA", "bots", "REGULAR"), "challenge unknown | ip=203.0.113.7 | - | POST /login | rule=bots"),
        (_waf(rateBasedRuleList=[LIMIT | {"limitKey": "FORWARDED_IP", "limitValue": "198.51.100.1"}]),
         f"deny {LIMITED.replace('ip:', 'forwarded_ip:')}"),
        (_waf(rateBasedRuleList=[LIMIT | {"limitKey": "CUSTOMKEYS", "customValues": [{"key": "HEADER", "name": "k",
                                                                                      "value": "s3cret"}]}]),
         f"deny {LIMITED.replace('ip:', 'custom:')}"),
        (_waf(rateBasedRuleList=[LIMIT | {"limitKey": "CUSTOMKEYS", "customValues": [{"key": "IP"}]}]),
         f"deny {LIMITED}"),
        (_waf(rateBasedRuleList=[LIMIT | {"limitKey": "CONSTANT"}]), f"deny {LIMITED.replace('ip:', 'shared:')}"),
        (_waf("EXCLUDED"), "unmatched: an action that AWS WAF does not have"),
        (_waf(httpRequest={"clientIp": "-"}), "unmatched: the client is no address"),
        (_waf(timestamp="now"), "unmatched: a time that does not exist"),
        (_waf(httpRequest=None), "unmatched: not a JSON line of AWS WAF's logs (timestamp, action, httpRequest)"),
    ],
)  # fmt: skip
def test_waf(line: str, expected: str) -> None:
    """Rate-based rules are limits of whom they count by; what only counted is a dry run; other rules are no limits."""
    assert told("aws-waf", line) == expected


def test_waf_may_be_told_to_trust_forwarded_addresses() -> None:
    """Behind a proxy of one's own the rule's own key is the client."""
    limit = LIMIT | {"limitKey": "FORWARDED_IP", "limitValue": "203.0.113.9"}
    line = _waf(rateBasedRuleList=[limit])
    assert told("aws-waf", line, values={"forwarded": "trust"}).startswith("deny over_limit ip:per-ip | ip=203.0.113.9")


REST = (
    ' "curl/8.5" ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2 arn:x "Root=1-5" "shop.example" "arn:y" 1 '
    '2026-05-17T10:05:03.1Z "{}" "-" "-" "10.0.0.1:80" "429" "-" "-" TID_1'
)


def _alb(
    status: str = "429",
    target: str = "429",
    client: str = "203.0.113.7:2817",
    actions: str = "forward",
    rest: str | None = None,
) -> str:
    request = '"POST https://shop.example:443/login?x=1 HTTP/1.1"'
    return (
        f"https 2026-05-17T10:05:03.186641Z app/shop/50dc {client} 10.0.0.1:80 0.000 0.001 0.000 {status} {target} "
        f"34 366 {request}{REST.format(actions) if rest is None else rest}"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_alb(), "deny over_limit ip:target | ip=203.0.113.7 | 429 | POST /login"),
        (_alb(target="-"), "deny over_limit ip:load_balancer | ip=203.0.113.7 | 429 | POST /login"),
        (_alb(target="-", actions="waf"), "deny over_limit ip:waf | ip=203.0.113.7 | 429 | POST /login"),
        (_alb("403", "-", actions="waf"), "deny unknown | ip=203.0.113.7 | 403 | POST /login"),
        (_alb("403", "403", actions="waf,forward"), "allow | ip=203.0.113.7 | 403 | POST /login"),
        (_alb("200", "200"), "allow | ip=203.0.113.7 | 200 | POST /login"),
        (_alb(client="[2001:db8::7]:1"), "deny over_limit ip:target | ip=2001:db8::7 | 429 | POST /login"),
        (_alb(client="2001:db8::7:1"), "deny over_limit ip:target | ip=2001:db8::7 | 429 | POST /login"),
        (
            _alb(rest=' "a "quoted" agent" - - - "waf"'),
            "deny over_limit ip:target | ip=203.0.113.7 | 429 | POST /login",
        ),
        (_alb("-", "-"), "passed: a connection that ended before an answer"),
        (_alb(client="-"), "unmatched: the client is no address"),
        (_alb().replace("05-17T", "05-47T", 1), "unmatched: a time that does not exist"),
        (_alb()[6:], "unmatched: not a line of an Application Load Balancer's access log"),
    ],
)
def test_alb(line: str, expected: str) -> None:
    """429 is told with who gave it; a refusal by WAF is one for an unknown reason unless its status is a limit's."""
    assert told("aws-alb", line) == expected


FIELDS = "date time c-ip cs-method cs-uri-stem sc-status x-edge-result-type"


def _cloudfront(*values: str) -> list[str]:
    lines = ["#Version: 1.0", f"#Fields: {FIELDS}", "\t".join(("2026-05-17", "10:05:03", *values))]
    log = adapter("cloudfront")
    return [brief(log.read(line.encode())) for line in lines]


def test_cloudfront_reads_the_fields_that_the_header_names() -> None:
    """Fields stand where the log's own header says; a line with another number of them is not guessed at."""
    told_of = _cloudfront("203.0.113.7", "POST", "/login", "429", "Error")
    assert told_of[:2] == ["passed: a header line"] * 2
    assert told_of[2] == "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | POST /login"
    assert _cloudfront("2001:db8::7", "GET", "/a", "200", "Hit")[2] == "allow | ip=2001:db8::7 | 200 | GET /a"
    assert _cloudfront("203.0.113.7", "GET", "/", "503", "LimitExceeded")[2].startswith("deny over_limit shared:Limit")
    assert _cloudfront("203.0.113.7", "GET", "/", "000", "Error")[2].startswith("passed")
    assert _cloudfront("-", "GET", "/", "200", "Hit")[2] == "unmatched: the client is no address"
    assert _cloudfront("203.0.113.7", "GET", "/", "200", "Hit", "more")[2].startswith("unmatched: not a line")


def test_cloudfront_begins_in_the_middle() -> None:
    """Who goes on behind a checkpoint is given the header."""
    log = adapter("cloudfront")
    log.begin(b"#Version: 1.0\n#Fields: c-ip sc-status date time cs-method cs-uri-stem\n")
    line = b"203.0.113.7\t429\t2026-05-17\t10:05:03\tGET\t/a"
    assert brief(log.read(line)) == "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | GET /a"


def _gateway(**fields: Any) -> str:
    given = {"ip": "203.0.113.7", "requestTimeEpoch": "1779012303123", "httpMethod": "POST",
             "resourcePath": "/coupons/{id}/claim", "status": "429"}  # fmt: skip
    return json.dumps(given | fields)


ROUTE = "POST /coupons/{id}/claim"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (_gateway(responseType="QUOTA_EXCEEDED", apiKeyId="k1"),
         f"deny over_limit api_key:quota | api_key=k1,ip=203.0.113.7 | 429 | {ROUTE}"),
        (_gateway(responseType="THROTTLED", apiKeyId="-"),
         f"deny over_limit ip:throttle | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_gateway(error={"responseType": "THROTTLED"}),
         f"deny over_limit ip:throttle | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_gateway(errorMessage="Limit Exceeded"), f"deny over_limit ip:quota | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_gateway(), f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_gateway(responseType="WAF_FILTERED", status=403), f"deny unknown | ip=203.0.113.7 | 403 | {ROUTE}"),
        (_gateway(status=200, apiKeyId="k1"), f"allow | api_key=k1,ip=203.0.113.7 | 200 | {ROUTE}"),
        (_gateway(requestTimeEpoch=None, requestTime="17/May/2026:10:05:03 +0000", ip=None, sourceIp="2001:db8::7"),
         f"deny over_limit ip:status_429 | ip=2001:db8::7 | 429 | {ROUTE}"),
        (_gateway(routeKey="GET /items/{id}"),
         "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | GET /items/{id}"),
        (_gateway(routeKey="$default", resourcePath="-", path="/items/7"),
         "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | POST /items/{n}"),
        (_gateway(httpMethod="HACK"), "deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | -"),
        (_gateway(status="-"), "passed: a request without an answer"),
        (_gateway(ip="-"), "unmatched: the client is no address"),
        (_gateway(requestTimeEpoch="-"), "unmatched: no time, or one that does not exist"),
        (_gateway()[:-1] + ',"agent":"x","ip":"198.51.100.1"}',
         "unmatched: not a JSON object with ip, status and requestTime or requestTimeEpoch, each once"),
        (_gateway(ip=None, sourceIp="203.0.113.7")[:-1] + ',"agent":"x","identity.sourceIp":"198.51.100.1"}',
         "unmatched: a client's address, or an API key, under two names that differ"),
        (_gateway()[:-1] + ',"identity":{"sourceIp":"203.0.113.7","apiKeyId":"-"}}',
         f"deny over_limit ip:status_429 | ip=203.0.113.7 | 429 | {ROUTE}"),
        (_gateway(apiKeyId="k1")[:-1] + ',"identity":{"apiKeyId":"victim"}}',
         "unmatched: a client's address, or an API key, under two names that differ"),
        ('{"ip":"203.0.113.7"}',
         "unmatched: not a JSON object with ip, status and requestTime or requestTimeEpoch, each once"),
    ],
)  # fmt: skip
def test_api_gateway(line: str, expected: str) -> None:
    """Quotas and throttling are the API key's where there is one; a resource's path is a template already."""
    assert told("aws-apigateway", line) == expected
