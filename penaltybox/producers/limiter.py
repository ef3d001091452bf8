"""The limiter of a policy's `limits`, in memory: what it decides about a request, as decisions ready to publish.

Every limit that applies is asked before any is taken from, so a denied request uses up no quota anywhere.

A limit in `dry_run` is tried as if it alone were added to those in force. It never changes the answer; when it alone
would have refused, a second decision says so (``enforced: false``, an id of its own). The first one stays: real rules
do not see dry runs, and must not lose sight of a request because one is being tried on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.subjects import Canonicaliser, encode_value
from penaltybox.producers import decisions
from penaltybox.producers.algorithms import counting
from penaltybox.producers.verdict import LimitState

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from penaltybox.contracts.events import Action, Decision
    from penaltybox.contracts.policy import Limit
    from penaltybox.producers.algorithms import Counting
    from penaltybox.producers.verdict import Verdict

VIRTUAL: Final = frozenset({"scenario", "route"})
"""Parts of a combination that are fields of the request, not subjects."""


class Request(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a limiter is asked about. Subjects are as they came: dimension -> value."""

    id: str
    ts_ms: int
    scenario: str
    subjects: dict[str, str]
    route: str = ""
    status: int | None = None
    cost: int = 1
    established: bool | None = None
    attrs: dict[str, str] = {}
    idempotency_key: str = ""
    """Under which a refund finds what this request took, if it may have to be given back."""

    def __post_init__(self) -> None:
        """Refuses a cost that would add quota (below 0) or be taken and told in different numbers (a fraction).

        Raises:
            ConfigurationError: such a cost; `http.testimony.whole_cost` makes one that can be counted.
        """
        if self.cost != 1 and not (isinstance(self.cost, int) and self.cost >= 0):
            raise ConfigurationError(f"request {self.id!a}: cost: got {self.cost!r}, wanted a whole number from 0 on")


class Listed(NamedTuple):
    """A subject's entry in the blocklist that is in force."""

    action: Action
    until_ms: int | None


class _Applied(NamedTuple):
    """One limit of a scenario, its counter, and which subject it counts."""

    name: str
    on: str
    limit: Limit
    counter: Counting


class _Asked(NamedTuple):
    applied: _Applied
    key: str
    wait_ms: int

    def state(self, now_ms: int) -> LimitState:
        """How the limit stands after the decision."""
        limit, remaining = self.applied.limit, self.applied.counter.remaining(self.key, now_ms)
        return LimitState(
            name=self.applied.name,
            limit=limit.limit,
            window_ms=limit.window_ms,
            remaining=remaining,
            reset_ms=self.applied.counter.reset_ms(self.key, now_ms),
            wait_ms=self.wait_ms,
            answer=limit.answer,
            dry_run=limit.dry_run,
        )


class Limiter:
    """Decides requests by a policy's limits, in the requests' own time.

    Args:
        limits: scenario -> dimension or combination -> thresholds (`Policy.limits`).
        source: ``limiter/instance``, written into every decision.
        canonicaliser: how subjects count (IPv6 prefix, hashed dimensions).
        max_keys: bound of live keys per limit.
    """

    def __init__(
        self,
        limits: Mapping[str, Mapping[str, tuple[Limit, ...]]],
        *,
        source: str,
        canonicaliser: Canonicaliser | None = None,
        max_keys: int = 1_000_000,
    ) -> None:
        self.source = source
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._scenarios = {
            scenario: [
                _Applied(f"{on}:{limit.name}", on, limit, counting(limit, max_keys))
                for on, thresholds in dimensions.items()
                for limit in thresholds
            ]
            for scenario, dimensions in limits.items()
        }

    @property
    def scenarios(self) -> frozenset[str]:
        """The scenarios that have limits; a request of any other is allowed."""
        return frozenset(self._scenarios)

    def decide(self, request: Request) -> tuple[Decision, ...]:
        """The decision, and behind it what a dry run would have answered if that differs.

        Raises:
            BadEvent: a subject that is not allowed (see `Canonicaliser.subject`); nothing was counted.
        """
        states = self._weigh(request, self._ask(request))
        return decisions.weighed(request, self.source, states, established=request.established)

    def judge(self, request: Request) -> Verdict:
        """What `decide` says, and beside it how every limit that applies stands now; raises as `decide` does."""
        states = self._weigh(request, self._ask(request))
        return decisions.verdict_on(request, self.source, states, established=request.established)

    def _weigh(self, request: Request, asked: list[_Asked]) -> list[LimitState]:
        """Takes from all limits if all that are in force fit; how they stand after that."""
        if not any(one.wait_ms and not one.applied.limit.dry_run for one in asked):
            for one in asked:
                if not one.wait_ms:
                    one.applied.counter.take(one.key, request.cost, request.ts_ms)
        return [one.state(request.ts_ms) for one in asked]

    def give_back(self, request: Request, names: Collection[str], now_ms: int) -> None:
        """Gives what an allowed request took back to these limits (``dimension:limit name``)."""
        for applied in self._scenarios.get(request.scenario, ()):
            if applied.name not in names:
                continue
            key = subject_of(applied.on, request, request.subjects, self._canonicaliser)
            if key is not None:
                applied.counter.give(key, request.cost, request.ts_ms, now_ms)

    def refuse_listed(self, request: Request, listed: Listed) -> Decision:
        """The decision about a request of a subject in the blocklist: nothing is counted, nobody is charged."""
        wait_ms = None if listed.until_ms is None else max(0, listed.until_ms - request.ts_ms)
        return decisions.listed(request, self.source, listed.action, wait_ms)

    def _ask(self, request: Request) -> list[_Asked]:
        asked = []
        keys: dict[str, str | None] = {}
        for applied in self._scenarios.get(request.scenario, ()):
            on = applied.on
            if on not in keys:
                keys[on] = subject_of(on, request, request.subjects, self._canonicaliser)
            key = keys[on]
            if key is not None:
                asked.append(_Asked(applied, key, applied.counter.wait_ms(key, request.cost, request.ts_ms)))
        return asked


def subject_of(on: str, request: Request, subjects: Mapping[str, str], canonicaliser: Canonicaliser) -> str | None:
    """Canonical text of what a dimension or combination names, e.g. ``device+route:d1+POST%20%2Fx``.

    None when the request lacks a part of it.

    Args:
        on: dimension or combination.
        request: its scenario and route.
        subjects: its subjects as they are counted (hashed ones as HMAC).
        canonicaliser: how they are written.

    Raises:
        BadEvent: a subject that is not allowed.
    """
    if "+" not in on and on not in VIRTUAL:
        return canonicaliser.subject(on, subjects[on]) if on in subjects else None
    parts = []
    for part in on.split("+"):
        if part in VIRTUAL:
            parts.append(encode_value(request.scenario if part == "scenario" else request.route))
        elif part in subjects:
            parts.append(canonicaliser.subject(part, subjects[part]).partition(":")[2])
        else:
            return None
    return f"{on}:{'+'.join(parts)}"
