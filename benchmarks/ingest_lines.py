"""Reading logs of other limiters: from a block of lines to sealed records, ready for Kafka; one process, no I/O.

The peer only takes the same lines apart: nginx's error log by one compiled pattern, JSON by msgspec into a struct.
"""

from __future__ import annotations

import gc
import re
import time
from typing import TYPE_CHECKING

import msgspec

from benchmarks.stack import report
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.adapters.reading import Options
from penaltybox.producers.adapters.registry import load
from penaltybox.producers.adapters.targets import Targets
from penaltybox.producers.logs.blocks import Splitter
from penaltybox.producers.logs.garbage import collected_less_often
from penaltybox.producers.logs.passage import Common
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.sealed import Sealer

if TYPE_CHECKING:
    from collections.abc import Callable

LINES = 200_000
ROUNDS = 5
CLIENTS = 10_000
PATHS = ("/", "/login", "/cart?item={0}", "/product/{0}", "/api/v1/orders/{0}", "/search?q={0}")
ERROR = (
    '2026/05/17 {clock} [error] 31#31: *{n} limiting requests, excess: {n}.123 by zone "perip", client: {ip}, '
    'server: shop.example, request: "GET {path} HTTP/1.1", host: "shop.example", referrer: "https://shop.example/"\n'
)
ACCESS = (
    '{{"time_iso8601":"2026-05-17T{clock}+00:00","remote_addr":"{ip}","request":"GET {path} HTTP/1.1","status":"429",'
    '"body_bytes_sent":"162","request_time":"0.000","http_referer":"https://shop.example/","http_user_agent":'
    '"Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0","limit_req_status":"REJECTED"}}\n'
)
PATTERN = re.compile(
    rb"(\d{4}/\d\d/\d\d \d\d:\d\d:\d\d) \[(\w+)\] \d+#\d+: \*\d+ (limiting requests), excess: ([\d.]+) by zone "
    rb'"([^"]*)", client: ([^,]+), server: ([^,]*), request: "([^"]*)".*'
)


class Line(msgspec.Struct, gc=False):
    """What the peer takes from a line of JSON."""

    time_iso8601: str
    remote_addr: str
    request: str
    status: str
    limit_req_status: str


def main() -> None:
    """Print JSON lines."""
    _bench("ingest_nginx", "nginx-error", _log(ERROR), lambda lines: list(map(PATTERN.fullmatch, lines)))
    decode = msgspec.json.Decoder(Line).decode
    _bench("ingest_json", "nginx-access", _log(ACCESS), lambda lines: list(map(decode, lines)))


def _log(form: str) -> bytes:
    """A log of many clients and paths, twenty lines a second."""
    made = []
    for n in range(LINES):
        client, second = n * 7919 % CLIENTS, n // 20
        made.append(
            form.format(
                n=n,
                clock=f"{second // 3600 % 24:02}:{second // 60 % 60:02}:{second % 60:02}",
                ip=f"10.{client >> 8 & 255}.{client & 255}.{client % 250}",
                path=PATHS[n % len(PATHS)].format(n * 31 % 2_000),
            )
        )
    return "".join(made).encode()


def _bench(name: str, form: str, log: bytes, take_apart: Callable[[list[bytes]], object]) -> None:
    ours, peers = [], []
    for _ in range(ROUNDS):
        with collected_less_often():
            ours.append(_rate(lambda: _sealed(form, log)))
        lines = log.split(b"\n")[:-1]
        peers.append(_rate(lambda lines=lines: take_apart(lines)))
    value, peer = max(ours), max(peers)
    report(name, value, "lines/s", "the same lines taken apart, and no more", peer)


def _rate(work: Callable[[], object]) -> float:
    gc.collect()
    start = time.process_time()
    work()
    return LINES / (time.process_time() - start)


def _sealed(form: str, log: bytes) -> None:
    options = Options(Canonicaliser(), Targets(), now_ms=1_779_012_345_678)
    reader = Common(load(form), options, f"{form}/1", Progress()).reader()
    sealer, splitter, count = Sealer(Settings()), Splitter(), 0
    for start in range(0, len(log), 1 << 20):
        for block in splitter.feed(log[start : start + (1 << 20)]):
            for found in reader.read(block):
                sealer.seal(found.decision)
                count += 1
    if count != LINES:
        raise RuntimeError(f"{form}: {count} decisions of {LINES} lines")


if __name__ == "__main__":
    main()
