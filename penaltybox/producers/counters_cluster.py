"""Asking a Redis Cluster: one pipelined round trip to the slots of a request's subjects, all or nothing taken.

The keys of a subject share a slot, those of different subjects do not, so no script sees them all. Each slot group
checks its own part and takes at once if that fits; when another group refuses, what was taken is given back, by a
record that each group keeps for a while. Trust, plan and passed challenges lie in one slot and matter in all: what they
said last time is assumed, and if they say something else now, everything is given back and asked again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penaltybox.contracts.errors import PenaltyboxError, StoreUnavailable
from penaltybox.contracts.keyspace import slot_of
from penaltybox.producers.counters import RECORD_LIFE_MS, Unanswered, counters_of
from penaltybox.producers.customers import WHOLE, Standing
from penaltybox.producers.questions import Answer
from penaltybox.producers.scripts import script

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from penaltybox.contracts.keyspace import Keyspace
    from penaltybox.links.cluster import ClusterLink
    from penaltybox.links.exchange import Command, Script
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.questions import Asked, Question

HOLD_MS: Final = 10_000
"""For so long a give-back finds what a request took; later it is lost, until the counter's own end."""
_GIVE_BACK_PAUSES_S: Final = (0.1, 0.5, 2.0)
_ROUNDS: Final = 3
_MAX_STANDINGS: Final = 50_000
_TAKEN: Final = 1
_STALL_S: Final = 0.005
_TURNS: Final = 8
"""Turns of the event loop from a reply in the socket to its caller, generously."""
_HEAD: Final = 4
"""Numbers and values of a group's reply that are always there: outcome, now, block, challenge."""
_DEFAULT: Final = Standing()


class _Group(NamedTuple):
    """One subject's part of a question: which keys beside its block it is asked for, and which limits count it."""

    place: int
    slot: int
    stem: str
    extras: tuple[str, ...]
    limits: tuple[int, ...]
    counters: tuple[str, ...]


class _Heard(NamedTuple):
    """What all groups said."""

    groups: Sequence[_Group]
    replies: Sequence[list[Any]]

    @property
    def taken(self) -> list[_Group]:
        return [group for group, reply in zip(self.groups, self.replies, strict=True) if reply[0] == _TAKEN]

    def listed(self, at: int, *, but: int | None = None) -> list[tuple[int, bytes]]:
        """(place, value) of the block (2) or challenge (3) keys that are there."""
        pairs = zip(self.groups, self.replies, strict=True)
        return [(group.place, reply[at]) for group, reply in pairs if reply[at] and group.place != but]

    def standing(self) -> Standing:
        found: dict[str, bytes] = {}
        passed = False
        for group, reply in zip(self.groups, self.replies, strict=True):
            for name, value in zip(group.extras, reply[_HEAD:], strict=False):
                found[name] = value
                passed = passed or (name == "pass" and bool(value))
        return Standing(found.get("trust", b""), found.get("plan", b""), passed)


