"""A replay shared out between processes: by partition, or by subject (each reads, or one does: `replay_crew`).

By partition only where every subject's events are in one: a look at the beginning of the topics says whether that may
be so, and what the processes came to know says whether it was. If two of them met the same subject, all is done again.
"""

from __future__ import annotations

import asyncio
import sys
import time
from array import array
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.cli.replay_crew import crew_of, shares
from penaltybox.cli.replay_job import limits_again, limits_differ, prepare, run_job, run_prepared
from penaltybox.cli.replay_part import Note, Part
from penaltybox.cli.replay_sources import CLICKHOUSE, COMBINED, KAFKA
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable
from penaltybox.contracts.events import Decision
from penaltybox.processors.engine import Engine
from penaltybox.processors.replay.loop import Progress
from penaltybox.processors.replay.results import merged_results, merged_sides

if TYPE_CHECKING:
    from asyncio.subprocess import Process
    from collections.abc import Callable

    from penaltybox.cli.replay_crew import Share
    from penaltybox.cli.replay_job import Job
    from penaltybox.processors.replay.loop import Result
    from penaltybox.processors.replay.observer import Observer

LOOKED_AT: Final = 20
"""Slices at the beginning that are looked at."""
_LINE_BYTES: Final = 1 << 28
_PIPE: Final = asyncio.subprocess.PIPE


async def run_shared(
    job: Job, *, report: Callable[[Progress], None] | None = None, observer: Observer | None = None
) -> Result:
    """Do a replay in up to `job.processes` processes beside this one; the result is that of one.

    By partition, where nothing is compared and all events of each subject are in one: then each reads those for itself.
    Else by subject: each reads everything for itself where nothing is compared; else this process reads, and watches.
    Which of them, and why fewer than asked for, is among the remarks.

    Raises:
        ConfigurationError: as `run_job`.
        StoreUnavailable: as `run_job`, or a process died.
    """
    if job.processes == 1:
        return await run_job(job, report=report, observer=observer)
    why = _why_not_by_partition(job, observed=observer is not None)
    parts: list[Part] = []
    if not why:
        parts, why = await _parts(job)
    start = time.monotonic()
    if len(parts) > 1:
        notes = await _run(parts, report)
        if _disjoint(notes):
            result = merged_results([note.result for note in notes if note.result is not None])
            return await _told(job, result, f"by partition between {len(notes)} processes", start, len(notes))
        why = "events of one subject were met in several partitions, so all was done again"
    if observer is None and _alone(job):
        notes = await _run(await _shards(job), report, together=True)
        found = [note.result for note in notes if note.result is not None]
        if len({(one.decisions, one.outcomes, one.warm_up_decisions) for one in found}) == 1:
            how = f"by subject between {len(found)} processes, each of which reads everything"
            return await _told(job, merged_sides(found), f"{how}. Not by partition: {why}", start, len(found))
        why = "records were deleted while they were read, so all was done again"
    return await _by_subject(job, report, observer, why)


async def _told(job: Job, result: Result, how: str, start: float, processes: int) -> Result:
    """A result, with how it came to be."""
    if not result.decisions + result.outcomes + result.commands:
        return await run_job(job)  # which says why there is nothing
    result.processes, result.seconds = processes, round(time.monotonic() - start, 3)
    result.remarks.append(f"Shared out {how}.")
    return result


def _alone(job: Job) -> bool:
    """Whether each process can read for itself, and come to its part of the result without the others."""
    steady = job.source == KAFKA or (job.source != CLICKHOUSE and not job.source.startswith(COMBINED))
    return steady and job.baseline is None and not job.recorded and not limits_differ(job)


async def _shards(job: Job) -> list[Part]:
    """What each process does where each reads all; of the topics all end where they end now."""
    ends: list[tuple[str, int, int]] = []
    if job.source == KAFKA:
        ends = await _ends((await prepare(job)).reading)
    return [Part(job, None, ends, number, job.processes) for number in range(job.processes)]


