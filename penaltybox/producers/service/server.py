"""The HTTP server around the application: uvicorn, with what callers send bounded, in one process or several."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.service.streaming import ON_STOP

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

MAX_HEAD_BYTES: Final = 65_536
"""Request line and headers of one call. A gateway's own bounds are lower: nginx 32 KiB, Envoy 60 KiB."""
_KEEP_ALIVE_S: Final = 120
"""Longer than gateways keep theirs (nginx 60 s), so that none sends into a connection that we are closing."""
_BACKLOG: Final = 2048
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol; a caller whose headers never end is cut off (the parser would keep all of them)."""

    _chunk_bytes = 0
    _head_bytes = 0
    _in_head = False

    def data_received(self, data: bytes) -> None:
        """Counts the headers that are not complete yet, from the second piece on: the first one is small anyway."""
        self._chunk_bytes = len(data)
        super().data_received(data)
        self._head_bytes += len(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self.transport.write(_TOO_LARGE)
            self.transport.close()

    def shutdown(self) -> None:
        """The server stops: an answer that goes on ends now, the others are finished."""
        super().shutdown()
        if self.cycle is not None and not self.cycle.response_complete:
            end: Any = self.cycle.scope.get(ON_STOP)
            if end is not None:
                end()

    def on_message_begin(self) -> None:
        """A call begins, somewhere in the piece that is being read."""
        self._in_head, self._head_bytes = True, -self._chunk_bytes
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """What follows is a body, which the application bounds."""
        self._in_head = False
        super().on_headers_complete()


def quiet() -> None:
    """Uvicorn tells errors only: it warns of every request that is none, which would be a stranger's log flood."""
    for name in ("uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).setLevel(logging.ERROR)


def end_with_parent() -> None:
    """In one of several processes: stop when the one that started it is gone, or the port would stay taken."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_behind, args=(parent,), daemon=True).start()


def _end_behind(parent: BaseProcess) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def exposure(host: str, secret: str, *, without_secret: bool = False) -> str:
    """What has to be told about an address to listen on: ``""`` where only this machine can reach it.

    Raises:
        ConfigurationError: other machines reach it, and neither is there a secret nor was it said that none is wanted.
    """
    with suppress(ValueError):
        if host == "localhost" or ip_address(host).is_loopback:
            return ""
    reached = f"{host or 'every address'} can be reached from other machines"
    may = "can use up anybody's quota, give quota back, tell outcomes and read how subjects stand"
    if secret:
        return f"{reached}: whoever has the secret {may}"
    if without_secret:
        return f"{reached}, and no secret is wanted: whoever reaches it {may}"
    raise ConfigurationError(
        f"serve: {reached}, and whoever reaches it {may}. Set PENALTYBOX_SERVE_SECRET, which callers send in "
        "X-Penaltybox-Secret; or PENALTYBOX_SERVE_WITHOUT_SECRET=true if everybody in that network may do all this"
    )


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        ConfigurationError: no such address here, or the port is taken.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise _no_address(host, port, error) from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _no_address(host, port, error) from error
    listener.setblocking(False)  # noqa: FBT003 - the socket's own signature
    return listener


def _no_address(host: str, port: int, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"serve: cannot listen on {host} port {port}: {error}; change PENALTYBOX_SERVE_HOST or PENALTYBOX_SERVE_PORT"
    )


def run(application: str, listener: socket.socket, *, processes: int, stop_timeout_s: int) -> None:
    """Serves until SIGTERM or SIGINT.

    Args:
        application: ``module:function``, which makes the ASGI application in each process.
        listener: from `listen`; closed at the end.
        processes: how many. One that dies is started again.
        stop_timeout_s: how long calls under way may take at the end.

    Raises:
        SystemExit: the code of the process; 0 after a signal.
    """
    options: dict[str, Any] = {
        "factory": True,
        "http": BoundedProtocol,
        "ws": "none",
        "lifespan": "on",
        "access_log": False,
        "log_config": None,
        "server_header": False,
        "proxy_headers": False,  # whom to believe is decided in one place, from trusted_proxies
        "backlog": _BACKLOG,
        "timeout_keep_alive": _KEEP_ALIVE_S,
        "timeout_graceful_shutdown": stop_timeout_s,
    }
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises it again when it has stopped
    try:
        if processes > 1:
            uvicorn.run(application, fd=listener.fileno(), workers=processes, **options)
            return
        server = uvicorn.Server(uvicorn.Config(application, **options))
        server.run(sockets=[listener])
    finally:
        listener.close()
    if not server.started:
        sys.exit(1)
