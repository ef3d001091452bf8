"""`penaltybox serve`: the decision service that gateways and programs ask over HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Final

import msgspec
import typer

from penaltybox.cli.console import PolicyFile, policy_of, policy_path, settings, typed_subject
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError, StoreUnavailable
from penaltybox.contracts.settings import PREFIX, Settings
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from prometheus_client import CollectorRegistry

    from penaltybox.contracts.policy import Policy
    from penaltybox.links.exchange import Link
    from penaltybox.producers.background import BackgroundPublisher
    from penaltybox.producers.cached import CachedDecider
    from penaltybox.producers.service.application import Application
    from penaltybox.producers.service.desk import Desk
    from penaltybox.producers.service.meters import MeteredApplication
    from penaltybox.producers.verdict import Decider

_CLIENT_HEADER: Final = "X-Forwarded-For"
_log = logging.getLogger("penaltybox.service")


def serve(
    *,
    host: Annotated[
        str, typer.Option(help="The address to listen on; else PENALTYBOX_SERVE_HOST.", show_default=False)
    ] = "",
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, help="The port; else PENALTYBOX_SERVE_PORT.", show_default=False),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(min=1, max=256, help="How many processes; else PENALTYBOX_SERVE_PROCESSES.", show_default=False),
    ] = None,
    policy_file: PolicyFile = None,
) -> None:
    """Decide requests for gateways (nginx, Traefik, Caddy, Envoy) and for programs in any language, over HTTP.

    Listens on 127.0.0.1 port 8118 unless told otherwise, until SIGTERM or Ctrl-C. docs/gateways has a complete
    configuration for each gateway. To see it answer:

        penaltybox serve --policy default

        curl http://127.0.0.1:8118/v1/decide -d '{"scenario":"coupon_claim","subjects":{"user":"10086"}}'

    Which scenario a client's request belongs to is said by the policy (scenarios.NAME.routes), or by the gateway
    (?scenario=). What happens while Redis is away is said by the scenario too (failure: open, closed, local).
    `penaltybox policy apply` puts another policy in force within a second; as long as that was never used, SIGHUP
    puts a changed policy file in force.
    """
    try:
        _serve(_changed(settings(), host, port, processes), policy_file)
    except PenaltyboxError as error:
        line = {"ts": now_ms(), "level": "ERROR", "error": type(error).__name__, "message": str(error)}
        sys.stderr.buffer.write(msgspec.json.encode(line) + b"\n")
        raise typer.Exit(2) from error


def _changed(values: Settings, host: str, port: int | None, processes: int | None) -> Settings:
    return msgspec.structs.replace(
        values,
        serve_host=host or values.serve_host,
        serve_port=values.serve_port if port is None else port,
        serve_processes=processes or values.serve_processes,
    )


def _serve(values: Settings, policy_file: object) -> None:
    try:
        from penaltybox.producers.service import server
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"serve needs {error.name}: pip install 'penaltybox[serve]'") from error
    from penaltybox.cli.roles import log_as

    path = policy_path(policy_file, values)  # type: ignore[arg-type]
    policy = policy_of(path, values)
    log_as(values.log_level)
    server.quiet()
    warning = server.exposure(values.serve_host, values.serve_secret, without_secret=values.serve_without_secret)
    asyncio.run(_check(values))
    listener = server.listen(values.serve_host, values.serve_port)
    host, number = listener.getsockname()[:2]
    where = f"http://{f'[{host}]' if ':' in host else host}:{number}"
    _log.info("serving on %s: policy %s, version %s", where, path, policy.version)
    if not any(scenario.routes for scenario in policy.scenarios.values()):
        _log.warning("no scenario of the policy has routes: a gateway must name it (?scenario=), or nothing is counted")
    if warning:
        _log.warning("%s", warning)
    # Each process reads its settings itself, this one included: they pass through the environment.
    os.environ[f"{PREFIX}POLICY"] = str(path)
    os.environ[f"{PREFIX}SERVE_PROCESSES"] = str(values.serve_processes)
    server.run(
        "penaltybox.cli.serve:application",
        listener,
        processes=values.serve_processes,
        stop_timeout_s=values.stop_timeout_s,
    )


async def _check(values: Settings) -> None:
    """Whether the servers' logins and certificates are usable, before a process is started; not whether they are up.

    Raises:
        ConfigurationError: they are not.
    """
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.links.kafka import Connection

    Connection.of(values).client_options()
    link = open_link(endpoint_of(values))
    try:
        with suppress(StoreUnavailable):
            for node in await link.nodes():
                await node.exchange([("PING",)])
    finally:
        await link.close()


def application() -> Application | MeteredApplication:
    """The ASGI application of one process, by the settings in its environment."""
    from penaltybox.cli.roles import log_as
    from penaltybox.producers.service.application import Application
    from penaltybox.producers.service.server import end_with_parent, quiet

    values = settings()
    policy = policy_of(None, values)
    log_as(values.log_level)
    quiet()
    end_with_parent()
    if not values.metrics_port:
        return Application(lambda: _desk(values, policy, None), secret=values.serve_secret)
    from penaltybox.links.exposition import new_registry
    from penaltybox.producers.service.meters import MeteredApplication

    registry = new_registry("serve")
    return MeteredApplication(
        Application(lambda: _desk(values, policy, registry), secret=values.serve_secret), registry
    )


@contextmanager
def _renewed(values: Settings, desk: Desk, limiter: CachedDecider, link: Link) -> Iterator[None]:
    """On SIGHUP the policy file is read again; one with a mistake changes nothing. Redis' policy comes before it."""
    from penaltybox.links.policies import read_in_force

    under_way: set[asyncio.Task[None]] = set()

    async def renew() -> None:
        try:
            policy = await asyncio.to_thread(policy_of, None, values)
            stored = await read_in_force(link, values.redis_prefix)
        except PenaltyboxError as error:
            _log.error("SIGHUP: the policy stays as it was: %s", error)
            return
        if stored is not None:
            version = stored.policy.version
            _log.warning("SIGHUP: the policy in Redis stays, version %s; penaltybox policy apply changes it", version)
            return
        limiter.replace_policy(policy)
        desk.replace_policy(policy)
        _log.info("SIGHUP: policy version %s is in force", policy.version)

    def begin() -> None:
        task = loop.create_task(renew())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, begin)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


