"""Who may use the embedded ClickHouse: the engine reads and writes any file of the user who started it."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from penaltybox.embedded import clickhouse_endpoint
from penaltybox.embedded.clickhouse_endpoint import Endpoint, Handler, InFlight
from penaltybox.embedded.ports import user_of

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def port() -> Iterator[int]:
    """An endpoint without an engine: what gets as far as the engine fails."""
    handler = type("Bound", (Handler,), {"in_flight": InFlight()})
    with Endpoint(("127.0.0.1", 0), handler) as endpoint:
        thread = threading.Thread(target=endpoint.serve_forever, args=(0.01,))
        thread.start()
        yield endpoint.server_address[1]
        endpoint.shutdown()
        thread.join()


def ping(port: int) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/ping")
    answer = connection.getresponse()
    result = answer.status, answer.read()
    connection.close()
    return result


def test_the_kernel_tells_whose_a_connection_is() -> None:
    """The user of the other end is ours, and nobody's where there is no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, address = server.accept()
        with accepted:
            assert user_of(address, accepted.getsockname()) == os.getuid()
            assert address == client.getsockname()
            assert user_of(("127.0.0.1", 1), accepted.getsockname()) is None


@pytest.mark.parametrize(
    ("user", "status"), [(os.getuid(), 200), (0, 200), (os.getuid() + 1, 400), (65534, 400), (None, 400)]
)
def test_other_users_are_refused(port: int, user: int | None, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own user and root get an answer; others, and a connection whose user is unknown, a sentence."""
    monkeypatch.setattr(clickhouse_endpoint, "user_of", lambda *_: user)
    answered, text = ping(port)
    assert answered == status
    assert (b"only the user" in text) == (status == 400)
