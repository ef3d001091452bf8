"""Letting a subject with much quota left through without asking, for a moment: counted afterwards, never forgotten.

An allowed request whose limits all have half of their quota left leases a part of it to this process, for at most
`allow_cache_ms`. Requests of the same subjects are then let through at once; what they took is counted in Redis when
the lease is over, in one call. What Redis refuses to count stays owed, until it fits or its window is past, and counts
against further leases.

The bound: of any counter, a process has let through at most a tenth of the limit (`SHARE`) that Redis does not know
of. So N processes together admit at most ``limit * (1 + N/10)`` where they should admit ``limit``, and only in the
moment in which a subject uses up the second half of its quota at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.contracts.ids import stable_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from penaltybox.producers.caches import Moment
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import Verdict

SHARE: Final = 10
"""One part in `SHARE` of what is left of a limit may be leased to a process."""
PLENTY: Final = 2
"""Leased is only where at least one part in `PLENTY` of the limit is left."""
RETRY_MS: Final = 1000


class Lease:
    """What a process may let through, and what it has let through."""

    __slots__ = (
        "asked_at",
        "counters",
        "give_up_ms",
        "granted",
        "last",
        "last_ms",
        "next_ms",
        "spent",
        "until_ms",
        "verdict",
    )

    def __init__(
        self,
        request: Request,
        verdict: Verdict,
        counters: tuple[str, ...],
        granted: int,
        *,
        asked_at: Moment,
        until_ms: int,
    ) -> None:
        self.last = request
        self.last_ms = asked_at.ms
        self.verdict = verdict
        self.counters = counters
        self.granted = granted
        self.asked_at = asked_at
        self.until_ms = until_ms
        self.spent = 0
        self.next_ms = 0
        self.give_up_ms = until_ms + max(limit.window_ms for limit in verdict.limits)

    def take(self, request: Request, now_ms: int) -> Verdict:
        """Lets a request through; what it tells as left has everything taken off that was let through."""
        self.spent += request.cost
        self.last = request
        self.last_ms = now_ms
        base, spent = self.verdict, self.spent
        limits = tuple(limit._replace(remaining=limit.remaining - spent) for limit in base.limits)
        if not base.decisions:
            return msgspec.structs.replace(base, limits=limits)
        first = base.decisions[0]
        told = msgspec.structs.replace(
            first,
            id=request.id,
            ts=request.ts_ms,
            status=request.status,
            cost=request.cost,
            remaining=None if first.remaining is None else first.remaining - spent,
            cached=True,
            attrs=request.attrs,
        )
        return msgspec.structs.replace(base, limits=limits, decisions=(told,))

    def covers(self, cost: int, now_ms: int) -> bool:
        """Whether a request of this cost may go through under it now."""
        return self.until_ms > now_ms and self.spent + cost <= self.granted

    def owed(self, now_ms: int) -> Request:
        """A request that counts what was let through. Its decision is nobody's: it is not to be published."""
        last = self.last
        ts_ms = last.ts_ms + max(0, now_ms - self.last_ms)
        return msgspec.structs.replace(last, id=stable_id("lease", last.id), ts_ms=ts_ms, cost=self.spent)


