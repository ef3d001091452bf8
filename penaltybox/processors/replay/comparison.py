"""What two policies did to the same traffic, collected while it is replayed.

What is kept grows with the number of subjects and of their episodes, never with the number of decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.labels import KINDS
from penaltybox.contracts.subjects import Canonicaliser, specificity
from penaltybox.processors.replay.cases import Case, Cases
from penaltybox.processors.replay.crowds import Crowd
from penaltybox.processors.replay.episodes import horizons
from penaltybox.processors.replay.glimpses import Glimpses
from penaltybox.processors.replay.histories import History, limits, penalises
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.recent import Recent, leading_subject
from penaltybox.processors.replay.timeline import Timeline
from penaltybox.processors.visibility import sees

if TYPE_CHECKING:
    from collections.abc import Mapping

    from penaltybox.contracts.events import Decision, Hold, Outcome, Penalty
    from penaltybox.contracts.policy import Policy, Rule
    from penaltybox.contracts.subjects import Names
    from penaltybox.processors.replay.observer import Side

SIDES: Final[tuple[Side, Side]] = (BASELINE, CANDIDATE)
SHOWN_BEFORE: Final = 3
"""Decisions shown before a trigger."""
_SERIES: Final = tuple(f"{what} {side}" for what in ("penalties", "stopped") for side in SIDES)


class Stop(NamedTuple):
    """Which block stopped requests on a side."""

    side: Side
    rule: str
    rung: str


class Comparison:
    """An observer of a replay: `findings.report_of` makes a report of it.

    Args:
        policies: of each side; a side that is missing has none, or the ones of then.
        canonicaliser: how subjects are written; the one of the replay.
        matures_ms: how long any label may take to come, instead of each kind's own time.
    """

    def __init__(
        self,
        policies: Mapping[Side, Policy],
        canonicaliser: Canonicaliser | None = None,
        *,
        matures_ms: int | None = None,
    ) -> None:
        self.policies = policies
        self.horizons = horizons(matures_ms)
        self.matures_ms = matures_ms
        self.seen: dict[str, int] = {}
        """Subject -> earliest time (ms) of a decision about it."""
        self.histories: dict[str, History] = {}
        """Of the subjects that were penalised, stopped or labelled."""
        self.crowds: dict[str, Crowd] = {}
        self.labels_in_use: set[str] = set()
        self.decisions = self.outcomes = self.last_ms = 0
        self.first_ms = 0
        self.glimpses = Glimpses()
        self.requests = self.blocklisted = self.challenged = 0.0
        self.blocklisted_stopped: dict[Side, float] = dict.fromkeys(SIDES, 0.0)
        self.stops: dict[Stop, float] = {}
        self.listed_subjects: dict[Side, set[str]] = {side: set() for side in SIDES}
        self.listed_requests: dict[Side, float] = dict.fromkeys(SIDES, 0.0)
        self.timeline = Timeline(_SERIES)
        self.cases = Cases(self.rank)
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._allowlists = [Allowlist(policy.allow) for policy in policies.values() if policy.allow]
        self._rules = {(side, rule.name): rule for side, policy in policies.items() for rule in policy.rules}
        self._recent = Recent(policies.values())
        self._leading: dict[tuple[str, ...], int] = {}
        """Dimensions of a decision -> where the most specific one stands."""
        self._current: tuple[Decision, Names] | None = None

    def decision(
        self,
        decision: Decision,
        names: Names,
        stopped: Mapping[Side, Hold | None],
        counted: bool,  # noqa: FBT001 - called for every decision: by position
    ) -> None:
        """A decision; see `Observer`."""
        self._recent.see(decision, names)
        self._current = (decision, names)
        if not counted:
            return
        self.decisions += 1
        ts, share = decision.ts, decision.sample_rate
        self._see(names, ts, share)
        self._clock(ts)
        if not decision.enforced:
            return  # a dry run is a record of its own, beside that of the same request
        requests: float = decision.count
        if share is not None:
            requests /= share
        self.requests += requests
        if decision.reason == "blocklist":
            self.blocklisted += requests
        elif decision.reason == "challenged":
            self.challenged += requests
        if decision.established or decision.violated:
            self._share(decision, names, requests)
        if stopped:
            self._stop(decision, names, stopped, requests)

    def penalty(self, side: Side, penalty: Penalty, counted: bool) -> None:  # noqa: FBT001 - as above
        """A penalty of one side; see `Observer`."""
        self._history(penalty.subject).penalty(side, penalty, self.horizons, counted=counted)
        if not counted or not penalises(penalty):
            return
        self._clock(penalty.ts)
        self.cases.add(Case(side, penalty, self._led(side, penalty)))
        if penalty.shadow:
            return
        self.timeline.add(f"penalties {side}", penalty.ts, 1)
        if any(allowlist.covers(penalty.subject, penalty.ts) for allowlist in self._allowlists):
            self.listed_subjects[side].add(penalty.subject)
        if limits(penalty) and penalty.subject.startswith("user:"):
            self._punish(side, penalty)

    def outcome(self, outcome: Outcome, counted: bool) -> None:  # noqa: FBT001 - as above
        """An outcome; see `Observer`."""
        if counted:
            self.outcomes += 1
            self._clock(outcome.ts)
            if outcome.label in KINDS:
                self.labels_in_use.add(outcome.label)
        for name in self._canonicaliser.names(outcome.subjects):
            self._history(name.text).label(outcome, counted=counted)

    def rank(self, subject: str) -> tuple[float, ...]:
        """How much a subject matters for a report: harm to legitimate ones first, then how much differs."""
        history = self.histories[subject]
        totals = [_weight(history, side) for side in SIDES]
        stopped = [(history.stopped or {}).get(side, 0.0) for side in SIDES]
        harmed = history.standing == "legitimate" and totals[1] > totals[0]
        return (harmed, abs(stopped[1] - stopped[0]), abs(totals[1] - totals[0]))

    def _see(self, names: Names, ts: int, share: float | None) -> None:
        seen = self.seen
        if share is not None or self.glimpses.sampled:
            self.glimpses.see(names, seen, share=share)
        for name in names:
            if seen.get(name.text, ts + 1) > ts:
                seen[name.text] = ts

    def _clock(self, ts: int) -> None:
        if ts > self.last_ms:  # noqa: PLR1730 - once a decision: a call to max costs three times as much
            self.last_ms = ts
        if ts < self.first_ms or not self.first_ms:
            self.first_ms = ts

    def _history(self, subject: str) -> History:
        history = self.histories.get(subject)
        if history is None:
            history = self.histories[subject] = History()
        return history

    def _share(self, decision: Decision, names: Names, requests: float) -> None:
        """Who shares an address, and whether a user went over a user limit there."""
        subjects = decision.subjects
        over = any("user" in limit.split(":", 1)[0].split("+") for limit in decision.violated)
        if "ip" not in subjects or "user" not in subjects or not (over or decision.established):
            return
        places = {dimension: place for place, dimension in enumerate(subjects)}
        crowd = self.crowds.setdefault(names[places["ip"]].text, Crowd())
        crowd.over = crowd.over or over
        if decision.established:
            crowd.see(names[places["user"]].hash, requests)

    def _punish(self, side: Side, penalty: Penalty) -> None:
        """A user was denied or challenged by a rule: remember on which address."""
        if self._current is None or self._current[0].id != penalty.trigger_id:
            return
        for name in self._current[1]:
            if name.text.startswith("ip:"):
                crowd = self.crowds.setdefault(name.text, Crowd())
                crowd.punished |= {side}

    def _stop(self, decision: Decision, names: Names, stopped: Mapping[Side, Hold | None], requests: float) -> None:
        dimensions = tuple(decision.subjects)
        place = self._leading.get(dimensions)
        if place is None:
            place = self._leading[dimensions] = dimensions.index(min(dimensions, key=specificity))
        mine = names[place].text
        listed = any(one.covers(name.text, decision.ts) for one in self._allowlists for name in names)
        for side, hold in stopped.items():
            if hold is None:
                continue
            self.timeline.add(f"stopped {side}", decision.ts, requests)
            if listed:
                self.listed_requests[side] += requests
            if decision.reason == "blocklist":
                self.blocklisted_stopped[side] += requests
                continue
            stop = Stop(side, hold.rule, hold.rung)
            self.stops[stop] = self.stops.get(stop, 0.0) + requests
            self._history(mine).stop(side, requests)

    def _led(self, side: Side, penalty: Penalty) -> tuple[Decision, ...]:
        """The trigger of a penalty and what the rule saw shortly before it, oldest first."""
        known = self._recent.of(penalty.subject)
        rule = self._rules.get((side, penalty.rule))
        if rule is not None:
            known = tuple(one for one in known if one.id == penalty.trigger_id or _seen_by(rule, one))
        return known[-1 - SHOWN_BEFORE :]


def shared_address(subject: str) -> str:
    """The address that a subject is, or that leads its combination; empty if none does."""
    leading = leading_subject(subject)
    return leading if leading.startswith("ip:") else ""


def _seen_by(rule: Rule, decision: Decision) -> bool:
    dimensions = [limit.split(":", 1)[0] for limit in decision.violated]
    return sees(rule, decision, min(dimensions, key=specificity) if dimensions else "")


def _weight(history: History, side: Side) -> float:
    """How hard a subject was hit on a side, for ranking: time denied, and a tenth of the time challenged."""
    course = history.courses.get(side)
    if course is None:
        return 0.0
    share = {"deny": 1.0, "challenge": 0.1, "warn": 0.01}
    return sum(stay.held_ms * share[cell.action] for cell, stay in course.stays.items() if not cell.shadow)
