"""What is asked about a request's subjects, and for how many of them it is remembered."""

from __future__ import annotations

import pytest

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers import questions
from penaltybox.producers.questions import Questions
from tests.producers.limiters import policy, request

LIMITS = "user: [{name: a, limit: 5, window: 1m}]\n    device+route: [{name: b, limit: 5, window: 1m}]"


def asking(limits: str = "user: [{name: a, limit: 5, window: 1m}]") -> Questions:
    return Questions(policy(limits), Keyspace(), Canonicaliser())


def test_the_same_subjects_are_asked_about_once() -> None:
    """The same scenario, dimensions and values give the same object; another value, order or scenario another one."""
    asked = asking()
    first = asked.asked(request(subjects={"user": "u", "ip": "::ffff:192.0.2.1"}))
    assert first.subjects == ("user:u", "ip:192.0.2.1")
    assert first.stems == ("pbx:{user:u}", "pbx:{ip:192.0.2.1}")
    assert asked.asked(request(subjects={"user": "u", "ip": "::ffff:192.0.2.1"})) is first
    others = [
        request(subjects={"user": "v", "ip": "192.0.2.1"}),
        request(subjects={"ip": "::ffff:192.0.2.1", "user": "u"}),
        request(subjects={"user": "u", "ip": "::ffff:192.0.2.1"}, scenario="t"),
    ]
    assert all(asked.asked(one) is not first for one in others)
    assert asked.asked(others[2]).question.limits == ()


def test_a_route_belongs_to_the_request() -> None:
    """With a limit on device and route, each route of a device is a subject of its own, and none is remembered."""
    asked = asking(LIMITS)
    one, other = (asked.asked(request(subjects={"user": "u", "device": "d"}, route=route)) for route in ("/a", "/b"))
    assert one.subjects == ("user:u", "device:d", "device+route:d+%2Fa")
    assert other.subjects == ("user:u", "device:d", "device+route:d+%2Fb")


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more subjects than there is room for, those that came first are forgotten, and asked about like new ones."""
    monkeypatch.setattr(questions, "_MAX_ASKED", 3)
    asked = asking()
    found = [asked.asked(request(subjects={"user": name})) for name in "abcd"]
    for name, one in zip("dcb", found[:0:-1], strict=True):
        assert asked.asked(request(subjects={"user": name})) is one
    again = asked.asked(request(subjects={"user": "a"}))
    assert again is not found[0]
    assert again.subjects == found[0].subjects
    assert len(asked._asked) == 3


@pytest.mark.parametrize("value", ["", "x" * 129, "\u00e4" * 65, "\x00", "\ud800"])
def test_a_value_that_is_not_allowed_is_never_remembered(value: str) -> None:
    """Empty, too long, unprintable or no text: refused each time, and it takes no room."""
    asked = asking()
    for _ in range(2):
        with pytest.raises(BadEvent):
            asked.asked(request(subjects={"user": value}))
    assert not asked._asked


@pytest.mark.parametrize("value", ["x" * 128, "\u00e4" * 64, "\U0001f600" * 32, "\u00b2", "a}b"])
def test_values_at_the_bounds(value: str) -> None:
    """128 bytes are allowed, however many characters they are; what is no ASCII letter or digit is encoded."""
    (subject,) = asking().asked(request(subjects={"user": value})).subjects
    assert subject == Canonicaliser().subject("user", value)
    assert "}" not in subject
