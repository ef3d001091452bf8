"""The Lua algorithms on each server that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.producers.algorithms.lua_algorithms import LuaAlgorithms
from tests.redis_servers import BINARIES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session", params=sorted(BINARIES))
def lua(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> Iterator[LuaAlgorithms]:
    """For virtual time: keys end an hour later than they should, by the server's own clock."""
    made = LuaAlgorithms(redis_by_kind[request.param].port)
    yield made
    made.client.close()


@pytest.fixture(scope="session", params=sorted(BINARIES))
def real_lua(request: pytest.FixtureRequest, redis_by_kind: dict[str, Any]) -> Iterator[LuaAlgorithms]:
    """As it is used, with the ends that keys really get."""
    made = LuaAlgorithms(redis_by_kind[request.param].port, slack_ms=None)
    yield made
    made.client.close()
