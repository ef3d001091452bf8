"""What to change about an address that people share, with the arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.contracts.policy import Limit, Policy

_MANY: Final = 3.0
"""Effective users from which an address counts as shared (docs/analytics.md)."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one limit.

    Attributes:
        scenario, limit: which limit on addresses.
        now: its threshold.
        raise_to: what the established users of the address may use by their own limits, when that is more.
        challenge: whether to answer with a challenge instead of a deny.
        why: the arithmetic.
    """

    scenario: str
    limit: str
    now: int
    raise_to: int | None
    challenge: bool
    why: str

    def text(self) -> str:
        """For people."""
        said = [f"raise to {self.raise_to:,}"] if self.raise_to is not None else []
        said += ["challenge instead of deny"] if self.challenge else []
        return f"{self.scenario} {self.limit}: {', '.join(said) or 'leave'} ({self.why})"


def advise(place: Mapping[str, Any], met: Sequence[tuple[str, str]], policy: Policy) -> list[Advice]:
    """What to change for a place of the view `nat`.

    Args:
        place: its row.
        met: (scenario, limit on addresses) that people met there.
        policy: whose limits are in force.
    """
    if place["n_eff"] < _MANY or not place["denied_within_limit"]:
        return []
    found: list[Advice] = []
    for scenario, name in met:
        limits = policy.limits.get(scenario, {})
        found += [
            _advice(scenario, limit, limits.get("user", ()), place["n_eff"])
            for limit in limits.get("ip", ())
            if f"ip:{limit.name}" == name
        ]
    return found


def _advice(scenario: str, limit: Limit, user_limits: Sequence[Limit], n_eff: float) -> Advice:
    challenge = limit.answer == "deny"
    shares = [(one.limit * math.ceil(limit.window_ms / one.window_ms), one) for one in user_limits]
    if not shares:
        why = f"now {limit.limit:,}; {scenario} has no limit on users to multiply by N_eff {n_eff:.1f}: add one first"
        return Advice(
            scenario=scenario, limit=f"ip:{limit.name}", now=limit.limit, raise_to=None, challenge=challenge, why=why
        )
    per_user, one = min(shares, key=lambda share: share[0])
    needed = math.ceil(per_user * n_eff)
    windows = math.ceil(limit.window_ms / one.window_ms)
    times = "" if windows == 1 else f" * {windows} windows"
    why = f"user:{one.name} {one.limit:,}{times} * N_eff {n_eff:.1f} = {needed:,}; now {limit.limit:,}"
    return Advice(
        scenario=scenario,
        limit=f"ip:{limit.name}",
        now=limit.limit,
        raise_to=needed if needed > limit.limit else None,
        challenge=challenge,
        why=why,
    )
