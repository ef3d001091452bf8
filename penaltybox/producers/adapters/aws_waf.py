"""AWS WAF's logs (JSON): rate-based rules, enforced or counted, and other rules' refusals and challenges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.producers.adapters.choices import known, number, one_of, status_of
from penaltybox.producers.adapters.reading import NO_ADDRESS, NO_SUCH_TIME, Adapter, Format, Reading, Unmatched, label
from penaltybox.producers.adapters.times import Times

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read
    from penaltybox.producers.adapters.targets import Target

_ACTIONS: Final[dict[str, Any]] = {
    "ALLOW": "allow",
    "BLOCK": "deny",
    "CAPTCHA": "challenge",
    "CHALLENGE": "challenge",
}
_NO_JSON: Final = Unmatched("not a JSON line of AWS WAF's logs (timestamp, action, httpRequest)")
_NO_ACTION: Final = Unmatched("an action that AWS WAF does not have")


class _Request(msgspec.Struct, frozen=True, gc=False):
    client: str = msgspec.field(name="clientIp")
    method: str | None = msgspec.field(name="httpMethod", default=None)
    uri: str | None = None


class _Custom(msgspec.Struct, frozen=True, gc=False):
    key: str = ""


class _RateBased(msgspec.Struct, frozen=True, gc=False):
    name: str | None = msgspec.field(name="rateBasedRuleName", default=None)
    id: str | None = msgspec.field(name="rateBasedRuleId", default=None)
    keyed_by: str | None = msgspec.field(name="limitKey", default=None)
    value: str | None = msgspec.field(name="limitValue", default=None)
    limit: Any = msgspec.field(name="maxRateAllowed", default=None)
    window_s: Any = msgspec.field(name="evaluationWindowSec", default=None)
    custom: list[_Custom] | None = msgspec.field(name="customValues", default=None)


class _Rule(msgspec.Struct, frozen=True, gc=False):
    id: str | None = msgspec.field(name="ruleId", default=None)
    action: str | None = None


class _Group(msgspec.Struct, frozen=True, gc=False):
    terminating: _Rule | None = msgspec.field(name="terminatingRule", default=None)
    others: list[_Rule] | None = msgspec.field(name="nonTerminatingMatchingRules", default=None)


class _Line(msgspec.Struct, frozen=True, gc=False):
    timestamp: int | float | str
    action: str
    request: _Request = msgspec.field(name="httpRequest")
    rule: str | None = msgspec.field(name="terminatingRuleId", default=None)
    kind: str | None = msgspec.field(name="terminatingRuleType", default=None)
    status: Any = msgspec.field(name="responseCodeSent", default=None)
    limits: list[_RateBased] | None = msgspec.field(name="rateBasedRuleList", default=None)
    others: list[_Rule] | None = msgspec.field(name="nonTerminatingMatchingRules", default=None)
    groups: list[_Group] | None = msgspec.field(name="ruleGroupList", default=None)


_decode = msgspec.json.Decoder(_Line).decode


class AwsWaf(Adapter):
    """Reads requests: what was done, and beside it each rate-based rule that only counted (a dry run)."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._times = Times(options.zone, options.now_ms)
        self._forwarded = one_of(options, "forwarded", ("ignore", "trust")) == "trust"

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        try:
            found = _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return _NO_JSON
        action = _ACTIONS.get(found.action)
        if action is None:
            return _NO_ACTION
        ts_ms = self._times.millis(found.timestamp)
        if ts_ms is None:
            return NO_SUCH_TIME
        client = self._options.address(found.request.client)
        if client is None:
            return NO_ADDRESS
        target = self._options.targets.of(known(found.request.method), known(found.request.uri))
        limits = {known(limit.name): limit for limit in found.limits or ()}
        acted = next((limits[name] for name in _terminating(found) if name in limits), None)
        if acted is None and found.kind == "RATE_BASED":
            acted = _RateBased(name=found.rule)
        counted = [limits[name] for name in dict.fromkeys(_counting(found)) if name in limits]
        readings = [self._reading(ts_ms, action, client, target, acted, found)]
        readings += [self._counted(ts_ms, client, target, limit) for limit in counted if limit is not acted]
        return readings[0] if len(readings) == 1 else tuple(readings)

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        try:
            _decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return f"JSON: {error}"
        return ""

    def _reading(
        self, ts_ms: int, action: Any, client: str, target: Target, limit: _RateBased | None, found: _Line
    ) -> Reading:
        about: dict[str, Any] = {
            "ts_ms": ts_ms,
            "action": action,
            "scenario": target.scenario,
            "route": target.route,
            "status": status_of(found.status),
        }
        if action == "allow":
            return Reading(subjects={"ip": client}, **about)
        if limit is None:
            attrs = {"rule": label(found.rule)} if found.rule else {}
            return Reading(reason="unknown", subjects={"ip": client}, attrs=attrs, **about)
        return Reading(**self._grounds(client, limit), **about)

    def _counted(self, ts_ms: int, client: str, target: Target, limit: _RateBased) -> Reading:
        return Reading(
            ts_ms=ts_ms, action="deny", enforced=False, scenario=target.scenario, route=target.route,
            **self._grounds(client, limit),
        )  # fmt: skip

    def _grounds(self, client: str, limit: _RateBased) -> dict[str, Any]:
        """Who the rule counts by. Clients write forwarded addresses and headers, so nobody is charged for those."""
        keyed_by = known(limit.keyed_by) or "IP"
        custom = {one.key for one in limit.custom or ()}
        dimension, ip = "shared", client
        if keyed_by == "IP" or "IP" in custom:
            dimension = "ip"
        elif keyed_by == "FORWARDED_IP":
            forwarded = self._options.address(known(limit.value)) if self._forwarded else None
            dimension, ip = ("ip", forwarded) if forwarded else ("forwarded_ip", client)
        elif keyed_by == "CUSTOMKEYS":
            dimension = "custom"
        return {
            "reason": "over_limit",
            "violated": (label(f"{dimension}:{known(limit.name) or 'rate_based'}"),),
            "subjects": {"ip": ip},
            "limit": number(limit.limit),
            "window_s": number(limit.window_s),
        }


