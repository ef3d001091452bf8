"""JSON Schemas of the records on the wire, for programs in other languages: ``docs/schemas/<record>.json``.

They are generated from the structs in ``contracts/events.py``, so they cannot drift; a test keeps the files current.
``python -m penaltybox.contracts.schemas`` writes them anew.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import msgspec

from penaltybox.contracts.events import MAX_RECORD_BYTES, WIRE_TYPES
from penaltybox.contracts.subjects import DIMENSION, MAX_VALUE_BYTES

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_JUDGED: Final[list[dict[str, Any]]] = [
    {
        "if": {"properties": {"action": {"enum": ["deny", "challenge"]}}, "required": ["action"]},
        "then": {"required": ["reason"], "properties": {"reason": {"not": {"type": "null"}}}},
    },
    {
        "if": {
            "properties": {"action": {"enum": ["deny", "challenge"]}, "reason": {"const": "over_limit"}},
            "required": ["action", "reason"],
        },
        "then": {"required": ["violated"], "properties": {"violated": {"minItems": 1}}},
    },
]
"""What a struct cannot say: a decision that denies or challenges needs a reason, over_limit the limits it violated."""


def record_schema(record: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON Schema (2020-12) of one record type. Unknown fields are allowed: readers ignore them."""
    schemas, components = msgspec.json.schema_components([record], ref_template="#/$defs/{name}")
    del schemas
    schema = components.pop(record.__name__)
    _describe_subjects(schema)
    if record.__name__ == "Decision":
        schema["allOf"] = _JUDGED
        schema["properties"]["violated"]["items"]["pattern"] = ":"
    found = {"$schema": DIALECT, "$comment": f"one record is at most {MAX_RECORD_BYTES} bytes", **schema}
    if components:
        found["$defs"] = components
    return found


def _describe_subjects(schema: dict[str, Any]) -> None:
    subjects = schema["properties"].get("subjects")
    if subjects is not None:
        subjects["propertyNames"] = {"pattern": f"^{DIMENSION.pattern}$"}
        subjects["additionalProperties"] = {"type": "string", "minLength": 1, "maxLength": MAX_VALUE_BYTES}


def schema_files() -> dict[str, str]:
    """File name -> text of every schema."""
    return {
        f"{_file_name(record)}.json": json.dumps(record_schema(record), indent=2, ensure_ascii=False) + "\n"
        for record in WIRE_TYPES
    }


def _file_name(record: type[msgspec.Struct]) -> str:
    name = record.__name__
    return "".join(
        f"-{letter.lower()}" if letter.isupper() and at else letter.lower() for at, letter in enumerate(name)
    )


def write_schemas(folder: Path) -> list[Path]:
    """Writes all schemas into a folder; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, text in schema_files().items():
        (folder / name).write_text(text, encoding="utf-8")
        paths.append(folder / name)
    return paths


if __name__ == "__main__":
    write_schemas(Path("docs/schemas"))
