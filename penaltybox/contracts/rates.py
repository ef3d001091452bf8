"""A rate with its 95 % interval, and whether there is enough to say anything."""

from __future__ import annotations

import math
from typing import Final, Literal

import msgspec

Status = Literal["none", "insufficient", "unlabelled", "report only", "actionable"]
"""`none`: nothing was limited, so the rate is 0 and certain; `insufficient`: fewer than `ENOUGH`; `unlabelled`: no
label among them; `report only`: fewer than `ACTIONABLE`, nothing should act on it."""

Z: Final = 1.959963984540054
"""97.5 % quantile of the normal distribution."""
ENOUGH: Final = 30
ACTIONABLE: Final = 100


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """A share of `n`, with its interval; without any of them where too little is known.

    Attributes:
        n: how many it is a share of; where they weigh differently, how many equal ones would say as much.
    """

    n: float
    status: Status
    value: float | None = None
    low: float | None = None
    high: float | None = None


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95 % score interval of a share of n > 0 (E. B. Wilson, JASA 22 (1927) 209-212)."""
    centre = (share + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return max(0.0, centre - half), min(1.0, centre + half)


def rate(part: float, whole: float, n: float, *, labelled: bool = True) -> Rate:
    """The rate part / whole as far as n observations can tell it.

    Args:
        part: of the whole, at most it.
        whole: sum of the weights of all.
        n: the number of observations; of weighted ones (sum of weights)² / sum of weights².
        labelled: whether anything is known about any of them.
    """
    if n < ENOUGH:
        return Rate(n=n, status="insufficient")
    if not labelled:
        return Rate(n=n, status="unlabelled")
    share = min(1.0, part / whole)
    low, high = wilson(share, n)
    return Rate(n=n, status="report only" if n < ACTIONABLE else "actionable", value=share, low=low, high=high)


def nothing(n: float) -> Rate:
    """The rate where nothing was limited at all."""
    return Rate(n=n, status="none", value=0.0)
