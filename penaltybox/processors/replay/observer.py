"""Who watches a replay: what a comparison, or a report, is told while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.events import Decision, Hold, Outcome, Penalty
    from penaltybox.contracts.subjects import Names

Side = Literal["baseline", "candidate"]
"""Whose world: under the policy of today (or as it was recorded), or under the one that is tried."""
BASELINE: Final[Side] = "baseline"
CANDIDATE: Final[Side] = "candidate"


class Observer(Protocol):
    """Told in the order of the replay: a decision, then the penalties that it led to on either side.

    Baseline and candidate step slices of records in turns; what one slice did is told when both have stepped it.
    """

    def decision(
        self,
        decision: Decision,
        names: Names,
        stopped: Mapping[Side, Hold | None],
        counted: bool,  # noqa: FBT001 - called for every decision: by position
    ) -> None:
        """A decision as it was recorded.

        Args:
            decision: also those that changed nothing.
            names: of its subjects, in their order.
            stopped: side -> the deny that was in force against one of its subjects when it came, and would have
                stopped it there; a side without one is absent. The mapping is not kept by the replay.
            counted: False during the warm-up, whose results are left out.
        """

    def penalty(self, side: Side, penalty: Penalty, counted: bool) -> None:  # noqa: FBT001 - as above
        """A penalty of one side: by a rule (`shadow` too), by an outcome, or by hand (`origin`)."""

    def outcome(self, outcome: Outcome, counted: bool) -> None:  # noqa: FBT001 - as above
        """An outcome as it was recorded; told before the lifts that it led to."""
