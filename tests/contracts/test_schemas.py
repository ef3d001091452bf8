"""The JSON Schemas are current, they are schemas, and they say what the decoder does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from penaltybox.contracts.events import (
    WIRE_TYPES,
    Command,
    Control,
    DeadLetter,
    Decision,
    Hold,
    Ladder,
    Outcome,
    Penalty,
    encode,
)
from penaltybox.contracts.schemas import schema_files, write_schemas
from tests.contracts.test_decoding import BAD, GOOD, raw_of

FOLDER = Path(__file__).parent.parent.parent / "docs" / "schemas"
SENTENCES = ("from_the_future", "too_large", "duplicate_keys", "too_deep", "control_characters", "bad_ip")
"""What a schema cannot say: clocks, sizes, keys, and what a text means."""
EXAMPLES: tuple[msgspec.Struct, ...] = (
    msgspec.convert(GOOD, Decision),
    Outcome(v=1, id="o1", ts=1, label="payment_ok", subjects={"user": "10086"}),
    Penalty(
        id="p", ts=1, subject="user:a", from_="warn", to="permanent", action="deny", until=None, rule="r",
        policy_version="v", trigger_id="t", to_ms=None, evidence={"rules": ["r"], "forgiven": 1},
    ),
    Ladder(subject="user:a", seq=1, ts=1, rung="5m", at=1, end=2, deny=Hold(2, "5m", "r", "p"), trust=[(1, 2, 3)]),
    Command(id="c", ts=1, verb="ban", subject="user:a", actor="kim", reason="ticket 7"),
    Control(id="c", ts=1, key="policy", kind="policy", value="v"),
    DeadLetter(ts=1, reason="not_json", detail="…", topic="t", partition=0, offset=7, raw=b"\x00"),
)  # fmt: skip


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(json.loads((FOLDER / name).read_text(encoding="utf-8")))


def test_files_are_current(tmp_path: Path) -> None:
    """docs/schemas is what `python -m penaltybox.contracts.schemas` writes, file for file."""
    write_schemas(tmp_path)
    assert {path.name for path in FOLDER.iterdir()} == set(schema_files())
    for path in tmp_path.iterdir():
        assert (FOLDER / path.name).read_text(encoding="utf-8") == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", sorted(schema_files()))
def test_every_file_is_a_schema(name: str) -> None:
    """Each file is valid by the rules of its own dialect."""
    jsonschema.Draft202012Validator.check_schema(json.loads((FOLDER / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_our_own_records_are_valid(example: msgspec.Struct) -> None:
    """One record of each type, as it goes onto the wire, passes its schema."""
    name = type(example).__name__
    file = {"DeadLetter": "dead-letter.json"}.get(name, f"{name.lower()}.json")
    validator(file).validate(json.loads(encode(example)))
    assert len(EXAMPLES) == len(WIRE_TYPES)


def test_unknown_fields_are_valid() -> None:
    """A reader ignores what it doesn't know, and so does the schema."""
    validator("decision.json").validate({**GOOD, "later": {"x": 1}})


def json_of(entry: dict[str, str]) -> Any:
    return json.loads(raw_of(entry))


JSON_BAD = [
    entry for entry in BAD if entry["reason"] not in ("empty", "not_json", *SENTENCES) and "NaN" not in str(entry)
]


@pytest.mark.parametrize("entry", JSON_BAD, ids=lambda entry: entry["why"])
def test_schema_refuses_what_the_decoder_refuses(entry: dict[str, str]) -> None:
    """Someone who validates before sending learns of every mistake of form that a schema can express."""
    try:
        record = json_of(entry)
    except (ValueError, RecursionError):
        assert entry["reason"] == "wrong_type"  # a number first, then something else; or too deep to look
        return
    if entry["why"] in ("1e400", "43 characters of 3 bytes: 129 bytes", "an attr of 129 bytes"):
        return  # a float without an end; bytes where a schema counts characters
    assert not validator("decision.json").is_valid(record)
