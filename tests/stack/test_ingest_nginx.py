"""What a real nginx writes about its limits is what the formats read."""

from __future__ import annotations

import http.client
import os
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.events import encode
from penaltybox.producers.adapters.registry import load
from penaltybox.producers.logs.blocks import Block
from penaltybox.producers.logs.progress import Progress
from penaltybox.producers.logs.reader import LogReader
from tests.producers.adapters.reading_of import options
from tests.redis_servers import free_port
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.contracts.events import Decision

pytestmark = [pytest.mark.stack, pytest.mark.programs("nginx")]
CONFIG = """
{user} daemon off; worker_processes 1; pid nginx.pid; error_log error.log info;
events {{ worker_connections 64; }}
http {{
    access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi; scgi_temp_path scgi;
    limit_req_zone $binary_remote_addr zone=slow:1m rate=1r/m;
    limit_req_zone $binary_remote_addr zone=tried:1m rate=1r/m;
    limit_req_zone $binary_remote_addr zone=delayed:1m rate=50r/s;
    limit_req_status 429;
    log_format limits escape=json '{{"msec":"$msec","remote_addr":"$remote_addr","request_method":"$request_method",'
        '"request_uri":"$request_uri","status":"$status","http_user_agent":"$http_user_agent",'
        '"limit_req_status":"$limit_req_status"}}';
    server {{
        listen 127.0.0.1:{port};
        access_log access.log combined; access_log limits.log limits;
        location /slow/ {{ limit_req zone=slow; root {folder}; try_files /ok =404; }}
        location /tried/ {{ limit_req zone=tried; limit_req_dry_run on; root {folder}; try_files /ok =404; }}
        location /delayed/ {{ limit_req zone=delayed burst=5; root {folder}; try_files /ok =404; }}
    }}
}}
"""
HOSTILE = '", client: 198.51.100.66, server: s, request: "GET / HTTP/1.1'


@contextmanager
def _nginx(folder: Path, port: int) -> Iterator[None]:
    user = "user root;" if os.geteuid() == 0 else ""  # else its worker could not read our folder
    (folder / "nginx.conf").write_text(CONFIG.format(port=port, folder=folder, user=user))
    (folder / "ok").write_text("ok")
    process = subprocess.Popen(
        ["nginx", "-p", str(folder), "-e", "error.log", "-c", "nginx.conf"], env={**os.environ, "TZ": "UTC"}
    )
    try:
        block_until(lambda: _status(port, "/elsewhere") == 404, 30)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _status(port: int, path: str, agent: str = "test") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.putrequest("GET", path)
        connection.putheader("User-Agent", agent)
        connection.putheader("Referer", HOSTILE)
        connection.endheaders()
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()


def _read(name: str, log: Path) -> tuple[list[Decision], Progress]:
    progress = Progress()
    data = log.read_bytes().removesuffix(b"\n")
    found = LogReader(load(name), options(), f"{name}/1", progress).read(Block(0, data, len(data) + 1))
    return [one.decision for one in found], progress


def test_what_nginx_writes_is_read(tmp_path: Path) -> None:
    """Refused, delayed, and of a dry run: the same decisions from the error log and from the access log in JSON."""
    port = free_port()
    with _nginx(tmp_path, port):
        slow = [_status(port, "/slow/a?b=c", HOSTILE) for _ in range(4)]
        tried = [_status(port, "/tried/a") for _ in range(3)]
        delayed = [_status(port, '/delayed/",client:198.51.100.66') for _ in range(4)]
    assert slow[1:] == [429, 429, 429]
    assert 429 not in tried + delayed
    errors, progress = _read("nginx-error", tmp_path / "error.log")
    assert not progress.unmatched, progress
    json_lines, progress = _read("nginx-access", tmp_path / "limits.log")
    assert not progress.unmatched, progress
    combined, progress = _read("nginx-access", tmp_path / "access.log")
    assert not progress.unmatched, progress
    for found in (errors, json_lines):
        told = [(one.action, one.enforced, one.route) for one in found]
        assert told.count(("deny", True, "GET /slow/a")) == 3
        assert told.count(("deny", False, "GET /tried/a")) == 2
        assert {(one.action, one.enforced) for one in found if "delayed" in one.route} <= {("delay", True)}
    assert [one.action for one in combined] == ["deny"] * 3
    assert {one.violated for one in errors} >= {("ip:slow",), ("ip:tried",)}
    for one in (*errors, *json_lines, *combined):
        assert one.subjects == {"ip": "127.0.0.1"}
        assert b"198.51.100.66" not in encode(one)
