"""The contract of a subject store, kept by every implementation."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.sinks.subject_store import NEVER, Lost, Mark, Rewound, SubjectStore, Written
from tests.sinks.stores.blobs import HOUR, blob, block, put_first, version, write

if TYPE_CHECKING:
    from tests.sinks.stores.conftest import Rig

A = "ip:203.0.113.7"
B = "user:10086"
NONCE = 1 << 40


async def test_what_was_written_is_read(rig: Rig) -> None:
    """A blob comes back byte for byte with the assigned number in it, and nothing where nothing is stored."""
    store = rig.store()
    body = bytes(range(256))
    before = await rig.now()
    (written,) = await store.write([write(A, nonce=NONCE, body=body)])
    assert isinstance(written, Written)
    assert before <= written.number <= await rig.now()
    assert await store.read([B, A]) == [None, blob(NONCE, body, written.number)]


async def test_nothing_asked_nothing_done(rig: Rig) -> None:
    """Empty sequences are fine."""
    store = rig.store()
    assert await store.read([]) == []
    assert await store.write([]) == []
    await store.settle([])


async def test_numbers_only_rise(rig: Rig) -> None:
    """Each write of a subject gets a higher number, also many within one millisecond."""
    store = rig.store()
    read: tuple[int, int] = (0, 0)
    for i in range(30):
        (written,) = await store.write([write(A, read, nonce=NONCE + i)])
        assert isinstance(written, Written)
        assert written.number > read[0]
        read = (written.number, NONCE + i)


async def test_a_number_ahead_of_the_clock_goes_on(rig: Rig) -> None:
    """A stored number from a clock that ran ahead is counted up, never set back."""
    store = rig.store()
    ahead = await rig.now() + HOUR
    await rig.put(A, blob(1, number=ahead))
    assert await store.write([write(A, (ahead, 1), nonce=NONCE)]) == [Written(ahead + 1)]


async def test_a_lost_race_changes_nothing(rig: Rig) -> None:
    """Of two writers that read the same version the second gets the first one's blob, and its marks stay out."""
    one, two = rig.store(), rig.store()
    first = await put_first(one)
    (won,) = await one.write([write(A, first, nonce=NONCE + 1, marks=(block(b"mine"),))])
    assert isinstance(won, Written)
    (lost,) = await two.write([write(A, first, nonce=NONCE + 2, marks=(block(b"theirs"),))])
    assert lost == Lost(blob(NONCE + 1, number=won.number))
    assert await rig.get(A, "block") == b"mine"


async def test_two_first_writers(rig: Rig) -> None:
    """Of two writers that found nothing, one writes and the other loses."""
    one, two = rig.store(), rig.store()
    first = await put_first(one)
    assert await two.write([write(A, nonce=NONCE + 1)]) == [Lost(first)]


async def test_same_number_other_nonce_is_lost(rig: Rig) -> None:
    """A number that two masters assigned is no version: the nonce decides."""
    store = rig.store()
    await rig.put(A, blob(7, b"other", number=1000))
    assert await store.write([write(A, (1000, 8), nonce=NONCE, marks=())]) == [Lost(blob(7, b"other", 1000))]


async def test_a_write_whose_answer_got_lost_may_be_sent_again(rig: Rig) -> None:
    """The same write twice is one write with one answer, and its marks are not set twice."""
    store = rig.store()
    sent = write(A, nonce=NONCE, marks=(block(b"{}"),))
    (first,) = await store.write([sent])
    assert await rig.store().write([sent]) == [first]
    assert await store.write([sent]) == [first]


async def test_rewound_store_wants_all_marks(rig: Rig) -> None:
    """A store that lost my last write (failover) takes no write without marks, and takes it with them."""
    store = rig.store()
    now = await rig.now()
    old, mine = now - HOUR, (now + HOUR, 4)
    await rig.put(A, blob(3, b"old", number=old))
    assert await store.write([write(A, mine, nonce=NONCE)]) == [Rewound(old)]
    assert await store.read([A]) == [blob(3, b"old", old)]
    (written,) = await store.write([write(A, mine, nonce=NONCE, marks=(block(b"again"),))])
    assert isinstance(written, Written)
    assert written.number > mine[0]
    assert await rig.get(A, "block") == b"again"


