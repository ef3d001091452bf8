"""A Redis that workers have used, Kafka away, and the command line in front of it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.sinks.redis_store import RedisSubjectStore
from tests.producers.limiters import url_of
from tests.servers import fresh_name

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

WHY = ("--reason", "ticket 4711", "--actor", "alice")


class Desk:
    """Commands with the settings of one Redis and a key space of their own."""

    def __init__(self, server: Any, monkeypatch: pytest.MonkeyPatch, folder: Path, policy: str = "rules: {}") -> None:
        self.prefix, self.url, self.folder = fresh_name("desk"), url_of(server), folder
        (folder / "policy.yaml").write_text(policy)
        for name, value in {
            "REDIS_URL": self.url,
            "REDIS_PREFIX": self.prefix,
            "KAFKA": "127.0.0.1:1",
            "CLICKHOUSE_URL": "http://127.0.0.1:1",
            "POLICY": str(folder / "policy.yaml"),
        }.items():
            monkeypatch.setenv(f"PENALTYBOX_{name}", value)
        monkeypatch.chdir(folder)

    def begin(self) -> None:
        """As if a worker had been here."""
        asyncio.run(self._begin())

    async def _begin(self) -> None:
        store = RedisSubjectStore(open_link(parse_endpoint(self.url)), self.prefix)
        await store.begin_generation("g1")
        await store.close()

    def result(self, *arguments: str) -> Any:
        """The result of a command."""
        return CliRunner().invoke(app, list(arguments), catch_exceptions=False)

    def run(self, *arguments: str) -> str:
        """What a command prints, on one line."""
        result = self.result(*arguments)
        assert result.exit_code == 0, result.stderr
        return " ".join(result.stdout.split())

    def json(self, *arguments: str) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.result(*arguments, "--json").stdout)

    def redis(self, *command: str) -> Any:
        """One Redis command, wherever its key is."""
        return asyncio.run(self._redis(command))

    async def _redis(self, command: tuple[str, ...]) -> Any:
        from penaltybox.contracts.keyspace import slot_of  # noqa: PLC0415 - beside its only use

        link = open_link(parse_endpoint(self.url))
        try:
            tag = command[1].partition("{")[2].partition("}")[0] or command[1]
            return (await link.exchange([command], [slot_of(tag)]))[0]
        finally:
            await link.close()

    def key(self, subject: str, name: str = "block") -> Any:
        """The decoded value of one of a subject's keys."""
        value = self.redis("GET", f"{self.prefix}:{{{subject}}}:{name}")
        return None if value is None else json.loads(value)

    def told(self) -> list[Any]:
        """Control records that wait for Kafka."""
        return [json.loads(one) for one in self.redis("LRANGE", f"{self.prefix}:untold", "0", "-1")]
