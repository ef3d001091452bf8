"""Limiter and penalties over recorded traffic, in memory: what they would have done, with nothing deployed.

The same engine that workers run sees every decision in the log's own time, and its blocks are in force at once: a
request of a blocked subject is refused and counts nowhere.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.processors.engine import Engine, Handling
from penaltybox.processors.ladder import active
from penaltybox.processors.state import SubjectState
from penaltybox.producers.limiter import Listed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.events import Decision, Hold, Outcome, Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.subjects import Canonicaliser
    from penaltybox.producers.limiter import Request

_TOP: Final = 20


class SubjectTotal(msgspec.Struct, kw_only=True):
    """What would have happened to one subject."""

    subject: str
    penalties: int = 0
    highest: str = ""
    over_limit: int = 0
    stopped: int = 0
    challenged: int = 0


class Summary(msgspec.Struct, kw_only=True):
    """What would have been done. `stopped` requests met a block, `challenged` ones a challenge in force."""

    requests: int
    allowed: int
    over_limit: int
    stopped: int
    challenged: int
    penalties: int
    by_rung: dict[str, int]
    by_rule: dict[str, int]
    subjects_penalised: int
    top: list[SubjectTotal]


class Offline:
    """Engine and blocklist of one policy in memory. Times are the events' own.

    Args:
        policy: limits are the caller's business; rules and ladder are used here.
        canonicaliser: how subjects are written.
    """

    def __init__(self, policy: Policy, canonicaliser: Canonicaliser | None = None) -> None:
        self.engine = Engine(policy, canonicaliser)
        self.penalties: list[Penalty] = []
        self._rungs = {rung.name: place for place, rung in enumerate(policy.ladder.rungs, 1)}
        self._states: dict[str, SubjectState] = {}
        self._totals: dict[str, SubjectTotal] = {}
        self._counts: Counter[str] = Counter()
        self._by_rung: Counter[str] = Counter()
        self._by_rule: Counter[str] = Counter()

    def listed(self, request: Request) -> Listed | None:
        """The block, else the challenge, that is in force against one of a request's subjects; the later end wins.

        A user or device that passed a challenge is exempt from the challenge of its address for a while.
        """
        now_ms = request.ts_ms
        denies: list[Hold] = []
        challenges: list[Hold] = []
        exempt = False
        for dimension, value in sorted(request.subjects.items(), key=lambda item: item[0] == "ip"):
            state = self._states.get(self.engine.canonicaliser.subject(dimension, value))
            if state is None or self.engine.allowlist.covers(state.subject, now_ms):
                continue
            exempt = exempt or state.pass_until > now_ms
            deny, challenge = state.real.deny, state.real.challenge
            if deny is not None and active(deny, now_ms):
                denies.append(deny)
            if challenge is not None and active(challenge, now_ms) and not (exempt and dimension == "ip"):
                challenges.append(challenge)
        if denies:
            return Listed("deny", _latest(denies))
        return Listed("challenge", _latest(challenges)) if challenges else None

    def judge(self, decision: Decision) -> list[Penalty]:
        """Passes one decision through the engine; the penalties that it led to."""
        written: list[Penalty] = []
        handling = Handling(broker_ms=decision.ts)
        for subject, plan in self.engine.touches(decision):
            known = self._states.get(subject)
            state = known if known is not None else SubjectState.fresh(subject)
            if self.engine.apply(state, plan, decision, handling) and known is None:
                self._states[subject] = state
            written += self._drain(state)
        self._tally(decision)
        return written

    def learn(self, outcome: Outcome) -> list[Penalty]:
        """Passes one outcome through the engine; the lifts that it led to."""
        written: list[Penalty] = []
        for subject in self.engine.outcome_subjects(outcome):
            state = self._states.setdefault(subject, SubjectState.fresh(subject))
            self.engine.apply_outcome(state, outcome, Handling(broker_ms=outcome.ts))
            written += self._drain(state)
        return written

    def summary(self) -> Summary:
        """Totals so far. `top` are the penalised subjects, those that would have been refused most first."""
        counts = self._counts
        penalised = [total for total in self._totals.values() if total.penalties]
        penalised.sort(key=lambda total: (-total.stopped - total.challenged, -total.penalties, total.subject))
        return Summary(
            requests=counts.total(),
            allowed=counts["allowed"],
            over_limit=counts["over_limit"],
            stopped=counts["stopped"],
            challenged=counts["challenged"],
            penalties=len(self.penalties),
            by_rung=dict(self._by_rung.most_common()),
            by_rule=dict(self._by_rule.most_common()),
            subjects_penalised=len(penalised),
            top=penalised[:_TOP],
        )

    def _drain(self, state: SubjectState) -> list[Penalty]:
        if not state.outbox:
            return []
        written, state.outbox = state.outbox, []
        for penalty in written:
            self.penalties.append(penalty)
            if penalty.shadow:
                continue
            self._by_rung[rung_label(penalty)] += 1
            self._by_rule[penalty.rule] += 1
            total = self._total(penalty.subject)
            total.penalties += 1
            if self._rungs.get(penalty.to, 0) >= self._rungs.get(total.highest, 0):
                total.highest = penalty.to
        return written

    def _tally(self, decision: Decision) -> None:
        if not decision.enforced:
            return
        kind = _KINDS.get(decision.reason or "", "allowed")
        self._counts[kind] += decision.count
        if kind == "allowed":
            return
        for dimension, value in decision.subjects.items():
            total = self._total(self.engine.canonicaliser.subject(dimension, value))
            setattr(total, kind, getattr(total, kind) + decision.count)

    def _total(self, subject: str) -> SubjectTotal:
        total = self._totals.get(subject)
        if total is None:
            total = self._totals[subject] = SubjectTotal(subject=subject)
        return total


_KINDS: Final = {"over_limit": "over_limit", "blocklist": "stopped", "challenged": "challenged"}


def rung_label(penalty: Penalty) -> str:
    """A penalty's rung as a listing shows it: ``5m``, ``challenge``, ``5m as a challenge``, ``lift``."""
    if penalty.action == "challenge":
        return "challenge" if penalty.to == penalty.from_ else f"{penalty.to} as a challenge"
    return "lift" if penalty.action == "lift" else penalty.to


def run_offline(decisions: Iterable[Decision], offline: Offline) -> Summary:
    """Passes all decisions through; the generator should look into `offline.listed` before it decides."""
    for decision in decisions:
        offline.judge(decision)
    return offline.summary()


def _latest(holds: list[Hold]) -> int | None:
    ends = [hold.until for hold in holds]
    return None if None in ends else max(end for end in ends if end is not None)
