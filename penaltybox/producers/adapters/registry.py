"""The formats by name. Their modules are loaded when they are asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Format

SUMMARIES: Final = {
    "nginx-error": "nginx error log: requests and connections limited or delayed, dry runs too.",
    "nginx-access": "nginx access log, combined or JSON: by status, or by $limit_req_status.",
    "envoy": "Envoy access log in JSON: local and global rate limits, external authorisation.",
    "haproxy": "HAProxy HTTP log: 429, and what the proxy denied or tarpitted.",
    "traefik": "Traefik access log, JSON or common: 429.",
    "caddy": "Caddy JSON logs: the access log, and the rate_limit module.",
    "kong": "Kong file-log JSON: rate-limiting by consumer or address.",
    "apache": "Apache access log: 429; error log: mod_evasive and mod_qos.",
    "modsecurity": "ModSecurity in error logs and JSON audit logs: rules that are limits.",
    "aws-waf": "AWS WAF logs: rate-based rules, enforced or counted.",
    "aws-alb": "AWS Application Load Balancer access logs: 429, and WAF's refusals.",
    "aws-apigateway": "AWS API Gateway access logs in JSON: throttling and quotas.",
    "cloudfront": "CloudFront standard logs: 429, and the distribution's quotas.",
    "regex": "Any text log, by the patterns of a mapping (YAML).",
    "json": "Any log of JSON objects, by the rules of a mapping (YAML).",
    "cloudevents": "CloudEvents 1.0: decisions, batches, Kafka records; other events by a mapping.",
    "ocsf": "OCSF events: what security controls blocked, counted or challenged.",
}
"""Name -> one line. The module is the name with ``_`` for ``-``, its constant is ``FORMAT``."""


def load(name: str) -> Format:
    """The format of a name.

    Raises:
        ConfigurationError: there is none; says which there are.
    """
    if name not in SUMMARIES:
        raise ConfigurationError(f"format: got {name!r}, wanted one of {', '.join(SUMMARIES)}")
    module = import_module(f"penaltybox.producers.adapters.{name.replace('-', '_')}")
    found: Format = module.FORMAT
    return found
