"""A step by hand: the same engine and the same versioned write as a worker's; a worker tells Kafka of it.

The penalty is in the state's outbox, so it works with Kafka down: workers find it within seconds and send it.
"""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.errors import NoAnswerInTime, StoreUnavailable
from penaltybox.processors.engine import HELD, Handling
from penaltybox.processors.state import SubjectState, decode_state
from penaltybox.processors.writer import next_nonce, write_of
from penaltybox.sinks.subject_store import Written

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from penaltybox.contracts.events import Command, Penalty
    from penaltybox.processors.engine import Engine
    from penaltybox.sinks.subject_store import SubjectStore

ATTEMPTS: Final = 20
PATIENCE: Final = 4
"""So often a chunk may meet the deadline of a Redis that is slow for a moment; then it is away."""
CHUNK: Final = 1000
"""Subjects that are read, stepped and written together: some 30 ms, after which progress is told."""
UNDER_WAY: Final = 3
"""Chunks at a time: the store writes one while another is stepped."""


class Executed(NamedTuple):
    """What became of many commands: subjects that were written, and that were left alone."""

    written: int
    kept: int


async def execute_all(
    engine: Engine,
    store: SubjectStore,
    commands: Iterable[Command],
    now_ms: Callable[[], int],
    *,
    unless: Callable[[SubjectState, Command], bool] = lambda _, __: False,
    progress: Callable[[int], object] = lambda _: None,
) -> Executed:
    """Applies commands to as many subjects, many in a call of the store; each subject is written like by `execute`.

    Some chunks are under way together, so that the store works on one while the next is stepped. If one fails, the
    others are finished, and no more are begun.

    Args:
        engine: the policy in force.
        store: where states are.
        commands: at most one of a subject; they are drawn as they are needed.
        now_ms: the wall clock.
        unless: commands whose subject's state it is true of are left out.
        progress: gets the number of commands that are done.

    Raises:
        StoreUnavailable: Redis does not answer, or others wrote a subject twenty times in between; what was written
            stays, and doing it again with `unless` leaves it alone.
        GenerationMismatch: the store was wiped or swapped.
    """
    drawn = iter(commands)
    done = Executed(0, 0)
    failures: list[Exception] = []

    async def work() -> None:
        nonlocal done
        while not failures and (todo := {command.subject: command for command in islice(drawn, CHUNK)}):
            try:
                written, kept = await _execute_chunk(engine, store, todo, now_ms, unless)
            except Exception as error:  # noqa: BLE001 - raised below, when the others have finished
                failures.append(error)
                return
            done = Executed(done.written + written, done.kept + kept)
            progress(sum(done))

    await asyncio.gather(*(work() for _ in range(UNDER_WAY)))
    if failures:
        raise failures[0]
    return done


async def _execute_chunk(
    engine: Engine,
    store: SubjectStore,
    todo: dict[str, Command],
    now_ms: Callable[[], int],
    unless: Callable[[SubjectState, Command], bool],
) -> Executed:
    """The commands of one chunk, by subject. A store that is slow for a moment is asked again."""
    written = kept = slow = 0
    for _ in range(ATTEMPTS):
        at_ms, held, writes = now_ms(), 0, []
        try:
            for (subject, command), blob in zip(todo.items(), await store.read(list(todo)), strict=True):
                state = SubjectState.fresh(subject) if blob is None else decode_state(blob, subject)
                if unless(state, command) or engine.apply_command(state, command, Handling(at_ms)) == HELD:
                    held += 1
                    continue
                writes.append(write_of(engine, state, engine.marks(state, at_ms), at_ms, next_nonce()))
            results = await store.write(writes)
        except NoAnswerInTime:
            slow += 1
            if slow == PATIENCE:
                raise
            continue  # what was written after all is held the next time
        todo = {
            write.subject: todo[write.subject]
            for write, result in zip(writes, results, strict=True)
            if not isinstance(result, Written)
        }
        written, kept = written + len(writes) - len(todo), kept + held
        if not todo:
            return Executed(written, kept)
    raise StoreUnavailable(f"{len(todo)} subjects are written too often by others: tried {ATTEMPTS} times")


async def execute(engine: Engine, store: SubjectStore, command: Command, now_ms: int) -> list[Penalty]:
    """Applies a command to its subject, and returns the penalties that it wrote (none if it was applied before).

    Raises:
        StoreUnavailable: Redis does not answer, or others wrote the subject twenty times in between.
        GenerationMismatch: the store was wiped or swapped.
    """
    for _ in range(ATTEMPTS):
        (blob,) = await store.read([command.subject])
        state = SubjectState.fresh(command.subject) if blob is None else decode_state(blob, command.subject)
        before = len(state.outbox)
        if engine.apply_command(state, command, Handling(now_ms)) == HELD:
            return []
        marks = engine.marks(state, now_ms)
        (result,) = await store.write([write_of(engine, state, marks, now_ms, next_nonce())])
        if isinstance(result, Written):
            return state.outbox[before:]
    raise StoreUnavailable(f"{command.subject} is written too often by others: tried {ATTEMPTS} times; try again")
