"""Envoy's access log in JSON: what its local and global rate limit filters and external authorisation refused.

The keys are whatever ``json_format`` says; read are the names that Istio, Envoy Gateway and Envoy's own examples use.
Text logs in Envoy's default form have no address but ``X-Forwarded-For``, which clients write: they are not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from penaltybox.producers.adapters.choices import KEYED_BY, known, one_of, status_of
from penaltybox.producers.adapters.plain_json import object_of
from penaltybox.producers.adapters.reading import NO_TIME, Format, Passed, Reading, Unmatched, label
from penaltybox.producers.adapters.request_log import RequestLog

if TYPE_CHECKING:
    from penaltybox.producers.adapters.reading import Options, Read

_FLAGS: Final = {"RateLimited": "RL", "RateLimitServiceError": "RLSE", "UnauthorizedExternalService": "UAEX"}
"""``%RESPONSE_FLAGS_LONG%`` -> ``%RESPONSE_FLAGS%``."""
_BEFORE: Final = frozenset({"NR", "NoRouteFound", "DPE", "DownstreamProtocolError", "IH", "InvalidEnvoyRequestHeaders"})
_LIMITED: Final = frozenset({"local_rate_limited", "request_rate_limited"})
_OUTAGES: Final = frozenset({"rate_limiter_error", "ext_authz_error"})
_DIRECT: Final = ("downstream_direct_remote_address", "downstream_remote_address")
_PATHS: Final = ("x-envoy-original-path", "x-envoy-origin-path", "path")
_NO_JSON: Final = Unmatched("not JSON with response_code, each key once")
_NO_ADDRESS: Final = Unmatched("no address of the client under a key that is known, or of --option address")
_FORWARDED: Final = Unmatched("Envoy took the address from X-Forwarded-For (its port is 0); see --option address")
_TWO: Final = Unmatched("two addresses of the client that differ; --option address says which key has it")
_NO_ANSWER: Final = Passed("a connection that ended before an answer (status 0)")
_UNASKED: Final = Passed("answered by Envoy before any limit was asked")


class Envoy(RequestLog):
    """Reads JSON objects, one a line; unset values are ``-``, null, or not there."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._authorisation = one_of(options, "ext-authz", ("unknown", "over_limit", "blocklist"))
        self._address = options.values.get("address", "")

    def read(self, line: bytes) -> Read:
        """See `Adapter.read`."""
        found = object_of(line)
        if found is None or "response_code" not in found:
            return _NO_JSON
        flags = {_FLAGS.get(flag, flag) for flag in _text(found, "response_flags").split(",")}
        details = _text(found, "response_code_details")
        status = status_of(found["response_code"])
        said = self._said(flags, details, status)
        if not isinstance(said, tuple) or isinstance(said, Passed):
            return said
        ts_ms = self._times.rfc3339(_text(found, "start_time"))
        if ts_ms is None:
            return NO_TIME
        ip = self._client(found)
        if isinstance(ip, Unmatched):
            return ip
        action, reason, limit = said
        path = next((text for name in _PATHS if (text := _text(found, name))), "")
        target = self._options.targets.of(_text(found, "method"), path) if path else self._options.targets.unknown
        return Reading(
            ts_ms=ts_ms,
            action=action,
            reason=reason,
            violated=(label(f"{self._keyed_by}:{limit}"),) if reason == "over_limit" else (),
            subjects={"ip": ip},
            scenario=target.scenario,
            route=target.route,
            status=status,
        )

    def explain(self, line: bytes) -> str:
        """See `Adapter.explain`."""
        found = object_of(line)
        return "" if found is None else f"keys: {', '.join(found)}"

    def _said(self, flags: set[str], details: str, status: int | None) -> tuple[Any, Any, str] | Passed:
        """(action, reason, name of the limit)."""
        if "RLSE" in flags or details in _OUTAGES:
            return ("allow", "fail_open", "") if details == "via_upstream" else ("deny", "fail_closed", "")
        if "RL" in flags or details in _LIMITED:
            return "deny", "over_limit", details if details in _LIMITED else "rate_limited"
        if "UAEX" in flags or details == "ext_authz_denied":
            return "deny", self._authorisation, "ext_authz"
        if status is None:
            return _NO_ANSWER
        if status in self._refusals:
            return "deny", "over_limit", f"status_{status}"
        return _UNASKED if flags & _BEFORE else ("allow", None, "")

    def _client(self, found: dict[str, Any]) -> str | Unmatched:
        """The address of the connection; of ``X-Forwarded-For`` (port 0) only if an option names the key."""
        if self._address:
            return self._options.endpoint(_text(found, self._address)) or _NO_ADDRESS
        direct, remote = (_text(found, name) for name in _DIRECT)
        for text in (direct, remote):
            if text.endswith(":0"):
                return _FORWARDED
            ip = self._options.endpoint(text) if text else None
            if ip is not None:  # one may be a key that a client has added to JSON put together by hand
                other = None if text == remote or remote.endswith(":0") else self._options.endpoint(remote)
                return ip if other in (None, ip) else _TWO
        return self._options.address(_text(found, f"{_DIRECT[0]}_without_port")) or _NO_ADDRESS


def _text(document: dict[str, Any], name: str) -> str:
    """A value that is a text, and set."""
    value = document.get(name)
    return known(value) if isinstance(value, str) else ""


FORMAT: Final = Format(
    "envoy",
    Envoy,
    (
        (
            b'{"start_time":"2026-05-17T10:05:03.458Z","method":"POST","path":"/coupons/17/claim?c=1",'
            b'"protocol":"HTTP/1.1","response_code":429,"response_flags":"RL","response_code_details":'
            b'"local_rate_limited","downstream_remote_address":"203.0.113.7:59364","route_name":"shop"}'
        ),
        (
            b'{"start_time":"2026-05-17T10:05:04.000Z","method":"GET","path":"/cart","response_code":"429",'
            b'"response_flags":"-","response_code_details":"request_rate_limited",'
            b'"downstream_direct_remote_address":"[2001:db8::7]:40112","upstream_host":null}'
        ),
        (
            b'{"start_time":"2026-05-17T10:05:05.120Z","method":"GET","path":"/","response_code":200,'
            b'"response_flags":"-","response_code_details":"via_upstream",'
            b'"downstream_remote_address":"203.0.113.8:1024"}'
        ),
        (
            b'{"start_time":"2026-05-17T10:05:06.000Z","method":"GET","path":"/","response_code":500,'
            b'"response_flags":"RLSE","response_code_details":"rate_limiter_error",'
            b'"downstream_remote_address":"203.0.113.9:1024"}'
        ),
    ),
    {
        "keyed-by": KEYED_BY,
        "address": "the key that holds the client's address, trusted as it is (behind a proxy of yours)",
        "ext-authz": "what a refusal by external authorisation means: unknown (default), over_limit or blocklist",
    },
    programs=frozenset({"envoy"}),
)
