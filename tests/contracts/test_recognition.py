"""A record that is recognised by its bytes is a good one, and means what decoding it would have found."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import msgspec
import pytest

from penaltybox.contracts import recognition
from penaltybox.contracts.decoding import decode_decisions
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import AHEAD_MS, Decision, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.recognition import Sighting
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.cycle import Run
from penaltybox.processors.engine import Engine
from penaltybox.processors.intake import decode_run, judge_decisions
from tests.contracts.test_decoding import BAD, BROKER_MS, GOOD, raw_of
from tests.processors.worker_driver import Raw

POLICY = """
limits: {}
rules:
  farm: {on: device, distinct: user, n: 4, window: 10m, then: {level: 5m}}
  places: {on: user, distinct: attrs.address, n: 3, window: 10m, then: step}
  typed: {on: ip, count: 9, window: 10m, when: {scenario: [login], route: ["POST *"]}, then: {challenge: 1m}}
  abuse: {on: user, count: 4, window: 10m, then: step}
ladder: {rungs: [warn, 5m, 1h, permanent], warn: 10m, forgive: 8h, memory: 72h}
shared_ip: {established: 4, window: 14d}
"""
SPACED = json.dumps(GOOD).encode()
"""A good one, as another program writes it."""
CHANGES: list[dict[str, Any]] = [
    {},
    {"action": "allow", "reason": None, "violated": []},
    {"scenario": "login"},
    {"scenario": "a{b", "source": "x}y"},
    {"reason": None},
    {"violated": ["daily"]},
    {"subjects": {"user": "a}b", "ip": "203.0.113.7"}},
    {"subjects": {"user": "a b"}},
    {"subjects": {"User": "a"}},
    {"subjects": {"ip": "203.0.113.999"}},
    {"subjects": {"ip": "203.0.113.8"}},
    {"subjects": {"user": "é"}},
    {"attrs": {}},
    {"attrs": {"user": "10086", "device": "a1b2c3d4", "ip": "203.0.113.7"}},
    {"attrs": {"address": 'q"q'}},
    {"established": None},
    {"enforced": False},
    {"count": 7},
    {"route": "", "attrs": {}},
    {"id": "with space, comma"},
    {"id": "é"},
    {"id": 'q"q'},
    {"ts": BROKER_MS - 86_400_000},
]
DAMAGE: list[tuple[bytes, bytes]] = [
    (b'"v":1,', b'"v":1, '),
    (b'"v":1,', b'"v":2,'),
    (b'"v":1,"id"', b'"id":"x","v":1,"id"'),
    (b',"subjects":', b',"subjects":{"user":"x"},"subjects":'),
    (b'"user":"10086"', b'"user":"x","user":"10086"'),
    (b'"user":"10086"', b'"user":10086'),
    (b'"user":"10086"', b'"user":"100\\u0038"'),
    (b'"ts":', b'"ts":0'),
    (b'"ts":', b'"ts":9999999'),
    (b'"ts":1', b'"ts":-1'),
    (b'"source":', b'"source":"x","source":'),
    (b'"status":429', b'"status":429,"status":429'),
    (b'"status":429', b'"status":42'),
    (b'"status":429', b'"status":"429"'),
    (b'"attrs":{', b'"attrs":{},"attrs":{'),
    (b'"attrs":{', b'"attrs":{"x":1,'),
    (b"}", b"}\n"),
    (b"}", b"} "),
    (b"{", b"\n{"),
    (b"{", b""),
    (b'"id":"', b'"id":"\x7f'),
    (b'"id":"', b'"id":"' + b"x" * 128),
    (b'"route":"', b'"route":"' + b"x" * 5000),
]


def records(rng: random.Random) -> list[bytes]:
    """Records of which most are good, and share their parts."""
    found: list[bytes] = []
    changes, damaged = rng.sample(CHANGES, 3), rng.random() < 0.4
    for number in range(rng.randrange(1, 12)):
        change = rng.choice(changes) | rng.choice([{}, *changes])
        raw = encode(msgspec.convert({**GOOD, "id": f"e{number}", **change}, Decision))
        if damaged and rng.random() < 0.2:
            old, new = rng.choice(DAMAGE)
            cut = rng.choice([one.start() for one in re.finditer(re.escape(old), raw)] or [0])
            raw = raw[:cut] + raw[cut:].replace(old, new, 1)
        if damaged and rng.random() < 0.05:
            raw = rng.choice([b"", *(raw_of(entry) for entry in BAD)])
        found.append(raw)
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("parts", [4, recognition.MAX_PARTS])
def test_what_is_recognised_is_what_decoding_finds(seed: int, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Event by event, letter by letter, a worker that has seen much takes in what one that has seen nothing does."""
    monkeypatch.setattr(recognition, "MAX_PARTS", parts)
    monkeypatch.setattr(recognition, "LONGEST_REST", seed % 3)
    rng = random.Random(seed)
    engine = Engine(parse_policy(POLICY))
    recognised = 0
    for _ in range(200):
        given = [Raw(at, BROKER_MS, raw) for at, raw in enumerate(records(rng))]
        run = Run(TOPICS.decisions, 0, given, lambda: None)
        decoded, letters = decode_run(engine, TOPICS, run, given, BROKER_MS)
        fresh = Engine(engine.policy)
        judged = [decode_decisions([one.value], [BROKER_MS], Canonicaliser())[0] for one in given]
        expected = [one for one in judged if not isinstance(one, BadEvent) and fresh.kind(one[0]).plans]
        assert len(letters) == sum(isinstance(one, BadEvent) for one in judged)
        assert len(decoded.events) == len(expected)
        for (event, t, _, names, kind), (wanted, wanted_names) in zip(decoded.rows(), expected, strict=True):
            assert kind is not None
            assert kind.plans == fresh.kind(wanted).plans
            assert [name.text for name in names] == [name.text for name in wanted_names]
            assert t == min(wanted.ts, BROKER_MS)
            if isinstance(event, bytes):
                seen = Sighting(event, t)
                assert (seen.whole, seen.id, seen.count) == (wanted, wanted.id, wanted.count)
                recognised += 1
            else:
                assert event == wanted
    assert recognised > (200 if parts > 8 and not seed % 3 else 0)


