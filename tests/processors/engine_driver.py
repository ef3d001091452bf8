"""Drives the engine over a list of events, as a worker would with an ideal store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penaltybox.contracts.decoding import decode_decisions
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Command, Decision, Outcome, Penalty, encode
from penaltybox.processors.engine import Engine, Event, Handling, step
from penaltybox.processors.state import SubjectState, decode_state, encode_state

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy

NONCE = 1 << 40


class Drive:
    """States and penalties of the engine after the events so far.

    Args:
        policy: in force; `switch` changes it.
        stored: every state is encoded and decoded between two events.
        pure: through `step` rather than in place; then the given state must stay as it was.
        wire: decisions are encoded, and decoded with the names of their subjects, as a worker decodes a run.
    """

    def __init__(self, policy: Policy, *, stored: bool = False, pure: bool = False, wire: bool = False) -> None:
        self.engine = Engine(policy)
        self.stored = stored
        self.pure = pure
        self.wire = wire
        self.states: dict[str, SubjectState] = {}
        self.penalties: list[Penalty] = []

    def switch(self, policy: Policy) -> None:
        if policy.version != self.engine.version:
            self.engine = Engine(policy)

    def judge(self, event: Decision | Outcome | Command, broker_ms: int, *, late: bool = False) -> None:
        """One event, for all subjects that it touches."""
        handling = Handling(broker_ms, late)
        if isinstance(event, Decision):
            names = None
            if self.wire:
                (found,) = decode_decisions([encode(event)], [broker_ms], self.engine.canonicaliser)
                assert not isinstance(found, BadEvent)
                event, names = found
            for subject, plan in self.engine.touches(event, names):
                state = self._state(subject)
                if not self.pure:
                    self.engine.apply(state, plan, event, handling, names)
                self._done(subject, state, event, handling)
        elif isinstance(event, Outcome):
            for subject in self.engine.outcome_subjects(event):
                state = self._state(subject)
                if not self.pure:
                    self.engine.apply_outcome(state, event, handling)
                self._done(subject, state, event, handling)
        else:
            state = self._state(event.subject)
            if not self.pure:
                self.engine.apply_command(state, event, handling)
            self._done(event.subject, state, event, handling)

    def _state(self, subject: str) -> SubjectState:
        return self.states.get(subject) or SubjectState.fresh(subject)

    def _done(self, subject: str, state: SubjectState, event: Decision | Outcome | Command, handling: Handling) -> None:
        if self.pure:
            before = encode_state(state, NONCE)
            after, written = step(state, Event(event, handling), self.engine.policy, self.engine)
            assert encode_state(state, NONCE) == before, "step changed the state that it was given"
            assert after.outbox[len(after.outbox) - len(written) :] == written
            state = after
        self.penalties += state.outbox
        state.outbox = []
        self.states[subject] = decode_state(encode_state(state, NONCE)) if self.stored else state
