"""How many established users share an address: a lower bound, from a sketch of bounded size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penaltybox.processors.replay.observer import Side

KEPT: Final = 16
SHARED: Final = 3.0
"""From so many effective users on, an address is taken for one that people share (N_eff)."""


class Crowd:
    """The established users of one address and their requests, as a Space-Saving sketch.

    A user who finds no room takes the smallest place over, with its count (Metwally, Agrawal, El Abbadi, ICDT 2005).
    The counts then majorise the true ones, so 1 / sum of squared shares is never more than the true number of
    effective users: an address called shared is shared.
    """

    __slots__ = ("_requests", "over", "punished")

    def __init__(self) -> None:
        self._requests: dict[int, float] = {}
        self.over = False
        """A user went over a user limit here."""
        self.punished: frozenset[Side] = frozenset()
        """Sides on which a rule denied or challenged a user for what happened here."""

    def see(self, user: int, requests: float) -> None:
        """Requests of an established user; `user` is a hash."""
        kept = self._requests
        if user in kept or len(kept) < KEPT:
            kept[user] = kept.get(user, 0.0) + requests
            return
        least = min(kept, key=kept.__getitem__)
        kept[user] = kept.pop(least) + requests

    @property
    def effective(self) -> float:
        """N_eff = 1 / sum of squared shares, at most `KEPT`; 0 without established users."""
        total = sum(self._requests.values())
        return total * total / sum(one * one for one in self._requests.values()) if total else 0.0

    @property
    def full(self) -> bool:
        """Whether there may be more users than the sketch can tell apart."""
        return len(self._requests) == KEPT

    def attributable(self, side: Side) -> bool:
        """Whether a limit that hits the address hits its size: shared, and no user there went over."""
        return self.effective >= SHARED and not self.over and side not in self.punished
