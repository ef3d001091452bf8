"""A simulated campaign with a hidden truth: robots, honest people behind one address, and what becomes of them.

Requests pass a blocklist view and the limiter in virtual time; people react to the answers. `truth` is what no other
part of the system is told, so that an estimate can be set beside it.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.events import Outcome
from penaltybox.contracts.ids import stable_id
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.campaign_cast import Call, Cast, Person, Sizes
from penaltybox.producers.limiter import Limiter, Listed, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.contracts.events import Decision, Label
    from penaltybox.contracts.policy import Policy

_SOLVED: Final = {True: 0.9, False: 0.03}
"""How often a challenge is passed: by people, by robots."""
_APPEALS: Final = 0.15
_CHARGEBACKS: Final = 0.5
_HISTORY_MS: Final = 86_400_000


class Truth(msgspec.Struct, frozen=True):
    """What a subject really is."""

    role: str
    legitimate: bool


class Treatment(msgspec.Struct):
    """What became of the requests of one role."""

    people: int = 0
    requests: int = 0
    allowed: int = 0
    limited: int = 0
    challenged: int = 0
    blocked: int = 0
    hurt: set[int] = msgspec.field(default_factory=set)


class Campaign:
    """Plays the campaign in waves of virtual time.

    Args:
        policy: its limits decide, its `pass_ms` exempts who passed a challenge.
        start_ms: event time of the beginning.
        length_ms: duration in event time.
        seed: the same seed and blocklist answers give the same events.
        sizes: how many of whom; which fraction is labelled.
        listed: a look into the blocklist.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        start_ms: int,
        length_ms: int = 540_000,
        seed: int = 1,
        sizes: Sizes | None = None,
        listed: Callable[[Request], Listed | None] = lambda _: None,
    ) -> None:
        self.start_ms, self.end_ms = start_ms, start_ms + length_ms
        self.sizes = sizes or Sizes()
        self._seed = f"{seed}/{start_ms}"
        self._listed = listed
        self._pass_ms = policy.pass_ms
        self._limiter = Limiter(policy.limits, source="demo/edge-1")
        self._random = random.Random(seed + 1)  # noqa: S311 - a simulation that must repeat, no secret
        cast = Cast(self.sizes, seed, length_ms)
        self._calls = cast.calls(start_ms)
        self.people = cast.people
        self._next = 0
        self._waiting: list[tuple[int, int, Outcome]] = []
        self._passes: dict[int, int] = {}
        self._said: set[tuple[int, Label]] = set()
        self._outcomes = 0
        self.labels: Counter[str] = Counter()
        self.truth = self._reveal()
        self.treatments: dict[str, Treatment] = {}
        for person in self.people:
            self.treatments.setdefault(person.role, Treatment()).people += 1

    def history(self) -> list[Outcome]:
        """Outcomes of the day before: why the established users are established."""
        found = []
        for number, person in enumerate(self.people):
            if person.established:
                subjects = {"user": person.subjects["user"]}
                event_id = stable_id("history", self._seed, str(number))
                ts_ms = self.start_ms - _HISTORY_MS
                found.append(Outcome(v=1, id=event_id, ts=ts_ms, label="identity_verified", subjects=subjects))
        return found

    @property
    def planned(self) -> int:
        """Requests of the whole campaign."""
        return len(self._calls)

    @property
    def played(self) -> int:
        """Requests so far."""
        return self._next

    def until(self, ts_ms: int) -> Iterator[Decision | Outcome]:
        """Events up to a time, in order; go on with a later one."""
        while self._next < len(self._calls) and self._calls[self._next].ts_ms < ts_ms:
            call = self._calls[self._next]
            self._next += 1
            yield from self._due(call.ts_ms)
            yield from self._ask(call)
        yield from self._due(ts_ms)

    def _due(self, ts_ms: int) -> Iterator[Outcome]:
        while self._waiting and self._waiting[0][0] < ts_ms:
            yield heapq.heappop(self._waiting)[2]

    def _ask(self, call: Call) -> Iterator[Decision]:
        person = call.person
        subjects = person.subjects
        if call.login_name:  # not authenticated yet
            subjects = {name: value for name, value in subjects.items() if name != "user"}
            subjects["login_name"] = call.login_name
        request = Request(
            id=stable_id("campaign", self._seed, str(call.number)),
            ts_ms=call.ts_ms,
            scenario=call.scenario,
            subjects=subjects,
            route=call.route,
            status=200,
            established=None if call.login_name else person.established,
        )
        listed = self._listed(request)
        if listed is not None and listed.action == "challenge" and self._passes.get(id(person), 0) > call.ts_ms:
            listed = None
        decisions = self._limiter.decide(request) if listed is None else (self._limiter.refuse_listed(request, listed),)
        self._react(person, request, decisions[0])
        yield from decisions

    def _react(self, person: Person, request: Request, decision: Decision) -> None:
        treatment = self.treatments[person.role]
        treatment.requests += 1
        if decision.action == "allow":
            treatment.allowed += 1
            if request.scenario == "coupon_claim":
                self._claimed(person, request)
            return
        treatment.hurt.add(id(person))
        if decision.reason == "over_limit":
            treatment.limited += 1
        elif decision.reason == "blocklist":
            treatment.blocked += 1
        else:
            treatment.challenged += 1
        if decision.action == "challenge":
            self._challenged(person, request)
        elif person.legitimate and self._random.random() < _APPEALS:
            self._say(person, "appeal_granted", request, 60_000)
        elif not person.legitimate:
            self._say(person, "confirmed_abuse", request, 30_000)

    def _claimed(self, person: Person, request: Request) -> None:
        if person.legitimate:
            self._say(person, "payment_ok", request, 20_000)
        elif self._random.random() < _CHARGEBACKS:
            self._say(person, "chargeback", request, 50_000)

    def _challenged(self, person: Person, request: Request) -> None:
        """Everybody tries; who passes is let through for a while. What is reported of it is another matter."""
        key = id(person)
        if self._passes.get(key, 0) > request.ts_ms:
            return
        if self._random.random() < _SOLVED[person.legitimate]:
            self._say(person, "challenge_passed", request, 4_000)
            self._passes[key] = request.ts_ms + 4_000 + self._pass_ms
        else:
            self._say(person, "challenge_failed", request, 4_000)
            self._passes.pop(key, None)

    def _say(self, person: Person, label: Label, request: Request, after_ms: int) -> None:
        """Reports an outcome once per person and label, if outcomes of this person are reported at all."""
        if not person.told or (id(person), label) in self._said:
            return
        self._said.add((id(person), label))
        self._outcomes += 1
        self.labels[label] += 1
        outcome = Outcome(
            v=1,
            id=stable_id("outcome", self._seed, str(self._outcomes)),
            ts=request.ts_ms + after_ms,
            label=label,
            subjects=request.subjects,
            ref=request.id,
        )
        heapq.heappush(self._waiting, (outcome.ts, self._outcomes, outcome))

    def _reveal(self) -> dict[str, Truth]:
        """Canonical subject -> what it is. A subject of anybody honest is honest."""
        canonical = Canonicaliser().subject
        truth: dict[str, Truth] = {}
        for person in self.people:
            for dimension, value in person.subjects.items():
                subject = canonical(dimension, value)
                known = truth.get(subject)
                if known is None or (person.legitimate and not known.legitimate):
                    truth[subject] = Truth(person.role, person.legitimate)
        for call in self._calls:
            if call.login_name:
                truth.setdefault(canonical("login_name", call.login_name), Truth("typed names", legitimate=True))
        return truth
