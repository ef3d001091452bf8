"""Results of processes that shared a replay out between them, made one."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from penaltybox.processors.replay.tally import merged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.processors.replay.loop import Result


def merged_sides(parts: Sequence[Result]) -> Result:
    """The result of parts (at least one) that all read everything, and each stepped subjects of its own."""
    return msgspec.structs.replace(parts[0], candidate=merged([part.candidate for part in parts]))


def merged_results(parts: Sequence[Result]) -> Result:
    """The result of all parts together (at least one); `seconds` and `processes` are the caller's to say."""
    busy = [part for part in parts if part.first_ms] or list(parts)
    baselines = [part.baseline for part in parts if part.baseline is not None]
    return msgspec.structs.replace(
        parts[0],
        first_ms=min(part.first_ms for part in busy),
        last_ms=max(part.last_ms for part in busy),
        decisions=sum(part.decisions for part in parts),
        outcomes=sum(part.outcomes for part in parts),
        commands=sum(part.commands for part in parts),
        warm_up_ms=max(part.warm_up_ms for part in parts),
        warm_up_decisions=sum(part.warm_up_decisions for part in parts),
        refused=dict(sorted(sum((Counter(part.refused) for part in parts), Counter()).items())),
        recorded_blocklist=sum(part.recorded_blocklist for part in parts),
        candidate=merged([part.candidate for part in parts]),
        baseline=merged(baselines) if baselines else None,
        remarks=list(dict.fromkeys(remark for part in parts for remark in part.remarks)),
    )