async def test_a_newcomer_may_carry_a_number_that_means_nothing(rig: Rig) -> None:
    """A state that was never stored has header bytes too: numbers up to NEVER are no versions, stored ones win."""
    one, two = rig.store(), rig.store()
    (first,) = await one.write([write(A, (NEVER, NEVER), nonce=NONCE)])
    assert isinstance(first, Written)
    assert first.number >= await rig.now() - 60_000
    assert await two.write([write(A, (NEVER, NEVER), nonce=NONCE + 1)]) == [Lost(blob(NONCE, number=first.number))]


async def test_expired_state_is_rewound_too(rig: Rig) -> None:
    """Where nothing is stored any more, a writer that knows a version has to send all marks."""
    store = rig.store()
    ahead = await rig.now() + HOUR
    assert await store.write([write(A, (ahead, 4), nonce=NONCE)]) == [Rewound(0)]
    assert await store.write([write(A, (ahead, 4), nonce=NONCE, marks=())]) == [Written(ahead + 1)]


@pytest.mark.parametrize("lives_ms", [-HOUR, 0, 30])
@pytest.mark.parametrize("ahead_ms", [0, 20])
async def test_expiry_restarts_no_numbers(rig: Rig, lives_ms: int, ahead_ms: int) -> None:
    """A newcomer's number is higher than all before, however soon the state expired, also if it ran ahead."""
    store = rig.store()
    await store.join_generation()
    numbers = []
    for nonce in range(1, 6):
        now = await rig.now()
        read = (now + ahead_ms, 7) if ahead_ms else (0, 0)
        (written,) = await store.write([write(A, read, nonce=nonce, end=now + lives_ms, marks=())])
        assert isinstance(written, Written)
        numbers.append(written.number)
        while (await store.read([A])) != [None]:
            assert await rig.now() < now + 5000
    assert numbers == sorted(set(numbers))


async def test_a_foreign_value_is_handed_to_the_reader(rig: Rig) -> None:
    """Bytes too short for a header are nobody's to overwrite: the codec shall judge them."""
    await rig.put(A, b"short")
    assert await rig.store().write([write(A, nonce=NONCE)]) == [Lost(b"short")]


async def test_many_subjects_in_one_call(rig: Rig) -> None:
    """Results come in the order of the writes, whatever each of them is."""
    store = rig.store()
    subjects = [f"user:{i}" for i in range(1500)]
    first = await store.write([write(subject, nonce=NONCE + i) for i, subject in enumerate(subjects)])
    reads = [[(0, 0), (1 << 44, 1), (first[i].number, NONCE + i)][i % 3] for i in range(1500)]
    again = [write(subject, reads[i], nonce=i + 1) for i, subject in enumerate(subjects)]
    results = await store.write(again)
    kinds = [type(result) for result in results]
    assert kinds == [Lost, Rewound, Written] * 500
    read = await store.read(subjects)
    assert [version(stored)[1] for stored in read] == [i + 1 if i % 3 == 2 else NONCE + i for i in range(len(subjects))]


async def test_each_subject_gets_its_own_marks(rig: Rig) -> None:
    """Different numbers of marks, written or lost, in one call end up beside their own subjects."""
    store = rig.store()
    names = ("block", "challenge", "trust", "pass")
    await put_first(store, "user:1")
    sent = [
        write(f"user:{i}", nonce=i + 2, marks=tuple(Mark(name, f"{i}{name}".encode(), None) for name in names[:i]))
        for i in range(5)
    ]
    results = await store.write(sent)
    assert [type(result) for result in results] == [Written, Lost, Written, Written, Written]
    for i in (0, 2, 3, 4):
        stored = [await rig.get(f"user:{i}", name) for name in names]
        assert stored == [f"{i}{name}".encode() if n < i else None for n, name in enumerate(names)]
    assert await rig.get("user:1", "block") is None


