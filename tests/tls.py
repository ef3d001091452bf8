"""Certificates, and TLS in front of a plain server, for tests. Loopback only."""

from __future__ import annotations

import asyncio
import subprocess
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterator
    from pathlib import Path


def make_certificates(folder: Path) -> None:
    """A CA (ca.crt), and one certificate for server and client alike (own.crt, own.key), by the openssl program."""
    openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*openssl, "-days", "2", "-subj", "/CN=test CA", "-keyout", "ca.key", "-out", "ca.crt"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    subprocess.run(
        [*openssl, "-days", "2", "-subj", "/CN=localhost", "-keyout", "own.key", "-out", "own.crt",
         "-CA", "ca.crt", "-CAkey", "ca.key", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
         "-addext", "basicConstraints=critical,CA:FALSE"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip


async def start_tls(port: int, context: ssl.SSLContext) -> asyncio.Server:
    """A server that ends TLS and passes everything on to `port`."""

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(1 << 16):
                sink.write(data)
                await sink.drain()
        except OSError:
            pass
        finally:
            sink.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward_reader, onward_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(copy(reader, onward_writer), copy(onward_reader, writer))

    return await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)


@contextmanager
def tls_in_front_of(port: int, context: ssl.SSLContext) -> Iterator[int]:
    """`start_tls` in a thread of its own, for tests that block; gives the port."""
    loop = asyncio.new_event_loop()
    listener = loop.run_until_complete(start_tls(port, context))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        asyncio.run_coroutine_threadsafe(_end(listener), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _end(listener: asyncio.Server) -> None:
    listener.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
