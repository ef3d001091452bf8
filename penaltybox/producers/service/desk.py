"""What the service does for its callers: decides, gives back, publishes outcomes, looks subjects up."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import Outcome
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.policy_rules import matches
from penaltybox.producers.http.answers import AnswerOptions, answer
from penaltybox.producers.http.client_address import read_address
from penaltybox.producers.http.testimony import SECRETS, secret_name
from penaltybox.producers.limiter import Request
from penaltybox.producers.service.bodies import (
    DecideBody,
    OutcomeBody,
    RefundBody,
    Refunded,
    Taken,
    Told,
    parsed,
)
from penaltybox.producers.service.gateways import facts_of, reply_of
from penaltybox.producers.service.replies import LINES, Refusal, Reply, document
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.feed.feed import Feed
    from penaltybox.producers.http.requests import RequestReader
    from penaltybox.producers.memory import Offering
    from penaltybox.producers.service.calls import Call
    from penaltybox.producers.service.gateways import Way
    from penaltybox.producers.service.standing import Standings
    from penaltybox.producers.verdict import Decider

_LONGEST_WAIT_S: Final = 60
_WAITS: Final = frozenset(map(str, range(_LONGEST_WAIT_S + 1)))
_MOST_STREAMS: Final = 2000


class Desk:
    """Answers calls.

    Args:
        decider: decides about requests.
        policy: how scenarios are treated.
        reader: makes requests of what gateways tell; knows whom to believe.
        standings: looks into Redis; None: there is none, and it is never asked.
        publisher: takes outcomes; None: they are refused.
        canonical: canonical text of a subject as a person or program types it.
        options: what answers look like.
        client_header: in which gateways name the client.
        feed: tells enforcers what changes; None: there is none.
    """

    def __init__(
        self,
        decider: Decider,
        policy: Policy,
        reader: RequestReader,
        *,
        canonical: Callable[[str], str],
        standings: Standings | None = None,
        publisher: Offering | None = None,
        options: AnswerOptions | None = None,
        client_header: str = "X-Forwarded-For",
        feed: Feed | None = None,
    ) -> None:
        self._decider = decider
        self._policy = policy
        self._reader = reader
        self._canonical = canonical
        self._standings = standings
        self._publisher = publisher
        self._options = options or AnswerOptions()
        # Envoy takes a 5xx for a failure of the service, and may let the request pass: a refusal must be none.
        self._options_for_envoy = replace(self._options, statuses={"unavailable": 429, **self._options.statuses})
        self._client_header = client_header.lower().encode()
        self._feed = feed

    def replace_policy(self, policy: Policy) -> None:
        """From the next call on this policy holds here; the limiter's own has to be replaced too."""
        self._policy = policy
        self._reader.replace_policy(policy)
        if self._feed is not None:
            self._feed.replace_allow(policy.allow)

    async def check(self, way: Way, call: Call) -> Reply:
        """A gateway's question about a client's request.

        Raises:
            Refusal: the gateway is not trusted, or does not say what it asks about.
        """
        at_ms = now_ms()
        scenario = None if way == "envoy" else self._known(call.parameter("scenario"), 400) or None
        asked = self._reader.read(facts_of(way, call, self._client_header), at_ms, scenario=scenario)
        if not asked.client.through_proxy:
            raise Refusal(403, "trusted_proxies: the caller is none of them")
        request = asked.request
        try:
            verdict = await self._decider.decide(request)
        except BadEvent:  # a value that only the limiter refuses; an error would be the gateway's way to let it pass
            verdict = Verdict(action="deny", reason="unknown", missing="subject")
        said = answer(
            verdict,
            self._policy.scenario(request.scenario),
            self._options_for_envoy if way == "envoy" else self._options,
            _text(call.header(b"accept-language")),
            accept="" if way == "nginx" else _text(call.header(b"accept")),
            now_ms=at_ms,
        )
        return reply_of(way, verdict.action, said)

    async def decide(self, call: Call, body: bytes) -> Reply:
        """A program's question: the verdict as JSON; with ``?http=1`` the answer as its client would get it.

        Raises:
            Refusal: a body of another form, or an unknown scenario.
            BadEvent: the request's subjects are not allowed.
        """
        asked = parsed(body, DecideBody)
        at_ms = now_ms()
        request = Request(
            id=asked.id or ulid(at_ms),
            ts_ms=at_ms,
            scenario=self._known(asked.scenario, 422),
            subjects=_named(asked.subjects),
            route=asked.route,
            cost=self._cost(asked),
            established=asked.established,
            attrs=asked.attrs,
            idempotency_key=asked.idempotency_key,
        )
        verdict = await self._decider.decide(request)
        language = _text(call.header(b"accept-language"))
        said = answer(verdict, self._policy.scenario(request.scenario), self._options, language, now_ms=at_ms)
        if call.parameter("http") not in ("", "0"):
            return reply_of("forward", verdict.action, said)
        return document(Told.of(request.id, verdict, said))

    async def refund(self, _: Call, body: bytes) -> Reply:
        """Gives back what the request of a key took."""
        return document(Refunded(await self._decider.refund(parsed(body, RefundBody).idempotency_key)))

    async def outcome(self, _: Call, body: bytes) -> Reply:
        """Publishes an outcome; 202 since it is on its way and not yet in Kafka.

        Raises:
            Refusal: a body of another form, or nothing is published here.
            BadEvent: a subject that is not allowed.
        """
        told = parsed(body, OutcomeBody)
        if self._publisher is None:
            raise Refusal(503, "nothing is published here")
        subjects = _named(told.subjects)
        for dimension, value in subjects.items():
            self._canonical(f"{dimension}:{value}")
        at_ms = now_ms()
        record = Outcome(v=1, id=told.id or ulid(at_ms), ts=at_ms, label=told.label, subjects=subjects, ref=told.ref)
        self._publisher.offer(record)
        return document(Taken(record.id), 202)

    async def standing(self, subject: str) -> Reply:
        """How a subject stands.

        Raises:
            StoreUnavailable: Redis is away.
            BadEvent: no subject.
        """
        canonical = self._canonical(subject)
        if self._standings is None:
            raise Refusal(503, "there is no Redis here")
        return document(await self._standings.of(canonical))

    async def changes(self, call: Call) -> Reply:
        """Who is blocked, and every change: lines without end, or with ``wait`` until the first news.

        Raises:
            StoreUnavailable: Redis is away.
            Refusal: `wait` is no number of seconds; there is no Redis, or there are too many enforcers.
        """
        since, wait = call.parameter("since"), call.parameter("wait")
        if wait and wait not in _WAITS:
            raise Refusal(400, f"wait: got {wait[:20]!r}, wanted 0 to {_LONGEST_WAIT_S} seconds")
        if self._feed is None:
            raise Refusal(503, "there is no Redis here")
        if self._feed.streams >= _MOST_STREAMS:
            after = {"retry-after": str(5 + secrets.randbelow(25))}
            raise Refusal(503, f"{_MOST_STREAMS:,} enforcers are listening to this process already", after)
        await self._feed.ready()
        headers = {"content-type": LINES, "cache-control": "no-store", "x-accel-buffering": "no"}
        return Reply(200, headers, pieces=self._feed.follow(since, float(wait) if wait else None))

    def end(self) -> None:
        """Ends what goes on: the process stops."""
        if self._feed is not None:
            self._feed.stop()

    async def readiness(self) -> Reply:
        """200 when requests are decided, 503 when they are only refused."""
        if self._standings is None:
            return document({"ready": True, "redis": "none", "policy": self._policy.version})
        found = await self._standings.readiness(self._policy)
        return document(found, 200 if found.ready else 503)

    def _known(self, scenario: str, status: int) -> str:
        """The scenario, if it is empty or has limits: a name that is mistyped must not switch its limits off."""
        if scenario and scenario not in self._policy.limits:
            known = ", ".join(self._policy.limits)
            raise Refusal(status, f"scenario: got {scenario[:40]!r}, wanted one of the policy's: {known}")
        return scenario

    def _cost(self, asked: DecideBody) -> int:
        if asked.cost is not None:
            return asked.cost
        costs = self._policy.scenario(asked.scenario).costs
        return next((cost for pattern, cost in costs if matches(pattern, asked.route)), 1)


def _named(subjects: Mapping[str, str]) -> dict[str, str]:
    """The subjects as gateways and middleware have them: of an API key a digest, of an address no zone."""
    return {name: _as_known(name, value) for name, value in subjects.items()}


def _as_known(dimension: str, value: str) -> str:
    if dimension in SECRETS:
        return secret_name(value)
    if dimension == "ip" and "%" in value:
        return str(read_address(value) or value)
    return value


def _text(value: bytes | None) -> str:
    return (value or b"").decode("latin-1")
