"""The service as OpenAPI 3.1, made from the structs that it reads and writes, as in docs/openapi.json."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.producers.feed.lines import Line
from penaltybox.producers.service.bodies import DecideBody, OutcomeBody, Problem, RefundBody, Refunded, Taken, Told
from penaltybox.producers.service.replies import JSON, LINES, PROBLEM
from penaltybox.producers.service.standing import Readiness, Standing

if TYPE_CHECKING:
    from collections.abc import Sequence


class Operation(NamedTuple):
    """One call.

    Attributes:
        path: with its parameter in braces.
        name: unique.
        says: what it does.
        answer: what comes back, by status and media type.
        body: what is sent.
        parameters: beside the secret.
        refusals: statuses of problems, and what they mean.
        open: it needs no secret.
    """

    path: str
    name: str
    says: str
    answer: tuple[int, str, type[msgspec.Struct] | None]
    body: type[msgspec.Struct] | None = None
    parameters: tuple[dict[str, Any], ...] = ()
    refusals: tuple[int, ...] = ()
    open: bool = False

    @property
    def method(self) -> str:
        """Of HTTP."""
        return "get" if self.body is None else "post"


_MEANS: Final = {
    400: "no JSON, or a parameter that is not allowed",
    401: "the secret is wanted, and is not this one",
    403: "refused; also what a gateway gets that is not set up as it should be",
    405: "another method is wanted",
    413: "the body is too large (16 KiB)",
    422: "JSON of another form, or a value that is not allowed",
    429: "refused, with Retry-After",
    503: "Redis does not answer, or nothing is published here",
}
_SENT: Final = (400, 401, 405, 413, 422, 503)


def _parameter(name: str, says: str, where: str = "query", **schema: Any) -> dict[str, Any]:
    found = {"name": name, "in": where, "description": says, "schema": {"type": "string"} | schema}
    return found | {"required": True} if where != "query" else found


_CLIENT: Final = _parameter("X-Forwarded-For", "the client's address; `client_ip_header` names another field", "header")
_SCENARIO: Final = _parameter("scenario", "a scenario of the policy, in place of what the policy says about the path")


def _asked(way: str, method: str, target: str) -> tuple[dict[str, Any], ...]:
    told = ((method, "the client's method"), (target, f"the client's path and query, as {way} has it"))
    return (*(_parameter(name, says, "header") for name, says in told), _CLIENT, _SCENARIO)


_GATEWAY: Final = (
    "Whether a client's request may pass, asked by {}: 200 lets it, with `X-Penaltybox-Action` for the application"
)
OPERATIONS: Final[Sequence[Operation]] = (
    Operation(
        "/v1/decide",
        "decide",
        "Decides about a request, and counts it.",
        (200, JSON, Told),
        DecideBody,
        (_parameter("http", "1: the answer is what the client would get (200, 429, 403, …)", enum=["", "0", "1"]),),
        _SENT,
    ),
    Operation(
        "/v1/refund",
        "refund",
        "Gives back what the request of a key took: true the first time.",
        (200, JSON, Refunded),
        RefundBody,
        refusals=_SENT,
    ),
    Operation(
        "/v1/outcomes",
        "tellOutcome",
        "Tells what became of a request; it is on its way to Kafka then.",
        (202, JSON, Taken),
        OutcomeBody,
        refusals=_SENT,
    ),
    Operation(
        "/v1/subjects/{subject}",
        "readSubject",
        "How a subject stands: each mark as it is in Redis (docs/keys.md), null where there is none.",
        (200, JSON, Standing),
        parameters=(_parameter("subject", "such as user:10086, canonical (docs/subjects.md)", "path"),),
        refusals=(401, 405, 422, 503),
    ),
    Operation(
        "/v1/blocks/stream",
        "followBlocks",
        "Who is blocked, and every change, an object a line (docs/feed.md).",
        (200, LINES, Line),
        parameters=(
            _parameter("since", "the last cursor that was taken up; absent: the whole list comes first"),
            _parameter(
                "wait",
                "end with the first news, or after so many seconds; absent: the answer goes on and on",
                type="integer",
                minimum=0,
                maximum=60,
            ),
        ),
        refusals=(400, 401, 405, 503),
    ),
    Operation(
        "/auth/nginx",
        "askNginx",
        f"{_GATEWAY.format('nginx')}; 403 refuses, with the client's status and body in fields.",
        (200, "", None),
        parameters=_asked("nginx", "X-Original-Method", "X-Original-URI"),
        refusals=(403, 503),
    ),
    Operation(
        "/auth/forward",
        "askForward",
        f"{_GATEWAY.format('Traefik and Caddy')}; anything else is the client's answer.",
        (200, "", None),
        parameters=_asked("the gateway", "X-Forwarded-Method", "X-Forwarded-Uri"),
        refusals=(403, 429, 503),
    ),
    Operation(
        "/auth/envoy/{path}",
        "askEnvoy",
        f"{_GATEWAY.format('Envoy')}; with any method, the client's. Anything else is the client's answer.",
        (200, "", None),
        parameters=(_parameter("path", "the client's, which may have slashes", "path"), _CLIENT),
        refusals=(403, 429),
    ),
    Operation("/healthz", "alive", "The process lives.", (200, JSON, None), open=True),
    Operation(
        "/readyz", "ready", "Requests are decided; with 503 they are only refused.", (200, JSON, Readiness), open=True
    ),
)


def document() -> dict[str, Any]:
    """The description as JSON data."""
    kinds = {kind for one in OPERATIONS for kind in (one.answer[2], one.body) if kind is not None} | {Problem}
    named = sorted(kinds, key=lambda kind: kind.__name__)
    references, schemas = msgspec.json.schema_components(named, ref_template="#/components/schemas/{name}")
    of = {kind.__name__: reference for kind, reference in zip(named, references, strict=True)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "penaltybox decision service",
            "version": "1",
            "description": "What `penaltybox serve` answers. docs/gateways says how to start it and whom it believes. "
            "Times are milliseconds since the epoch. A problem is a JSON document (RFC 9457) with a sentence in "
            "`detail`. The secret is wanted where `serve_secret` is set.",
        },
        "servers": [{"url": "http://127.0.0.1:8118"}],
        "security": [{"secret": []}],
        "paths": {one.path: {one.method: _operation(one, of)} for one in OPERATIONS},
        "components": {
            "securitySchemes": {"secret": {"type": "apiKey", "in": "header", "name": "X-Penaltybox-Secret"}},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def text() -> str:
    """The committed form."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _operation(one: Operation, of: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"operationId": one.name, "summary": one.says}
    if one.parameters:
        found["parameters"] = list(one.parameters)
    if one.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": of[one.body.__name__]}}}
    status, media, kind = one.answer
    answer: dict[str, Any] = {"description": "The answer."}
    if media:
        answer["content"] = {media: {"schema": {"type": "object"} if kind is None else of[kind.__name__]}}
    problems = {PROBLEM: {"schema": of["Problem"]}}
    found["responses"] = {
        str(status): answer,
        **{str(number): {"description": _MEANS[number], "content": problems} for number in one.refusals},
    }
    if one.open:
        found["security"] = []
        if kind is not None:
            found["responses"]["503"] = {**answer, "description": _MEANS[503]}
    return found
