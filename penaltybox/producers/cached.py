"""A decider around a decider: what lists, caches and sampling can answer does not reach the one inside.

In this order: lists (allowlist, then bans of ranges) → a remembered block → whether the request is checked at all → a
lease of quota → the decider inside. It publishes for the decider inside, which is made without a publisher.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.subscriptions import monotonic_ms
from penaltybox.producers.aggregation import Aggregation, Refusal, user_of
from penaltybox.producers.caches import BlockedCache, Held, Moment, Recalls
from penaltybox.producers.decisions import bare, seconds
from penaltybox.producers.leases import Leases, counters_of
from penaltybox.producers.limiter import subject_of
from penaltybox.producers.lists import NEVER, Lists
from penaltybox.producers.sampling import Sampling
from penaltybox.producers.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from penaltybox.contracts.events import Decision
    from penaltybox.contracts.policy import Policy, Scenario
    from penaltybox.contracts.subjects import Names
    from penaltybox.links.listening import Hearing
    from penaltybox.producers.leases import Lease
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.lists import Listing
    from penaltybox.producers.memory import Offering
    from penaltybox.producers.passes import Passes
    from penaltybox.producers.pseudonyms import Pseudonyms
    from penaltybox.producers.verdict import Decider

_log = logging.getLogger(__name__)
TICK_S: Final = 0.25
AGGREGATE_MS: Final = 1000
_CHUNK: Final = 500
_REMEMBERED: Final = frozenset({"blocklist", "challenged"})
_UNREACHED: Final = frozenset({"fail_open", "fail_closed", "local_fallback"})
REFUSED: Final = 403


@runtime_checkable
class Switchable(Protocol):
    """A decider whose policy can be replaced while it works."""

    def replace_policy(self, policy: Policy) -> None:
        """Another policy is in force from now on."""


class Counts(msgspec.Struct):
    """How many requests were answered by what, since the start."""

    listed: int = 0
    blocked: int = 0
    unchecked: int = 0
    leased: int = 0
    asked: int = 0


class CachedDecider:
    """See the module. It belongs to one event loop.

    Args:
        inner: decides what is left; its `Verdict.decisions` are published here.
        policy: the scenarios' `check`, `publish`, `probe` and `allow_cache`, and the allowlist until `lists` is set.
        source: ``limiter/instance``, in decisions that are made here.
        publisher: takes every decision; None publishes nothing.
        canonicaliser: how subjects count; as in `inner`.
        pseudonyms: stand for values that are not stored as they are; as in `inner`.
        hearing: without it nothing is remembered longer than a second.
        passes: asked about challenged ranges; without it nobody is exempt.
        sampling: draws by request id.
        clock: monotonic milliseconds.
    """

    def __init__(
        self,
        inner: Decider,
        policy: Policy,
        *,
        source: str,
        publisher: Offering | None = None,
        canonicaliser: Canonicaliser | None = None,
        pseudonyms: Pseudonyms | None = None,
        hearing: Hearing | None = None,
        passes: Passes | None = None,
        sampling: Sampling | None = None,
        clock: Callable[[], int] = monotonic_ms,
        max_subjects: int = 100_000,
    ) -> None:
        self.inner = inner
        self.policy = policy
        self.source = source
        self.hearing = hearing
        self.passes = passes
        self.counts = Counts()
        self.reread: Callable[[], None] | None = None
        """Has the lists read again, soon; set by whoever reads them."""
        self.publisher = publisher
        self._canonicaliser = canonicaliser or Canonicaliser()
        self._pseudonyms = pseudonyms
        self._sampling = sampling or Sampling()
        self._clock = clock
        self.lists = Lists(policy.allow, self._canonicaliser)
        self._blocked = BlockedCache(max_subjects)
        self._combined: set[str] = set()
        self._recalls = Recalls()
        self._leases = Leases()
        self._aggregation = Aggregation(source, self._offer)
        self._flushed_ms = clock()
        self._timer: asyncio.TimerHandle | None = None
        self._work: asyncio.Task[None] | None = None

    async def decide(self, request: Request) -> Verdict:
        """See `Decider.decide`."""
        stored = request if self._pseudonyms is None else self._as_stored(request, self._pseudonyms)
        names = self._canonicaliser.names(stored.subjects)
        listing = self.lists.find(stored, names, request.subjects.get("ip"))
        if listing is not None and (listing.action != "challenge" or not await self._passed(stored)):
            self.counts.listed += 1
            return self._by_list(request, listing)
        held = self._find_held(stored, names)
        if held is not None:
            return self._refuse_held(request, held, stored)
        scenario = self.policy.scenario(request.scenario)
        if not self._sampling.checks(scenario, request.id):
            self.counts.unchecked += 1
            return self._allow(request)
        if scenario.allow_cache_ms and not request.idempotency_key:
            return await self._through_lease(request, scenario, stored, names)
        return (await self._ask(request, stored))[0]

    async def refund(self, idempotency_key: str) -> bool:
        """See `Decider.refund`; a request that can be given back always reached the decider inside."""
        return await self.inner.refund(idempotency_key)

    async def close(self) -> None:
        """Counts what is owed and tells what was not told. The decider inside and the publisher are still open."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)
        for decision in self._aggregation.flush():
            self._offer(decision)
        self._leases.end_all()
        await self._settle(everything=True)

    # What an `Upkeep` tells.

    def changed(self, subject: str) -> None:
        """See `Hearer.changed`."""
        self._recalls.note(subject)
        self._blocked.forget(subject)

    def missed(self) -> None:
        """See `Hearer.missed`."""
        self._recalls.note_all()
        self._blocked.clear()

    def replace_policy(self, policy: Policy) -> None:
        """Another policy is in force: here, and in the decider inside if it can be told."""
        self.policy = policy
        if isinstance(self.inner, Switchable):
            self.inner.replace_policy(policy)
        if self.reread is None:
            self.lists = Lists(policy.allow, self._canonicaliser)
        else:
            self.reread()
        self._leases.end_all()
        self._wake()

    # The lists.

    @staticmethod
    def _as_stored(request: Request, pseudonyms: Pseudonyms) -> Request:
        return msgspec.structs.replace(request, subjects=pseudonyms.of_subjects(request.subjects))

    async def _passed(self, request: Request) -> bool:
        if self.passes is None or not any(name in request.subjects for name in ("user", "api_key", "device")):
            return False
        return await self.passes.passed(request)

    def _by_list(self, request: Request, listing: Listing) -> Verdict:
        if listing.action == "allow":
            return self._allow(request)
        deny, permanent = listing.action == "deny", listing.until_ms == NEVER
        left_ms = None if permanent else max(1, listing.until_ms - request.ts_ms)
        refusal = Refusal(
            subject=self._canonicaliser.subject("ip", request.subjects["ip"]),
            action=listing.action,
            reason="blocklist" if deny else "challenged",
            status=REFUSED,
            cached=False,
            retry_after_s=None if left_ms is None else seconds(left_ms),
            established=request.established,
        )
        return self._refuse(request, refusal, left_ms, permanent=deny and permanent)

    # Remembered blocks.

    def _find_held(self, request: Request, names: Names) -> Held | None:
        if not len(self._blocked):
            return None
        now, heard = self._clock(), self.hearing.heard_ms if self.hearing is not None else None
        worst: Held | None = None
        for subject in self._subjects(request, names):
            held = self._blocked.find(subject, now, heard)
            if held is not None and held.answers(request) and (worst is None or held.weight > worst.weight):
                worst = held
        return worst

    def _subjects(self, request: Request, names: Names) -> list[str]:
        subjects = [name.text for name in names]
        for dimensions in self._combined:
            text = subject_of(dimensions, request, request.subjects, self._canonicaliser)
            if text is not None:
                subjects.append(text)
        return subjects

    def _refuse_held(self, request: Request, held: Held, stored: Request) -> Verdict:
        self.counts.blocked += 1
        left_ms = held.left_ms(self._clock())
        refusal = Refusal(
            subject=held.subject,
            action=held.action,
            reason=held.reason,
            status=held.status,
            cached=True,
            retry_after_s=None if left_ms is None else seconds(left_ms),
            established=held.known(stored),
        )
        return self._refuse(request, refusal, left_ms, permanent=held.permanent)

    def _refuse(self, request: Request, refusal: Refusal, left_ms: int | None, *, permanent: bool) -> Verdict:
        if self.publisher is not None:
            self._aggregation.add(request, refusal)
            self._wake()
        return Verdict(
            action=refusal.action,
            reason=refusal.reason,
            retry_after_ms=left_ms,
            permanent=permanent,
            listed=refusal.subject,
        )

    def _remember(self, stored: Request, verdict: Verdict, asked_at: Moment) -> None:
        subject, after_ms = verdict.listed, verdict.retry_after_ms
        if self._recalls.since((subject,), asked_at):
            return
        dimensions = subject.partition(":")[0]
        if "+" in dimensions:
            self._combined.add(dimensions)
        decision = verdict.decisions[0] if verdict.decisions else None
        held = Held(
            subject,
            verdict.action,
            verdict.reason,
            decision.status if decision is not None else None,
            read_ms=asked_at.ms,
            until_ms=None if after_ms is None else asked_at.ms + after_ms,
            permanent=verdict.permanent,
        )
        held.established[user_of(stored)] = stored.established if decision is None else decision.established
        self._blocked.remember(held)

    # Leases.

    async def _through_lease(self, request: Request, scenario: Scenario, stored: Request, names: Names) -> Verdict:
        subjects = [name.text for name in names]
        key = Leases.key(request, subjects)
        lease = self._leases.find(key)
        if lease is not None:
            now = self._clock()
            if lease.covers(request.cost, now) and not self._recalls.since(subjects, lease.asked_at):
                self.counts.leased += 1
                return self._published(request, lease.take(request, now))
            self._leases.end(key)
            await self._count(lease, now)
        verdict, asked_at = await self._ask(request, stored)
        if verdict.allowed and verdict.limits and not self._recalls.since(subjects, asked_at):
            counted = dict(zip(request.subjects, subjects, strict=True))
            for limit in verdict.limits:
                on = limit.name.partition(":")[0]
                if on not in counted:
                    counted[on] = subject_of(on, stored, stored.subjects, self._canonicaliser) or ""
            counters = counters_of(request, verdict, counted)
            self._leases.grant(key, request, verdict, counters, asked_at=asked_at, length_ms=scenario.allow_cache_ms)
            self._wake()
        return verdict

    async def _settle(self, *, everything: bool = False) -> None:
        """Counts what leases let through, one call each; stops at the first that finds no Redis."""
        now = self._clock()
        for lease in self._leases.due(NEVER if everything else now):
            if not await self._count(lease, now):
                return

    async def _count(self, lease: Lease, now_ms: int) -> bool:
        """Counts what one lease let through, or keeps it owed; False when Redis was not there to count it."""
        if not lease.spent:
            return True
        try:
            verdict = await self.inner.decide(lease.owed(now_ms))
        except BaseException as error:
            # Whatever it is, a client that went away or a mistake, it stays owed.
            self._leases.refused(lease, None, now_ms)
            if not isinstance(error, Exception):
                raise
            _log.warning("what was let through could not be counted", exc_info=True)
            return False
        if (verdict.allowed and verdict.reason is None) or verdict.permanent:
            self._leases.paid(lease)
            return True
        self._leases.refused(lease, verdict.retry_after_ms, now_ms)
        return verdict.reason not in _UNREACHED

    # The decider inside, and what is published.

    async def _ask(self, request: Request, stored: Request) -> tuple[Verdict, Moment]:
        self.counts.asked += 1
        asked_at = Moment(self._clock(), self._recalls.count)
        verdict = await self.inner.decide(request)
        if verdict.action == "deny":
            verdict = self._sampling.probed(self.policy.scenario(request.scenario), verdict, request.id)
        if verdict.listed and verdict.reason in _REMEMBERED:
            self._remember(stored, verdict, asked_at)
        return self._published(request, verdict), asked_at

    def _allow(self, request: Request) -> Verdict:
        decision = bare(request, self.source, "allow")
        return self._published(request, Verdict(action="allow", decisions=(decision,)))

    def _published(self, request: Request, verdict: Verdict) -> Verdict:
        if self.publisher is None or not request.subjects:  # a record about nobody would be a dead letter
            return verdict
        scenario = self.policy.scenario(request.scenario)
        for decision in verdict.decisions:
            told = self._sampling.published(scenario, decision, request.id)
            if told is not None:
                self._offer(told)
        return verdict

    def _offer(self, decision: Decision) -> None:
        if self.publisher is not None:
            self.publisher.offer(decision)

    # What is done behind the requests.

    def _wake(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._work is None or self._work.done():
            self._work = asyncio.get_running_loop().create_task(self._catch_up())
        if len(self._aggregation) or len(self._leases):
            self._wake()

    async def _catch_up(self) -> None:
        """Tells refusals once a second, and counts what is owed."""
        now = self._clock()
        if now - self._flushed_ms >= AGGREGATE_MS:
            self._flushed_ms = now
            await self._tell(self._aggregation.flush())
        self._leases.end_due(now)
        await self._settle()

    async def _tell(self, decisions: Iterator[Decision]) -> None:
        for number, decision in enumerate(decisions, 1):
            self._offer(decision)
            if number % _CHUNK == 0:
                await asyncio.sleep(0)
