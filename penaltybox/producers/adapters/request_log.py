"""What formats share whose lines are requests with a status: options, times, and how a request becomes a reading."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from penaltybox.producers.adapters.choices import keyed_by, refusals
from penaltybox.producers.adapters.reading import Adapter, Reading, label
from penaltybox.producers.adapters.times import Times

if TYPE_CHECKING:
    from penaltybox.contracts.events import Reason
    from penaltybox.producers.adapters.reading import Options
    from penaltybox.producers.adapters.targets import Target


class RequestLog(Adapter):
    """A log of requests."""

    counts_by: ClassVar[str] = "ip"
    """The dimension of limits where ``--option keyed-by`` says none; empty: the format finds out line by line."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._times = Times(options.zone, options.now_ms)
        self._refusals = refusals(options)
        self._keyed_by = keyed_by(options, self.counts_by)

    def _request(
        self,
        ts_ms: int,
        status: int,
        subjects: dict[str, str],
        target: Target,
        reason: Reason | None,
        limit: str = "",
        dimension: str = "",
    ) -> Reading:
        """A request that was refused for a reason, or allowed without one.

        Args:
            ts_ms: when.
            status: of the answer.
            subjects: who asked.
            target: for what.
            reason: of a refusal.
            limit: its name, where it was one that refused.
            dimension: what that limit counts by, where it is not what `keyed-by` says.
        """
        return Reading(
            ts_ms=ts_ms,
            action="allow" if reason is None else "deny",
            reason=reason,
            violated=(label(f"{dimension or self._keyed_by}:{limit}"),) if limit else (),
            subjects=subjects,
            scenario=target.scenario,
            route=target.route,
            status=status,
        )
