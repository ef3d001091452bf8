"""Hand-made runs: what an observer is told, written down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penaltybox.contracts.events import Decision, Hold, Outcome, Penalty
from penaltybox.contracts.ids import penalty_id
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay.comparison import Comparison

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.policy import Policy
    from penaltybox.processors.replay.observer import Side

T0_MS = 1_766_400_000_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
LENGTHS: dict[str, int | None] = {"warn": 0, "5m": 300_000, "1h": HOUR_MS, "permanent": None}


class Run:
    """A comparison being told things; times are minutes after `T0_MS`."""

    def __init__(self, policies: Mapping[Side, Policy] | None = None, *, matures_ms: int | None = None) -> None:
        self.canonicaliser = Canonicaliser()
        self.comparison = Comparison(policies or {}, self.canonicaliser, matures_ms=matures_ms)
        self.number = 0

    def decision(
        self,
        minute: float = 0,
        *,
        stopped: Mapping[Side, Hold | None] | None = None,
        counted: bool = True,
        **fields: Any,
    ) -> str:
        """Tell of a decision; its id."""
        self.number += 1
        fields.setdefault("subjects", {"user": "u1", "device": "d1", "ip": "203.0.113.7"})
        values = {"v": 1, "id": f"e{self.number}", "source": "s", "action": "allow", **fields}
        decision = Decision(ts=T0_MS + int(minute * MINUTE_MS), **values)
        self.comparison.decision(decision, self.canonicaliser.names(decision.subjects), stopped or {}, counted)
        return decision.id

    def denial(self, minute: float = 0, **fields: Any) -> str:
        """Tell of an over-limit deny; its id."""
        return self.decision(
            minute, **{"action": "deny", "reason": "over_limit", "violated": ("device:daily",), **fields}
        )

    def penalty(self, side: Side, subject: str, minute: float = 0, *, counted: bool = True, **fields: Any) -> None:
        """Tell of a five-minute deny by the rule `r`, or what `fields` make of it; `to` sets how long."""
        to = fields.get("to", "5m")
        ts = T0_MS + int(minute * MINUTE_MS)
        length = LENGTHS.get(to, 0)
        trigger = fields.pop("trigger_id", f"e{self.number}")
        values: dict[str, Any] = {
            "id": penalty_id(subject, fields.get("rule", "r"), trigger, to),
            "from_": "none",
            "to": to,
            "to_ms": length,
            "action": "warn" if to == "warn" else "deny",
            "until": None if length is None else ts + length,
            "rule": "r",
            "policy_version": side,
            **fields,
        }
        self.comparison.penalty(side, Penalty(ts=ts, subject=subject, trigger_id=trigger, **values), counted)

    def outcome(self, label: str, minute: float = 0, *, counted: bool = True, **subjects: str) -> None:
        """Tell of an outcome."""
        self.number += 1
        self.comparison.outcome(
            Outcome(v=1, id=f"o{self.number}", ts=T0_MS + int(minute * MINUTE_MS), label=label, subjects=subjects),  # type: ignore[arg-type]
            counted,
        )


def hold(rule: str = "r", rung: str = "5m") -> Hold:
    """A deny in force."""
    return Hold(T0_MS + HOUR_MS, rung, rule, "p")
