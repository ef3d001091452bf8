"""Which requests are checked, which allows published, which denials become challenges: by a hash of the request's id.

The draws are independent. So of all allowed requests, checked or not, the same share is published, and each
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
    from penaltybox.producers.verdict import Verdict

_WHOLE: Final = 100
_LEAST: Final = 1e-6
_MAX_ATTRS: Final = 8
_CHALLENGED: Final = 403
PROBE: Final = "probe"
"""The attribute of a decision that the probe turned into a challenge: the share of denials that is, e.g. ``0.02``."""


class Sampling:
    """Draws by request id.

    Args:
        key: up to 64 bytes that nobody outside knows. Needed where a client chooses the request's id, because who can
            compute the draw can choose never to be checked.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._check = blake2b(digest_size=8, key=key, person=b"check")
        self._publish = blake2b(digest_size=8, key=key, person=b"publish")
        self._probe = blake2b(digest_size=8, key=key, person=b"probe")

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

    def probed(self, scenario: Scenario, verdict: Verdict, request_id: str) -> Verdict:
        """The verdict, or a challenge in its place when it is a limit's denial that the probe draws.

        What a block, a ban or a failure denies stays denied. So does a request whose attrs leave no room for the mark,
        because a challenge that nobody can tell from others measures nothing.
        """
        share = scenario.probe_percent / _WHOLE
        if not share or verdict.action != "deny" or verdict.reason != "over_limit" or not verdict.decisions:
            return verdict
        denial = verdict.decisions[0]
        attrs = denial.attrs | {PROBE: f"{share:g}"}
        if len(attrs) > _MAX_ATTRS or not _drawn(self._probe, request_id, share):
            return verdict
        challenge = msgspec.structs.replace(denial, action="challenge", status=_CHALLENGED, attrs=attrs)
        return msgspec.structs.replace(verdict, action="challenge", decisions=(challenge, *verdict.decisions[1:]))


def publish_rate(scenario: Scenario) -> float:
    """Share of the allows that are published, 1e-6 to 1: what `sample_rate` can say."""
    return max(scenario.publish_percent / _WHOLE, _LEAST)


def _drawn(seed: blake2b, request_id: str, rate: float) -> bool:
    draw = seed.copy()
    draw.update(request_id.encode("utf-8", "surrogatepass"))
    return int.from_bytes(draw.digest(), "big") < rate * (1 << 64)
