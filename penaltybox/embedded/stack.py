"""The embedded stack: broker, Redis and ClickHouse on this machine, started together and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

import msgspec

from penaltybox.embedded.broker import Broker
from penaltybox.embedded.clickhouse_server import ClickHouseServer
from penaltybox.embedded.process import ServerFailed
from penaltybox.embedded.redis_server import RedisServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.settings import Settings
    from penaltybox.embedded.server import Server


class Health(NamedTuple):
    """One server now.

    Attributes:
        address: `host:port`.
        pid: its process, 0 when it does not run.
        healthy: whether it runs and answers.
    """

    address: str
    pid: int
    healthy: bool


class EmbeddedStack:
    """Three servers on free loopback ports; none of them outlives this process.

    ``async with EmbeddedStack(data_dir) as stack: … stack.kafka, stack.redis_url, stack.clickhouse_url``

    The broker keeps everything in memory: each start is a new, empty one. Redis and ClickHouse keep theirs in the
    data directory, one subdirectory each, with a log file beside.

    Args:
        data_dir: where the data goes; None for a temporary directory that is removed at the end.
        broker_port: a fixed port, 0 for a free one.
        redis_port: a fixed port, 0 for a free one.
        clickhouse_port: a fixed port, 0 for a free one.
    """

    def __init__(
        self, data_dir: Path | None = None, *, broker_port: int = 0, redis_port: int = 0, clickhouse_port: int = 0
    ) -> None:
        self._temporary = data_dir is None
        self.data_dir = Path(tempfile.mkdtemp(prefix="penaltybox-")) if data_dir is None else data_dir.absolute()
        self.broker = Broker(self.data_dir / "broker", port=broker_port)
        self.redis = RedisServer(self.data_dir / "redis", port=redis_port)
        self.clickhouse = ClickHouseServer(self.data_dir / "clickhouse", port=clickhouse_port)
        self._failed: asyncio.Future[Server] | None = None

    @property
    def servers(self) -> tuple[Server, ...]:
        """Broker, Redis, ClickHouse."""
        return (self.broker, self.redis, self.clickhouse)

    @property
    def kafka(self) -> str:
        """Bootstrap address for Kafka clients."""
        return self.broker.bootstrap

    @property
    def redis_url(self) -> str:
        """URL for redis-py."""
        return self.redis.url

    @property
    def clickhouse_url(self) -> str:
        """URL of ClickHouse's HTTP interface."""
        return self.clickhouse.url

    def applied_to(self, settings: Settings) -> Settings:
        """The same settings, pointing at this stack."""
        return msgspec.structs.replace(
            settings,
            kafka=self.kafka,
            kafka_security_protocol="PLAINTEXT",
            kafka_replication=1,
            kafka_username="",
            kafka_password="",
            kafka_ca="",
            kafka_certificate="",
            kafka_key="",
            redis_url=self.redis_url,
            redis_username="",
            redis_password="",
            redis_sentinel_username="",
            redis_sentinel_password="",
            redis_ca="",
            redis_certificate="",
            redis_key="",
            clickhouse_url=self.clickhouse_url,
            clickhouse_username="default",
            clickhouse_password="",
            clickhouse_ca="",
            data_dir=str(self.data_dir),
        )

    async def start(self) -> Self:
        """Start all three at once and wait until each answers (about a second).

        Raises:
            ServerFailed: one did not start; the others are stopped again.
            ConfigurationError: a port or the data directory is taken, or a package is missing.
        """
        loop = asyncio.get_running_loop()
        failed: asyncio.Future[Server] = loop.create_future()
        self._failed = failed

        def tell(server: Server) -> None:
            if not failed.done():
                failed.set_result(server)

        for server in self.servers:
            server.on_exit[:] = [partial(_tell_soon, loop, tell, server)]
        starts = await asyncio.gather(*[asyncio.to_thread(s.start) for s in self.servers], return_exceptions=True)
        errors = [outcome for outcome in starts if isinstance(outcome, BaseException)]
        if errors:
            await self.stop()
            raise errors[0]
        return self

    async def stop(self) -> None:
        """Stop all three and give their ports back; a temporary data directory is removed."""
        for server in self.servers:
            server.on_exit.clear()
        await asyncio.gather(*[asyncio.to_thread(server.close) for server in self.servers])
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    async def health(self) -> dict[str, Health]:
        """Each server by name: does it run and answer now?"""
        healthy = await asyncio.gather(*[asyncio.to_thread(server.healthy) for server in self.servers])
        return {
            server.name: Health(server.address, server.pid, answers)
            for server, answers in zip(self.servers, healthy, strict=True)
        }

    async def wait_failed(self) -> ServerFailed:
        """Wait until a server dies that nobody stopped; returns (not raises) the report with its last log lines."""
        if self._failed is None:
            raise ServerFailed("The embedded stack was never started. Call start() first.")
        server = await asyncio.shield(self._failed)
        return ServerFailed(
            f"The embedded {server.name} (port {server.port}) died: {_how(server.exit_code)}.\n{server.last_log()}"
        )

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def _how(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"exit code {exit_code}"


def _tell_soon(loop: asyncio.AbstractEventLoop, tell: Callable[[Server], None], server: Server) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(tell, server)
