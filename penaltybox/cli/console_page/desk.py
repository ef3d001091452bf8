"""What the console knows and does, behind its API: the blocklist, the flow, penalties, figures, explain, acts."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

import penaltybox
from penaltybox.cli.console import one_subject
from penaltybox.cli.console_page import acts
from penaltybox.cli.console_page.answers import About, Part, Status, Subject
from penaltybox.cli.console_page.feed import KEPT, Feed
from penaltybox.cli.console_page.figures import Figures
from penaltybox.cli.console_page.flow import STANDING_S, FlowWatch
from penaltybox.cli.console_page.roll import Roll
from penaltybox.cli.console_page.routes import PERIODS
from penaltybox.cli.explain import explained
from penaltybox.cli.fleet import group_lag
from penaltybox.cli.hand import policy_in_force
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.keyspace import Keyspace
from penaltybox.contracts.listing import banned_range
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.listening import Listener
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.clickhouse.client import ClickHouse
from penaltybox.sinks.lists import HandLists
from penaltybox.sinks.redis_store import RedisSubjectStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from penaltybox.cli.console_page.answers import BanBody, BlockPage, Done, Funnel, Places, Rates, UnbanBody
    from penaltybox.contracts.events import Penalty
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

_EVERY_S: Final = 1.0
_CLICKHOUSE_EVERY_S: Final = 10.0
_TICK_S: Final = 0.25
_STATUS_TICKS: Final = 4
_log = logging.getLogger("penaltybox.console")


class Given(NamedTuple):
    """How this console was started: who acts by default, whether it only shows, when episodes are mature."""

    actor: str
    read_only: bool = False
    matures_s: int | None = None


class Desk:
    """Answers the API; its methods are named as the routes are.

    Args:
        values: where the servers are.
        given: how the console was started.
        policy: the file's, until Redis says another.
        roll: the blocklist.
        flow: decisions per second.
        feed: penalties.
        clickhouse: for figures.
        store: tells a pause.
    """

    def __init__(
        self,
        values: Settings,
        given: Given,
        policy: Policy,
        *,
        roll: Roll,
        flow: FlowWatch,
        feed: Feed,
        clickhouse: ClickHouse,
        store: RedisSubjectStore,
    ) -> None:
        self._values = values
        self._given = given
        self._policy = policy
        self._roll = roll
        self._flow = flow
        self.feed = feed
        self._store = store
        self._paused = ""
        self.figures = Figures(clickhouse, now_ms, self._rungs, given.matures_s)
        self._status: tuple[float, Status] | None = None

    @property
    def read_only(self) -> bool:
        """Whether it only shows."""
        return self._given.read_only

    def _rungs(self) -> list[str]:
        return [rung.name for rung in self._policy.ladder.rungs]

    async def look(self) -> None:
        """Looks every second whether new blocks are paused, and now and then at policy and ClickHouse."""
        loop = asyncio.get_running_loop()
        asked_s = -_CLICKHOUSE_EVERY_S
        while True:
            try:
                self._paused = await self._store.pause_reason() or ""
                if loop.time() - asked_s >= _CLICKHOUSE_EVERY_S:
                    asked_s = loop.time()
                    self._policy = await policy_in_force(self._values)
            except PenaltyboxError as error:
                _log.debug("not looked at: %s", error)  # the blocklist tells that Redis is away
            await asyncio.sleep(_EVERY_S)

    async def look_at_clickhouse(self) -> None:
        """Whether ClickHouse answers, looked at now and then."""
        while True:
            try:
                await self.figures.look()
            except PenaltyboxError as error:
                _log.debug("ClickHouse: %s", error)
            await asyncio.sleep(_CLICKHOUSE_EVERY_S)

    async def about(self, _: Any) -> About:
        """What does not change while the page is open."""
        return About(
            actor=self._given.actor,
            read_only=self._given.read_only,
            policy_version=self._policy.version,
            rungs=self._rungs(),
            package_version=penaltybox.__version__,
            matures_s=self._given.matures_s,
        )

    async def status(self, _: Any = None) -> Status:
        """The state of things, looked at not more than four times a second."""
        at_s = asyncio.get_running_loop().time()
        if self._status is None or at_s - self._status[0] >= _TICK_S:
            denied, challenged, ranges = self._roll.counts()
            self._status = (
                at_s,
                Status(
                    at=now_ms(),
                    parts=self._parts(),
                    paused=self._paused,
                    denied=denied,
                    challenged=challenged,
                    ranges=ranges,
                    version=self._roll.version,
                    flow=self._flow.meter.flow,
                ),
            )
        return self._status[1]

    def _parts(self) -> list[Part]:
        redis = (
            Part("redis", "away", f"The blocklist below may be old. {self._roll.failure}")
            if self._roll.failure
            else Part("redis", "ok", "answers")
            if self._roll.version
            else Part("redis", "unknown", "not asked yet")
        )
        failure = self._flow.failure
        kafka = (
            Part("kafka", "unknown", "not asked yet")
            if failure is None
            else Part("kafka", "away", f"Throughput and new penalties are not shown. {failure}")
            if failure
            else Part("kafka", "ok", "answers")
        )
        asked = self.figures.failure
        clickhouse = (
            Part("clickhouse", "unknown", "not asked yet")
            if asked is None
            else Part("clickhouse", "away", f"Figures are not shown; blocks work without it. {asked}")
            if asked
            else Part("clickhouse", "ok", "answers")
        )
        return [redis, kafka, self._workers(kafka.state == "ok"), clickhouse]

    def _workers(self, known: bool) -> Part:
        flow, standing_s = self._flow.meter.flow, self._flow.meter.standing_s
        if self._paused:
            return Part("workers", "ok", "paused by hand or by the breaker; decisions wait")
        if not known:
            return Part("workers", "unknown", "Kafka does not tell how far they are")
        if flow.lag is None:
            return Part("workers", "unknown", "no worker has acknowledged a decision yet")
        if flow.lag and standing_s > STANDING_S:
            return Part(
                "workers",
                "away",
                f"{flow.lag:,} decisions wait and none was acknowledged for {standing_s:.0f} s: no new blocks. "
                "Is `penaltybox run penalties` running?",
            )
        return Part("workers", "ok", f"{flow.lag:,} decisions wait" if flow.lag else "up to date")

    async def blocks(self, query: dict[str, Any]) -> BlockPage:
        """A page of the blocklist."""
        return self._roll.page(**query)

    async def subject(self, query: dict[str, Any]) -> Subject:
        """What `penaltybox explain --json` prints.

        Raises:
            ConfigurationError, BadEvent: no subject.
            StoreUnavailable: Redis does not answer.
        """
        values, at_ms = self._values, now_ms()
        text = query["subject"].strip()
        where = banned_range(text, Canonicaliser(values.ipv6_prefix, values.hashed_dimensions), force=True)
        if where is not None:
            now = {"subject": where}  # it has no ladder
            return Subject(range=where, now=now, ways_out=[], timeline=None, history=[], history_missing="")
        name = one_subject(text, values)
        policy = await policy_in_force(values)
        told = await explained(values, policy, name, since_ms=None, limit=max(1, query["limit"]), at_ms=at_ms)
        return msgspec.convert(msgspec.to_builtins(told.document()), Subject)

    async def funnel(self, query: dict[str, Any]) -> Funnel:
        """Penalties by rule and rung."""
        return await self.figures.funnel(PERIODS[query["since"]])

    async def rates(self, query: dict[str, Any]) -> Rates:
        """False-positive rates."""
        return await self.figures.rates(PERIODS[query["since"]])

    async def places(self, query: dict[str, Any]) -> Places:
        """Shared addresses."""
        return await self.figures.places(PERIODS[query["since"]], query["by"])

    async def ban(self, body: BanBody) -> Done:
        """Denies by hand."""
        return await acts.ban(self._values, self._signed(body))

    async def unban(self, body: UnbanBody) -> Done:
        """Lifts by hand."""
        return await acts.unban(self._values, self._signed(body))

    def _signed(self, body: Any) -> Any:
        actor = " ".join(body.actor.split()) or self._given.actor
        return msgspec.structs.replace(body, actor=actor, subject=body.subject.strip())

    async def events(self, ending: asyncio.Event) -> AsyncIterator[tuple[str, Any]]:
        """Named events until `ending`: a status every second, penalties as they come."""
        fresh: list[Penalty] = []

        def hear(penalties: list[Penalty]) -> None:
            fresh[:0] = penalties
            del fresh[KEPT:]

        leave = self.feed.hear(hear)
        try:
            yield "status", await self.status()
            yield "penalties", self.feed.last
            ticks = 0
            while not ending.is_set():
                await asyncio.sleep(_TICK_S)
                ticks += 1
                if fresh:
                    some, fresh[:] = list(fresh), []
                    yield "penalties", some
                if ticks % _STATUS_TICKS == 0:
                    yield "status", await self.status()
        finally:
            leave()


@asynccontextmanager
async def open_desk(values: Settings, policy: Policy, given: Given) -> AsyncIterator[Desk]:
    """A desk with its connections and its readers; Kafka, Redis and ClickHouse may be away."""
    topics = Topics.named(values.topic_prefix)
    async with AsyncExitStack() as stack:
        link = open_link(endpoint_of(values))
        stack.push_async_callback(link.close)
        clickhouse = ClickHouse.of(values)
        stack.callback(clickhouse.close)
        roll = Roll(Blocklist(link, values.redis_prefix), HandLists(link, values.redis_prefix), now_ms)
        flow = FlowWatch(partial(group_lag, values, "penalties", [topics.decisions]))
        desk = Desk(
            values,
            given,
            policy,
            roll=roll,
            flow=flow,
            feed=Feed(values),
            clickhouse=clickhouse,
            store=RedisSubjectStore(link, values.redis_prefix),
        )
        listener = Listener(link, Keyspace(values.redis_prefix).events, roll)
        listener.start()
        stack.push_async_callback(listener.close)
        running = [
            asyncio.create_task(one)
            for one in (roll.keep(), flow.keep(), desk.feed.keep(), desk.look(), desk.look_at_clickhouse())
        ]
        try:
            yield desk
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