async def _ends(reading: Any) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of all partitions."""
    async with aclosing(reading.slices()) as slices:
        await anext(slices, None)
    return [(topic, partition, end) for (topic, partition), end in reading.ends.items()]


def _why_not_by_partition(job: Job, *, observed: bool) -> str:
    """Why the partitions of a job cannot be shared out, if that can be said beforehand."""
    reasons = {
        f"{job.source} has no partitions": job.source != KAFKA,
        "steps by hand and switches are in the order of all partitions": job.recorded,
        "a comparison is told of everything in one order": observed,
        "changed limits count over all partitions": limits_differ(job),
        "the pace is one for all partitions": job.speed is not None,
    }
    return next((why for why, holds in reasons.items() if holds), "")


async def _by_subject(
    job: Job, report: Callable[[Progress], None] | None, observer: Observer | None, why: str
) -> Result:
    """Share the subjects out; where that cannot be, one process does it and says why."""
    watched = observer is not None
    made = await prepare(job, watched=watched)
    plan = shares(list(made.worlds), list(limits_again(job, made.recorded)), job.processes)
    if len(plan) == 1:
        result = await run_prepared(job, made, report=report, observer=observer)
        result.remarks.append(
            "In one process: limits that are counted anew ask about whole requests, so the subjects of that side "
            "cannot be shared out, and there is no other side."
        )
        return result
    async with crew_of(job, made, plan, watched=watched) as crew:
        result = await run_prepared(job, made, report=report, observer=observer, crew=crew)
    result.processes = len(plan)
    result.remarks.append(_how(plan, why))
    return result


def _how(plan: list[Share], why: str) -> str:
    """How the work was shared out, and why not better."""
    alone = [one for one in plan if one.of == 1]
    said = f"Shared out by subject between {len(plan)} processes, beside the one that reads"
    if alone:
        sides = " and ".join(f"the {one.sides[0]}" for one in alone)
        said += f"; {sides} as a whole, for limits that are counted anew ask about whole requests"
    return f"{said}. Not by partition: {why}." if why else f"{said}."


async def _parts(job: Job) -> tuple[list[Part], str]:
    """(what each process does, empty) or (nothing, why there must be one)."""
    made = await prepare(job)
    engines = [Engine(policy) for policy in (job.candidate, job.baseline) if policy is not None]
    reading: Any = made.reading
    owners: dict[str, int] = {}
    async with aclosing(reading.slices()) as slices:
        looked = 0
        async for entries in slices:
            for _, rank, _, event, names, _ in entries:
                partition = reading.places[rank][1]
                for engine in engines:
                    touched = engine.touches(event, names) if isinstance(event, Decision) else ()
                    for subject, _ in touched:
                        if owners.setdefault(subject, partition) != partition:
                            return [], f"events of {subject} are in partitions {owners[subject]} and {partition}"
            looked += 1
            if looked == LOOKED_AT:
                break
    numbers = sorted({partition for _, partition in reading.places})
    ends = [(topic, partition, end) for (topic, partition), end in reading.ends.items()]
    shares = [numbers[first :: job.processes] for first in range(min(job.processes, len(numbers)))]
    return [Part(job, share, ends) for share in shares], ""


async def _run(parts: list[Part], report: Callable[[Progress], None] | None, *, together: bool = False) -> list[Note]:
    """The last note of each process; `together`: they all read the same, else each a part of it."""
    far: dict[int, Note] = {}

    def note(number: int, one: Note) -> None:
        far[number] = one
        if report is not None:
            notes = far.values()
            all_of = min if together else sum
            total = all_of(one.total for one in notes) if len(far) == len(parts) else None
            done, decisions = all_of(one.done for one in notes), all_of(one.decisions for one in notes)
            report(Progress(done, total, "records", decisions, one.clock_ms))

    processes: list[Process] = []
    try:
        for _ in parts:
            command = [sys.executable, "-m", "penaltybox.cli.replay_part"]
            one = await asyncio.create_subprocess_exec(
                *command, stdin=_PIPE, stdout=_PIPE, limit=_LINE_BYTES, start_new_session=True
            )
            processes.append(one)  # one by one, so that each that was started is ended below
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(_follow(process, part, lambda one, number=number: note(number, one)))  # type: ignore[misc]
                for number, (process, part) in enumerate(zip(processes, parts, strict=True))
            ]
        return [task.result() for task in tasks]
    except* (ConfigurationError, StoreUnavailable) as errors:
        raise errors.exceptions[0] from None
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _follow(process: Process, part: Part, note: Callable[[Note], None]) -> Note:
    assert process.stdin is not None  # noqa: S101 - both are pipes
    assert process.stdout is not None  # noqa: S101
    with suppress(ConnectionError):  # that it died is told below
        process.stdin.write(msgspec.json.encode(part))
        await process.stdin.drain()
    process.stdin.close()
    far = Note()
    while line := await process.stdout.readline():
        one = msgspec.json.decode(line, type=Note)
        if one.error:
            raise ConfigurationError(one.error)
        if one.result is not None:
            read = one.result.decisions + one.result.warm_up_decisions
            note(msgspec.structs.replace(far, done=far.total, decisions=read))
            return one
        far = one
        note(far)
    raise StoreUnavailable("a process of the replay died; try again, or with --processes 1")


def _disjoint(notes: list[Note]) -> bool:
    """Whether no subject is known to two processes."""
    seen: set[int] = set()
    for one in notes:
        known = set(array("q", one.subjects))
        if not seen.isdisjoint(known):
            return False
        seen |= known
    return True
