"""Envoy itself asks `penaltybox envoy`, with the example configuration of docs/gateways."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.settings import Settings
from tests.redis_servers import free_port
from tests.stack.decision_service import ROOT, fetch
from tests.stack.gateway_servers import Envoy
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from penaltybox.embedded.redis_server import RedisServer

pytestmark = [pytest.mark.stack, pytest.mark.programs("envoy")]
POLICY = """
limits:
  login: {ip: [{name: soft, limit: 1, window: 1d}]}
  web: {ip: [{name: pages, limit: 2, window: 1d}], device: [{name: pages, limit: 1, window: 1d}]}
scenarios: {login: {deadline: 1s}, web: {deadline: 1s}}
"""


class RateLimited(Envoy):
    """Envoy with the rate limit filter."""

    examples = ("envoy-ratelimit.yaml",)

    def addresses(self) -> Sequence[tuple[str, str]]:
        return (*super().addresses(), ("timeout: 0.25s", "timeout: 2s"))

    def command(self) -> list[str]:
        (self.folder / "envoy-ratelimit.yaml").rename(self.folder / "envoy.yaml")
        return super().command()


def test_envoy_asks(redis_server: RedisServer, fresh_prefix: str, tmp_path: Path) -> None:
    """Allowed with its quota, denied with the problem; by scenario, by device; passed when the service is gone."""
    (policy := tmp_path / "policy.yaml").write_text(POLICY)
    values = Settings(redis_url=redis_server.url, redis_prefix=fresh_prefix, kafka="127.0.0.1:1")
    port = free_port()
    command = [sys.executable, "-m", "penaltybox", "envoy", "--port", str(port), "--policy", str(policy)]
    log = tmp_path / "service.log"
    environment = {**os.environ, **environment_of(values), "PENALTYBOX_SPILL_DIR": str(tmp_path / "spill")}
    with log.open("wb") as output:
        service = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=output)
    try:
        block_until(lambda: "answering Envoy" in log.read_text(), 30, "the service")
        with RateLimited(tmp_path / "envoy", 1, ("port_value: 8119", f"port_value: {port}")) as envoy:
            first, second, third = (fetch(envoy.port, "/a", source="127.0.0.81") for _ in range(3))
            assert (first.status, first.body) == (200, b"GET /a allow "), envoy.log + log.read_text()
            assert first.headers["ratelimit"].startswith('"ip:pages";r=1;t=')
            forged = {"X-Penaltybox-Action": "shadow"}
            assert fetch(envoy.port, "/login", source="127.0.0.84", headers=forged).body == b"GET /login allow "
            assert (second.status, third.status) == (200, 429)
            assert int(third.headers["retry-after"]) > 0
            assert b"quota-exceeded" in third.body
            assert fetch(envoy.port, "/login", source="127.0.0.81").status == 200
            for status, address in ((200, "127.0.0.82"), (429, "127.0.0.83")):
                got = fetch(envoy.port, "/a", source=address, headers={"X-Device-Id": "d1"})
                assert got.status == status
            service.terminate()
            assert service.wait(30) == 0, log.read_text()
            assert fetch(envoy.port, "/a", source="127.0.0.81", headers=forged).body == b"GET /a None "
    finally:
        service.kill()
        service.wait()
