"""Roles as processes of their own, ended with this one whatever happens; and how far a consumer group has come."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError, StoreUnavailable
from penaltybox.contracts.settings import PREFIX, Settings
from penaltybox.embedded.process import GuardedProcess
from penaltybox.processors.ending import MARGIN_S
from penaltybox.processors.topic_log import end_offsets

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

_LAST_LINES: Final = 15
_LOG_BYTES: Final = 8_192


class RoleFailed(PenaltyboxError):  # noqa: N818 - a state of the world: a process is not there
    """A role's process has ended by itself. The message ends with its last log lines."""


def environment_of(settings: Settings) -> dict[str, str]:
    """The settings as the variables that another process reads them from."""
    found = {}
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        found[f"{PREFIX}{name.upper()}"] = ",".join(value) if isinstance(value, tuple) else str(value)
    return found


def _with_port(settings: Settings, number: int) -> Settings:
    """The settings of the process with this number, from 1: each tells its metrics on a port of its own."""
    port = settings.metrics_port and settings.metrics_port + number - 1
    return msgspec.structs.replace(settings, metrics_port=port)


class Fleet:
    """One process per role, logging into a directory.

    Args:
        settings: where the servers are.
        roles: names for `penaltybox run`; a role named twice runs twice.
        log_dir: gets a log file per process.
    """

    def __init__(self, settings: Settings, roles: Sequence[str], log_dir: Path) -> None:
        self.processes = {
            f"{role}-{number}": GuardedProcess(
                [sys.executable, "-m", "penaltybox", "run", role],
                log_path=log_dir / f"{role}-{number}.log",
                environment=environment_of(_with_port(settings, number)),
                grace_s=settings.stop_timeout_s + 2 * MARGIN_S,  # it ends by itself before that,
            )
            for number, role in enumerate(roles, 1)
        }

    async def start(self) -> None:
        """Start all of them."""
        await asyncio.gather(*(asyncio.to_thread(process.start) for process in self.processes.values()))

    async def stop(self) -> None:
        """End all of them politely, all at once."""
        await asyncio.gather(*(asyncio.to_thread(process.stop) for process in self.processes.values()))

    def check(self) -> None:
        """See whether all are alive.

        Raises:
            RoleFailed: one is not.
        """
        for name, process in self.processes.items():
            if not process.running:
                raise RoleFailed(f"{name} has ended with code {process.exit_code}.\n{_last_lines(process.log_path)}")


def _last_lines(path: Path) -> str:
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - _LOG_BYTES))
            lines = log.read().decode("utf-8", "replace").splitlines()[-_LAST_LINES:]
    except OSError:
        return "(no log)"
    return "\n".join([f"The last lines of {path}:", *lines])


class GroupLag:
    """How many records of some topics a consumer group has not committed yet."""

    def __init__(
        self, consumer: AIOKafkaConsumer, looker: AIOKafkaConsumer, partitions: Sequence[TopicPartition]
    ) -> None:
        self._consumer = consumer
        self._looker = looker
        self._partitions = partitions

    async def records(self) -> int:
        """The lag now; every record counts for a group that has committed nothing.

        Raises:
            StoreUnavailable: the broker does not answer.
        """
        ends, committed = await self.offsets()
        return ends - (committed or 0)

    async def offsets(self) -> tuple[int, int | None]:
        """Sums over the partitions: where they end, how far the group has come; None when it never committed.

        Raises:
            StoreUnavailable: the broker does not answer.
        """
        partitions = self._partitions
        try:
            ends = await end_offsets(self._looker, partitions)
            committed = await asyncio.gather(*(self._consumer.committed(partition) for partition in partitions))
        except KafkaError as error:
            raise StoreUnavailable(f"Kafka does not tell the group's offsets: {error}") from error
        known = [offset for offset in committed if offset is not None]
        return sum(ends[partition] for partition in partitions), sum(known) if known else None


@asynccontextmanager
async def group_lag(settings: Settings, role: str, topics: Sequence[str]) -> AsyncIterator[GroupLag]:
    """A look at the consumer group of a role, which does not join it."""
    from penaltybox.links.kafka import Connection

    consumer = AIOKafkaConsumer(
        **Connection.of(settings).client_options(), group_id=f"{settings.topic_prefix}-{role}", enable_auto_commit=False
    )
    looker = AIOKafkaConsumer(**Connection.of(settings).client_options(), enable_auto_commit=False)
    try:
        await consumer.start()
        await looker.start()
        cluster = await consumer._client.fetch_all_metadata()  # noqa: SLF001 - to ask for a name may create the topic
        partitions = {topic: cluster.partitions_for_topic(topic) or () for topic in topics}
        missing = [topic for topic, numbers in partitions.items() if not numbers]
        if missing:
            raise ConfigurationError(
                f"Kafka at {settings.kafka} has no topic {missing[0]}; run `penaltybox setup` once"
            )
        yield GroupLag(
            consumer, looker, [TopicPartition(topic, number) for topic in topics for number in partitions[topic]]
        )
    finally:
        await consumer.stop()
        await looker.stop()