class Leases:
    """The leases of a process. Constant time per request, bounded.

    Args:
        most: leases and debts together; beyond it nothing is leased.
        share: one part in `share` of what is left of a limit may be leased; larger where many processes share a
            subject's requests.
    """

    def __init__(self, most: int = 10_000, share: int = SHARE) -> None:
        self._most = most
        self._share = share
        self._active: OrderedDict[tuple[object, ...], Lease] = OrderedDict()
        self._owing: deque[Lease] = deque()
        self._outstanding: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._active) + len(self._owing)

    @staticmethod
    def key(request: Request, subjects: Sequence[str]) -> tuple[object, ...]:
        """Requests that a lease treats alike."""
        return request.scenario, request.route, request.established, *subjects

    def find(self, key: tuple[object, ...]) -> Lease | None:
        """The lease of these requests; it may be over."""
        return self._active.get(key)

    def end(self, key: tuple[object, ...]) -> Lease:
        """Ends a lease: what it did not use is free again; what it used is owed, and is now the caller's to count."""
        lease = self._active.pop(key)
        self._release(lease, lease.granted - lease.spent)
        lease.granted = lease.spent
        return lease

    def _defer(self, key: tuple[object, ...]) -> None:
        lease = self.end(key)
        if lease.spent:
            self._owing.append(lease)

    def end_due(self, now_ms: int) -> None:
        """Ends what is over. A short lease may stand behind a longer one, for a second at most."""
        while self._active:
            key, lease = next(iter(self._active.items()))
            if lease.until_ms > now_ms:
                return
            self._defer(key)

    def end_all(self) -> None:
        """Ends every lease, e.g. because the policy changed."""
        for key in list(self._active):
            self._defer(key)

    def grant(
        self, key: tuple[object, ...], request: Request, verdict: Verdict, counters: Sequence[str], *,
        asked_at: Moment, length_ms: int,
    ) -> None:  # fmt: skip
        """A lease after an allowed request, if every limit in force has plenty left.

        Args:
            key: see `key`.
            request: that was allowed.
            verdict: its verdict, just read.
            counters: the name of the counter of each limit in the verdict.
            asked_at: when Redis was asked.
            length_ms: how long a lease lasts.
        """
        if key in self._active or len(self) >= self._most:
            return
        granted = self._room(verdict, counters)
        if granted < max(1, request.cost):
            return
        for counter in counters:
            self._outstanding[counter] = self._outstanding.get(counter, 0) + granted
        self._active[key] = Lease(
            request, verdict, tuple(counters), granted, asked_at=asked_at, until_ms=asked_at.ms + length_ms
        )

    def _room(self, verdict: Verdict, counters: Sequence[str]) -> int:
        if verdict.action != "allow" or verdict.reason is not None or len(verdict.decisions) > 1:
            return 0  # not counted in Redis, or a dry run is just being violated
        room: int | None = None
        for limit, counter in zip(verdict.limits, counters, strict=True):
            if limit.remaining * PLENTY < limit.limit:
                return 0
            left = limit.remaining // self._share - self._outstanding.get(counter, 0)
            room = left if room is None else min(room, left)
        return room or 0

    def due(self, now_ms: int) -> Iterator[Lease]:
        """What is owed and may be tried now; the caller says `paid` or `refused` of each before the next."""
        for _ in range(len(self._owing)):
            lease = self._owing.popleft()
            if lease.next_ms > now_ms:
                self._owing.append(lease)
            else:
                yield lease

    def paid(self, lease: Lease) -> None:
        """It is counted, or its window is past."""
        self._release(lease, lease.spent)

    def refused(self, lease: Lease, retry_after_ms: int | None, now_ms: int) -> None:
        """It was not counted: tried again when it may fit, until its longest window is past."""
        if now_ms >= lease.give_up_ms:
            self.paid(lease)
            return
        lease.next_ms = now_ms + max(RETRY_MS, retry_after_ms or 0)
        self._owing.append(lease)

    def _release(self, lease: Lease, cost: int) -> None:
        for counter in lease.counters:
            left = self._outstanding.get(counter, 0) - cost
            if left > 0:
                self._outstanding[counter] = left
            else:
                self._outstanding.pop(counter, None)


def counters_of(request: Request, verdict: Verdict, subjects: dict[str, str]) -> list[str]:
    """The name of the counter of each limit of a verdict: scenario, limit, and whom it counts.

    Args:
        request: that was decided.
        verdict: whose limits are named ``dimension:limit name``.
        subjects: dimension or combination -> canonical subject.
    """
    return [f"{request.scenario}/{limit.name}/{subjects[limit.name.partition(':')[0]]}" for limit in verdict.limits]