def _terminating(found: _Line) -> list[str]:
    """The rules that ended it: the web ACL's own, or one in a group."""
    return [known(found.rule), *(known(group.terminating.id) for group in found.groups or () if group.terminating)]


def _counting(found: _Line) -> list[str]:
    """The rules that matched and only counted."""
    rules = [*(found.others or ()), *(rule for group in found.groups or () for rule in group.others or ())]
    return [known(rule.id) for rule in rules if rule.action == "COUNT"]


FORMAT: Final = Format(
    "aws-waf",
    AwsWaf,
    (
        (
            b'{"timestamp":1779012303123,"formatVersion":1,"webaclId":"arn:aws:wafv2:eu-west-1:111122223333:regional/'
            b'webacl/shop/1","terminatingRuleId":"per-ip","terminatingRuleType":"RATE_BASED","action":"BLOCK",'
            b'"terminatingRuleMatchDetails":[],"httpSourceName":"ALB","ruleGroupList":[],"rateBasedRuleList":['
            b'{"rateBasedRuleId":"arn:per-ip","rateBasedRuleName":"per-ip","limitKey":"IP","maxRateAllowed":"100",'
            b'"evaluationWindowSec":"120","limitValue":"203.0.113.7"}],"nonTerminatingMatchingRules":[],'
            b'"httpRequest":{"clientIp":"203.0.113.7","country":"FR","headers":[{"name":"Host","value":"shop"}],'
            b'"uri":"/login","args":"x=1","httpVersion":"HTTP/2.0","httpMethod":"POST","requestId":"1-2-3"}}'
        ),
        (
            b'{"timestamp":"1779012304000","action":"ALLOW","terminatingRuleId":"Default_Action",'
            b'"terminatingRuleType":"REGULAR","ruleGroupList":[],"rateBasedRuleList":[{"rateBasedRuleName":"tried",'
            b'"limitKey":"IP","maxRateAllowed":50,"evaluationWindowSec":"60","limitValue":"2001:db8::7"}],'
            b'"nonTerminatingMatchingRules":[{"ruleId":"tried","action":"COUNT","ruleMatchDetails":[]}],'
            b'"httpRequest":{"clientIp":"2001:db8::7","uri":"/cart","httpMethod":"GET"}}'
        ),
        (
            b'{"timestamp":1779012305000,"action":"BLOCK","terminatingRuleId":"sqli","terminatingRuleType":"REGULAR",'
            b'"responseCodeSent":"403","httpRequest":{"clientIp":"203.0.113.9","uri":"/","httpMethod":"GET"}}'
        ),
    ),
    {"forwarded": "rules that count by a forwarded address: ignore (default: nobody is charged) or trust it"},
)
