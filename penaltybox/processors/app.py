"""The Faust app of a role: our transport, no web server, no leader topic, no files, a deadline for leaving."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import faust
from faust.app.base import BootStrategy as FaustBootStrategy
from faust.auth import SASLCredentials, SSLCredentials
from yarl import URL

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.links.kafka import Connection
from penaltybox.processors.ending import LET_GO_S
from penaltybox.processors.seams import no_seam
from penaltybox.processors.transport import Transport

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from penaltybox.contracts.settings import Settings
    from penaltybox.processors.ending import Ending
    from penaltybox.processors.seams import Seam

# A worker that holds its input (a pause, a store outage) fetches nothing for as long as it takes and must stay in its
# group all the same; heartbeats have a thread of their own, so this only has to outlast any outage.
MAX_POLL_INTERVAL_S = 14 * 24 * 3600.0

FAILED_DRAIN_S = 0.5
log = logging.getLogger(__name__)


class BootStrategy(FaustBootStrategy):
    """Start everything but the web server: a worker opens no port."""

    enable_web = False


class App(faust.App):
    """A Faust app whose `run_topics` arrive in runs.

    Attributes:
        run_topics: names of topics that our transport delivers in runs.
        drain: awaited with a deadline (loop time) before partitions are given up; finishes what the agents hold.
        drain_s: seconds that giving up partitions may take; far below the rebalance timeout.
        leave_s: seconds after that for the last commit and leaving the group; nothing waits longer.
        seam: called at named places, for fault injection.
        note_run: called with topic and number of records of each run that is fetched, if anybody counts.
    """

    BootStrategy = BootStrategy
    run_topics: frozenset[str] = frozenset()
    drain: Callable[[float], Awaitable[None]] | None = None
    drain_s: float = 10.0
    leave_s: float = 10.0
    seam: Seam = staticmethod(no_seam)
    note_run: Callable[[str, int], None] | None = None

    def run_topic(self, *names: str) -> Any:
        """The topic (or topics together) as a channel whose events carry runs of raw records."""
        self.run_topics |= frozenset(names)
        return self.topic(*names, key_serializer="raw", value_serializer="raw", allow_empty=True)

    def _new_transport(self) -> Transport:
        return Transport(self.conf.broker_consumer, self)

    def _new_producer_transport(self) -> Transport:
        return Transport(self.conf.broker_producer, self)

    def _create_directories(self) -> None:
        """Nothing: no tables, so no files."""


def make_app(
    settings: Settings,
    role: str,
    *,
    commit_interval_s: float = 1.0,
    fetch_bytes: int = 1024 * 1024,
    buffered_runs: int = 16,
    seam: Seam = no_seam,
) -> App:
    """Make the app of one role; consumer group and app id are `{topic_prefix}-{role}`.

    Args:
        settings: brokers, security, session and stop timeouts.
        role: ``penalties``, ``analytics``: each has offsets of its own.
        commit_interval_s: offsets are committed this often.
        fetch_bytes: most bytes of one partition in one run.
        buffered_runs: runs waiting for the agent before fetching stops.
        seam: fault injection.

    Raises:
        ConfigurationError: from `kafka_credentials`.
    """
    session_s = settings.kafka_session_timeout_ms / 1000
    app = App(
        f"{settings.topic_prefix}-{role}",
        broker=[URL(f"pbx+kafka://{broker.strip()}") for broker in settings.kafka.split(",")],
        broker_credentials=kafka_credentials(settings),
        broker_session_timeout=session_s,
        broker_heartbeat_interval=session_s / 4,
        broker_rebalance_timeout=max(60.0, settings.stop_timeout_s * 3.0),
        broker_max_poll_interval=MAX_POLL_INTERVAL_S,
        broker_max_poll_records=None,
        broker_commit_interval=commit_interval_s,
        # Our own watchdog knows when a wait is meant; Faust's would only write long warnings.
        broker_commit_livelock_soft_timeout=MAX_POLL_INTERVAL_S,
        stream_processing_timeout=MAX_POLL_INTERVAL_S,
        consumer_max_fetch_size=fetch_bytes,
        consumer_auto_offset_reset="earliest",
        stream_buffer_maxsize=buffered_runs,
        stream_wait_empty=True,
        topic_disable_leader=True,
        topic_allow_declare=False,
        producer_acks=-1,
        producer_linger=0,
        web_enabled=False,
        autodiscover=False,
    )
    # Leaving has to draw in the flush and, after it, the last commit: half of the time for each.
    app.drain_s = app.leave_s = settings.stop_timeout_s / 2
    app.seam = seam
    return app


def kafka_credentials(settings: Settings) -> Any:
    """Faust credentials for the security protocol of the settings, None for PLAINTEXT.

    Raises:
        ConfigurationError: SASL without a user name, or certificate files that cannot be read.
    """
    options = Connection.of(settings).client_options()
    context = options.get("ssl_context")
    if "sasl_mechanism" in options:
        return SASLCredentials(
            username=options["sasl_plain_username"],
            password=options["sasl_plain_password"],
            ssl_context=context,
            mechanism=options["sasl_mechanism"],
        )
    return SSLCredentials(context) if context else None


async def run_app(app: App, ending: Ending, background: Iterable[Coroutine[Any, Any, None]] = ()) -> None:
    """Run an app until `ending`, then leave the group in good order.

    Args:
        app: not yet started.
        ending: set by a signal, a watchdog, an agent, or here when a background task or the app fails.
        background: run beside the app until it has stopped (draining may need them).

    Raises:
        BaseException: the error of `ending`.
    """
    tasks = [asyncio.create_task(_watched(coroutine, ending)) for coroutine in background]
    app_watch = asyncio.create_task(_watched(_until_stopped(app), ending))
    started = False
    try:
        started = await ending.outrun(app.start(), "the start of Kafka's consumer")
        await ending.wait()
    finally:
        app_watch.cancel()
        if ending.error is not None or not started:
            # What failed is not finished, and nothing waits for it: it is read again by a fresh process.
            app.drain, app.drain_s, app.leave_s = None, FAILED_DRAIN_S, LET_GO_S
        await _stop(app)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=LET_GO_S)
    if ending.error is not None:
        raise ending.error


async def _watched(coroutine: Coroutine[Any, Any, None], ending: Ending) -> None:
    try:
        await coroutine
    except Exception as error:  # noqa: BLE001 - whatever it is, the process ends with it
        ending.fail(error)


async def _until_stopped(app: App) -> None:
    await app.wait_until_stopped()
    if app.crash_reason is not None:
        raise app.crash_reason
    raise PenaltyboxError("the Faust app stopped by itself")


async def _stop(app: App) -> None:
    """Stop within the drain deadline and as long again; a broker that is away must not keep a process alive."""
    stopping = asyncio.create_task(app.stop())
    limit_s = app.drain_s + app.leave_s
    # Not `wait_for`: it would wait until the app has followed its cancellation, which it refuses.
    done, _ = await asyncio.wait({stopping}, timeout=limit_s)
    if done:
        stopping.result()
    else:
        stopping.cancel()
        log.warning("Kafka's consumer did not leave its group within %g s; leaving without it", limit_s)
