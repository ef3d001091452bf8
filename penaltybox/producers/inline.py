"""The inline limiter: a request goes in, a verdict comes out after one round trip to Redis, and is published."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Final, Self

from penaltybox.contracts.errors import BadEvent, ConfigurationError, PenaltyboxError, StoreUnavailable
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.connections import endpoint_of, open_multiplexed
from penaltybox.links.multiplex import MultiplexLink
from penaltybox.producers import decisions
from penaltybox.producers.breakers import Breakers
from penaltybox.producers.counters import ServerCounters, Unanswered
from penaltybox.producers.counters_cluster import ClusterCounters
from penaltybox.producers.failure import LOCAL_PERCENT, Failures
from penaltybox.producers.outages import FailureCounts
from penaltybox.producers.pseudonyms import Pseudonyms
from penaltybox.producers.questions import Questions

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from types import TracebackType

    from penaltybox.contracts.events import Action
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.counters import Counters
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.memory import Offering
    from penaltybox.producers.questions import Answer, Asked
    from penaltybox.producers.verdict import Verdict

_REFUND_DEADLINE_S: Final = 1.0
_log = logging.getLogger("penaltybox.limiter")


class InlineLimiter:
    """A `Decider` on Redis.

    Args:
        policy: its limits, scenarios and plans.
        counters: the Redis; closed with this object.
        source: ``limiter/instance``, written into every decision.
        publisher: takes every decision; None publishes nothing (whoever wraps this limiter does).
        keyspace: how keys are called.
        canonicaliser: how subjects count.
        pseudonyms: stand for values that must not be stored as they are.
        local_percent: share of each quota that this process grants while Redis is away and `failure: local`.
    """

    def __init__(
        self,
        policy: Policy,
        counters: Counters,
        *,
        source: str,
        publisher: Offering | None = None,
        keyspace: Keyspace | None = None,
        canonicaliser: Canonicaliser | None = None,
        pseudonyms: Pseudonyms | None = None,
        local_percent: int = LOCAL_PERCENT,
    ) -> None:
        self.source = source
        self.publisher = publisher
        self.breaker = Breakers()
        self.counts = FailureCounts()
        self._counters = counters
        self._keyspace = keyspace or Keyspace()
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._pseudonyms = pseudonyms
        self._local_percent = local_percent
        self._is_open = False
        self._loading: asyncio.Task[None] | None = None
        self.replace_policy(policy)

    @classmethod
    def open(
        cls,
        settings: Settings,
        policy: Policy,
        *,
        source: str = "",
        publisher: Offering | None = None,
        local_percent: int | None = None,
    ) -> Self:
        """A limiter on the Redis of these settings; ``async with`` it. Nothing connects before that."""
        keyspace = Keyspace(settings.redis_prefix)
        return cls(
            policy,
            open_counters(settings, keyspace),
            source=source or f"limiter/{socket.gethostname()}",
            publisher=publisher,
            keyspace=keyspace,
            canonicaliser=Canonicaliser(settings.ipv6_prefix, settings.hashed_dimensions),
            pseudonyms=Pseudonyms(settings) if settings.hashed_dimensions else None,
            local_percent=settings.local_percent if local_percent is None else local_percent,
        )

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._questions.policy

    def replace_policy(self, policy: Policy) -> None:
        """From the next request on this policy holds; counters of limits that it shares with the last one go on."""
        self._questions = Questions(policy, self._keyspace, self._canonicaliser, self._pseudonyms)
        self._failures = Failures(policy, self.source, self._canonicaliser, self._local_percent)
        if self._is_open:
            with suppress(RuntimeError):  # not called on the loop: the first requests load what they find missing
                self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        """Makes all scripts known that this policy's requests may need, so that no request has to wait for that."""
        try:
            await self._counters.load(_algorithms(self.policy))
        except StoreUnavailable as error:
            _log.warning("Redis is away while its scripts are loaded: %s", error)

    async def __aenter__(self) -> Self:
        """Connects and loads the scripts; a Redis that is away is no error, one that refuses the login is.

        Raises:
            ConfigurationError: a refused login or right.
        """
        await self._load()
        self._is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        self._is_open = False
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
        await self._counters.close()

    async def decide(self, request: Request) -> Verdict:
        """See `Decider.decide`."""
        try:
            asked = self._questions.asked(request)
            if asked.question.missing:
                verdict = decisions.verdict_missing(request, self.source, asked.question.missing)
            else:
                verdict = await self._ask(asked, request)
        except UnicodeEncodeError as error:  # an id, a route or a key
            raise BadEvent("not_text", f"request {request.id!a}: a text that cannot be encoded: {error}") from error
        if self.publisher is not None and request.subjects:  # a record about nobody would be a dead letter
            for decision in verdict.decisions:
                self.publisher.offer(decision)
        return verdict

    async def _ask(self, asked: Asked, request: Request) -> Verdict:
        stems, deadline_s = asked.stems, asked.question.deadline_s
        asked_at_s = monotonic()  # which is the loop's time
        if not self.breaker.open or self._admits(stems, request, asked_at_s, deadline_s):
            try:
                answer = await self._counters.ask(asked, request, deadline_s)
            except PenaltyboxError as error:
                self._note(error, asked_at_s)
            else:
                if self.breaker.open or self.counts.away:
                    self._answered(self._counters.touched(stems, request))
                return self._judge(asked, request, answer)
        now_s, nodes = monotonic(), self._counters.touched(stems, request)
        verdict = self._failures.verdict(request, self.breaker.wait_s(nodes, now_s))
        self.counts.decided(request.scenario, verdict, now_s, nodes)
        return verdict

    def _admits(self, stems: Sequence[str], request: Request, now_s: float, deadline_s: float) -> bool:
        """Whether the nodes that this request needs are asked, of which some may not be."""
        if self.breaker.admits(self._counters.touched(stems, request), now_s, deadline_s):
            return True
        self._counters.look()
        return False

    def _note(self, error: PenaltyboxError, asked_at_s: float) -> None:
        """An outage, or a refused login or right, is everybody's failure; any other error is this request's alone."""
        now_s = monotonic()
        for node, failure in error.by_node.items() if isinstance(error, Unanswered) else (("", error),):
            if isinstance(failure, (StoreUnavailable, ConfigurationError)):
                self.counts.failed(failure, now_s, node)
                self.breaker.failed(node, now_s, asked_at_s)
            else:
                self.counts.refused(failure, now_s)
                self._answered((node,))
        if isinstance(error, Unanswered):
            self._answered(error.answered)

    def _answered(self, nodes: Collection[str]) -> None:
        """These nodes do their part; and those that are nodes no more need not be thought of."""
        now_s = monotonic()
        for node in nodes:
            self.breaker.succeeded(node)
        self.counts.succeeded(now_s, nodes)
        if self.breaker.open or self.counts.away:
            left = self._counters.nodes()
            self.breaker.keep(left)
            self.counts.keep(left, now_s)

    def _judge(self, asked: Asked, request: Request, answer: Answer) -> Verdict:
        question = asked.question
        established = answer.trust if question.authenticated else None
        if question.authenticated and established is None:
            established = bool(request.established)
        if answer.fits:
            return decisions.verdict_that_fits(request, self.source, answer.states, established=established)
        if answer.blocks or answer.challenges:
            found = [(asked.subjects[at], value) for at, value in answer.blocks or answer.challenges]
            action: Action = "deny" if answer.blocks else "challenge"
            return decisions.verdict_listed(request, self.source, action, found, answer.now_ms, established=established)
        return decisions.verdict_on(request, self.source, answer.states, established=established)

    async def refund(self, idempotency_key: str) -> bool:
        """Gives back what the request of this key took, at most once; False when there is nothing (left) to give back.

        Raises:
            StoreUnavailable: no answer; ask again, it is given back only once.
        """
        return await self._counters.give_back(idempotency_key, _REFUND_DEADLINE_S)


def _algorithms(policy: Policy) -> set[frozenset[str]]:
    """Sets of algorithms that requests need a script for: those of a scenario's limits, in case a dimension is missing.

    There are six algorithms, so these are never many.
    """
    found: set[frozenset[str]] = {frozenset()}
    for dimensions in policy.limits.values():
        here: set[frozenset[str]] = {frozenset()}
        for thresholds in dimensions.values():
            more = frozenset(limit.algorithm for limit in thresholds)
            here |= {one | more for one in here}
        found |= here
    return found


def open_counters(settings: Settings, keyspace: Keyspace) -> Counters:
    """The counters for the topology of the settings' URL."""
    link = open_multiplexed(endpoint_of(settings))
    return ServerCounters(link, keyspace) if isinstance(link, MultiplexLink) else ClusterCounters(link, keyspace)