@contextmanager
def _metered(
    values: Settings, limiter: CachedDecider, publisher: BackgroundPublisher, registry: CollectorRegistry | None
) -> Iterator[Decider]:
    """The limiter, and its figures on the metrics port if there is one."""
    if registry is None:
        yield limiter
        return
    from penaltybox.links.exposition import served
    from penaltybox.producers.service.meters import LimiterFigures, MeteredDecider

    registry.register(LimiterFigures(limiter, publisher))
    with served(values, registry, values.serve_processes):
        yield MeteredDecider(limiter, registry)


@asynccontextmanager
async def _desk(values: Settings, policy: Policy, registry: CollectorRegistry | None) -> AsyncIterator[Desk]:
    """What answers in this process: the limiter, its publisher, and a look into Redis."""
    from penaltybox.links.connections import endpoint_of, open_link
    from penaltybox.producers.background import BackgroundPublisher
    from penaltybox.producers.composition import open_limiter
    from penaltybox.producers.feed.feed import Feed
    from penaltybox.producers.http.answers import AnswerOptions
    from penaltybox.producers.http.requests import RequestReader
    from penaltybox.producers.service.desk import Desk
    from penaltybox.producers.service.standing import Standings
    from penaltybox.sinks.blocklist import Blocklist

    link = open_link(endpoint_of(values))
    source = f"serve/{socket.gethostname()}-{os.getpid()}"[:128]
    desks: list[Desk] = []
    feed = Feed(
        link,
        Blocklist(link, values.redis_prefix),
        prefix=values.redis_prefix,
        canonicaliser=Canonicaliser(values.ipv6_prefix, values.hashed_dimensions),
        allow=policy.allow,
    )
    # What the service grants on its own while Redis is away, its processes grant together.
    shared = msgspec.structs.replace(values, local_percent=max(1, values.local_percent // values.serve_processes))

    def switched(policy: Policy) -> None:
        for one in desks:
            one.replace_policy(policy)

    try:
        async with (
            AsyncExitStack() as stack,
            BackgroundPublisher(values) as publisher,
            open_limiter(shared, policy, source=source, publisher=publisher, on_policy=switched) as limiter,
        ):
            desk = Desk(
                stack.enter_context(_metered(values, limiter, publisher, registry)),
                limiter.policy,
                RequestReader.of(values, limiter.policy, header=_CLIENT_HEADER),
                canonical=lambda text: typed_subject(text, values),
                standings=Standings(link, values.redis_prefix),
                publisher=publisher,
                options=AnswerOptions(headers=values.quota_headers, challenge_url=values.challenge_url),
                client_header=values.client_ip_header or _CLIENT_HEADER,
                feed=feed,
            )
            feed.replace_allow(limiter.policy.allow)
            desks.append(desk)
            with _renewed(values, desk, limiter, link):
                yield desk
    finally:
        await feed.close()
        await link.close()
