"""ClickHouse's HTTP interface over the embedded engine: ``python -m penaltybox.embedded.clickhouse_endpoint``.

A process of its own, so that the engine's memory and threads are not the worker's. Loopback only. A web page in a
browser of the same machine must not reach it: requests with an Origin, or for a host name that is not loopback's, are
refused. Nor must other users of the machine: the engine reads and writes files (`file(…)`) with the rights of ours.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

from penaltybox.embedded.clickhouse_engine import Answer, Engine, EngineError, summary_json
from penaltybox.embedded.clickhouse_request import RequestError, read_request
from penaltybox.embedded.ports import LOOPBACK, user_of

logger = logging.getLogger("penaltybox.embedded.clickhouse")
BODY_LIMIT = 1 << 30
DRAIN_S = 3.0  # below the guard's grace
_BAD_REQUEST = 400
_FAILED = 500
_ROOT = 0
_HOSTS = frozenset({"127.0.0.1", "localhost", ""})


class InFlight:
    """How many statements run now, so that a stop can let them end."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def drain(self, deadline_s: float) -> bool:
        """Whether all have ended within `deadline_s` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: self._count == 0, deadline_s)


class Handler(BaseHTTPRequestHandler):
    """One connection of a client; keeps alive."""

    engine: ClassVar[Engine]
    in_flight: ClassVar[InFlight]
    _ours = False
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for the client's delayed acknowledgement
    wbufsize = -1  # headers and body in one write

    def do_GET(self) -> None:
        """`/ping`, `/`, or a read-only statement in the URL."""
        self._serve()

    def do_POST(self) -> None:
        """A statement, its rows or both."""
        self._serve()

    def _serve(self) -> None:
        try:
            self._refuse_other_users()
            body = self._body()
            url = urlsplit(self.path)
            self._refuse_browsers()
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = read_request(self.command, url.query, headers, body)
        except (RequestError, ValueError) as error:
            self._fail(_BAD_REQUEST, 0, f"Bad request: {error}")
            self.close_connection = True
            return
        if url.path != "/" or not request.text.strip():
            self._send(200, b"Ok.\n", {})
            return
        with self.in_flight:
            try:
                answer = self.engine.run(request)
            except EngineError as error:
                self._fail(_FAILED, error.code, str(error))
            else:
                self._answer(answer, request.query_id)

    def _refuse_other_users(self) -> None:
        if not self._ours:
            user = user_of(self.client_address, self.request.getsockname())
            if user not in (os.getuid(), _ROOT):
                raise RequestError("only the user who started the stack may use its ClickHouse")
            self._ours = True

    def _refuse_browsers(self) -> None:
        if self.headers.get("Origin") or self.headers.get("Sec-Fetch-Site"):
            raise RequestError("requests from web pages are refused")
        host = (self.headers.get("Host") or "").rpartition(":")[0] or (self.headers.get("Host") or "")
        if host not in _HOSTS:
            raise RequestError(f"the host {host!r} is not this machine's loopback address")

    def _body(self) -> bytes:
        """The request's body, by length or in chunks."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            return self._chunks()
        length = int(self.headers.get("Content-Length") or 0)
        if not 0 <= length <= BODY_LIMIT:
            raise RequestError(f"a body of {length} bytes; the limit is {BODY_LIMIT}")
        return self.rfile.read(length)

    def _chunks(self) -> bytes:
        body = bytearray()
        while True:
            size = int(self.rfile.readline(64).partition(b";")[0], 16)
            if size == 0:
                break
            if len(body) + size > BODY_LIMIT:
                raise RequestError(f"a body of more than {BODY_LIMIT} bytes")
            body += self.rfile.read(size)
            self.rfile.readline(64)
        while self.rfile.readline(65536).strip():
            pass  # trailers
        return bytes(body)

    def _answer(self, answer: Answer, query_id: str) -> None:
        headers = {
            "X-ClickHouse-Server-Display-Name": "penaltybox-embedded",
            "X-ClickHouse-Timezone": self.engine.timezone,
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Summary": summary_json(answer),
        }
        if answer.format:
            headers["X-ClickHouse-Format"] = answer.format
        self._send(200, answer.body, headers)

    def _fail(self, status: int, code: int, message: str) -> None:
        self._send(status, f"{message}\n".encode(), {"X-ClickHouse-Exception-Code": str(code)} if code else {})

    def _send(self, status: int, body: bytes | memoryview, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value.replace("\r", " ").replace("\n", " "))
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the overridden name
        """Requests are not logged: statements may hold what is nobody's business."""


class Endpoint(ThreadingHTTPServer):
    """The HTTP server; a thread per connection."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - the overridden signature
        """A client that went away is nothing; everything else is logged."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            logger.error("A request failed.", exc_info=error)


def serve(path: Path, port: int) -> None:
    """Open the engine at `path` and serve until SIGTERM or SIGINT.

    The port is bound before the engine opens (a taken port fails at once) and listens after.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((LOOPBACK, port))
    path.mkdir(parents=True, exist_ok=True)
    engine = Engine(path)
    in_flight = InFlight()
    handler = type("BoundHandler", (Handler,), {"engine": engine, "in_flight": in_flight})
    endpoint = Endpoint((LOOPBACK, port), handler, bind_and_activate=False)
    endpoint.socket.close()
    endpoint.socket = listener
    endpoint.server_activate()

    def stop(*_: object) -> None:
        threading.Thread(target=endpoint.shutdown).start()  # shutdown waits for the loop that this signal interrupted

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    logger.info("ClickHouse %s on %s:%d, data in %s", engine.version, LOOPBACK, port, path)
    endpoint.serve_forever(poll_interval=0.05)
    endpoint.server_close()
    if in_flight.drain(DRAIN_S):
        engine.close()
    else:
        logger.warning("Statements still run after %g s; they are cut off.", DRAIN_S)


def main() -> None:
    """Command line: the engine's directory and the port."""
    parser = argparse.ArgumentParser(description="Serve ClickHouse's HTTP interface over the embedded engine.")
    parser.add_argument("--path", type=Path, required=True, help="the engine's data directory")
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve(arguments.path, arguments.port)


if __name__ == "__main__":
    main()