@pytest.mark.parametrize("strange", [b"", b"{}", b'{ "v":1}', SPACED, b"x" * 5000, b'{"v":1,\n"id":"e"}'])
def test_a_record_in_another_form_is_decoded_alone(strange: bytes) -> None:
    """Those around it are recognised as they would be without it."""
    engine = Engine(parse_policy(POLICY))
    good = [encode(msgspec.convert({**GOOD, "id": f"e{number}"}, Decision)) for number in range(9)]
    ahead = encode(msgspec.convert({**GOOD, "id": "ahead", "ts": BROKER_MS + 2 * AHEAD_MS}, Decision))
    for _ in range(3):  # the first is learnt from, the second falls into the rest after it
        values = [*good[:5], strange, ahead, *good[5:]]
        events, _, _, kinds, refused = judge_decisions(engine, values, [BROKER_MS] * len(values))
        assert set(refused) == ({6} if strange is SPACED else {5, 6})
        assert refused[6].reason == "from_the_future"
        assert all((*kinds[:5], *kinds[7:]))
    recognised = {at for at, event in enumerate(events) if event is values[at]}
    assert recognised - {5, 6} == {0, 1, 2, 3, 4, 7, 8, 9, 10}
    assert (5 in recognised) == (5 in refused)


def test_a_byte_makes_a_record_a_bad_one_recognised_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever byte of a record is lost, added or another one, a worker that knows its parts judges as decoding does.

    What passed for good and cannot be decoded would end one worker after the other.
    """
    monkeypatch.setattr(recognition, "LONGEST_REST", 0)
    engine = Engine(parse_policy(POLICY))
    judge_decisions(engine, [encode(msgspec.convert(GOOD, Decision))] * 2, [BROKER_MS] * 2)
    raw = encode(msgspec.convert({**GOOD, "attrs": {"address": "another"}}, Decision))
    wrong = []
    for at in range(len(raw) + 1):
        for between in (b"", b"}", b"]", b'"', b",", b"1", b"x", b" ", b"\n", b"\x00", b"\xff", b"\\"):
            for damaged in (raw[:at] + between + raw[at:], raw[:at] + between + raw[at + 1 :]):
                (wanted,) = decode_decisions([damaged], [BROKER_MS], engine.canonicaliser)
                (event,), _, _, _, refused = judge_decisions(engine, [damaged], [BROKER_MS])
                if bool(refused) != isinstance(wanted, BadEvent):
                    wrong.append(damaged)
                elif not refused and isinstance(wanted, tuple):
                    found = Sighting(event, 1).whole if isinstance(event, bytes) else event
                    assert found == wanted[0]
    assert not wrong
