"""Delivers alerts, one after another: each once, not too many, again until they arrive; a run is acknowledged after.

A penalty's records share a partition, so one process of the group has them. Who has delivered one remembers its id in
Redis before the run is acknowledged; what a crash in between repeats carries the same id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.contracts.events import Penalty
from penaltybox.contracts.keyspace import slot_of
from penaltybox.processors.alert_messages import Alert, Choice, Overflow, pause_alert, penalty_alert

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from penaltybox.links.exchange import Link
    from penaltybox.links.webhook import Answer
    from penaltybox.processors.cycle import Run

log = logging.getLogger("penaltybox.alerts")
MINUTE_S: Final = 60.0
REMEMBERED_S: Final = 86_400
_RUNS: Final = 64
_IDS: Final = 20_000
_ASKED: Final = 500
"""Ids in a round trip: after an import there are tens of thousands."""
_PAUSES_S: Final = 2.0
_LOOK_S: Final = 0.2
"""While a summary is due, a stop may be wanted."""
_decode = msgspec.json.Decoder(Penalty).decode


class Memory(Protocol):
    """Which alerts were delivered, across processes."""

    async def known(self, identities: Sequence[str]) -> set[str]:
        """Those that were delivered."""

    async def add(self, identities: Sequence[str]) -> None:
        """They were."""

    async def claim(self, identity: str) -> bool:
        """Add it; whether nobody had."""

    async def forget(self, identity: str) -> None:
        """It may be delivered again."""


class RedisMemory:
    """A key with a TTL per delivered alert. Without Redis it remembers nothing: twice is better than never."""

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._prefix = prefix

    async def known(self, identities: Sequence[str]) -> set[str]:
        """See `Memory`."""
        found: set[str] = set()
        for start in range(0, len(identities), _ASKED):
            part = identities[start : start + _ASKED]
            answers = await self._ask([("EXISTS", self._key(one)) for one in part])
            found |= {one for one, there in zip(part, answers or [], strict=False) if there}
        return found

    async def add(self, identities: Sequence[str]) -> None:
        """See `Memory`."""
        for start in range(0, len(identities), _ASKED):
            part = identities[start : start + _ASKED]
            await self._ask([("SET", self._key(one), "1", "EX", REMEMBERED_S) for one in part])

    async def claim(self, identity: str) -> bool:
        """See `Memory`."""
        answers = await self._ask([("SET", self._key(identity), "1", "EX", REMEMBERED_S, "NX")])
        return answers is None or answers[0] is not None

    async def forget(self, identity: str) -> None:
        """See `Memory`."""
        await self._ask([("DEL", self._key(identity))])

    def _key(self, identity: str) -> str:
        return f"{self._prefix}:alerted:{identity}"

    async def _ask(self, commands: list[tuple[str | bytes | int, ...]]) -> list[Any] | None:
        try:
            return await self._link.exchange(commands, [slot_of(str(command[1])) for command in commands])
        except StoreUnavailable as error:
            log.info("Redis does not say which alerts were delivered; one may come twice: %s", error)
            return None


class Timing(NamedTuple):
    """How often and how long.

    Attributes:
        per_minute: alerts; what goes beyond is told in a summary.
        window_s: the minute, for tests.
        max_age_ms: an older penalty is not alerted any more, nor tried again.
        first_retry_s, longest_retry_s: backoff.
    """

    per_minute: int = 20
    window_s: float = MINUTE_S
    max_age_ms: int = 3_600_000
    first_retry_s: float = 0.5
    longest_retry_s: float = 60.0


class Delivery:
    """Takes runs of penalties, and delivers the chosen ones; `deliver` runs beside.

    Args:
        choice: which penalties alert.
        post: sends (body, identity); None: alerts are log lines only.
        where: the receiver, for messages.
        memory: which alerts were delivered.
        wall_ms: the wall clock.
        timing: rates and times.

    Attributes:
        acknowledged: records done.
        waiting: the receiver is away, or a summary is due later.
        delivered, given_up, too_old: figures.
    """

    def __init__(
        self,
        choice: Choice,
        post: Callable[[bytes, str], Awaitable[Answer]] | None,
        memory: Memory,
        wall_ms: Callable[[], int],
        *,
        where: str = "the webhook",
        timing: Timing | None = None,
    ) -> None:
        self._choice = choice
        self._post = post
        self._memory = memory
        self._wall_ms = wall_ms
        self._where = where
        self._timing = timing or Timing()
        self._queue: asyncio.Queue[tuple[Run, list[Penalty]]] = asyncio.Queue(_RUNS)
        self._sent: deque[float] = deque()
        self._known: OrderedDict[str, None] = OrderedDict()
        self._overflow = Overflow()
        self._over_ids: list[str] = []
        self._due_s = 0.0
        self._held: list[tuple[Callable[[], object], int]] = []
        self._busy = self._urgent = self._away = False
        self.acknowledged = self.delivered = self.given_up = self.too_old = 0

    @property
    def progress(self) -> int:
        """Grows with whatever is done: a run may have as many alerts as a slow receiver takes minutes for."""
        return self.acknowledged + self.delivered + self.given_up

    @property
    def waiting(self) -> bool:
        """Whether nothing is acknowledged on purpose."""
        return self._away or bool(self._held)

    async def take(self, run: Run) -> None:
        """Queue a run; waits while many are queued."""
        chosen = []
        for record in run.records:
            try:
                penalty = _decode(record.value or b"")
            except msgspec.MsgspecError:
                continue  # not ours; analytics counts it
            if self._choice.wants(penalty):
                chosen.append(penalty)
        await self._queue.put((run, chosen))

    async def deliver(self) -> None:
        """Deliver what is queued, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            if self._overflow.count and (self._urgent or loop.time() >= self._due_s):
                await self._summarise()
            patience_s = min(_LOOK_S, max(0.0, self._due_s - loop.time())) if self._overflow.count else None
            try:
                async with asyncio.timeout(patience_s):
                    run, penalties = await self._queue.get()
            except TimeoutError:
                continue
            self._busy = True
            await self._run(run, penalties)
            self._busy = False

    async def drain(self, deadline_s: float) -> None:
        """Deliver what is queued until `deadline_s` (loop time); what is left then is read again by someone."""
        loop = asyncio.get_running_loop()
        self._urgent = True
        try:
            while (self._busy or self._held or not self._queue.empty()) and loop.time() < deadline_s:  # noqa: ASYNC110 - three conditions
                await asyncio.sleep(0.01)
        finally:
            self._urgent = False

    async def watch_pauses(self, reason: Callable[[], Awaitable[str | None]], every_s: float = _PAUSES_S) -> None:
        """Alert when new blocks are paused, by the breaker or by hand, once each; for ever."""
        told: Alert | None = None
        while True:
            try:
                now = await reason()
            except StoreUnavailable:
                await asyncio.sleep(every_s)
                continue
            if now is not None and told is None:
                told = pause_alert(now, self._wall_ms())
                if await self._memory.claim(told.identity) and not await self._send(told):
                    await self._memory.forget(told.identity)
            elif now is None and told is not None:
                await self._memory.forget(told.identity)
                told = None
            await asyncio.sleep(every_s)

    async def _run(self, run: Run, penalties: list[Penalty]) -> None:
        over = old = 0
        since_ms = self._wall_ms() - self._timing.max_age_ms
        delivered = await self._memory.known([one.id for one in penalties if one.ts >= since_ms])
        for number, penalty in enumerate(penalties, 1):
            if number % _ASKED == 0:
                await asyncio.sleep(0)
            if self._wall_ms() - penalty.ts > self._timing.max_age_ms:
                old += 1
            elif penalty.id in self._known or penalty.id in delivered:
                self._remember(penalty.id)
            elif self._room():
                if await self._send(penalty_alert(penalty)):
                    await self._memory.add([penalty.id])
                self._remember(penalty.id)
            else:
                over += 1
                self._count_over(penalty)
        if old:
            self.too_old += old
            log.info("%d penalties are too old to alert (PENALTYBOX_ALERT_MAX_AGE)", old)
        if over:
            self._held.append((run.ack, len(run.records)))
        else:
            self._done(run.ack, len(run.records))

    def _done(self, ack: Callable[[], object], records: int) -> None:
        ack()
        self.acknowledged += records

    def _room(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        while self._sent and self._sent[0] <= now_s - self._timing.window_s:
            self._sent.popleft()
        if self._overflow.count or len(self._sent) >= self._timing.per_minute:
            return False
        self._sent.append(now_s)
        return True

    def _count_over(self, penalty: Penalty) -> None:
        if not self._overflow.count:
            self._due_s = asyncio.get_running_loop().time() + self._timing.window_s
        self._remember(penalty.id)
        self._overflow.add(penalty)
        if len(self._over_ids) < _IDS:
            self._over_ids.append(penalty.id)

    async def _summarise(self) -> None:
        overflow, self._overflow = self._overflow, Overflow()
        identities, self._over_ids = self._over_ids, []
        if await self._send(overflow.summary()):
            await self._memory.add(identities)
        held, self._held = self._held, []
        for ack, records in held:
            self._done(ack, records)

    def _remember(self, identity: str) -> None:
        self._known[identity] = None
        while len(self._known) > _IDS:
            self._known.popitem(last=False)

    async def _send(self, alert: Alert) -> bool:
        """Tried until it arrives, is refused, or is too old; whether it arrived. Always a log line."""
        log.warning("%s", alert.body.decode())
        if self._post is None:
            self.delivered += 1
            return True
        delay_s = self._timing.first_retry_s
        try:
            while True:
                answer = await self._post(alert.body, alert.identity)
                if answer.kind == "done":
                    self.delivered += 1
                    return True
                if answer.kind == "refused" or self._wall_ms() - alert.at_ms > self._timing.max_age_ms:
                    self.given_up += 1
                    log.error("An alert was not delivered: %s %s: %s", self._where, answer.says, alert.title)
                    return False
                if not self._away:
                    log.warning("Alerts wait: %s %s", self._where, answer.says)
                self._away = True
                await asyncio.sleep(max(delay_s, answer.wait_s))
                delay_s = min(delay_s * 2, self._timing.longest_retry_s)
        finally:
            self._away = False
