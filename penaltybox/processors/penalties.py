"""The role ``penalties``: an ordinary Faust agent over runs of decisions and outcomes, and its process.

Everything it does is in `worker.py`; here are the parts it works with, and how the process ends.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.exposition import exposed
from penaltybox.links.listening import Listener
from penaltybox.links.policies import PolicyWatch
from penaltybox.processors.announcements import kafka_sender
from penaltybox.processors.app import App, make_app, run_app
from penaltybox.processors.cycle import Run
from penaltybox.processors.ending import run_process
from penaltybox.processors.engine import Engine
from penaltybox.processors.garbage import collect_seldom, keep_collecting
from penaltybox.processors.generations import join, recorded_generation
from penaltybox.processors.huge_pages import keep_advising
from penaltybox.processors.limits import Limits
from penaltybox.processors.listings import Listings
from penaltybox.processors.metered import metered_sender, metered_store
from penaltybox.processors.meters import meter_role, meter_worker
from penaltybox.processors.patience import Patience
from penaltybox.processors.policies import begin_policy, switching
from penaltybox.processors.seams import no_seam
from penaltybox.processors.untold import keep_telling
from penaltybox.processors.watchdog import consumer_lag, watch
from penaltybox.processors.worker import Worker
from penaltybox.sinks.blocklist import Blocklist
from penaltybox.sinks.lists import HandLists
from penaltybox.sinks.redis_store import RedisSubjectStore
from penaltybox.sinks.untold import Untold

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.ending import Ending
    from penaltybox.processors.seams import Seam

ROLE = "penalties"
SWITCH_S = 0.001
"""The fetching thread parses for milliseconds at a time; a block that waits to be written should not wait for that."""


def make_engine(settings: Settings) -> Engine:
    """The engine of the settings' policy file, or of the default policy.

    Raises:
        ConfigurationError: the policy cannot be read or is none.
    """
    policy = load_policy(settings.policy or default_policy_path())
    return Engine(policy, Canonicaliser(settings.ipv6_prefix, settings.hashed_dimensions))


def make_limits(settings: Settings) -> Limits:
    """A worker's sizes and times from the settings."""
    return Limits(subjects=settings.cache_subjects, linger_s=settings.linger_ms / 1000)


def penalties_app(settings: Settings, worker: Worker, ending: Ending, seam: Seam = no_seam) -> App:
    """The Faust app of the role: one agent that hands runs to the worker and acknowledges what the worker says."""
    app = make_app(settings, ROLE, seam=seam)
    app.drain = worker.drain
    topics = Topics.named(settings.topic_prefix)

    @app.agent(app.run_topic(topics.decisions, topics.outcomes), name=ROLE)
    async def penalties(stream: Any) -> None:
        try:
            async for event in stream.noack().events():
                message = event.message
                await worker.take(Run(message.topic, message.partition, event.value, event.ack))
        except Exception as error:  # noqa: BLE001 - Faust would acknowledge what the agent failed on
            ending.fail(error)
            await asyncio.Event().wait()

    return app


async def run_penalties(settings: Settings, *, ending: Ending, seam: Seam = no_seam) -> None:
    """Run the role until `ending`, then drain, flush, acknowledge, commit and leave.

    Raises:
        ConfigurationError: before anything is consumed.
        Exception: whatever went wrong; nothing that was not finished is acknowledged. The process must end non-zero.
    """
    engine = make_engine(settings)
    with exposed(settings, ROLE) as registry:
        await _run(settings, engine, ending, seam, registry)


async def _run(
    settings: Settings, engine: Engine, ending: Ending, seam: Seam, registry: CollectorRegistry | None
) -> None:
    link = open_link(endpoint_of(settings))
    store = RedisSubjectStore(link, settings.redis_prefix)
    untold = Untold(link, settings.redis_prefix)
    sender = kafka_sender(settings)
    topics = Topics.named(settings.topic_prefix)
    worker = Worker(
        engine,
        metered_store(store, registry),
        metered_sender(sender, topics, registry),
        topics,
        wall_ms=now_ms,
        limits=make_limits(settings),
        recorded=lambda: recorded_generation(settings),
        seam=seam,
    )
    lists = HandLists(link, settings.redis_prefix, engine.canonicaliser)
    blocklist = Blocklist(link, settings.redis_prefix)
    listings = Listings(engine, store, blocklist, now_ms, lists.entries, lambda: worker.engine)
    listener = Listener(link, store.keys.events, listings)
    app = penalties_app(settings, worker, ending, seam)
    meter_worker(registry, worker)
    policies = PolicyWatch(link, settings.redis_prefix, switching(engine, worker, listings))

    async def prepare() -> None:
        await sender.start()
        listener.start()
        await Patience(store).call(lambda: join(store, sender, settings, now_ms()))
        await Patience(store).call(lambda: begin_policy(policies, engine, untold, settings))
        await Patience(store).call(listings.refresh)

    try:
        if not await ending.outrun(prepare(), "the first answers of Kafka and Redis"):
            return
        jobs = [
            worker.write_cycles(),
            worker.watch_pause(),
            listings.watch(listener),
            policies.watch(),
            keep_telling(untold, sender, topics),
            keep_advising(),
            *meter_role(registry, app, worker),
            keep_collecting(),
            _watchdog(settings, app, worker),
        ]
        await run_app(app, ending, jobs)
    finally:
        await listener.close()
        await sender.stop()
        await store.close()


async def _watchdog(settings: Settings, app: App, worker: Worker) -> None:
    await watch(
        settings.watchdog_s,
        progress=lambda: worker.acknowledged,
        lag=consumer_lag(app),
        exempt=lambda: worker.waiting,
    )


def tune_process() -> None:
    """Set the interpreter up for a process that is a worker and nothing else. Once, at the process's edge."""
    sys.setswitchinterval(SWITCH_S)
    collect_seldom()


def main(settings: Settings) -> None:
    """The role as a process of its own: returns after a stop in good order, raises after anything else."""
    tune_process()
    run_process(lambda ending: run_penalties(settings, ending=ending), settings.stop_timeout_s)