async def test_indexed_and_done_in_one_call(rig: Rig) -> None:
    """A subject that one call first indexes and then un-indexes isn't left in the index."""
    store = rig.store()
    await store.write([write(A, nonce=1, pending=True), write(A, (1 << 44, 1), nonce=2, marks=())])
    assert await store.pending(0) == []


async def test_a_subject_twice_in_one_call(rig: Rig) -> None:
    """The second write of a subject in one call sees the first."""
    store = rig.store()
    first, second = await store.write([write(A, nonce=NONCE), write(A, nonce=NONCE + 1)])
    assert isinstance(first, Written)
    assert second == Lost(blob(NONCE, number=first.number))


async def test_two_writers_lose_nothing(rig: Rig) -> None:
    """5,000 increments by two clients over the same 50 subjects all arrive."""
    subjects = [f"device:{i}" for i in range(50)]

    async def increment(store: SubjectStore, seed: int) -> None:
        nonce = seed
        cache: list[bytes | None] = await store.read(subjects)
        todo = dict.fromkeys(range(50), 50)
        while todo:
            batch = list(todo)
            nonce += 1
            sent = []
            for i in batch:
                count = int.from_bytes((cache[i] or b"")[20:]) + 1
                sent.append(write(subjects[i], cache[i], nonce=nonce, body=count.to_bytes(4)))
            for i, mine, result in zip(batch, sent, await store.write(sent), strict=True):
                if isinstance(result, Written):
                    cache[i] = mine.blob[:3] + result.number.to_bytes(8) + mine.blob[11:]
                    todo[i] -= 1
                    if not todo[i]:
                        del todo[i]
                else:
                    assert isinstance(result, Lost)
                    cache[i] = result.current
            await asyncio.sleep(0)

    one, two = rig.store(), rig.store()
    await one.join_generation()
    await asyncio.gather(increment(one, 1 << 40), increment(two, 1 << 41))
    counts = [int.from_bytes((stored or b"")[20:]) for stored in await one.read(subjects)]
    assert counts == [100] * 50


async def test_ends_are_exact(rig: Rig) -> None:
    """State and marks end at the millisecond that was asked for; permanent ones have no end at all."""
    store = rig.store()
    now = await rig.now()
    marks = (block(b"b", now + 5001), Mark("challenge", b"c", None), Mark("pass", b"p", now + 7003))
    (first,) = await store.write([write(A, nonce=NONCE, end=now + HOUR, marks=marks)])
    assert isinstance(first, Written)
    assert await rig.end_of(A, "state") == now + HOUR
    assert await rig.end_of(A, "block") == now + 5001
    assert await rig.end_of(A, "challenge") is None
    assert await rig.end_of(A, "pass") == now + 7003
    await store.write([write(A, (first.number, NONCE), nonce=NONCE + 1, marks=(block(b"b"),))])
    assert await rig.end_of(A, "state") is None
    assert await rig.end_of(A, "block") is None


async def test_a_block_past_its_end_is_not_written(rig: Rig) -> None:
    """A mark whose end has passed (an old log is replayed) is not written, and removes one that is there."""
    store = rig.store()
    now = await rig.now()
    (first,) = await store.write([write(A, nonce=NONCE, marks=(block(b"old", now - 1),))])
    assert isinstance(first, Written)
    assert await rig.get(A, "block") is None
    (second,) = await store.write([write(A, (first.number, NONCE), nonce=NONCE + 1, marks=(block(b"new"),))])
    assert isinstance(second, Written)
    await store.write([write(A, (second.number, NONCE + 1), nonce=NONCE + 2, marks=(block(b"old", now - 1),))])
    assert await rig.get(A, "block") is None


async def test_marks_are_set_deleted_or_left_alone(rig: Rig) -> None:
    """A mark with None is deleted, one that isn't named stays, and marks=None touches none."""
    store = rig.store()
    (first,) = await store.write([write(A, nonce=1, marks=(block(b"b"), Mark("trust", b"t", None)))])
    assert isinstance(first, Written)
    (second,) = await store.write([write(A, (first.number, 1), nonce=2)])
    assert isinstance(second, Written)
    assert (await rig.get(A, "block"), await rig.get(A, "trust")) == (b"b", b"t")
    (third,) = await store.write([write(A, (second.number, 2), nonce=3, marks=(block(None),))])
    assert isinstance(third, Written)
    assert (await rig.get(A, "block"), await rig.get(A, "trust")) == (None, b"t")


