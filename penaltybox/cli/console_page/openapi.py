"""The API as OpenAPI 3.1, made from the routes and the structs; docs/console-openapi.json is its committed form."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.cli.console_page.answers import Problem, Status
from penaltybox.cli.console_page.routes import ROUTES, STREAM
from penaltybox.contracts.events import Penalty

if TYPE_CHECKING:
    from penaltybox.cli.console_page.routes import Parameter, Route

_REFUSALS: Final = {
    "401": "no token, or a wrong one",
    "403": "another site's page, or a console that is read-only",
    "421": "a host name that is not the console's",
    "422": "a value that is not allowed",
    "500": "an error of the console; its log says more",
    "503": "Redis or ClickHouse does not answer",
}
_OF_BODIES: Final = {
    "400": "a body that is not JSON",
    "413": "a body that is too long",
    "415": "a Content-Type other than application/json",
}


def document() -> dict[str, Any]:
    """The description as JSON data."""
    kinds = {kind for route in ROUTES for kind in (route.answer, route.body) if kind is not None}
    named = sorted(kinds | {Problem, Penalty, Status}, key=lambda kind: kind.__name__)
    references, schemas = msgspec.json.schema_components(named, ref_template="#/components/schemas/{name}")
    of = {kind.__name__: reference for kind, reference in zip(named, references, strict=True)}
    paths: dict[str, Any] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "penaltybox console",
            "version": "1",
            "description": "What `penaltybox console` shows and does. docs/console.md says how to open it. Times are "
            "milliseconds since the epoch. A problem is a JSON document (RFC 9457) with a sentence in `detail`.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(sorted(schemas.items())),
        },
    }


def text() -> str:
    """The committed form."""
    return json.dumps(document(), indent=1, ensure_ascii=False) + "\n"


def _operation(route: Route, of: dict[str, Any]) -> dict[str, Any]:
    schema = of[route.answer.__name__] if route.answer is not None else {"type": "object"}
    if route.media == STREAM:
        schema = {"type": "string"}
    found: dict[str, Any] = {"operationId": route.name, "summary": route.says}
    if route.parameters:
        found["parameters"] = [_parameter(one) for one in route.parameters]
    if route.body is not None:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": of[route.body.__name__]}}}
    found["responses"] = {"200": {"description": "The answer.", "content": {route.media: {"schema": schema}}}}
    if route.open:
        found["security"] = []
    else:
        content = {"application/problem+json": {"schema": of["Problem"]}}
        refusals = dict(sorted((_REFUSALS | (_OF_BODIES if route.body is not None else {})).items()))
        found["responses"] |= {status: {"description": says, "content": content} for status, says in refusals.items()}
    return found


def _parameter(one: Parameter) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if one.kind == "number":
        schema = {"type": "integer", "minimum": 0, "maximum": one.most}
    elif one.one_of:
        schema["enum"] = list(one.one_of)
    if one.default != "":
        schema["default"] = one.default
    return {"name": one.name, "in": "query", "description": one.says, "required": one.required, "schema": schema}
