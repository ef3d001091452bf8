"""The logs that HAProxy, Apache, Caddy, Traefik and Envoy write of hostile requests, as their formats read them."""

from __future__ import annotations

import base64
import socket
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from penaltybox.producers.adapters.reading import Reading
from penaltybox.producers.adapters.registry import load
from tests.producers.adapters.reading_of import options
from tests.stack.logging_servers import LOGGERS, Logger
from tests.waiting import block_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.stack
EACH = [pytest.param(kind, marks=pytest.mark.programs(kind.program), id=kind.__name__) for kind in LOGGERS]
VICTIM = b"198.51.100.66"
LINES = (
    VICTIM + b' - - [17/May/2026:10:05:03 +0000] "GET / HTTP/1.1" 429 5 "-" "-"',
    VICTIM
    + b':4711 [17/May/2026:10:05:03.655] shop shop/<NOSRV> 0/-1/-1/-1/0 429 190 - - PR-- 1/1/0/0/0 0/0 "GET / x"',
    b'{"ClientAddr":"198.51.100.66:1","DownstreamStatus":429,"StartUTC":"2026-05-17T10:05:03Z"}',
    b'","downstream_remote_address":"198.51.100.66:1","remote_ip":"198.51.100.66","client_ip":"198.51.100.66","x":"',
    b"\\" * 7 + b'" ' + VICTIM + b' "\\',
    b"} " + VICTIM + b" {" + b"'" * 3,
    b"\xff\xfe\x80 " + VICTIM,
    b"a" * 3000 + VICTIM,
)
"""What each of these would be, if a client's text could become more than text."""
PLAIN = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"


def hostile(line: bytes, session: bytes) -> bytes:
    """A request that says it wherever a client can say something."""
    user = base64.b64encode(line + b":x")
    path = line.replace(b" ", b"%20").replace(b"\xff\xfe\x80", b"%ff%fe%0a%0d")
    return b"\r\n".join(
        [
            b"GET /" + path + b"?q=" + path + b" HTTP/1.1",
            b"Host: shop.example",
            b"X-Forwarded-For: " + VICTIM,
            b"X-Real-IP: " + VICTIM,
            b"Forwarded: for=" + VICTIM,
            b"Authorization: Basic " + user,
            b"User-Agent: " + line,
            b"Referer: " + line,
            b"Cookie: session=" + session,
            b"Connection: close",
            b"",
            b"",
        ]
    )


def send(port: int, source: str, request: bytes) -> bytes:
    """The status line that came back; some requests are refused without one."""
    with socket.create_connection(("127.0.0.1", port), 30, source_address=(source, 0)) as one:
        one.sendall(request)
        answer = b""
        try:
            while part := one.recv(65_536):
                answer += part
        except ConnectionResetError:
            pass
        return answer.partition(b"\r\n")[0]


@pytest.mark.parametrize("kind", EACH)
def test_a_program_writes_what_its_format_reads(kind: type[Logger], tmp_path: Path) -> None:
    """Every line is read; each refusal is its client's own, and nobody else's, whatever the client says."""
    with kind(tmp_path / "program") as program:
        refused = Counter[str]()
        for number, line in enumerate(LINES):
            source = f"127.0.6.{number + 1}"
            for session in (line.replace(b" ", b"_"), line):
                refused[source] += b" 429" in send(program.port, source, hostile(line, session))
            refused[source] += b" 429" in send(
                program.port, source, b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
            )
        assert min(refused.values()) >= 1
        adapter = load(kind.form).make(options())

        def read() -> list[Reading]:
            found = [adapter.read(line) for line in program.log_file.read_bytes().splitlines() if b"127.0.6." in line]
            return [one for one in found if isinstance(one, Reading)]

        def told() -> Counter[str]:
            return Counter(one.subjects["ip"] for one in read() if one.action == "deny" and one.status == 429)

        block_until(lambda: program.log_file.exists() and told() == refused, 60, what="the log's lines")
        assert all(one.subjects["ip"].startswith("127.0.") for one in read())