async def test_changed_blocks_are_announced(rig: Rig) -> None:
    """A new, changed or lifted block or challenge is announced once; an unchanged one, trust and pass are not."""
    store = rig.store()
    assert await rig.announced() == []
    read, end = (0, 0), await rig.now() + HOUR
    steps: list[tuple[Mark, ...] | None] = [
        (block(b"1", end), Mark("challenge", b"1", None)),
        (block(b"1", end), Mark("challenge", b"1", None)),
        None,
        (Mark("pass", b"1", None), Mark("trust", b"1", None)),
        (block(b"2"),),
        (block(None),),
        (block(None),),
        (block(b"3", end - 2 * HOUR),),
    ]
    for nonce, marks in enumerate(steps, 1):
        (written,) = await store.write([write(A, read, nonce=nonce, marks=marks)])
        assert isinstance(written, Written)
        read = (written.number, nonce)
    assert await rig.announced() == [A, A, A]


async def test_pending_subjects_are_found_until_they_are_done(rig: Rig) -> None:
    """A write with a full outbox indexes its subject, the one that empties it un-indexes; oldest come first."""
    store, sweeper = rig.store(), rig.store()
    results = []
    for i in range(3):
        start = await rig.now()
        results += await store.write([write(f"user:{i}", nonce=NONCE, pending=True)])
        while await rig.now() <= start:
            pass
    await store.write([write("user:9", nonce=NONCE)])
    assert await sweeper.pending(0) == ["user:0", "user:1", "user:2"]
    assert await sweeper.pending(0, limit=2) == ["user:0", "user:1"] or rig.kind == "cluster"
    assert await sweeper.pending(HOUR) == []
    assert isinstance(results[1], Written)
    await store.write([write("user:1", (results[1].number, NONCE), nonce=NONCE + 1)])
    assert await store.pending(0) == ["user:0", "user:2"]


async def test_settling_takes_out_what_is_gone_only(rig: Rig) -> None:
    """A subject of which something is stored stays indexed: its outbox may be full."""
    store = rig.store()
    await store.write([write(A, nonce=1, pending=True), write(B, nonce=1, pending=True)])
    await rig.put(A, None)
    await store.settle([A, B, "user:never"])
    assert await store.pending(0) == [B]


async def test_pause_and_resume(rig: Rig) -> None:
    """A pause is seen by everyone until it is ended."""
    store = rig.store()
    assert await store.pause_reason() is None
    await store.pause("500 new blocks in a minute", "breaker", 1766400000123)
    assert await rig.store().pause_reason() == "500 new blocks in a minute"
    await store.resume()
    assert await store.pause_reason() is None


@pytest.mark.parametrize("subject", ["user:a}:state", "user:{b", "user:}", ""])
async def test_a_hostile_subject_forges_no_key(rig: Rig, subject: str) -> None:
    """A subject that isn't canonical is refused before anything is sent."""
    store = rig.store()
    with pytest.raises(PenaltyboxError, match="canonical"):
        await store.write([write(A, nonce=NONCE), write(subject, nonce=NONCE)])
    with pytest.raises(PenaltyboxError, match="canonical"):
        await store.read([subject])
    assert await store.read([A]) == [None]


@pytest.mark.parametrize("subject", ["user:a%7D%3Astate", "user:%00", "device+scenario:d1+coupon", "ip:2001:db8::/64"])
async def test_a_canonical_subject_is_only_itself(rig: Rig, subject: str) -> None:
    """Encoded hostile values are ordinary subjects with keys of their own."""
    store = rig.store()
    await put_first(store, subject)
    assert version((await store.read([subject]))[0])[1] == NONCE
    assert await store.read(["user:a", "user:", "device:d1"]) == [None] * 3
