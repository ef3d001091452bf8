"""What is remembered is bounded, and an answer that was overtaken by a change is recognised."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penaltybox.links.listening import fresh
from penaltybox.producers.aggregation import MAX_COUNT, Aggregation, Refusal
from penaltybox.producers.caches import MAX_IDENTITIES, BlockedCache, Held, Moment, Recalls
from tests.producers.deciders import request


def refusal(subject: str = "ip:192.0.2.1", action: Any = "deny") -> Refusal:
    reason: Any = "blocklist" if action == "deny" else "challenged"
    return Refusal(subject, action, reason, 403, cached=True, retry_after_s=1, established=None)


def held(subject: str = "user:u", read_ms: int = 0, until_ms: int | None = None) -> Held:
    return Held(subject, "deny", "blocklist", 403, read_ms=read_ms, until_ms=until_ms, permanent=until_ms is None)


@given(st.lists(st.one_of(st.sampled_from("abcdefgh"), st.none()), max_size=30), st.integers(0, 30), st.sets(
    st.sampled_from("abcdefgh"), min_size=1, max_size=3,
))  # fmt: skip
def test_no_change_is_overlooked(changes: Any, asked_after: int, subjects: set[str]) -> None:
    """A change of a subject (or of all, None) after the question is always seen, also when only three are kept.

    With room for all of them, nothing else is.
    """
    small, large = Recalls(most=3), Recalls()
    asked_after = min(asked_after, len(changes))
    for change in changes[:asked_after]:
        note(small, change)
        note(large, change)
    moment = Moment(0, asked_after)
    for change in changes[asked_after:]:
        note(small, change)
        note(large, change)
    changed = any(change is None or change in subjects for change in changes[asked_after:])
    assert large.since(subjects, moment) == changed
    assert small.since(subjects, moment) >= changed


def note(recalls: Recalls, change: str | None) -> None:
    if change is None:
        recalls.note_all()
    else:
        recalls.note(change)


def test_what_was_read_or_heard_a_second_ago_is_not_believed() -> None:
    """Fresh is what was read, or of which all changes were heard, within the last second."""
    assert fresh(read_ms=0, heard_ms=None, now_ms=999)
    assert not fresh(read_ms=0, heard_ms=None, now_ms=1_000)
    assert fresh(read_ms=0, heard_ms=50_000, now_ms=50_999)
    assert not fresh(read_ms=0, heard_ms=50_000, now_ms=51_000)
    assert fresh(read_ms=60_000, heard_ms=50_000, now_ms=60_500)


def test_a_block_is_forgotten_at_its_end_and_at_the_bound() -> None:
    """An ended block leaves the memory when it is looked for; at the bound the least recently seen goes."""
    cache = BlockedCache(max_subjects=2)
    cache.remember(held("user:a", until_ms=500))
    assert cache.find("user:a", 499, None) is not None
    assert cache.find("user:a", 500, None) is None
    assert len(cache) == 0
    for name in ("user:a", "user:b"):
        cache.remember(held(name))
    cache.find("user:a", 1, None)
    cache.remember(held("user:c"))
    assert [cache.find(name, 1, None) is not None for name in ("user:a", "user:b", "user:c")] == [True, False, True]


def test_users_of_a_block_are_bounded() -> None:
    """However often a block is read for other users, it knows at most 64 of them."""
    cache = BlockedCache()
    for number in range(500):
        one = held()
        one.established[f"u{number}"] = None
        cache.remember(one)
    found = cache.find("user:u", 1, None)
    assert found is not None
    assert len(found.established) <= MAX_IDENTITIES


def test_a_record_stands_for_a_million_at_most() -> None:
    """More denials than a record can stand for are told in several."""
    told: list[Any] = []
    aggregation = Aggregation("edge/1", told.append)
    asked, answer = request(1), refusal()
    aggregation.add(asked, answer)
    next(iter(aggregation._buckets.values())).count = MAX_COUNT - 1
    aggregation.add(asked, answer)
    assert [one.count for one in told] == [MAX_COUNT]
    aggregation.add(asked, answer)
    assert [one.count for one in aggregation.flush()] == [1]


def test_records_in_the_making_are_bounded() -> None:
    """Of more blocked subjects than fit, the oldest records are told early; none is lost."""
    told: list[Any] = []
    aggregation = Aggregation("edge/1", told.append, max_buckets=10)
    for number in range(100):
        subject = {"ip": f"192.0.2.{number}"}
        for _ in range(2):
            aggregation.add(request(number, subjects=subject), refusal(f"ip:192.0.2.{number}"))
        assert len(aggregation) <= 10
    assert len(told) == 90
    told += aggregation.flush()
    assert [one.count for one in told] == [2] * 100


def test_challenges_are_told_together_only_for_the_same_subjects() -> None:
    """A challenge can be charged to somebody, so no device pays for another's."""
    aggregation = Aggregation("edge/1", lambda _: None)
    for number in range(6):
        subjects = {"user": "u", "device": f"d{number % 2}"}
        aggregation.add(request(number, subjects=subjects), refusal("user:u", "challenge"))
    assert [(one.subjects["device"], one.count) for one in aggregation.flush()] == [("d0", 3), ("d1", 3)]
