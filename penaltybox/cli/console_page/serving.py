"""The console's HTTP server: uvicorn, bounded as the decision service's, in one process."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING

import uvicorn

from penaltybox.cli.console_page.access import Access
from penaltybox.cli.console_page.application import Application
from penaltybox.cli.console_page.desk import open_desk
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.service import server as service

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence
    from types import FrameType

    from penaltybox.cli.console_page.desk import Given
    from penaltybox.contracts.policy import Policy
    from penaltybox.contracts.settings import Settings

_STOP_S = 2


class _Server(uvicorn.Server):
    """Streams never end by themselves: at the first signal they are told to. A signal is a stop in good order."""

    def __init__(self, config: uvicorn.Config, ending: asyncio.Event) -> None:
        super().__init__(config)
        self._ending = ending

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - uvicorn's signature
        self.force_exit = self.should_exit
        self.should_exit = True
        self._ending.set()


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ConfigurationError: no such address here, or the port is taken.
    """
    try:
        return service.listen(host, port)
    except ConfigurationError as error:
        text = str(error).replace("serve:", "console:").replace("PENALTYBOX_SERVE", "PENALTYBOX_CONSOLE")
        raise ConfigurationError(text) from error


def address_of(listener: socket.socket) -> str:
    """How a browser on this machine reaches it."""
    host, port = listener.getsockname()[:2]
    with suppress(ValueError):
        if ip_address(host).is_unspecified:
            host = "127.0.0.1"
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def exposure(host: str) -> str:
    """What has to be told about an address to listen on: empty where only this machine can reach it."""
    if not service.exposure(host, "told"):
        return ""
    return (
        f"{host} can be reached from other machines, without TLS: whoever reads the network reads the token. "
        "Put a proxy with TLS in front, and name it in PENALTYBOX_CONSOLE_NAMES."
    )


async def serve(
    listener: socket.socket, values: Settings, policy: Policy, given: Given, *, token: str, names: Sequence[str]
) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        listener: from `listen`; closed at the end.
        values: where the servers are.
        policy: the file's, until Redis says another.
        given: how the console was started.
        token: what opens it.
        names: host names by which browsers may ask for it.
    """
    ending = asyncio.Event()
    service.quiet()
    application = Application(partial(open_desk, values, policy, given), Access(token, names), ending)
    config = uvicorn.Config(
        application,
        http=service.BoundedProtocol,
        ws="none",
        lifespan="on",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=_STOP_S,
    )
    server = _Server(config, ending)
    try:
        await server.serve(sockets=[listener])
    finally:
        listener.close()
    if not server.started:
        raise ConfigurationError("console: it did not start; the lines above say why")
