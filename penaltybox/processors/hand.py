"""A step by hand: the same engine and the same versioned write as a worker's; a worker tells Kafka of it.

The penalty is in the state's outbox, so it works with Kafka down: workers find it within seconds and send it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.processors.engine import HELD, Handling
from penaltybox.processors.state import SubjectState, decode_state
from penaltybox.processors.writer import next_nonce, write_of
from penaltybox.sinks.subject_store import Written

if TYPE_CHECKING:
    from penaltybox.contracts.events import Command, Penalty
    from penaltybox.processors.engine import Engine
    from penaltybox.sinks.subject_store import SubjectStore

ATTEMPTS: Final = 20


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
