"""The ring of changes: who may go on from where."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.producers.feed.change_log import ChangeLog
from penaltybox.producers.feed.lines import InForce, Line
from penaltybox.producers.feed.mirror import Mirror

DENY = (InForce("deny", None),)


def test_nobody_goes_on_from_what_is_gone() -> None:
    """A cursor is good as long as every change after it is kept; not from the future, another epoch, or nonsense."""
    log = ChangeLog(3)
    start = log.cursor(0)
    assert log.position(start) == 0
    for number in range(4):
        log.append(("subject", f"user:{number}"), DENY)
    assert log.position(start) is None
    assert log.after(0, 9) is None
    assert [log.position(log.cursor(number)) for number in (1, 4, 5)] == [1, 4, None]
    assert log.position("") is None
    assert log.position("0" * 16 + "-2") is None
    assert log.position(log.cursor(2) + "\n") is None
    before = log.cursor(4)
    log.restart()
    assert log.position(before) is None


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=40),
    st.integers(1, 7),
    st.integers(0, 40),
)
def test_the_tail_completes_what_was_known(changes: list[tuple[int, bool]], most: int, cut: int) -> None:
    """Wherever a reader was cut off, the changes after its cursor lead to what everybody knows."""
    log, whole, part = ChangeLog(64), Mirror(), Mirror()
    for number, (who, denied) in enumerate(changes):
        name = ("subject", f"user:{who}")
        log.append(name, DENY if denied else ())
        lines = log.after(log.last - 1, 1)
        assert lines is not None
        line = msgspec.json.decode(lines[0], type=Line)
        whole.take(line)
        if number < cut:
            part.take(line)
    position = log.position(part.cursor or log.cursor(0))
    assert position is not None
    while lines := log.after(position, most):
        position += len(lines)
        for one in lines:
            part.take(msgspec.json.decode(one, type=Line))
    assert part.names == whole.names


@pytest.mark.parametrize("again", [False, True])
def test_a_list_that_breaks_off_changes_nothing(again: bool) -> None:
    """Until `synced` what was known holds; then only what came since `resync`."""
    mirror = Mirror()
    mirror.names = {("subject", "user:a"): DENY, ("range", "192.0.2.0/24"): DENY}
    mirror.take(Line("resync"))
    mirror.take(Line("add", "subject", "user:b", DENY))
    assert ("subject", "user:a") in mirror.names
    if again:
        mirror.broken_off()
        assert not mirror.take(Line("synced", cursor="x"))
        assert ("subject", "user:a") in mirror.names
    else:
        assert mirror.take(Line("synced", cursor="x"))
        assert (mirror.names, mirror.cursor) == ({("subject", "user:b"): DENY}, "x")


def test_what_has_ended_is_forgotten_by_itself() -> None:
    """No line says that a block ran out; of two things in force one may end before the other."""
    mirror = Mirror()
    both = (InForce("deny", 10), InForce("challenge", 20))
    mirror.take(Line("add", "subject", "user:a", both, cursor="e-1"))
    assert not mirror.expire(9)
    assert mirror.expire(10)
    assert mirror.names["subject", "user:a"] == both[1:]
    assert mirror.expire(20)
    assert not mirror.names


def test_changes_are_told_once() -> None:
    """Of a whole list what differs from the one before; what ended; what is gone, as nothing in force."""
    mirror = Mirror()
    for line in (Line("resync"), Line("add", "subject", "user:a", DENY), Line("add", "subject", "user:b", DENY)):
        mirror.take(line)
    assert mirror.changes() == {}
    mirror.take(Line("synced", cursor="e-1"))
    assert mirror.changes() == {("subject", "user:a"): DENY, ("subject", "user:b"): DENY}
    ends = (InForce("deny", 10),)
    for line in (Line("resync"), Line("add", "subject", "user:a", DENY), Line("add", "subject", "user:c", ends)):
        mirror.take(line)
    mirror.take(Line("synced", cursor="e-2"))
    assert mirror.changes() == {("subject", "user:b"): (), ("subject", "user:c"): ends}
    assert mirror.expire(10)
    assert (mirror.changes(), mirror.changes()) == ({("subject", "user:c"): ()}, {})


def test_ends_that_mean_nothing_do_not_pile_up() -> None:
    """A block that is put off again and again ends when the last word says, and its old ends are dropped."""
    mirror = Mirror()
    for number in range(5000):
        mirror.take(Line("add", "subject", "user:a", (InForce("deny", 10 + number),), cursor=f"e-{number}"))
    assert len(mirror._ends) < 2000
    assert not mirror.expire(5008)
    assert mirror.expire(5009)
