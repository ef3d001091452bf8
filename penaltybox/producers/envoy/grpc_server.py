"""The gRPC side: a server that Envoy asks, and a way to another service of the kind."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.envoy.wire import WrongMessage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_log = logging.getLogger(__name__)
_SERVICE: Final = "envoy.service.ratelimit.v3.RateLimitService"
_METHOD: Final = f"/{_SERVICE}/ShouldRateLimit"
_SECRET: Final = "x-penaltybox-secret"  # noqa: S105 - the header's name
_MOST_BYTES: Final = 1 << 20
"""Of a question: a header of 60 KiB, as large as Envoy takes one, may stand in several descriptors. What is refused
here passes Envoy, where `failure_mode_deny` is not set."""
_PATIENCE_S: Final = 1.0


@asynccontextmanager
async def served(
    answer: Callable[[bytes], Awaitable[bytes]], host: str, port: int, *, secret: str = "", stop_timeout_s: float = 5
) -> AsyncIterator[int]:
    """A server, and the port that it has.

    Args:
        answer: of a question.
        host: address to listen on.
        port: 0 takes a free one.
        secret: what callers must send as metadata; empty if they need not.
        stop_timeout_s: how long calls under way may take at the end.

    Raises:
        ConfigurationError: the address cannot be listened on.
    """

    async def should_rate_limit(raw: bytes, context: Any) -> bytes:
        if secret and not _knows(secret, context):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"{_SECRET}: wanted the service's secret")
        try:
            return await answer(raw)
        except WrongMessage as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), f"the other rate limit service: {error.details()}"[:200])
            raise

    server = grpc.aio.server(options=[("grpc.max_receive_message_length", _MOST_BYTES), ("grpc.so_reuseport", 0)])
    handler = grpc.unary_unary_rpc_method_handler(should_rate_limit)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"ShouldRateLimit": handler}),))
    try:
        bound = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
    except RuntimeError as error:
        raise ConfigurationError(f"cannot listen on {host} port {port}: {error}") from error
    await server.start()
    try:
        yield bound
    finally:
        await server.stop(stop_timeout_s)


def _knows(secret: str, context: Any) -> bool:
    sent = [value for name, value in context.invocation_metadata() or () if name == _SECRET]
    return len(sent) == 1 and compare_digest(str(sent[0]).encode(), secret.encode())


@asynccontextmanager
async def other_service(where: str) -> AsyncIterator[Callable[[bytes], Awaitable[bytes]]]:
    """A way to another rate limit service at `host:port`, without TLS."""
    async with grpc.aio.insecure_channel(where) as channel:
        call = channel.unary_unary(_METHOD)

        async def ask(raw: bytes) -> bytes:
            answered: bytes = await call(raw, timeout=_PATIENCE_S)
            return answered

        yield ask
