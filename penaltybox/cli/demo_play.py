"""What happens in the demo, in order: history, the real log, the campaign in waves. Numbers are kept for the report."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.cli.fleet import GroupLag, group_lag
from penaltybox.cli.offline import Offline, Summary, run_offline
from penaltybox.cli.penalty_view import PenaltyView
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.contracts.topics import Topics
from penaltybox.producers.campaign import Campaign
from penaltybox.producers.campaign_cast import Sizes
from penaltybox.producers.ingest import LogIngest, end_of_log, open_log, read_lines
from penaltybox.producers.limiter import Limiter
from penaltybox.producers.publisher import Publisher

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

CAMPAIGN_MS: Final = 540_000
"""Shorter than the policy's `late_after`: at the end of it nothing was handled too late to count in full."""
_WAVE_MS: Final = 20_000
_LONGEST_WAVE_MS: Final = 120_000
_CAMPAIGN_S: Final = 40.0
_AFTERMATH_MS: Final = 60_000
_POLL_S: Final = 0.1
_PATIENCE_S: Final = 20.0


class Score(msgspec.Struct, kw_only=True):
    """What has happened so far; shown while it grows."""

    phase: str = "starting"
    log_requests: int = 0
    campaign_requests: int = 0
    campaign_planned: int = 0
    campaign_ms: int = 0
    refused: int = 0
    outcomes: int = 0
    penalties: int = 0
    subjects: int = 0
    published: int = 0
    pipeline_s: float = 0.0
    burst: int = 0
    burst_per_s: float = 0.0
    unfinished: int = 0


def demo_log() -> Path:
    """The real access log: inside the installed package, or in the checkout."""
    package = Path(__file__).parent.parent
    candidates = (package / "data" / "apache_access.log", package.parent / "tests" / "data" / "apache_access.log")
    for path in candidates:
        if path.exists():
            return path
    raise ConfigurationError(f"the demo's access log: got nothing at {candidates[0]}, wanted an installed package")


def log_policy() -> Policy:
    """The policy for access logs that comes with the package."""
    return load_policy(default_policy_path().with_name("access-log.yaml"))


class Pace:
    """How long the next wave is: short, so that blocks soon matter, but on a busy machine the end must come too.

    Args:
        end_s: monotonic time at which the campaign should have been played.
    """

    def __init__(self, end_s: float) -> None:
        self._end_s = end_s
        self._last_s: float | None = None

    def wave_ms(self, now_s: float, left_ms: int) -> int:
        """Event time of the next wave, given what is left of the campaign; to be asked before each wave."""
        last_s, self._last_s = self._last_s, now_s
        if last_s is None:
            return _WAVE_MS
        waves = max(1.0, (self._end_s - now_s) / max(now_s - last_s, 0.001))
        return max(_WAVE_MS, min(_LONGEST_WAVE_MS, int(left_ms / waves)))


