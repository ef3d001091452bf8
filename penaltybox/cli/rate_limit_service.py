"""`penaltybox envoy`: Envoy's rate limit service over gRPC, in front of the limiter or beside another service."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from typing import TYPE_CHECKING, Annotated

import typer

from penaltybox.cli.console import PolicyFile, policy_of, policy_path, settings
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

_log = logging.getLogger("penaltybox.envoy")


def envoy(
    *,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port.")] = 8119,
    tee: Annotated[
        str,
        typer.Option(help="Another rate limit service, host:port: it decides, and that is told.", show_default=False),
    ] = "",
    policy_file: PolicyFile = None,
) -> None:
    """Answer Envoy's rate limit filter (ShouldRateLimit, v3) over gRPC, until SIGTERM or Ctrl-C.

    The entries of Envoy's descriptors name subjects: remote_address is the ip, other keys are dimensions; scenario and
    route are what they say. With --tee another service goes on to decide, and its decisions are published.

        penaltybox envoy --policy policy.yaml
    """
    from penaltybox.cli.roles import log_as

    try:
        import grpc  # noqa: F401 - told here in a sentence
    except ModuleNotFoundError as error:
        raise ConfigurationError("envoy needs grpc: pip install 'penaltybox[serve,envoy]'") from error
    from penaltybox.producers.service.server import exposure

    values = settings()
    policy = policy_of(policy_path(policy_file, values), values)
    log_as(values.log_level)
    warning = exposure(host, values.serve_secret, without_secret=values.serve_without_secret)
    if warning:
        _log.warning("%s", warning)
    asyncio.run(_serve(values, policy, host, port, tee))


async def _serve(values: Settings, policy: Policy, host: str, port: int, tee: str) -> None:
    from penaltybox.producers.background import BackgroundPublisher
    from penaltybox.producers.composition import open_limiter
    from penaltybox.producers.envoy.grpc_server import other_service, served
    from penaltybox.producers.envoy.rate_limits import RateLimits, Tee
    from penaltybox.producers.http.answers import AnswerOptions

    ending = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ending.set)
    source = f"envoy/{socket.gethostname()}"[:128]
    async with BackgroundPublisher(values) as publisher:
        if tee:
            async with other_service(tee) as ask:
                beside = Tee(ask, publisher, lambda name: name in policy.limits, source=source)
                async with served(beside.answer, host, port, secret=values.serve_secret) as bound:
                    _log.info("telling of %s on %s port %d", tee, host, bound)
                    await ending.wait()
            return
        made: list[RateLimits] = []

        def switched(changed: Policy) -> None:
            for one in made:
                one.replace_policy(changed)

        async with open_limiter(values, policy, source=source, publisher=publisher, on_policy=switched) as limiter:
            options = AnswerOptions(headers=values.quota_headers, challenge_url=values.challenge_url)
            made.append(limits := RateLimits(limiter, limiter.policy, options))
            async with served(limits.answer, host, port, secret=values.serve_secret) as bound:
                _log.info("answering Envoy on %s port %d: policy %s", host, bound, limiter.policy.version)
                await ending.wait()
