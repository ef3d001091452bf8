"""One of several processes of a replay that read for themselves: some partitions, or everything for some subjects.

Its job comes by standard input; `python -m penaltybox.cli.replay_part`, started by `replay_parts`. What it prints are
JSON lines: `Note`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from array import array
from typing import TYPE_CHECKING

import msgspec

from penaltybox.cli.replay_job import Job, prepare, run_prepared
from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.subjects import value_hash
from penaltybox.processors.replay.loop import Result  # noqa: TC001 - msgspec reads a note's fields
from penaltybox.processors.replay.shards import Shard

if TYPE_CHECKING:
    from penaltybox.processors.replay.loop import Progress
    from penaltybox.processors.replay.world import World
    from penaltybox.processors.state import SubjectState

EVERY_S = 0.25


class Part(msgspec.Struct, frozen=True):
    """A part of a job.

    Attributes:
        job: the replay.
        partitions: of the topics; None all.
        ends: where they end: (topic, partition, offset) of all partitions; nothing of a file.
        number: its subjects are those of this shard,
        of: of so many.
    """

    job: Job
    partitions: list[int] | None = None
    ends: list[tuple[str, int, int]] = []
    number: int = 0
    of: int = 1


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a process tells: how far it is; then the result, and hashes of the subjects it knows; or its failure."""

    done: int = 0
    total: int = 0
    decisions: int = 0
    clock_ms: int = 0
    result: Result | None = None
    subjects: bytes = b""
    error: str = ""


async def run_part(part: Part) -> Note:
    """Replay a part; progress goes to standard output."""
    told_s = 0.0

    def report(far: Progress) -> None:
        nonlocal told_s
        if time.monotonic() > told_s + EVERY_S:
            told_s = time.monotonic()
            _print(Note(far.done, far.total or 0, far.decisions, far.clock_ms))

    ends = {(topic, partition): end for topic, partition, end in part.ends}
    wanted = frozenset(part.partitions) if part.partitions is not None else None
    shard = Shard(part.number, part.of) if part.of > 1 else None
    made = await prepare(part.job, alone=True, partitions=wanted, ends=ends or None, shard=shard)
    result = await run_prepared(part.job, made, report=report, may_be_empty=True)
    if shard is not None:
        return Note(result=result)
    known = {value_hash(subject) for world in made.worlds.values() for subject in _known(world)}
    return Note(result=result, subjects=array("q", known).tobytes())


def _known(world: World) -> list[str]:
    """Subjects of which anything is remembered."""
    return [subject for subject, state in world.states.items() if _remembered(state)]


def _remembered(state: SubjectState) -> bool:
    real = state.real
    return bool(
        real.at or real.counters or real.sets or real.scores or state.shadows or state.shared or state.trust
        or state.grace_until or state.pass_until
    )  # fmt: skip


def _print(note: Note) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(note) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """The process."""
    part = msgspec.json.decode(sys.stdin.buffer.read(), type=Part)
    try:
        _print(asyncio.run(run_part(part)))
    except BrokenPipeError:
        os._exit(1)  # who started us is gone, so nobody is left to tell
    except PenaltyboxError as error:
        _print(Note(error=str(error)))
    except Exception as error:  # noqa: BLE001 - the parent makes a sentence of it
        _print(Note(error=f"a process of the replay failed: {error!r}"))


if __name__ == "__main__":
    main()
