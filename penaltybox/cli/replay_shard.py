"""One of several processes of a replay: it steps every slice, on subjects of its own. All comes by standard input.

`python -m penaltybox.cli.replay_shard`, started by `replay_crew`: frames of `Start` and of slices, answers of what each
did (`processors/replay/frames.py`). It reads no source and asks no server.
"""

from __future__ import annotations

import os
import sys
from typing import BinaryIO, Literal

import msgspec

from penaltybox.cli.replay_job import Job, worlds_of
from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.policy import Policy  # noqa: TC001 - msgspec reads the fields
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.engine import Engine
from penaltybox.processors.garbage import collector_off
from penaltybox.processors.huge_pages import advise
from penaltybox.processors.replay.frames import LENGTH, Failed, found_frame, framed, last_frame, read_slice
from penaltybox.processors.replay.loop import ADVISED, forget_limits
from penaltybox.processors.replay.recorded import Marker, Recorded
from penaltybox.processors.replay.shards import Shard


class Then(msgspec.Struct, frozen=True):
    """Which policies live workers used then, and what they handled late."""

    policies: dict[str, Policy]
    markers: list[Marker]
    late: list[str]
    last: Policy

    def recorded(self) -> Recorded:
        """The same, as it was read."""
        return Recorded(self.policies, self.markers, (), frozenset(self.late), (), self.last)


class Start(msgspec.Struct, frozen=True):
    """What a process is to do.

    Attributes:
        job: the replay.
        sides: those that it steps.
        index: its subjects are those of this shard,
        of: of so many.
        watched: somebody wants to know which decisions a block would have stopped.
        places: (topic, partition) by rank.
        then: for a baseline that was recorded.
    """

    job: Job
    sides: list[Literal["baseline", "candidate"]]
    index: int
    of: int
    watched: bool
    places: list[tuple[str, int]]
    then: Then | None = None


def step(given: BinaryIO, answers: BinaryIO) -> None:
    """Step all slices; returns when there are no more."""
    start = msgspec.msgpack.decode(_body(given) or b"", type=Start)
    canonicaliser = Canonicaliser(start.job.settings.ipv6_prefix, start.job.settings.hashed_dimensions)
    worlds = worlds_of(
        start.job,
        start.then.recorded() if start.then is not None else None,
        lambda: start.places,
        Engine(start.job.candidate, canonicaliser),
        watched=start.watched,
        sides=start.sides,
        shard=Shard(start.index, start.of) if start.of > 1 else None,
    )
    number = 0
    while body := _body(given):
        number += 1
        if number in ADVISED:
            advise()
        entries, counted = read_slice(body, canonicaliser)
        answers.write(found_frame({side: world.step(entries) for side, world in worlds.items()}))
        answers.flush()
        if not counted:
            forget_limits(worlds)
    limits = {side: world.limiter.counts for side, world in worlds.items() if world.limiter is not None}
    answers.write(last_frame(limits))


def _body(stream: BinaryIO) -> bytes | None:
    """The next frame; None at the end."""
    length = stream.read(LENGTH)
    return stream.read(int.from_bytes(length, "little")) if length else None


def main() -> None:
    """The process."""
    answers = sys.stdout.buffer
    try:
        with collector_off():
            failed = _failure(answers)
        if failed:
            answers.write(framed(Failed(failed)))
        answers.flush()
    except BrokenPipeError:
        os._exit(1)  # who started us is gone, so nobody is left to tell


def _failure(answers: BinaryIO) -> str:
    """Steps all; the sentence about why it could not, else empty."""
    try:
        step(sys.stdin.buffer, answers)
    except BrokenPipeError:
        raise
    except PenaltyboxError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the parent makes a sentence of it
        return f"a process of the replay failed: {error!r}. Try again with --processes 1."
    return ""


if __name__ == "__main__":
    main()
