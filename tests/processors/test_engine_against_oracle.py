"""The engine does what a naive second implementation does, on whatever hypothesis comes up with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, note

from penaltybox.processors.state import ladder_record
from tests.oracle.judge import Oracle
from tests.processors.campaigns import campaigns, policies, usual
from tests.processors.engine_driver import Drive

if TYPE_CHECKING:
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.state import SubjectState
    from tests.oracle.person import Person
    from tests.processors.campaigns import Delivery


def told(penalties: list[Penalty]) -> list[str]:
    """Penalties in words, those of one ladder in their order."""
    shown = (
        (
            f"{one.subject} {one.rule if one.shadow else ''}",
            (
                f"{one.ts} {one.from_}->{one.to} {one.action} until {one.until} by {one.rule} on {one.trigger_id}"
                f" shadow={one.shadow} late={one.late} {one.id}"
            ),
        )
        for one in penalties
    )
    return [f"{ladder}: {what}" for ladder, what in sorted(shown, key=lambda pair: pair[0])]


def ladder_of_engine(state: SubjectState) -> dict[str, Any]:
    record = ladder_record(state)
    if record is None:
        return {}
    names = ("rung", "rung_ms", "at", "end", "deny", "challenge", "grace_until", "pass_until")
    return {name: getattr(record, name) for name in names}


def ladder_of_oracle(person: Person) -> dict[str, Any]:
    real = person.real
    return {
        "rung": real.rung or "none",
        "rung_ms": real.rung_ms,
        "at": real.at,
        "end": real.end,
        "deny": real.deny,
        "challenge": real.challenge,
        "grace_until": person.grace_until,
        "pass_until": person.pass_until,
    }


@pytest.mark.parametrize("way", ["in_place", "stored", "pure", "wire"])
@usual
@given(policy=policies(), events=campaigns())
def test_engine_equals_oracle(way: str, policy: Policy, events: list[Delivery]) -> None:
    """Penalties and ladders are those of the oracle, whichever face of the engine is used."""
    note("\n".join(str(msgspec.to_builtins(rule)) for rule in policy.rules))
    drive = Drive(policy, stored=way == "stored", pure=way == "pure", wire=way == "wire")
    oracle = Oracle(policy)
    for event, broker_ms, late in events:
        drive.judge(event, broker_ms, late=late)
        oracle.judge(event, broker_ms, late=late)
    assert told(drive.penalties) == told(oracle.penalties)
    for subject, state in drive.states.items():
        found = ladder_of_engine(state)
        if found:
            assert found == ladder_of_oracle(oracle.people[subject])
