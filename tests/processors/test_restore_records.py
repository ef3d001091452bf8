"""What stands in the topics that a restore reads: also what nobody of ours has written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.events import Control, Hold, Ladder, encode
from penaltybox.processors.generations import read_control
from penaltybox.processors.put_back import newest_controls
from penaltybox.processors.restore import newest_ladders
from penaltybox.processors.state import NEVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

JUNK = [b"", b"junk", b"{}", b"\xff\xfe", b'{"v":2}', b"[" * 5000, b'{"a":' + b"[" * 5000]


def record(value: bytes | None, key: bytes | None = b"user:1") -> Any:
    return SimpleNamespace(key=key, value=value, partition=0, offset=7)


async def topic(*records: Any) -> AsyncIterator[Any]:
    for one in records:
        yield one


def ladder(number: int, subject: str = "user:1", **changed: Any) -> bytes:
    return encode(
        Ladder(**{"subject": subject, "seq": NEVER + number, "ts": 1, "rung": "5m", "at": 1, "end": 2, **changed})
    )


@pytest.mark.parametrize("junk", JUNK)
async def test_a_record_that_is_no_ladder_costs_only_itself(junk: bytes) -> None:
    """At the worst of times one foreign record must not keep all blocks from coming back."""
    found = await newest_ladders(
        topic(record(ladder(3)), record(junk), record(junk, None), record(ladder(2, "user:2")))
    )
    assert {subject: one.seq - NEVER for subject, one in found.items()} == {"user:1": 3, "user:2": 2}


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": ""},
        {"subject": "user:"},
        {"subject": "user:a}:block{"},
        {"subject": "user:a b"},
        {"seq": 5},
        {"seq": -1},
        {"seq": 1 << 54},
        {"seq": 1 << 70},
        {"end": 1 << 62},
        {"at": -5},
        {"grace_until": 1 << 70},
        {"deny": Hold(1 << 62, "5m", "r", "p")},
        {"shared": [(1 << 70, 1)]},
    ],
    ids=str,
)
async def test_a_ladder_that_nobody_could_use_costs_only_itself(changed: dict[str, Any]) -> None:
    """Written back, it would be a damaged state, and end every worker that reads it; or a key of somebody else's."""
    bad = ladder(9, **changed)
    found = await newest_ladders(topic(record(ladder(3)), record(bad), record(ladder(2, "ip:2001:db8::/64"))))
    assert {subject: one.seq - NEVER for subject, one in found.items()} == {"user:1": 3, "ip:2001:db8::/64": 2}


async def test_tombstones_take_away_what_came_before() -> None:
    """Also one without a key, or with one that is no text, harms nobody else."""
    found = await newest_ladders(
        topic(record(ladder(3)), record(None, None), record(None, b"\xff"), record(None), record(ladder(2, "user:2")))
    )
    assert list(found) == ["user:2"]


@pytest.mark.parametrize("junk", JUNK)
def test_a_record_that_is_no_control_is_none(junk: bytes) -> None:
    """A newer release's kind, or junk, is left out: every worker reads this topic when it starts."""
    assert read_control(record(junk)) is None
    control = Control(id="1", ts=1, key="generation", kind="restore", value="g")
    assert read_control(record(encode(control))) == control
    assert read_control(record(encode(control).replace(b'"restore"', b'"something-new"'))) is None


async def test_a_record_that_comes_again_is_not_the_newest() -> None:
    """Sent twice because nobody knew whether it had arrived, behind what came later, or behind a tombstone."""
    listed = record(encode(Control(id="1", ts=1, key="allow:user:1", kind="allow", value="{}")), b"allow:user:1")
    off = record(encode(Control(id="2", ts=2, key="allow:user:1", kind="allow")), b"allow:user:1")
    plan = record(encode(Control(id="3", ts=3, key="plan:user:2", kind="override", value="{}")), b"plan:user:2")
    found = await newest_controls(topic(listed, off, listed, plan, record(None, b"plan:user:2"), plan))
    assert {key: one.id for key, one in found.items()} == {"allow:user:1": "2"}
