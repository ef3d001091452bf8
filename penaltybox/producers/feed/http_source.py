"""The feed of a decision service, over HTTP."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final
from urllib.parse import urlencode, urlsplit

from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_OK: Final = 200
_PATH: Final = "/v1/blocks/stream"
_LIMIT: Final = 1 << 20
_LARGEST_CHUNK: Final = 16 << 20
_PORTS: Final = {"http": 80, "https": 443}
_CONNECT_S: Final = 10.0
_PIECE: Final = 65_536


class HttpSource:
    """Asks a service; each answer on a connection of its own.

    Args:
        url: of the service, `http://127.0.0.1:8118`; a path before ours is kept.
        secret: the service's, if it wants one.

    Raises:
        ConfigurationError: no http or https URL.
    """

    def __init__(self, url: str, secret: str = "") -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in _PORTS or not parts.hostname or port == -1:
            raise ConfigurationError(f"--from: got {url!r}, wanted a URL such as http://127.0.0.1:8118")
        self._host, self._port = parts.hostname, port or _PORTS[parts.scheme]
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._path = parts.path.rstrip("/") + _PATH
        self._secret = secret
        self.where = f"{parts.scheme}://{parts.hostname}:{self._port}"

    async def lines(self, since: str) -> AsyncGenerator[bytes, None]:
        """See `Source.lines`."""
        async with asyncio.timeout(_CONNECT_S):
            reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=_LIMIT)
        try:
            writer.write(self._head(since))
            await writer.drain()
            chunked = await self._accepted(reader)
            rest = b""
            while piece := await (_chunk(reader) if chunked else reader.read(_PIECE)):
                whole, end, rest = (rest + piece).rpartition(b"\n")
                if len(rest) > _LIMIT:
                    raise StoreUnavailable(f"{self.where}: a line of over {_LIMIT:,} bytes; this is no feed.")
                if end:
                    yield whole + end
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise StoreUnavailable(f"{self.where}: the answer broke off, or is none.") from error
        finally:
            writer.close()

    def _head(self, since: str) -> bytes:
        host = f"[{self._host}]" if ":" in self._host else self._host
        lines = [
            f"GET {self._path}?{urlencode({'since': since})} HTTP/1.1",
            f"Host: {host}:{self._port}",
            "Accept: application/x-ndjson",
            "Connection: close",
        ]
        if self._secret:
            lines.append(f"X-Penaltybox-Secret: {self._secret}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")

    async def _accepted(self, reader: asyncio.StreamReader) -> bool:
        """Whether the body comes in chunks. Raises StoreUnavailable if there is no feed in the answer."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        status = head[0].split(" ", 2)[1:2]
        if status != [str(_OK)]:
            hint = "; is PENALTYBOX_SERVE_SECRET the service's?" if status == ["401"] else ""
            raise StoreUnavailable(f"{self.where}{self._path} answers {head[0][:60]}{hint}.")
        fields = [line.lower().replace(" ", "") for line in head[1:]]
        return "transfer-encoding:chunked" in fields


async def _chunk(reader: asyncio.StreamReader) -> bytes:
    """The next chunk of a body; empty at its end."""
    size = int((await reader.readuntil(b"\r\n")).split(b";")[0], 16)
    if not 0 <= size <= _LARGEST_CHUNK:
        raise StoreUnavailable(f"A chunk of {size:,} bytes: this is no feed.")
    return (await reader.readexactly(size + 2))[:-2]
