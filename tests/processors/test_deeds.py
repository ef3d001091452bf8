"""What the audit says of each thing that somebody did by hand."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from penaltybox.contracts.events import Control, Penalty
from penaltybox.processors.deeds import changes, stored_steps, untold_steps

AT_MS = 1_796_069_170_965
END_MS = AT_MS + 300_000


def penalty(**changed: Any) -> Penalty:
    made: dict[str, Any] = {"v": 1, "id": "p1", "ts": AT_MS, "subject": "user:u1", "from_": "none", "to": "5m",
                            "action": "deny", "until": END_MS, "rule": "hand", "policy_version": "v", "trigger_id": "c",
                            "seq": 1, "origin": "hand", "actor": "alice", "note": "why",
                            "evidence": {"verb": "ban"}}  # fmt: skip
    return Penalty(**(made | changed))


class Rows:
    """A ClickHouse that has one penalty."""

    def __init__(self, one: Penalty) -> None:
        self._one = one

    def rows(self, *_: object) -> list[dict[str, Any]]:
        one = self._one
        return [{"at": one.ts, "id": one.id, "actor": one.actor, "action": one.action, "subject": one.subject,
                 "from_rung": one.from_, "to_rung": one.to, "note": one.note, "until_ms": one.until,
                 "evidence": msgspec.json.encode(one.evidence).decode()}]  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "what", "details"),
    [
        ({}, "ban", "none → 5m, until 2026-11-30T20:11:10Z"),
        ({"until": None, "to": "permanent"}, "ban", "none → permanent, for good"),
        ({"evidence": {"verb": "unban", "grace": "1h"}, "action": "lift", "from_": "5m", "to": "none", "until": None},
         "unban", "5m → none, grace 1h"),
        ({"evidence": {"verb": "grant", "points": -3}, "action": "note", "to": "none", "until": None},
         "grant", "-3 points of trust"),
        ({"evidence": {}, "action": "lift"}, "lift", "none → 5m"),
    ],
)  # fmt: skip
def test_a_step_says_what_it_did(changed: dict[str, Any], what: str, details: str) -> None:
    """From Kafka's record and ClickHouse's row alike: until when, how many points, what grace."""
    one = penalty(**changed)
    (told,), (stored,) = untold_steps([one], 0), stored_steps(cast("Any", Rows(one)), 0, 10)
    assert told._replace(told=True) == stored
    assert (stored.what, stored.details) == (what, details)


@pytest.mark.parametrize(
    ("kind", "value", "what", "details"),
    [
        ("allow", '{"note":"office"}', "allow add", "for good: office"),
        ("allow", '{"until":1796069470965,"note":"why"}', "allow add", "until 2026-11-30T20:11:10Z"),
        ("allow", "", "allow remove", ""),
        ("cidr", '{"action":"challenge","until":null}', "ban range", "challenge for good"),
        ("cidr", "", "unban range", ""),
        ("cidr", "nonsense", "ban range", "nonsense"),
        ("override", '{"plan":"pro"}', "quota", '{"plan":"pro"}'),
    ],
)
def test_a_change_of_a_list_is_told_in_words(kind: Any, value: str, what: str, details: str) -> None:
    """An end and a note are read; what cannot be is shown as it stands there."""
    record = Control(id="c", ts=AT_MS, key=f"{kind}:203.0.113.0/24", kind=kind, value=value, actor="bob", reason="why")
    (deed,) = changes([record], 0)
    assert (deed.what, deed.about, deed.details, deed.reason) == (what, "203.0.113.0/24", details, "why")
