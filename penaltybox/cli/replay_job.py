"""A replay put together: its source, its worlds, its window; run in this process."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine
from penaltybox.processors.replay.horizons import window_of
from penaltybox.processors.replay.loop import Replay
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.world import Steady, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.replay.loop import Progress, Result
    from penaltybox.processors.replay.observer import Observer, Side
    from penaltybox.processors.replay.records import Reading, Window

RECORDED: Final = "recorded"
_GC_THRESHOLD: Final = (100_000, 50, 100)
"""States live long and hold no cycles."""


class Job(NamedTuple):
    """A replay to do. Times are ms.

    Attributes:
        settings: how subjects are written, and where the servers are.
        candidate: the policy that is tried.
        baseline: the policy that it is compared with.
        recorded: compare with what live workers did: their policies, and what was done by hand.
        source: as the option `--source` says.
        from_ms: results count from here.
        to_ms: and before this.
        warm_up_ms: as asked for.
        processes: at most so many.
        speed: times the recorded pace.
    """

    settings: Settings
    candidate: Policy
    baseline: Policy | None = None
    recorded: bool = False
    source: str = "kafka"
    from_ms: int | None = None
    to_ms: int | None = None
    warm_up_ms: int | None = None
    processes: int = 1
    speed: float | None = None


async def run_job(
    job: Job, *, report: Callable[[Progress], None] | None = None, observer: Observer | None = None
) -> Result:
    """Do a replay.

    Args:
        job: what to do.
        report: told how far it is.
        observer: told of every decision, outcome and penalty.

    Raises:
        ConfigurationError: the source cannot be read, or there is nothing in the window.
        StoreUnavailable: a server does not answer.
    """
    policies = [job.candidate, *([job.baseline] if job.baseline is not None else [])]
    window, sentence = window_of(job.from_ms, job.to_ms, policies, job.warm_up_ms)
    canonicaliser = Canonicaliser(job.settings.ipv6_prefix, job.settings.hashed_dimensions)
    reading = _open(job, canonicaliser, window)
    if sentence:
        reading.remarks.append(sentence)
    engines: dict[Side, Engine] = {}
    if job.baseline is not None:
        engines[BASELINE] = Engine(job.baseline, canonicaliser)
    engines[CANDIDATE] = Engine(job.candidate, canonicaliser)
    worlds: dict[Side, World] = {
        side: World(Steady(engine), place=place, worlds=len(engines), watched=observer is not None)
        for place, (side, engine) in enumerate(engines.items())
    }
    thresholds = gc.get_threshold()
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        return await Replay(reading, worlds, window, observer=observer, report=report, speed=job.speed).run()
    finally:
        gc.set_threshold(*thresholds)


def _open(job: Job, canonicaliser: Canonicaliser, window: Window) -> Reading:
    """The source that `--source` names."""
    from penaltybox.processors.replay.sources.kafka import TopicSource
    from penaltybox.processors.replay.sources.lines import Lines

    if job.source == "kafka":
        return TopicSource(job.settings, canonicaliser, window)
    if job.recorded:
        raise ConfigurationError(f"--baseline {RECORDED}: a file does not say which policy was in force; name one.")
    path = Path(job.source)
    if not path.is_file():
        raise ConfigurationError(
            f"--source {job.source}: there is no such file. Wanted kafka, clickhouse, combined:FILE, or a file of "
            "decisions (JSON lines, also .gz and .zst; Parquet)."
        )
    return Lines(path, canonicaliser, window)