class ClusterCounters:
    """Counters in a cluster.

    Args:
        link: to it; closed with this object.
        keyspace: how keys are called.
        test_now_ms: for tests: a time that stands for the servers'.
    """

    def __init__(self, link: ClusterLink, keyspace: Keyspace, test_now_ms: int | None = None) -> None:
        self._link = link
        self._keyspace = keyspace
        self.test_now_ms = test_now_ms
        self._standings: dict[str, Standing] = {}
        self._giving: set[asyncio.Task[None]] = set()
        self.lost = 0
        """Give-backs that could not be delivered: their quota is back when the counters end."""

    def nodes(self) -> Collection[str]:
        """See `Counters.nodes`."""
        return self._link.names()

    def touched(self, stems: Sequence[str], request: Request) -> Collection[str]:
        """See `Counters.touched`."""
        keys = [*stems, self._keyspace.refund(request.idempotency_key)] if request.idempotency_key else stems
        return {self._link.node_at(_slot(key)) for key in keys}

    def look(self) -> None:
        """See `Counters.look`."""
        self._link.look()

    async def load(self, algorithms: Iterable[frozenset[str]]) -> None:
        """See `Counters.load`; a node that is away does not keep the others from it."""
        scripts = [script("refund"), *(script("decide_group", one) for one in algorithms)]
        nodes = await self._link.nodes()
        loads = [node.exchange([("SCRIPT", "LOAD", one.text) for one in scripts]) for node in nodes]
        for outcome in await asyncio.gather(*loads, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def ask(self, asked: Asked, request: Request, deadline_s: float) -> Answer:
        """See `Counters.ask`; one round trip to each node, all at once, when trust and plan are as last time."""
        end_s = asyncio.get_running_loop().time() + deadline_s
        question, stems = asked.question, asked.stems
        who = stems[question.trusted if question.trusted is not None else question.customer or 0] if stems else ""
        groups = asked.call
        if groups is None:
            groups = asked.call = _groups(question, stems)
        for _ in range(_ROUNDS):
            assumed = self._standings.get(who, _DEFAULT)
            heard = await self._hear(question, groups, request, assumed, end_s)
            standing = heard.standing()
            if standing == assumed:
                break
            self._remember(who, standing)
            await self._take_back(heard.taken, request, end_s)
        else:
            raise PenaltyboxError("Trust or plan of a request's subject changed with every look at it.")
        return await self._concluded(question, heard, standing, request, end_s)

    def _remember(self, who: str, standing: Standing) -> None:
        self._standings.pop(who, None)
        if standing != _DEFAULT:
            if len(self._standings) >= _MAX_STANDINGS:
                self._standings.clear()
            self._standings[who] = standing

    async def _hear(
        self, question: Question, groups: Sequence[_Group], request: Request, assumed: Standing, end_s: float
    ) -> _Heard:
        """Ask all groups at once.

        Raises:
            Unanswered: one of them did not answer; what others took is being given back.
        """
        run = script("decide_group", question.algorithms)
        calls: dict[asyncio.Future[Any], int] = {
            asyncio.ensure_future(self._run(run, self._call(question, group, request, assumed), group.slot)): group.slot
            for group in groups
        }
        answers = list(calls)
        if request.idempotency_key and question.limits:
            index = asyncio.ensure_future(self._index(question, groups, request))
            calls[index] = _slot(self._keyspace.refund(request.idempotency_key))
        if not calls:
            return _Heard((), ())
        names = {slot: self._link.node_at(slot) for slot in calls.values()}
        try:
            left_s = max(0.0, end_s - asyncio.get_running_loop().time())
            late = await _unfinished(calls, left_s)
        except asyncio.CancelledError:
            for call in calls:
                call.cancel()
            raise
        failures = self._failures(calls, late, names)
        if failures:
            # Nobody knows what those that did not answer took.
            if question.scenario.failure != "open":
                self._start_giving_back([group for group in groups if group.limits], request)
            raise Unanswered(failures, set(names.values()).difference(failures))
        return _Heard(groups, [call.result() for call in answers])

    def _failures(
        self, calls: Mapping[asyncio.Future[Any], int], late: Collection[asyncio.Future[Any]], names: Mapping[int, str]
    ) -> dict[str, PenaltyboxError]:
        """By node, why a call got no answer: an outage rather than what only this request meets."""
        failures: dict[str, PenaltyboxError] = {}
        for call, slot in calls.items():
            if call in late:
                call.cancel()
                self._link.doubt(slot)
                error: BaseException | None = _silence(names[slot])
            else:
                error = call.exception()
            if error is None:
                continue
            if not isinstance(error, PenaltyboxError):
                raise error
            if isinstance(error, StoreUnavailable) or names[slot] not in failures:
                failures[names[slot]] = error
        return failures

    async def _run(self, run: Script, call: Command, slot: int) -> Any:
        (reply,) = await run.run(self._link, [call], [slot])
        return reply

    def _call(self, question: Question, group: _Group, request: Request, assumed: Standing) -> Command:
        share, customer = assumed.share(question.scenario.newcomers_percent), assumed.customer
        changed = share != WHOLE or customer is not None
        limits = [question.limits[at] for at in group.limits]
        packed = [one.packed_with(one.in_force(customer, share) if changed else one.limit.limit) for one in limits]
        extras = [f"{group.stem}:{name}" for name in group.extras]
        exempt = int(group.place == question.address and assumed.passed)
        record = f"{group.stem}{self._keyspace.record_tail(request.idempotency_key or request.id)}"
        life, refundable = (RECORD_LIFE_MS, 1) if request.idempotency_key else (HOLD_MS, 0)
        return (
            1 + len(group.counters), record, *group.counters,
            b"".join(packed), exempt,
            request.cost, request.id, life, refundable, self._now(),
            f"{group.stem}:block", f"{group.stem}:challenge", *extras,
        )  # fmt: skip

    async def _index(self, question: Question, groups: Sequence[_Group], request: Request) -> None:
        """Under the idempotency key alone, note whose records a refund has to look for."""
        key = self._keyspace.refund(request.idempotency_key)
        stems = msgspec.msgpack.encode([group.stem for group in groups if group.limits])
        life_ms = min(question.longest_ms, RECORD_LIFE_MS)
        await self._link.exchange([("SET", key, stems, "PX", life_ms)], [_slot(key)])

    async def _concluded(
        self, question: Question, heard: _Heard, standing: Standing, request: Request, end_s: float
    ) -> Answer:
        """The answer; what was taken for a request that is refused is given back first."""
        now_ms = max((reply[1] for reply in heard.replies), default=0)
        trust = standing.established
        blocks = heard.listed(2)
        challenges = heard.listed(3, but=question.address if standing.passed else None)
        taken = heard.taken
        if blocks or challenges:
            await self._take_back(taken, request, end_s)
            return Answer(now_ms, trust, blocks=blocks, challenges=() if blocks else challenges)
        numbers = [0] * (4 * len(question.limits))
        for group, reply in zip(heard.groups, heard.replies, strict=True):
            found = reply[_HEAD + len(group.extras) :]
            for i, at in enumerate(group.limits):
                numbers[4 * at : 4 * at + 4] = found[4 * i : 4 * i + 4]
        states = question.states(numbers, 0)
        if any(state.wait_ms and not state.dry_run for state in states):
            back = {at for group in taken for at in group.limits}
            states = tuple(
                state._replace(remaining=min(question.limits[at].capacity(state.limit), state.remaining + request.cost))
                if at in back and not state.wait_ms
                else state
                for at, state in enumerate(states)
            )
            await self._take_back(taken, request, end_s)
        return Answer(now_ms, trust, states=states)

    async def _take_back(self, groups: Sequence[_Group], request: Request, end_s: float) -> None:
        """Give back, and wait for it as long as the request may wait; after that it goes on by itself."""
        if groups:
            task = self._start_giving_back(groups, request)
            await asyncio.wait([task], timeout=max(0.0, end_s - asyncio.get_running_loop().time()))

    def _start_giving_back(self, groups: Sequence[_Group], request: Request) -> asyncio.Task[None]:
        task = asyncio.create_task(self._give_back(groups, request))
        self._giving.add(task)
        task.add_done_callback(self._giving.discard)
        return task

    async def _give_back(self, groups: Sequence[_Group], request: Request) -> None:
        """Idempotent: by the record, which is gone with it. So it may be sent again after a failure."""
        key = request.idempotency_key or request.id
        left = list(groups)
        for pause_s in (*_GIVE_BACK_PAUSES_S, None):
            outcomes = await asyncio.gather(*(self._give_back_once(one, key, request.id) for one in left))
            left = [group for group, done in zip(left, outcomes, strict=True) if not done]
            if not left:
                return
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        self.lost += len(left)

    async def _give_back_once(self, group: _Group, key: str, request_id: str) -> bool:
        record = f"{group.stem}{self._keyspace.record_tail(key)}"
        call: Command = (1 + len(group.counters), record, *group.counters, "", request_id, 0, self._now())
        try:
            await script("refund").run(self._link, [call], [group.slot])
        except PenaltyboxError:
            return False
        return True

    async def give_back(self, idempotency_key: str, deadline_s: float) -> bool:
        """See `Counters.give_back`; each group's record is spent in one step with giving back what it names."""
        try:
            async with asyncio.timeout(deadline_s):
                return await self._refund(idempotency_key)
        except TimeoutError as error:
            raise StoreUnavailable(f"Redis cluster did not answer within {deadline_s:g} s.") from error

    async def _refund(self, idempotency_key: str) -> bool:
        key = self._keyspace.refund(idempotency_key)
        (named,) = await self._link.exchange([("GET", key)], [_slot(key)])
        stems = msgspec.msgpack.decode(named, type=list[str]) if named else []
        if not stems:
            return False
        slots = [_slot(stem) for stem in stems]
        keys = [f"{stem}{self._keyspace.record_tail(idempotency_key)}" for stem in stems]
        records = await self._link.exchange([("GET", one) for one in keys], slots)
        calls: list[Command] = []
        where = []
        for one, slot, record in zip(keys, slots, records, strict=True):
            counters = counters_of(record)
            if counters:
                calls.append((1 + len(counters), one, *counters, record, "", 1, self._now()))
                where.append(slot)
        replies = await script("refund").run(self._link, calls, where) if calls else []
        return any(reply == 1 for reply in replies)

    def _now(self) -> str | int:
        return "" if self.test_now_ms is None else self.test_now_ms

    async def close(self) -> None:
        """See `Counters.close`; give-backs that are under way get a second."""
        if self._giving:
            await asyncio.wait(self._giving, timeout=1)
        for task in list(self._giving):
            task.cancel()
        await self._link.close()


def _groups(question: Question, stems: Sequence[str]) -> list[_Group]:
    groups = []
    for place, stem in enumerate(stems):
        extras = ["trust"] if place == question.trusted else []
        extras += ["plan"] if place == question.customer else []
        extras += ["pass"] if place in question.passing else []
        limits = tuple([at for at, one in enumerate(question.limits) if one.at == place])
        counters = tuple([stem + question.limits[at].tail for at in limits])
        groups.append(_Group(place, _slot(stem), stem, tuple(extras), limits, counters))
    return groups


def _slot(key: str) -> int:
    return slot_of(key[key.index("{") + 1 : key.rindex("}")])


async def _unfinished(calls: Collection[asyncio.Future[Any]], left_s: float) -> set[asyncio.Future[Any]]:
    """Those calls that have no answer after this time.

    If this program stood still meanwhile, the answers may be here and only not looked at: that is no node's fault.
    """
    clock = asyncio.get_running_loop().time
    end_s = clock() + left_s
    _, late = await asyncio.wait(calls, timeout=left_s)
    if late and clock() - end_s > _STALL_S:
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        late = {call for call in late if not call.done()}
    return late


def _silence(node: str) -> StoreUnavailable:
    return StoreUnavailable(f"Redis at {node or 'an unknown node'} did not answer a request in time.")
