"""The Lua algorithms on a real server, called one by one on virtual time, many calls in one round trip."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import redis

from penaltybox.producers.scripts import script_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.contracts.policy import Limit

HARNESS = (Path(__file__).parent / "harness.lua").read_text(encoding="utf-8")
_numbers = count()


class Call(NamedTuple):
    """One call of the harness. Operation: ask, decide (ask, and take if it fits), give."""

    operation: str
    limit: Limit
    cost: int
    now_ms: int
    id: str = ""
    taken_ms: int = 0


class LuaAlgorithms:
    """The harness, loaded into one server.

    Args:
        port: of the server, on the loopback.
        slack_ms: how much longer keys live than they count. In virtual time a key must not end by the server's clock
            while its window is short and the machine busy, so the tests of virtual time take an hour.
    """

    def __init__(self, port: int, slack_ms: int | None = 3_600_000) -> None:
        self.client = redis.Redis(port=port, protocol=2)
        slack = "" if slack_ms is None else f"SLACK = {slack_ms}\n"
        self._sha = self.client.script_load(f"{script_text()}\n{slack}{HARNESS}")

    def key(self) -> str:
        """A key that nobody has used."""
        return f"k{next(_numbers)}"

    def run(self, key: str, calls: Sequence[Call]) -> list[list[int]]:
        """All replies, in order; an error of the script is raised."""
        pipeline = self.client.pipeline(transaction=False)
        for call in calls:
            pipeline.evalsha(self._sha, 1, key, *_arguments(call))
        replies: list[Any] = pipeline.execute()
        return replies

    def one(self, key: str, call: Call) -> list[int]:
        """One reply."""
        return self.run(key, [call])[0]


def _arguments(call: Call) -> tuple[str | int, ...]:
    limit = call.limit
    counter = limit.algorithm == "sliding_window_counter"
    size = limit.slots if counter else limit.burst or limit.limit
    return (
        call.operation, limit.algorithm, limit.limit, limit.window_ms, size,
        call.cost, call.now_ms, call.id, call.taken_ms,
    )  # fmt: skip
