"""Whose quota is larger or smaller: trust, plan and overrides of a customer, as their keys say it.

On one server lua/limits.lua reads the same; a test holds the two together.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import msgspec

WHOLE: Final = 10_000
_MOST_PERCENT: Final = 100_000


class Standing(NamedTuple):
    """What the keys of a request's subjects say: the values of trust and plan (empty: no key), a passed challenge."""

    trust: bytes = b""
    plan: bytes = b""
    passed: bool = False

    def share(self, newcomers_percent: int) -> int:
        """Share of the normal quota, in 1/10,000."""
        multiplier = _read(self.trust).get("multiplier")
        percent = 100
        if isinstance(multiplier, int | float) and not isinstance(multiplier, bool) and multiplier > 0:
            percent = min(int(multiplier * 100 + 0.5), _MOST_PERCENT)
        return percent * (100 if self.established else newcomers_percent)

    @property
    def established(self) -> bool | None:
        """Whether the trusted subject is known; None when nothing is said."""
        return _read(self.trust).get("established") is True if self.trust else None

    @property
    def customer(self) -> dict[str, Any] | None:
        """Plan and overrides; None when there are none."""
        return _read(self.plan) if self.plan else None


def _read(value: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(value) if value else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return found if isinstance(found, dict) else {}
