"""A replay put together: its source, its worlds, its window; run in this process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.cli.replay_limits import LimitsAgain
from penaltybox.cli.replay_sources import COMBINED, KAFKA, open_other, open_topics
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy import Policy  # noqa: TC001 - msgspec reads a job's fields
from penaltybox.contracts.settings import Settings  # noqa: TC001 - as above
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine
from penaltybox.processors.garbage import collector_off
from penaltybox.processors.replay.horizons import window_of
from penaltybox.processors.replay.listed import read_list_changes
from penaltybox.processors.replay.loop import Replay
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.recorded import Switching, read_recorded
from penaltybox.processors.replay.world import Course, Steady, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from penaltybox.contracts.events import Command
    from penaltybox.processors.replay.listed import ListChange
    from penaltybox.processors.replay.loop import Crew, Progress, Result
    from penaltybox.processors.replay.observer import Observer, Side
    from penaltybox.processors.replay.recorded import Recorded
    from penaltybox.processors.replay.records import Reading, Window
    from penaltybox.processors.replay.shards import Shard

RECORDED: Final = "recorded"


class Job(msgspec.Struct, frozen=True):
    """A replay to do. Times are ms.

    Attributes:
        settings: how subjects are written, and where the servers are.
        candidate: the policy that is tried.
        baseline: the policy that it is compared with.
        recorded: compare with what live workers did: their policies, and what was done by hand.
        anew: the candidate's limits decide the requests anew, although there is no baseline whose limits differ.
        source: as the option `--source` says.
        from_ms: results count from here.
        to_ms: and before this.
        warm_up_ms: as asked for.
        processes: at most so many.
        speed: times the recorded pace.
        scenarios: of an access log: path prefix -> scenario.
    """

    settings: Settings
    candidate: Policy
    baseline: Policy | None = None
    recorded: bool = False
    anew: bool = False
    source: str = KAFKA
    from_ms: int | None = None
    to_ms: int | None = None
    warm_up_ms: int | None = None
    processes: int = 1
    speed: float | None = None
    scenarios: dict[str, str] = {}


class Prepared(NamedTuple):
    """A job whose source is open (nothing is read yet) and whose worlds are empty."""

    reading: Reading
    worlds: dict[Side, World]
    window: Window
    recorded: Recorded | None = None


async def run_job(
    job: Job, *, report: Callable[[Progress], None] | None = None, observer: Observer | None = None
) -> Result:
    """Do a replay.

    Args:
        job: what to do.
        report: told how far it is.
        observer: told of every decision, outcome and penalty; then it is done in one process.

    Raises:
        ConfigurationError: the source cannot be read, or there is nothing in the window.
        StoreUnavailable: a server does not answer.
    """
    made = await prepare(job, watched=observer is not None, alone=observer is None)
    return await run_prepared(job, made, report=report, observer=observer)


async def run_prepared(
    job: Job,
    made: Prepared,
    *,
    report: Callable[[Progress], None] | None = None,
    observer: Observer | None = None,
    may_be_empty: bool = False,
    crew: Crew | None = None,
) -> Result:
    """Do a replay that is prepared; raises as `run_job` does."""
    with collector_off():
        replay = Replay(
            made.reading,
            made.worlds,
            made.window,
            observer=observer,
            report=report,
            speed=job.speed,
            may_be_empty=may_be_empty,
            crew=crew,
        )
        return await replay.run()


async def prepare(
    job: Job,
    *,
    watched: bool = False,
    alone: bool = False,
    partitions: frozenset[int] | None = None,
    ends: Mapping[tuple[str, int], int] | None = None,
    shard: Shard | None = None,
) -> Prepared:
    """Open a job's source and make its worlds.

    Args:
        job: what to do.
        watched: somebody will observe it.
        alone: nobody but its worlds, in this process, will see the decisions.
        partitions: of the topics; None all.
        ends: (topic, partition) -> offset at which the topics are taken to end; None where they end now.
        shard: only these subjects are stepped.

    Raises:
        ConfigurationError: there is no such source, or it does not tell what the baseline needs.
    """
    if job.recorded and job.source != KAFKA:
        raise ConfigurationError(
            f"--baseline {RECORDED}: only the topics tell which policy was in force; --source {job.source} does not. "
            "Name a file: --baseline FILE."
        )
    recorded = await read_recorded(job.settings) if job.recorded else None
    known = [job.candidate, *([job.baseline] if job.baseline is not None else [])]
    policies = [*known, *(recorded.policies.values() if recorded is not None else ())]
    window, sentence = window_of(job.from_ms, job.to_ms, policies, job.warm_up_ms)
    canonicaliser = Canonicaliser(job.settings.ipv6_prefix, job.settings.hashed_dimensions)
    engine = Engine(job.candidate, canonicaliser)
    alone = alone and job.baseline is None and not job.recorded and not watched
    if job.source == KAFKA:
        by_hand: list[tuple[int, Command | ListChange]] = [*await read_list_changes(job.settings, canonicaliser)]
        by_hand += recorded.commands if recorded is not None else ()
        by_hand.sort(key=lambda pair: pair[0])
        reading: Reading = open_topics(
            job.settings,
            canonicaliser,
            window,
            partitions=partitions,
            commands=by_hand,
            ends=ends,
            labels=watched,
            engine=engine if alone else None,
        )
    else:
        reading = open_other(job, canonicaliser, window, labels=watched, engine=engine if alone else None)
    reading.remarks += [one for one in (sentence, *(recorded.remarks if recorded is not None else ())) if one]
    if limits_differ(job, recorded) and not job.source.startswith(COMBINED):
        reading.remarks.append("The candidate has other limits: they were counted anew over the recorded requests.")
    places = lambda: getattr(reading, "places", ())  # noqa: E731 - known once the topics are open
    return Prepared(reading, worlds_of(job, recorded, places, engine, watched=watched, shard=shard), window, recorded)


def worlds_of(
    job: Job,
    recorded: Recorded | None,
    places: Callable[[], Sequence[tuple[str, int]]],
    engine: Engine,
    *,
    watched: bool,
    sides: Sequence[Side] = (BASELINE, CANDIDATE),
    shard: Shard | None = None,
) -> dict[Side, World]:
    """The worlds of a replay; they share the names of subjects.

    Args:
        job: the replay.
        recorded: what live workers did, for a baseline that was recorded.
        places: asked, when the first slice comes, for (topic, partition) by rank.
        engine: the candidate's.
        watched: somebody wants to know which decisions a block would have stopped.
        sides: only these.
        shard: only these subjects.
    """
    canonicaliser = engine.canonicaliser
    courses: dict[Side, Course] = {CANDIDATE: Steady(engine)}
    if recorded is not None:
        engines = {version: Engine(policy, canonicaliser) for version, policy in recorded.policies.items()}
        courses = {BASELINE: Switching(engines, recorded.markers, places), **courses}
    elif job.baseline is not None:
        courses = {BASELINE: Steady(Engine(job.baseline, canonicaliser)), **courses}
    courses = {side: course for side, course in courses.items() if side in sides}
    late = recorded.late if recorded is not None else frozenset()
    again = limits_again(job, recorded)
    return {
        side: World(
            course,
            place=place,
            worlds=len(courses),
            watched=watched,
            late=late if side == BASELINE else frozenset(),
            limiter=LimitsAgain(again[side], canonicaliser) if side in again else None,
            shard=shard,
        )
        for place, (side, course) in enumerate(courses.items())
    }


def limits_differ(job: Job, recorded: Recorded | None = None) -> bool:
    """Whether the candidate's limits are others than those that decided the traffic."""
    if job.anew:
        return True
    before = job.baseline
    if recorded is not None:
        before = recorded.last
    return before is not None and before.limits != job.candidate.limits


def limits_again(job: Job, recorded: Recorded | None) -> dict[Side, Policy]:
    """Sides whose limits decide the requests anew: of a log both, else a candidate with other limits."""
    if job.source.startswith(COMBINED):
        return {CANDIDATE: job.candidate} | ({BASELINE: job.baseline} if job.baseline is not None else {})
    return {CANDIDATE: job.candidate} if limits_differ(job, recorded) else {}
