"""The embedded ClickHouse: its own engine (chDB) in a process of its own, behind a loopback HTTP endpoint."""

from __future__ import annotations

import http.client
import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded.clickhouse_request import READER
from penaltybox.embedded.ports import LOOPBACK
from penaltybox.embedded.server import Server

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PACKAGES = Path(__file__).parents[2]


class ClickHouseServer(Server):
    """`clickhouse_connect.get_client(host="127.0.0.1", port=server.port)`; as user `reader` it only reads."""

    name: ClassVar[str] = "clickhouse"

    @property
    def url(self) -> str:
        """The endpoint for those who write."""
        return f"http://{self.address}"

    @property
    def reader_url(self) -> str:
        """The endpoint for those who only read: the engine itself refuses the rest."""
        return f"http://{READER}@{self.address}"

    @property
    def path(self) -> Path:
        """The engine's own directory; one process owns it."""
        return self.data_dir / "engine"

    def command(self, port: int) -> Sequence[str]:
        """The endpoint module in this Python."""
        if importlib.util.find_spec("chdb") is None:
            raise ConfigurationError(
                "The embedded ClickHouse needs the package chdb, which is not installed. "
                "Install penaltybox[embedded], or give the URL of your own ClickHouse."
            )
        module = "penaltybox.embedded.clickhouse_endpoint"
        return [sys.executable, "-m", module, "--path", str(self.path), "--port", str(port)]

    def environment(self) -> Mapping[str, str]:
        """This very package, also when it is not installed."""
        return {"PYTHONPATH": str(PACKAGES), "PYTHONUNBUFFERED": "1"}

    def answers(self) -> bool:
        """Ok to a ping."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=2)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == http.client.OK
        except http.client.HTTPException:
            return False
        finally:
            connection.close()
