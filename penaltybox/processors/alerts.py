"""Role `alerts`: chosen penalties to a webhook and the log, in a group of its own: no webhook delays a block."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.durations import parse_duration
from penaltybox.contracts.topics import Topics
from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.links.exposition import exposed
from penaltybox.links.webhook import Webhook
from penaltybox.processors.alert_delivery import Delivery, RedisMemory, Timing
from penaltybox.processors.alert_messages import Choice
from penaltybox.processors.app import make_app, run_app
from penaltybox.processors.cycle import Run
from penaltybox.processors.ending import run_process
from penaltybox.processors.meters import meter_delivery, meter_role
from penaltybox.processors.seams import no_seam
from penaltybox.processors.watchdog import consumer_lag, watch
from penaltybox.sinks.redis_store import RedisSubjectStore

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.links.webhook import Answer
    from penaltybox.processors.app import App
    from penaltybox.processors.ending import Ending
    from penaltybox.processors.seams import Seam

ROLE = "alerts"


def timing_of(settings: Settings) -> Timing:
    """Rates and times from the settings.

    Raises:
        ConfigurationError: a duration that is none.
    """
    max_age_ms = parse_duration(settings.alert_max_age, "PENALTYBOX_ALERT_MAX_AGE")
    return Timing(per_minute=settings.alert_per_minute, max_age_ms=max_age_ms)


async def run_alerts(settings: Settings, *, ending: Ending, timing: Timing | None = None, seam: Seam = no_seam) -> None:
    """Run the role until `ending`; the topics must exist.

    Raises:
        ConfigurationError: settings that cannot be used.
        StalledError: nothing was delivered for `watchdog_s` while records wait, and the receiver is not away.
    """
    timing = timing or timing_of(settings)
    link = open_link(endpoint_of(settings))
    store = RedisSubjectStore(link, settings.redis_prefix)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        registry = stack.enter_context(exposed(settings, ROLE))
        webhook = None
        if settings.alert_webhook_url:
            webhook = await stack.enter_async_context(
                Webhook(settings.alert_webhook_url, settings.alert_webhook_secret)
            )
        delivery = Delivery(
            Choice.of(settings),
            _poster(webhook) if webhook else None,
            RedisMemory(link, settings.redis_prefix),
            now_ms,
            where=f"the webhook at {webhook.where}" if webhook else "",
            timing=timing,
        )
        app = make_app(settings, ROLE, seam=seam)
        feed(app, delivery, Topics.named(settings.topic_prefix).penalties, ending)
        watching = watch(
            settings.watchdog_s,
            progress=lambda: delivery.progress,
            lag=consumer_lag(app),
            exempt=lambda: delivery.waiting,
        )
        meter_delivery(registry, delivery)
        jobs = [delivery.deliver(), delivery.watch_pauses(store.pause_reason), watching]
        await run_app(app, ending, [*jobs, *meter_role(registry, app, delivery)])


def _poster(webhook: Webhook) -> Any:
    async def post(body: bytes, identity: str) -> Answer:
        return await webhook.post(body, identity, now_ms())

    return post


def feed(app: App, delivery: Delivery, topic: str, ending: Ending) -> None:
    """Have the app hand every run of penalties to the delivery, and drain it before partitions are given up."""

    async def alerts(stream: Any) -> None:
        try:
            async for event in stream.noack().events():
                message = event.message
                await delivery.take(Run(message.topic, message.partition, event.value, event.ack))
        except Exception as error:  # noqa: BLE001 - Faust would acknowledge what the agent failed on
            ending.fail(error)
            await asyncio.Event().wait()

    app.agent(app.run_topic(topic), name=ROLE)(alerts)
    app.drain = delivery.drain


def main(settings: Settings) -> None:
    """The role as a process of its own: returns after a stop in good order, raises after anything else."""
    run_process(lambda ending: run_alerts(settings, ending=ending), settings.stop_timeout_s)
