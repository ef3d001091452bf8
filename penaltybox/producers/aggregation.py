"""Denials that were answered from memory, told together: one record a second per blocked subject and user."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.contracts.events import Decision
from penaltybox.contracts.ids import stable_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.contracts.events import Action, Reason
    from penaltybox.producers.limiter import Request

MAX_COUNT: Final = 1_000_000
"""As many denials as one record can stand for."""
MAX_PER_SUBJECT: Final = 64
"""Users of one blocked subject that have records of their own; those beyond share one."""


class Refusal(NamedTuple):
    """How a request was refused from memory.

    Attributes:
        subject: canonical; the blocked one.
        action: deny or challenge.
        reason: as in the decision.
        status: HTTP status.
        cached: it was the answer of a cache, not of the lists.
        retry_after_s: None when there is no such time.
        established: what is known of the user.
    """

    subject: str
    action: Action
    reason: Reason | None
    status: int | None
    cached: bool
    retry_after_s: int | None
    established: bool | None


class _Bucket:
    """Denials of one second. Its record says only what all of them have in common."""

    __slots__ = ("attrs", "cost", "count", "established", "first_id", "refusal", "route", "scenario", "subjects", "ts")

    def __init__(self, request: Request, refusal: Refusal) -> None:
        self.first_id = request.id
        self.scenario = request.scenario
        self.subjects = request.subjects
        self.attrs = request.attrs
        self.route = request.route
        self.cost = request.cost
        self.established = refusal.established
        self.refusal = refusal
        self.ts = request.ts_ms
        self.count = 1

    def add(self, request: Request, refusal: Refusal) -> None:
        self.count += 1
        self.refusal = refusal
        self.ts = max(self.ts, request.ts_ms)
        if self.subjects != request.subjects:
            self.subjects = self._shared(request.subjects)
        if self.attrs != request.attrs:
            self.attrs = _common(self.attrs, request.attrs)
        if self.route != request.route:
            self.route = ""
        if self.cost != request.cost:
            self.cost = 1
        if self.established != refusal.established:
            self.established = None

    def _shared(self, others: dict[str, str]) -> dict[str, str]:
        """The subjects that are in all requests. Of the blocked one, any will do: an IPv6 address of its /64, say."""
        blocked = self.refusal.subject.partition(":")[0].split("+")
        known = self.subjects
        return {name: known[name] for name in known if name in blocked or others.get(name) == known[name]} or known

    def decision(self, source: str) -> Decision:
        refusal = self.refusal
        return Decision(
            v=1,
            id=stable_id("aggregate", source, self.first_id),
            ts=self.ts,
            source=source,
            scenario=self.scenario,
            action=refusal.action,
            reason=refusal.reason,
            subjects=self.subjects,
            established=self.established,
            route=self.route,
            status=refusal.status,
            retry_after_s=refusal.retry_after_s,
            cost=self.cost,
            count=self.count,
            cached=refusal.cached,
            attrs=self.attrs,
        )


def _common(known: dict[str, str], other: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in known.items() if other.get(name) == value}


class Aggregation:
    """Counts refusals and gives them out as decisions. Constant time and bounded memory.

    What a record has: the blocked subject, its user, scenario and action are always those of every denial in it.
    Another dimension, the route and the attrs stand in it only if they were the same throughout. A challenge can be
    charged to somebody, so challenges are only told together when all their subjects are the same.

    Args:
        source: of the decisions.
        offer: takes decisions that cannot wait for `flush`.
        max_buckets: different ones at a time; at the bound the oldest is told before its second is over.
    """

    def __init__(self, source: str, offer: Callable[[Decision], None], max_buckets: int = 20_000) -> None:
        self._source = source
        self._offer = offer
        self._max_buckets = max_buckets
        self._buckets: OrderedDict[tuple[str, ...], _Bucket] = OrderedDict()
        self._users: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, request: Request, refusal: Refusal) -> None:
        """One more refused request."""
        key = self._key(request, refusal)
        bucket = self._buckets.get(key)
        if bucket is None:
            users = self._users.get(refusal.subject, 0)
            if users >= MAX_PER_SUBJECT:
                key = (refusal.subject, request.scenario, refusal.action)
                bucket = self._buckets.get(key)
            else:
                self._users[refusal.subject] = users + 1
        if bucket is None:
            if len(self._buckets) >= self._max_buckets:
                self._offer(self._buckets.popitem(last=False)[1].decision(self._source))
            self._buckets[key] = _Bucket(request, refusal)
            return
        bucket.add(request, refusal)
        if bucket.count >= MAX_COUNT:
            del self._buckets[key]
            self._offer(bucket.decision(self._source))

    @staticmethod
    def _key(request: Request, refusal: Refusal) -> tuple[str, ...]:
        if refusal.action == "deny":
            return refusal.subject, request.scenario, "deny", user_of(request)
        return refusal.subject, request.scenario, refusal.action, *request.subjects, *request.subjects.values()

    def flush(self) -> Iterator[Decision]:
        """Everything that was not told yet; denials from now on belong to the next record."""
        buckets = self._buckets
        self._buckets = OrderedDict()
        self._users = {}
        return (bucket.decision(self._source) for bucket in buckets.values())


def user_of(request: Request) -> str:
    """Who is authenticated: the user, else the API key, else nobody (``""``)."""
    subjects = request.subjects
    return subjects.get("user") or subjects.get("api_key") or ""
