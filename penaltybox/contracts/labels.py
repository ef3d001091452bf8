"""What an outcome's label says of a subject, and when it may be trusted to have come: the defaults of every report.

ClickHouse holds the same figures in its table `label_weights`, where an installation may change them; a test keeps the
two alike. docs/analytics.md says what they mean, docs/decisions/0012 why.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

Standing = Literal["legitimate", "abusive", "unknown"]
"""What is known of a subject: a label of legitimacy, a label of abuse (which outweighs it), or none."""
STANDINGS: Final[tuple[Standing, ...]] = ("legitimate", "abusive", "unknown")

_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 24 * _HOUR_MS


class Kind(NamedTuple):
    """A kind of label.

    Attributes:
        weight: probability that its subject is legitimate.
        matures_ms: how long after a limit it may come.
        after_limit: only who was limited can get it, so it says nothing about those who were not.
    """

    weight: float
    matures_ms: int
    after_limit: bool = False


KINDS: Final[dict[str, Kind]] = {
    "manual_unban": Kind(0.98, 30 * _DAY_MS, after_limit=True),
    "appeal_granted": Kind(0.95, 30 * _DAY_MS, after_limit=True),
    "payment_ok": Kind(0.90, _DAY_MS),
    "identity_verified": Kind(0.90, 7 * _DAY_MS),
    "duplicate_request": Kind(0.85, _DAY_MS),
    "challenge_passed": Kind(0.70, _HOUR_MS, after_limit=True),
}
ABUSE: Final = frozenset({"confirmed_abuse", "chargeback"})


def legitimacy(kinds: Iterable[str]) -> float:
    """Probability that a subject with these kinds of labels is legitimate: 1 - product(1 - weight), 0 without any.

    A kind counts once, however often it came; abuse is the caller's business.
    """
    return 1 - math.prod(1 - KINDS[kind].weight for kind in set(kinds))
