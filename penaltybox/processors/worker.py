"""The penalties worker: runs of raw records in, stepped states out, nothing acknowledged before it is stored and told.

decode -> read the missing states -> step in place -> (cycle) -> write -> tell -> acknowledge.  `take` steps; beside it
`write_cycles` writes what was stepped before, and tells what was written before that.  No Faust here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import TYPE_CHECKING

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.processors.breaker import Breaker
from penaltybox.processors.cycle import Cycle, Run
from penaltybox.processors.intake import NONE, decode_run, step_events
from penaltybox.processors.limits import Limits
from penaltybox.processors.patience import GivenUpError, Patience
from penaltybox.processors.residents import Resident, Residents
from penaltybox.processors.seams import no_seam
from penaltybox.processors.state import SubjectState, decode_state
from penaltybox.processors.switching import TURN_S, Turn
from penaltybox.processors.tasks import side_by_side
from penaltybox.processors.teller import Teller
from penaltybox.processors.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from penaltybox.contracts.topics import Topics
    from penaltybox.processors.announcements import Sender
    from penaltybox.processors.engine import Engine
    from penaltybox.processors.intake import Decoded
    from penaltybox.processors.seams import Seam
    from penaltybox.sinks.subject_store import SubjectStore

log = logging.getLogger(__name__)


class Worker:
    """Steps runs and writes cycles; `take` and `write_cycles` run side by side in one event loop.

    Args:
        engine: the compiled policy; may be replaced between runs (`replace_engine`).
        store: where states live.
        sender: where penalties, ladders and dead letters go.
        topics: their names, and which topic carries outcomes.
        limits: sizes and times.
        recorded: the generation of the store that the control topic names; asked when the store has another one.
        wall_ms: the wall clock; the edge passes `now_ms`.
        seam: fault injection.
    """

    def __init__(
        self,
        engine: Engine,
        store: SubjectStore,
        sender: Sender,
        topics: Topics,
        *,
        wall_ms: Callable[[], int],
        limits: Limits | None = None,
        recorded: Callable[[], Awaitable[str | None]] | None = None,
        seam: Seam = no_seam,
    ) -> None:
        self._store = store
        self._sender = sender
        self._topics = topics
        self._wall_ms = wall_ms
        self._limits = limits = limits or Limits()
        self._seam = seam
        self._engine = engine
        self._turn = Turn(topics)
        self._open, self._closed = Cycle(), Cycle()
        self._urgent: list[Resident] = []
        self.residents = Residents(limits.subjects, self._open_business)
        self._patience = Patience(store, recorded)
        self._tripped: str | None = None
        self.teller = Teller(store, sender, topics, self._patience, touched=self._queue, finish=self._finish, seam=seam)
        self._writer = Writer(
            store, self.teller, self._patience, engine=engine, doubt=self.residents.doubt, wall_ms=wall_ms, seam=seam
        )
        self._written: deque[tuple[int, Cycle]] = deque()
        self._breaker = Breaker(engine.policy.breaker)
        self._backlog: deque[Run] = deque()
        self._epoch = 0
        self._work = asyncio.Event()
        self._room = asyncio.Event()
        self._due = self._sweep_due = self._more_to_sweep = self._taking = False
        self._timer: asyncio.TimerHandle | None = None
        self.paused: str | None = None
        self.acknowledged = self.stepped = 0

    @property
    def waiting(self) -> bool:
        """Whether the worker stands still on purpose: a pause, or an outage that is waited out."""
        return self.paused is not None or self._patience.waiting

    @property
    def idle(self) -> bool:
        """Whether nothing is open: all that was taken is written, told and acknowledged."""
        return not (self._backlog or self._unfinished())

    def _unfinished(self) -> bool:
        """Whether anything that was stepped is not yet written, told and acknowledged."""
        teller = self.teller
        return bool(self._open or self._closed or self._urgent or self._written or teller.told != teller.taken)

    @property
    def engine(self) -> Engine:
        """The policy that it steps with now."""
        return self._engine

    def replace_engine(self, engine: Engine) -> None:
        """Step with another policy from the next run on, as soon as nothing can be stepped again with this one."""
        self._turn.next = engine

    async def take(self, run: Run) -> None:
        """Step a run; it is acknowledged later, when all that it changed is stored and told.

        Returns when the run is stepped, or was given up (`drain`, `forget`): then it is never acknowledged.
        """
        epoch = self._epoch
        self._backlog.append(run)
        self._taking = True
        try:
            while self._backlog and epoch == self._epoch:
                if await self._step_run(self._backlog[0], epoch):
                    self._backlog.popleft()
        except GivenUpError:
            log.info("A run was given up during an outage; it is read again")
        finally:
            self._taking = False
            if epoch != self._epoch:
                self._backlog.clear()

    async def _step_run(self, run: Run, epoch: int) -> bool:
        """Step all of a run into the open cycle; False when it was called off, to be stepped again or not at all.

        The states of a slice are read while the slice before it is stepped.
        """
        self.residents.age()
        records = run.records
        size = self._limits.slice
        ready = NONE
        for start in range(0, len(records), size):
            await self._admission(epoch)
            if not start:
                await self._take_turn(run, epoch)
            if epoch != self._epoch:
                return False
            decoded, letters = decode_run(
                self._engine, self._topics, run, records[start : start + size], self._wall_ms()
            )
            self._open.letters += letters
            self._open.records += min(size, len(records) - start)
            missing = self.residents.missing(self._engine, decoded)
            reading: Awaitable[None] = asyncio.create_task(self._read(missing)) if missing else asyncio.sleep(0)
            await asyncio.sleep(0)  # sends the read
            stopped = epoch != self._epoch or (ready.events and not self._step(ready))
            await reading
            if stopped or epoch != self._epoch or self.paused is not None:
                return False
            ready = decoded
        if not self._step(ready):
            return False
        self._open.runs.append(run)
        self._arm()
        return True

    async def _admission(self, epoch: int) -> None:
        """Wait while paused, or while so much is unacknowledged that store or Kafka have to catch up."""
        while epoch == self._epoch and (self.paused is not None or self._full()):
            self._room.clear()
            await self._room.wait()

    async def _take_turn(self, run: Run, epoch: int) -> None:
        """Let the policy that waits step, once all that this one stepped is written. Between two runs."""
        turn = self._turn
        while turn.next is not None and epoch == self._epoch:
            if any(one.kept or one.sent for one in self._open_business()):
                self._due = True
                self._work.set()
                await asyncio.sleep(TURN_S)
            else:
                self._engine = self._writer.engine = turn.take()
                self._breaker = Breaker(self._engine.policy.breaker)
        if epoch == self._epoch:
            self._open.letters += turn.begin(run, self._engine, self._wall_ms())

    def _full(self) -> bool:
        most = self._limits.records
        return self._open.records >= most or sum(cycle.records for _, cycle in self._written) >= most

    async def _read(self, subjects: list[str]) -> None:
        blobs = await self._patience.call(lambda: self._store.read(subjects))
        now_s = time.monotonic()
        settle = self.residents.settle
        for subject, blob in zip(subjects, blobs, strict=True):
            state = SubjectState.fresh(subject) if blob is None else decode_state(blob, subject)
            settle(subject, Resident(state, now_s))

    def _step(self, decoded: Decoded) -> bool:
        """Step a slice; False when that tripped the breaker: then all that is open was put back."""
        now_s = time.monotonic()
        stepped = step_events(self._engine, self.residents, decoded, now_s)
        self._open.residents += stepped.queued
        self._urgent += stepped.urgent
        self.stepped += len(decoded.events)
        reason = self._breaker.note(now_s, denials=stepped.denials, subjects=stepped.subjects)
        if reason is not None:
            self._trip(reason)
            return False
        if self._urgent:
            self._work.set()
        if stepped.queued:
            self._arm()
        return True

    def _queue(self, resident: Resident) -> None:
        """Have a resident written with the open cycle."""
        if not resident.queued:
            resident.queued = True
            self._open.residents.append(resident)
            self._arm()

    def _open_business(self) -> Iterator[Resident]:
        yield from self._closed.residents
        yield from self._open.residents
        yield from self._urgent

    def _trip(self, reason: str) -> None:
        """Too many new denials: put back what is not written yet, pause everybody, call for help."""
        log.error("The breaker has tripped, new blocks are paused: %s", reason)
        self.paused = reason
        self._put_back()
        self._breaker.reset()
        self._tripped = reason
        self._work.set()

    def _put_back(self) -> None:
        """Forget everything stepped and not written; its runs are stepped again, from what is stored then."""
        current = self._backlog.popleft() if self._backlog else None
        runs = [*self._closed.runs, *self._open.runs, *([current] if current else [])]
        self._backlog.extendleft(reversed(runs))
        self._drop_cycles()

    def _drop_cycles(self) -> None:
        self._turn.forget()
        self._closed.drop()
        self._open.drop()
        self._open, self._closed = Cycle(), Cycle()
        self._urgent = []
        self.residents.clear()

    async def watch_pause(self, every_s: float = 1.0) -> None:
        """Look at the pause key, for ever; also has the outboxes swept that others have left."""
        while True:
            await asyncio.sleep(every_s)
            self._sweep_due = True
            self._work.set()
            try:
                if self._tripped is not None:
                    await self._store.pause(self._tripped, "breaker", self._wall_ms())
                    self._tripped = None
                reason = await self._store.pause_reason()
                if self._tripped is None:  # else the answer is from before the breaker tripped
                    self._set_pause(reason)
            except StoreUnavailable:
                continue  # as before; whoever needs the store waits for it

    def _set_pause(self, reason: str | None) -> None:
        if (reason is None) != (self.paused is None):
            log.warning("Paused: %s" if reason else "The pause has ended%s", reason or "")
        self.paused = reason
        if reason is None:
            self._room.set()

    def _arm(self) -> None:
        """Have the open cycle written when it is full, or has lingered."""
        if self._open.records >= self._limits.records:
            self._due = True
            self._work.set()
        elif self._timer is None and not self._due:
            self._timer = asyncio.get_running_loop().call_later(self._limits.linger_s, self._lingered)

    def _lingered(self) -> None:
        self._timer = None
        self._due = True
        self._work.set()

    async def write_cycles(self) -> None:
        """Write and tell, for ever; raises what stops either."""
        await side_by_side(self._write_when_due(), self.teller.run())

    async def _write_when_due(self) -> None:
        """Write what is urgent at once and cycles when they are due. One write at a time."""
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._write_urgent()
                if self._due:
                    await self._write_cycle()
                    self._sweep_due |= self._more_to_sweep and not self._backlog
                if self._sweep_due and self.paused is None:
                    await self._sweep()
            except GivenUpError:
                log.info("A cycle was given up during an outage; its runs are read again")
                self._drop_cycles()

    async def _write_urgent(self) -> None:
        urgent, self._urgent = self._urgent, []
        if urgent:
            await self._writer.settle(urgent)

    async def _write_cycle(self) -> None:
        self._due = False
        cycle = self._closed = self._open
        self._open = Cycle()
        for resident in cycle.residents:
            resident.queued = False
        self._room.set()
        chunk = self._limits.chunk
        for start in range(0, len(cycle.residents), chunk):
            await self._write_urgent()
            if cycle.dropped:
                return
            await self._writer.settle(cycle.residents[start : start + chunk])
        if not cycle.dropped:
            self._closed = Cycle()
            self._written.append((self.teller.taken, cycle))
            self.teller.wake()
        if self._urgent:
            self._work.set()

    async def _finish(self) -> None:
        """Acknowledge the cycles whose news is told, in their order."""
        while self._written and self._written[0][0] <= self.teller.told:
            _, cycle = self._written[0]
            if cycle.letters:
                letters = cycle.letters
                await self._patience.call(lambda letters=letters: self._sender.send(letters))  # type: ignore[misc]
            if cycle.dropped:
                continue
            self._written.popleft()
            if cycle.runs:
                self._seam("before_ack")
            for run in cycle.runs:
                run.ack()
                self.acknowledged += len(run.records)
            self._room.set()

    async def _sweep(self) -> None:
        """Tell penalties that a crash, or a command by hand, has left in an outbox."""
        self._sweep_due = False
        try:
            subjects = await self._store.pending(self._limits.sweep_age_ms, self._limits.sweep)
        except StoreUnavailable:
            return  # the next second is soon enough
        self._more_to_sweep = len(subjects) >= self._limits.sweep
        recall = self.residents.recall
        idle = [s for s in subjects if (known := recall(s)) is None or not known.busy]
        if idle:
            for resident in await self._writer.sweep(idle, recall):
                self.residents.replace(resident.state.subject, resident)
                self._queue(resident)

    async def drain(self, deadline_s: float) -> None:
        """Finish what is open until `deadline_s` (loop time), then give up the rest and forget all states.

        A pause is not waited out, an outage only until then: what they hold back is read again by whoever gets the
        partition.
        """
        loop = asyncio.get_running_loop()
        while loop.time() < deadline_s and (self._taking or self._unfinished()):
            if self.paused is not None and not self._unfinished():
                break
            self._due = True
            self._work.set()
            await asyncio.sleep(0.005)
        await self.forget()

    async def forget(self) -> None:
        """Give up everything open, and forget all states: other workers may write them from now on."""
        self._epoch += 1
        self._patience.called_off = True
        try:
            self._drop_cycles()
            for _, cycle in self._written:
                cycle.dropped = True
            self._written.clear()
            self._room.set()
            while self._taking or self._patience.waiting:
                self._work.set()
                await asyncio.sleep(0.005)
        finally:
            self._patience.called_off = False