class Play:
    """Runs the demo against servers and workers that are there.

    Args:
        settings: where the servers are.
        policy: the one that the workers have.
        check: called often; raises when a worker or a server has died.
        seed: of the campaign.
        labelled: which fraction of people outcomes are reported about.
        burst: how many decisions are sent at the end, as fast as it goes, to see the pipeline's own pace.
    """

    def __init__(
        self, settings: Settings, policy: Policy, *, check: Callable[[], None], seed: int, labelled: float, burst: int
    ) -> None:
        self.score = Score()
        self.view = PenaltyView(settings)
        self._settings = settings
        self._policy = policy
        self._check = check
        self._seed = seed
        self._burst_size = burst
        self._sizes = Sizes(labelled=labelled)
        self._topics = Topics.named(settings.topic_prefix)
        self.campaign: Campaign | None = None
        self.offline: Summary | None = None

    async def run(self, then: Callable[[Campaign], Awaitable[None]]) -> None:
        """Everything; calls `then` when penalties and analytics have finished with the campaign, before the burst."""
        topics = self._topics
        async with AsyncExitStack() as parts:
            publisher = await parts.enter_async_context(Publisher(self._settings, linger_ms=5))
            blocks = await parts.enter_async_context(
                group_lag(self._settings, "penalties", [topics.decisions, topics.outcomes])
            )
            stored = await parts.enter_async_context(
                group_lag(self._settings, "analytics", [topics.decisions, topics.outcomes, topics.penalties])
            )
            await self.view.start()
            parts.push_async_callback(self.view.stop)
            started = time.monotonic()
            start_ms = now_ms() - CAMPAIGN_MS
            await self._replay_log(publisher, start_ms)
            await self._until_done(blocks, "waiting for the workers")
            campaign = await self._play_campaign(publisher, blocks)
            await self._until_done(stored, "storing in ClickHouse")
            self.score.pipeline_s = time.monotonic() - started
            self.score.published = publisher.published
            self.score.phase = "reading Redis and ClickHouse"
            await then(campaign)
            await self._send_burst(publisher, blocks)

    async def _replay_log(self, publisher: Publisher, end_ms: int) -> None:
        """The real log, moved so that it ends where the campaign begins."""
        self.score.phase = "replaying 10,000 real requests of a public web site"
        path = demo_log()
        with open_log(path) as log:
            shift_ms = end_ms - end_of_log(read_lines(log))
        ingest = LogIngest(Limiter(self._policy.limits, source="access-log/demo"), shift_ms=shift_ms)
        with open_log(path) as log:
            for decision in ingest.decisions(read_lines(log)):
                await publisher.send(decision)
                self.score.log_requests = ingest.progress.requests
                self.score.refused += decision.action != "allow"
        await publisher.flush()
        self.offline = await asyncio.to_thread(judge_log, path)

    async def _play_campaign(self, publisher: Publisher, blocks: GroupLag) -> Campaign:
        """Waves of event time: after each, what the workers have blocked is known to the simulated limiter."""
        score = self.score
        score.phase = "drawing the campaign"
        start_ms = now_ms() - CAMPAIGN_MS
        campaign = await asyncio.to_thread(
            Campaign,
            self._policy,
            start_ms=start_ms,
            length_ms=CAMPAIGN_MS,
            seed=self._seed,
            sizes=self._sizes,
            listed=self.view.listed,
        )
        self.campaign = campaign
        score.campaign_planned = campaign.planned
        for outcome in campaign.history():
            await publisher.send(outcome)
        await publisher.flush()
        await self._until_done(blocks, "who is established: outcomes of the day before")
        pace = Pace(time.monotonic() + _CAMPAIGN_S)
        played_ms, last_ms = start_ms, campaign.end_ms + _AFTERMATH_MS
        while played_ms < last_ms:
            score.phase = "playing the campaign"
            end_ms = min(last_ms, played_ms + pace.wave_ms(time.monotonic(), last_ms - played_ms))
            for event in campaign.until(end_ms):
                await publisher.send(event)
                self._count(campaign, event.ts - start_ms)
            await publisher.flush()
            await self._until_done(blocks, "playing the campaign")
            played_ms = end_ms
        return campaign

    async def _send_burst(self, publisher: Publisher, blocks: GroupLag) -> None:
        """Decisions as fast as they can be sent, until the worker has judged and committed them all."""
        if not self._burst_size:
            return
        self.score.phase = f"a burst of {self._burst_size:,} decisions"
        now = now_ms()
        began = time.monotonic()
        for number in range(self._burst_size):
            await publisher.send(burst_decision(number, now))
        await publisher.flush()
        await self._until_done(blocks, self.score.phase)
        self.score.burst = self._burst_size
        self.score.burst_per_s = self._burst_size / (time.monotonic() - began)

    def _count(self, campaign: Campaign, at_ms: int) -> None:
        score = self.score
        score.campaign_requests = campaign.played
        score.campaign_ms = min(at_ms, CAMPAIGN_MS)
        score.outcomes = campaign.labels.total()

    async def _until_done(self, group: GroupLag, phase: str) -> None:
        """Until a group has committed everything, or shows no progress for too long."""
        self.score.phase = phase
        least, since = None, time.monotonic()
        while (lag := await group.records()) > 0:
            self._check()
            if least is None or lag < least:
                least, since = lag, time.monotonic()
            if time.monotonic() - since > _PATIENCE_S:
                self.score.unfinished = lag
                break
            await asyncio.sleep(_POLL_S)
        await self.view.catch_up()
        self.score.penalties = self.view.by_rung.total()
        self.score.subjects = len(self.view.subjects)
        if self.campaign is not None:
            treated = self.campaign.treatments.values()
            self.score.refused = sum(one.requests - one.allowed for one in treated)


def burst_decision(number: int, ts_ms: int) -> Decision:
    """A claim by one of 20,000 users; one in five is over the limit."""
    user = number % 20_000
    denied = number % 5 == 0
    return Decision(
        v=1,
        id=f"burst-{ts_ms}-{number}",
        ts=ts_ms,
        source="demo/burst",
        scenario="coupon_claim",
        action="deny" if denied else "allow",
        reason="over_limit" if denied else None,
        violated=("user:daily",) if denied else (),
        subjects={"user": f"burst-{user}", "device": f"burst-{user}", "ip": f"100.64.{user // 250}.{user % 250 + 1}"},
    )


def judge_log(path: Path) -> Summary:
    """What the access-log policy would have done to the log in its own time."""
    policy = log_policy()
    judged = Offline(policy)
    ingest = LogIngest(Limiter(policy.limits, source="access-log/demo"), listed=judged.listed)
    with open_log(path) as log:
        return run_offline(ingest.decisions(read_lines(log)), judged)
