"""What leaves: keyed as the contract says, hashed where the settings say, and the same again out of the spill."""

from __future__ import annotations

from typing import Any

import pytest

from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Decision, Outcome
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser, hash_value
from penaltybox.contracts.topics import record_key
from penaltybox.producers import sealed as module
from penaltybox.producers.sealed import Sealer


def decision(action: str = "deny", **subjects: str) -> Decision:
    more: dict[str, Any] = {"reason": "over_limit", "violated": ("user:daily",)} if action == "deny" else {}
    return Decision(v=1, id="d", ts=1, source="t/1", action=action, subjects=subjects, **more)  # type: ignore[arg-type]


OUTCOME = Outcome(v=1, id="o", ts=1, label="chargeback", subjects={"user": "u"})


def test_what_survives_an_outage() -> None:
    """Everything but an allowed request is kept."""
    sealer = Sealer(Settings())
    assert [sealer.seal(decision(action, user="u")).kept for action in ("allow", "deny", "shadow", "delay")] == [
        False, True, True, True,
    ]  # fmt: skip
    assert sealer.seal(OUTCOME).kept


def test_keys_are_the_contracts_after_any_number_of_subjects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys equal `record_key`, also when what was remembered has been thrown away in between."""
    monkeypatch.setattr(module, "MAX_KEYS", 5)
    monkeypatch.setattr(module, "MAX_SETS", 2)
    sealer = Sealer(Settings())
    for number in range(40):
        for subjects in ({"ip": f"::ffff:192.0.2.{number}"}, {"ip": "192.0.2.1", "user": f"ü {number}"}, {"z": "1"}):
            assert sealer.seal(decision(**subjects)).key == record_key(subjects, Canonicaliser())


def test_out_of_the_spill_it_is_the_same() -> None:
    """A record read again has the same topic, key and bytes; a hashed dimension is not hashed twice."""
    sealer = Sealer(Settings(hashed_dimensions=("ip",), hash_key="k"))
    for record in (decision(ip="192.0.2.1"), decision("allow", user="u"), OUTCOME):
        sealed = sealer.seal(record)
        assert sealer.resealed(sealed.value) == sealed
    assert sealer.seal(decision(ip="192.0.2.1")).key.decode() == f"ip:{hash_value(b'k', 'ip', '192.0.2.1')}"


@pytest.mark.parametrize("line", [b"", b"{", b"[]", b'{"v":1}', b'{"v":1,"id":"x","ts":1,"label":"nonsense"}', b"\xff"])
def test_what_is_no_record_is_told(line: bytes) -> None:
    """A damaged line is a BadEvent, whatever it is."""
    with pytest.raises(BadEvent):
        Sealer(Settings()).resealed(line)
