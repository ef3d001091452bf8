"""Gateways' ways of asking: where each tells the client's request, and what it can pass on of our answer.

nginx     auth_request      X-Original-Method, X-Original-URI (the configuration sets them)   only 2xx, 401 and 403
forward   Traefik, Caddy    X-Forwarded-Method, X-Forwarded-Uri                               any status, any body
envoy     ext_authz (HTTP)  method and path of the call itself, behind a path prefix          any status; 200 allows

All of them take 403 for a refusal, and none takes it for a failure of the service, which some let pass (Envoy's
failure_mode_allow, nginx's error_page): so a gateway that is not set up as it should be is answered with 403.

Each way believes only the fields that its gateway sets itself and a client therefore cannot: so there is one path per
way, and none of them looks at the others' fields.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, Literal

from penaltybox.producers.http.paths import target_path
from penaltybox.producers.http.requests import Facts
from penaltybox.producers.service.replies import Refusal, Reply, problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.producers.http.answers import Answer
    from penaltybox.producers.service.calls import Call

Way = Literal["nginx", "forward", "envoy"]
ENVOY_PREFIX: Final = "/auth/envoy"
ACTION: Final = "x-penaltybox-action"
"""What was decided, for the application behind the gateway: it withholds the benefit on ``shadow``."""
STATUS: Final = "x-penaltybox-status"
BODY: Final = "x-penaltybox-body"
_MAX_TARGET: Final = 8192
_MAX_BODY_FIELD: Final = 2048
_FIELDS: Final[Mapping[str, tuple[bytes, bytes]]] = {
    "nginx": (b"x-original-method", b"x-original-uri"),
    "forward": (b"x-forwarded-method", b"x-forwarded-uri"),
}
_FORBIDDEN: Final = 403
# None of these gateways writes Forwarded, so what stands there is the client's. The others are about the call.
_DROPPED: Final = frozenset({b"forwarded", b"x-penaltybox-secret", b"content-length", b"transfer-encoding"})


def _misconfigured() -> Reply:
    """Tells a client nothing about what is wrong between gateway and service: the service's log does."""
    said = problem(_FORBIDDEN, "this request could not be judged")
    return said._replace(headers={**said.headers, ACTION: "deny", STATUS: str(_FORBIDDEN), BODY: _one_line(said.body)})


def way_of(path: str) -> Way | None:
    """Which way of asking a path of ours belongs to; None if it is none."""
    if path == "/auth/nginx":
        return "nginx"
    if path == "/auth/forward":
        return "forward"
    return "envoy" if path == ENVOY_PREFIX or path.startswith(f"{ENVOY_PREFIX}/") else None


def facts_of(way: Way, call: Call, client_header: bytes) -> Facts:
    """The client's request as its gateway tells it.

    Raises:
        Refusal: the gateway does not say which request it asks about, or whose: its configuration is to mend.
    """
    if way == "envoy":
        path = call.raw_path[len(ENVOY_PREFIX) :] or "/"
        method, target = call.method, path
    else:
        method, target = (_told(call, name) for name in _FIELDS[way])
    if not any(name == client_header for name, _ in call.headers):
        raise Refusal(400, f"{client_header.decode()}: wanted it from the gateway, else all its clients would be one")
    headers = [
        (name.decode("latin-1"), value.decode("latin-1")) for name, value in call.headers if name not in _DROPPED
    ]
    return Facts(method[:16], target_path(target[:_MAX_TARGET]), headers, call.peer)


def _told(call: Call, name: bytes) -> str:
    value = call.header(name)
    if not value:
        raise Refusal(400, f"{name.decode()}: wanted it once, from the gateway")
    return value.decode("latin-1")


def reply_of(way: Way, action: str, answer: Answer) -> Reply:
    """What the gateway is told: 200 lets the request pass (Envoy takes no other 2xx), anything else is the answer."""
    headers = {name.lower(): value for name, value in answer.headers}
    headers[ACTION] = action
    if answer.status is None:
        return Reply(200, headers)
    if way != "nginx":
        return Reply(answer.status, headers, answer.body or b"")
    headers.pop("content-length", None)
    headers[STATUS] = str(answer.status)
    headers[BODY] = _one_line(answer.body or b"")
    return Reply(_FORBIDDEN, headers)


def _one_line(body: bytes) -> str:
    """A JSON document in ASCII, short enough for a header field of a gateway; ``{}`` when it cannot be."""
    text = json.dumps(json.loads(body or b"{}"), separators=(",", ":"))
    return text if len(text) <= _MAX_BODY_FIELD else "{}"


MISCONFIGURED: Final = _misconfigured()
"""The answer to a gateway's call that is not as it should be."""
