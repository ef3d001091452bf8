"""Which requests of a sampled scenario are checked, and which allows are published: by a hash of the request's id.

The two draws are independent, so of all allowed requests, checked or not, the same share is published, and each
published one stands for ``1 / sample_rate`` of them. With one draw for both, the published allows would come from the
checked requests alone and tell too little of the others.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.policy import Scenario

_WHOLE: Final = 100
_LEAST: Final = 1e-6


class Sampling:
    """Draws by request id.

    Args:
        key: up to 64 bytes that nobody outside knows. Needed where a client chooses the request's id, because who can
            compute the draw can choose never to be checked.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._check = blake2b(digest_size=8, key=key, person=b"check")
        self._publish = blake2b(digest_size=8, key=key, person=b"publish")

    def checks(self, scenario: Scenario, request_id: str) -> bool:
        """Whether this request is checked at all."""
        percent = scenario.check_percent
        return percent >= _WHOLE or _drawn(self._check, request_id, percent / _WHOLE)

    def published(self, scenario: Scenario, decision: Decision, request_id: str) -> Decision | None:
        """The decision as it is published; None when it is an allow that is not drawn."""
        rate = publish_rate(scenario)
        if decision.action != "allow" or rate >= 1:
            return decision
        if not _drawn(self._publish, request_id, rate):
            return None
        return msgspec.structs.replace(decision, sample_rate=rate)


def publish_rate(scenario: Scenario) -> float:
    """Share of the allows that are published, 1e-6 to 1: what `sample_rate` can say."""
    return max(scenario.publish_percent / _WHOLE, _LEAST)


def _drawn(seed: blake2b, request_id: str, rate: float) -> bool:
    draw = seed.copy()
    draw.update(request_id.encode("utf-8", "surrogatepass"))
    return int.from_bytes(draw.digest(), "big") < rate * (1 << 64)
