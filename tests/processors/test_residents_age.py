"""What a worker has not verified for long is read again, so that nobody who was erased comes back from its memory."""

from __future__ import annotations

from penaltybox.processors.residents import Resident, Residents
from penaltybox.processors.state import SubjectState


def test_who_was_not_verified_for_long_is_forgotten() -> None:
    """Old ones go, young ones and busy ones stay, and hints that names hold are void."""
    busy = Resident(SubjectState.fresh("user:busy"), 1.0)
    busy.dirty = True
    residents = Residents(100, lambda: [busy])
    old, young = Resident(SubjectState.fresh("user:old"), 1.0), Resident(SubjectState.fresh("user:young"), 9.0)
    for one in (busy, old, young):
        residents.settle(one.state.subject, one)
    before = residents.epoch
    residents.retire(5.0)
    assert residents.recall("user:old") is None
    assert (residents.recall("user:young"), residents.recall("user:busy")) == (young, busy)
    assert residents.epoch > before > old.epoch
    residents.retire(5.0)
    assert residents.epoch == before + 1
