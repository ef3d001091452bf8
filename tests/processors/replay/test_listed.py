"""The allowlist that was kept by hand, in a replay: who was listed when, and what that does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from penaltybox.contracts.events import Control, encode
from penaltybox.contracts.subjects import Canonicaliser, Names
from penaltybox.processors.engine import Engine
from penaltybox.processors.replay.listed import ListChange, list_changes
from penaltybox.processors.replay.world import Steady, World
from tests.processors.replay.traffic import HOUSEHOLDS, households


def record(name: str, value: str | None, ts: int, number: str = "", kind: Any = "allow") -> Any:
    made = Control(id=number or f"{name}{ts}", ts=ts, key=f"allow:{name}", kind=kind, value=value or "", actor="a")
    return SimpleNamespace(
        key=f"allow:{name}".encode(), value=None if value is None else encode(made), timestamp=ts, partition=0, offset=0
    )


def changed(*records: Any) -> list[tuple[int, dict[str, Any]]]:
    found = list_changes(records, Canonicaliser())
    return [
        (ms, {name: entry and (entry.subject or entry.cidr, entry.until) for name, entry in one.entries.items()})
        for ms, one in found
    ]


def test_changes_by_time() -> None:
    """Each at its time, an import together; taken off, forgotten, unreadable and sent twice."""
    listed = record("user:u1", "{}", 1_000, "1")
    assert changed(
        listed,
        record("203.0.113.0/24", '{"until":9}', 1_500),
        record("user:u1", "", 5_000),
        listed,
        record("user:u2", "{}", 6_000),
        record("user:u2", None, 8_000),
        record("nonsense", "{}", 20_000),
        record("user:u3", "[]", 20_000),
        record("user:u4", "{}", 30_000, kind="pause"),
    ) == [
        (1_000, {"user:u1": ("user:u1", None), "203.0.113.0/24": ("203.0.113.0/24", 9)}),
        (5_000, {"user:u1": None, "user:u2": ("user:u2", None)}),
        (8_000, {"user:u2": None}),
        (20_000, {"nonsense": None, "user:u3": None}),
    ]


def test_who_is_listed_is_not_penalised() -> None:
    """Between listing and taking off nothing is counted; before and after it is as if there were no list."""
    decisions = households(1500)

    def stepped(*changes: tuple[int, ListChange]) -> list[str]:
        canonicaliser = Canonicaliser()  # its names hint at the states of one world
        world = World(Steady(Engine(HOUSEHOLDS, canonicaliser)), place=0, worlds=1)
        entries: list[Any] = [
            (one.ts, 0, at, one, canonicaliser.names(one.subjects), one.ts) for at, one in enumerate(decisions)
        ]
        entries += [(ms, 1, at, change, Names(()), ms) for at, (ms, change) in enumerate(changes)]
        entries.sort(key=lambda entry: entry[:3])
        found: list[str] = []
        for first in range(0, len(entries), 100):
            found += [penalty.subject for _, penalty in world.step(entries[first : first + 100]).penalties]
        return found

    plain = stepped()
    somebody = max(set(plain), key=plain.count)
    (listed,) = list_changes([record(somebody, "{}", 1)], Canonicaliser())
    off = (decisions[-1].ts + 1, ListChange({somebody: None}))
    assert stepped((0, listed[1]), off) == [one for one in plain if one != somebody]
    assert stepped((0, listed[1]), (1, ListChange({somebody: None}))) == plain
    middle = decisions[len(decisions) // 2].ts
    assert 0 < stepped((middle, listed[1])).count(somebody) < plain.count(somebody)
