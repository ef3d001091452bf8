"""The service's OpenAPI description, held against the service."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from penaltybox.producers.feed.lines import InForce, Line, encoded
from penaltybox.producers.service import application, openapi
from tests.producers.service.asgi import Client, Got

if TYPE_CHECKING:
    from penaltybox.producers.service.desk import Desk

DOCUMENT = openapi.document()
FROM_GATEWAY = {
    "X-Forwarded-For": "192.0.2.1",
    "X-Original-Method": "GET",
    "X-Original-URI": "/",
    "X-Forwarded-Method": "GET",
    "X-Forwarded-Uri": "/",
}
BODIES: dict[str, Any] = {
    "/v1/decide": {"scenario": "web", "subjects": {"ip": "192.0.2.1"}, "idempotency_key": "k"},
    "/v1/refund": {"idempotency_key": "k"},
    "/v1/outcomes": {"label": "confirmed_abuse", "subjects": {"user": "10086"}},
}


def fits(schema: dict[str, Any], value: Any) -> None:
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(value)


def answered(path: str, got: Got) -> None:
    """The status is described, and the document is of the form that is described for it."""
    (operation,) = DOCUMENT["paths"][path].values()
    described = operation["responses"][str(got.status)]
    media = got.headers.get("content-type", "")
    if got.body and media in described.get("content", {}):
        fits(described["content"][media]["schema"], got.json)
    else:
        assert not got.body or path.startswith("/auth/"), (path, got)


async def asked(client: Client, path: str, method: str) -> Got:
    target = path.replace("{path}", "a/b").replace("{subject}", "user:10086")
    body = BODIES.get(path)
    if method == "post":
        return await client.post(target, body)
    return await client.get(target, FROM_GATEWAY)


@pytest.mark.parametrize("path", DOCUMENT["paths"])
async def test_every_call_is_answered_as_described(desk: Desk, path: str) -> None:
    """Its way in with the right method and, if it wants one, a body; the wrong method; the wrong secret; nonsense."""
    ((method, operation),) = DOCUMENT["paths"][path].items()
    client, guarded = Client(desk), Client(desk, secret="s3cret")  # noqa: S106 - of this test
    got = await asked(client, path, method)
    assert got.status not in (404, 405)
    answered(path, got)
    told = await asked(guarded, path, method)
    assert told.status == (got.status if operation.get("security") == [] else 403 if "/auth/" in path else 401)
    answered(path, told)
    if method == "post":
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        fits(schema, BODIES[path])
        with pytest.raises(jsonschema.ValidationError):
            fits(schema, {"no": "such field"})
        wrong: tuple[tuple[bytes, int], ...] = ((b"{", 400), (b"{}", 422), (b" " * 20_000, 413))
        for body, status in wrong:
            got = await client.post(path, body)
            assert got.status == status
            answered(path, got)
    if "405" in operation["responses"]:
        answered(path, await client.call("DELETE", path.replace("{subject}", "user:1")))


async def test_refusals_too(client: Client) -> None:
    """A denied request and a challenged one are of the described form."""
    schema = DOCUMENT["paths"]["/v1/decide"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    for scenario, action in (("login", "challenge"), ("web", "deny")):
        for _ in range(4):
            got = await client.post("/v1/decide", {"scenario": scenario, "subjects": {"ip": "192.0.2.9"}})
            fits(schema, got.json)
        assert got.json["action"] == action


def test_lines_of_the_feed() -> None:
    """Each kind of line is of the described form; its fields are those of docs/feed.md."""
    stream = DOCUMENT["paths"]["/v1/blocks/stream"]["get"]["responses"]["200"]["content"]["application/x-ndjson"]
    for line in (
        Line("resync", now=1, reason="no cursor"),
        Line("add", "subject", "user:a", (InForce("deny", 5, "5m", "r"), InForce("challenge", None)), "e-1"),
        Line("remove", "range", "192.0.2.0/24", (), "e-2"),
        Line("again", after_ms=3),
        Line("beat", cursor="e-2", now=1, stale=True),
    ):
        fits(stream["schema"], Got(200, {}, encoded(line)).json)


def test_it_has_every_path_of_the_service() -> None:
    """Those that the application's own description names, and no more."""
    named = set(re.findall(r"(/(?:v1|auth|healthz|readyz)[a-z0-9/{}]*)", application.__doc__ or ""))
    shown = {path.replace("{path}", "") for path in DOCUMENT["paths"]}
    assert {path.rstrip("/") for path in named} == {path.rstrip("/") for path in shown}
