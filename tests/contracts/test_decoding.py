"""What comes from outside is a Decision or a dead letter with a reason; nothing else ever happens."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.contracts.decoding import decode_decision, decode_decisions, decode_outcome, decode_own_run
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import AHEAD_MS, MAX_RECORD_BYTES, Decision, Outcome, encode
from penaltybox.contracts.subjects import Canonicaliser

BROKER_MS = 1_766_400_000_123
CORPUS = Path(__file__).parent.parent / "corpus" / "bad_decisions.jsonl"
BAD = [json.loads(line) for line in CORPUS.read_text(encoding="utf-8").splitlines()]
GOOD: dict[str, Any] = {
    "v": 1,
    "id": "01K3ZB5Q0V7M2X8R4T6Y9WABCD",
    "ts": BROKER_MS,
    "source": "checkout/edge-1",
    "scenario": "coupon_claim",
    "action": "deny",
    "reason": "over_limit",
    "violated": ["device:daily"],
    "subjects": {"user": "10086", "device": "a1b2c3d4", "ip": "203.0.113.7"},
    "established": True,
    "route": "POST /coupons/{id}/claim",
    "status": 429,
    "limit": 10,
    "window_s": 86400,
    "remaining": 0,
    "retry_after_s": 12,
    "cost": 1,
    "enforced": True,
    "count": 1,
    "attrs": {"address": "9f2c"},
}


def decide(raw: bytes) -> Decision:
    return decode_decision(raw, BROKER_MS, Canonicaliser())


def raw_of(entry: dict[str, str]) -> bytes:
    return entry["raw"].encode() if "raw" in entry else base64.b64decode(entry["base64"])


@pytest.mark.parametrize("entry", BAD, ids=lambda entry: entry["why"])
def test_every_malformed_record_is_refused_for_its_reason(entry: dict[str, str]) -> None:
    """Each record of the corpus ends as a dead letter with the recorded reason and a sentence."""
    with pytest.raises(BadEvent) as caught:
        decide(raw_of(entry))
    assert caught.value.reason == entry["reason"]
    assert caught.value.detail
    assert len(caught.value.detail) < 400


@pytest.mark.parametrize("entry", BAD, ids=lambda entry: entry["why"])
def test_in_a_run_it_costs_only_itself(entry: dict[str, str]) -> None:
    """A run with a malformed record in the middle is judged record by record, with the same reason."""
    good = encode(decide(json.dumps(GOOD).encode()))
    first, bad, last = decode_decisions([good, raw_of(entry), good], [BROKER_MS] * 3, Canonicaliser())
    assert isinstance(bad, BadEvent)
    assert bad.reason == entry["reason"]
    assert not isinstance(first, BadEvent)
    assert not isinstance(last, BadEvent)


def test_the_example_of_the_documentation_is_a_decision() -> None:
    """The record that the design shows is read field by field."""
    decision = decide(json.dumps(GOOD).encode())
    assert decision.subjects == GOOD["subjects"]
    assert decision.violated == ("device:daily",)
    assert decision.established is True


def test_a_decision_needs_few_fields() -> None:
    """Version, id, time, source, action and one subject are enough for an allow."""
    least = {"v": 1, "id": "1", "ts": 1, "source": "s", "action": "allow", "subjects": {"user": "a"}}
    decision = decide(json.dumps(least).encode())
    assert (decision.count, decision.enforced, decision.established) == (1, True, None)


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": {"nested": [1, None, "x"]}},
        {"ts": BROKER_MS + AHEAD_MS},
        {"ts": 1},
        {"subjects": {"user": "ä" * 64}},
        {"subjects": {"user": "a}b:c%d e"}},
        {"subjects": {"ip": "::ffff:203.0.113.7"}},
        {"subjects": {"ip": "2001:db8::1"}},
        {"route": "/" * 256},
        {"sample_rate": 0.1},
        {"count": 1_000_000},
        {"reason": "fail_closed", "violated": []},
        {"action": "shadow", "reason": None, "violated": []},
    ],
    ids=str,
)
def test_what_is_unusual_but_right_is_accepted(change: dict[str, Any]) -> None:
    """Unknown fields, old times, spaces, unicode and the limits themselves are no reason to refuse a record."""
    decide(json.dumps({**GOOD, **change}).encode())


def test_whitespace_does_not_matter() -> None:
    """A pretty-printed record is the same decision."""
    assert decide(json.dumps(GOOD, indent=1).encode()) == decide(json.dumps(GOOD).encode())


def test_wire_form_of_a_decision_reads_back() -> None:
    """What our own encoder writes decodes to the same decision, defaults omitted."""
    decision = decide(json.dumps(GOOD).encode())
    raw = encode(decision)
    assert decide(raw) == decision
    assert b"enforced" not in raw


def test_outcomes_are_judged_alike() -> None:
    """An outcome with a bad subject, label or time is refused, a good one is read."""
    good = {"v": 1, "id": "o1", "ts": BROKER_MS, "label": "payment_ok", "subjects": {"user": "10086"}, "ref": "order 7"}
    read = decode_outcome(json.dumps(good).encode(), BROKER_MS, Canonicaliser())
    assert (read.label, read.ref) == ("payment_ok", "order 7")
    for change, reason in (
        ({"label": "good"}, "wrong_type"),
        ({"subjects": {"user": ""}}, "empty_subject"),
        ({"ts": BROKER_MS + AHEAD_MS + 1}, "from_the_future"),
        ({"ref": "a\nb"}, "control_characters"),
    ):
        with pytest.raises(BadEvent) as caught:
            decode_outcome(json.dumps({**good, **change}).encode(), BROKER_MS, Canonicaliser())
        assert caught.value.reason == reason


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)


def judged(raw: bytes) -> str:
    """What became of it: the reason of its refusal, or nothing; any other exception fails the test."""
    canonicaliser = Canonicaliser()
    try:
        decision = decode_decision(raw, BROKER_MS, canonicaliser)
    except BadEvent as error:
        return error.reason or "no reason given"
    for dimension, value in decision.subjects.items():
        assert canonicaliser.subject(dimension, value).isascii()
    return ""


@settings(deadline=None)
@given(raw=st.binary(max_size=300))
def test_any_bytes_are_judged(raw: bytes) -> None:
    """Whatever bytes a record has, they are a decision or a dead letter."""
    judged(raw)


@settings(deadline=None)
@given(change=st.dictionaries(st.sampled_from([*GOOD, "extra"]), json_values, min_size=1, max_size=3))
def test_any_values_are_judged(change: dict[str, Any]) -> None:
    """A good record with whatever values in some fields is a decision or a dead letter."""
    judged(json.dumps({**GOOD, **change}).encode("utf-8", "surrogatepass"))


@settings(deadline=None)
@given(at=st.integers(0, 400), put=st.binary(max_size=6), drop=st.integers(0, 6))
def test_any_damage_is_judged(at: int, put: bytes, drop: int) -> None:
    """A good record with bytes replaced, lost or inserted anywhere is a decision or a dead letter."""
    raw = json.dumps(GOOD).encode()
    judged(raw[:at] + put + raw[at + drop :])


@settings(deadline=None)
@given(depth=st.integers(1, MAX_RECORD_BYTES), opening=st.sampled_from(["[", '{"a":']), closed=st.booleans())
def test_any_depth_is_judged(depth: int, opening: str, closed: bool) -> None:
    """Nesting, closed or not, ends in a decision or a dead letter, never in a crash of the decoder."""
    closing = "]" if opening == "[" else "}"
    nested = opening * depth + "1" + (closing * depth if closed else "")
    judged(f'{json.dumps(GOOD)[:-1]},"x":{nested}}}'.encode())


@settings(deadline=None)
@given(subjects=st.dictionaries(st.sampled_from(["user", "device", "ip", "x"]), st.text(max_size=40), max_size=4))
def test_any_subjects_are_judged(subjects: dict[str, str]) -> None:
    """Whatever text stands in a subject, its canonical form is plain ASCII, or the record is refused."""
    reason = judged(json.dumps({**GOOD, "subjects": subjects}).encode())
    printable = all(value and value.isprintable() for value in subjects.values())
    if reason == "" and subjects:
        assert printable


own_form = st.builds(
    lambda number, change: encode(msgspec.convert({**GOOD, "id": f"e{number}", **change}, Decision)),
    st.integers(0, 99),
    st.sampled_from(
        [
            {},
            {},
            {"action": "allow", "reason": None, "violated": []},
            {"reason": None},
            {"violated": []},
            {"violated": ["daily"]},
            {"action": "allow", "violated": ["daily"]},
            {"ts": BROKER_MS + AHEAD_MS + 1},
            {"subjects": {"ip": "203.0.113.7, 10.0.0.1"}},
            {"subjects": {"user": "a b"}},
            {"subjects": {"user": "\x7f"}},
            {"subjects": {"User": "a"}},
            {"attrs": {"a\nb": "c"}},
            {"scenario": "é"},
            {"route": "\u2028"},
        ]
    ),
)
anything = st.sampled_from([None, b"", *(raw_of(entry) for entry in BAD)]) | st.binary(max_size=40)


@settings(deadline=None)
@given(raws=st.lists(st.one_of(own_form, own_form, own_form, anything), max_size=6))
def test_a_run_is_judged_as_its_records_are(raws: list[bytes | None]) -> None:
    """Decoding many at once gives for each record what decoding it alone gives, reason by reason, with its names."""
    together = decode_decisions(raws, [BROKER_MS] * len(raws), Canonicaliser())
    assert len(together) == len(raws)
    for raw, found in zip(raws, together, strict=True):
        try:
            alone = decide(raw or b"")
        except BadEvent as error:
            assert isinstance(found, BadEvent)
            assert found.reason == error.reason  # noqa: PT017
        else:
            assert not isinstance(found, BadEvent)
            assert found[0] == alone
            texts = [Canonicaliser().subject(*pair) for pair in alone.subjects.items()]
            assert [name.text for name in found[1]] == texts


@settings(deadline=None)
@given(raws=st.lists(own_form, max_size=6))
def test_a_run_of_our_own_is_judged_but_for_its_subjects(raws: list[bytes | None]) -> None:
    """The quick way refuses a run in which anything but a subject is wrong, and otherwise decodes it alike."""
    quick = decode_own_run(raws, [BROKER_MS] * len(raws))
    if quick is not None:
        for raw, decision in zip(raws, quick, strict=True):
            try:
                assert decide(raw or b"") == decision
            except BadEvent as error:
                assert error.reason in {"bad_ip", "bad_dimension", "empty_subject"}  # noqa: PT017 - only a subject


def test_duplicate_keys_are_found_however_they_are_written() -> None:
    """A key that stands twice, escaped or nested, is refused even where both values agree."""
    raw = json.dumps(GOOD)[:-1]
    for twice in ('"id":"01K3ZB5Q0V7M2X8R4T6Y9WABCD"', '"\\u0069d":"x"', '"x":[{"a":1,"a":1}]'):
        with pytest.raises(BadEvent) as caught:
            decide(f"{raw},{twice}}}".encode())
        assert caught.value.reason == "duplicate_keys"


def test_outcome_and_decision_are_told_apart() -> None:
    """A record on the wrong topic is refused, not misread."""
    outcome = encode(Outcome(v=1, id="o", ts=BROKER_MS, label="chargeback", subjects={"user": "a"}))
    with pytest.raises(BadEvent):
        decide(outcome)
    with pytest.raises(BadEvent):
        decode_outcome(json.dumps(GOOD).encode(), BROKER_MS, Canonicaliser())
    assert msgspec.json.decode(outcome)["label"] == "chargeback"
