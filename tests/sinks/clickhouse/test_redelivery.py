from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.sinks.clickhouse import queries, rollups
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.servers import fresh_name
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.worlds import (
    DAY_MS,
    HOUR_MS,
    T0_MS,
    World,
    batch,
    decision,
    letter,
    outcome,
    probed,
    random_world,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pyarrow as pa

    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.sinks.clickhouse.records import Batch
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = pytest.mark.stack
Answers = dict[str, list[dict[str, Any]]]
END_MS = T0_MS + 70 * DAY_MS
SPAN_MS = 4 * HOUR_MS
TABLES = ("decisions", "outcomes", "penalties", "dead_letters")
VALUES: dict[str, int | str] = {"from": 1, "to": END_MS, "as_of": END_MS, "matures_s": 3600, "by": "ip"}
VALUES |= {"prefix": "", "change": T0_MS + SPAN_MS // 2}


def batches(world: World, **place: Any) -> list[Batch]:
    return [
        batch("decisions", list(world.decisions), **place),
        batch("outcomes", list(world.outcomes), **place),
        batch("penalties", list(world.penalties), **place),
        batch("dead_letters", [letter(n) for n in range(40)], **place),
    ]


def store(writer: Writer, given: list[Batch]) -> None:
    for one in given:
        writer.store(writer.prepare(one))


def answers(
    clickhouse: ClickHouse, names: Iterable[str] = queries.QUERIES, values: Mapping[str, int | str] = VALUES
) -> Answers:
    """What shipped queries say, with floats rounded: sums over merged parts may differ in the last bit.

    Planning them is what takes time, so two connections ask, half of them each.
    """
    names = list(names)
    with ThreadPoolExecutor(2) as pool:
        halves = list(pool.map(lambda half: _answers(clickhouse, half, dict(values)), (names[::2], names[1::2])))
    return halves[0] | halves[1]


def _answers(clickhouse: ClickHouse, names: list[str], values: dict[str, int | str]) -> Answers:
    found = {}
    with closing(ClickHouse(clickhouse._url, clickhouse.database, answer_s=PATIENT_S)) as own:
        for name in names:
            rows = queries.run(own, name, values)
            rounded = [
                {k: round(v, 9) if isinstance(v, float) else v for k, v in row.items() if k != "kinds"} for row in rows
            ]
            found[name] = sorted(rounded, key=repr)
    return found


@pytest.fixture(scope="module")
def world() -> World:
    """A world that crosses into a second month in the middle of a batch, back and forth."""
    world = random_world(7, requests=300, span_ms=SPAN_MS)
    rng = random.Random(7)
    moved = [decision(10_000 + n, ts=T0_MS + rng.choice([0, 40]) * DAY_MS + n) for n in range(200)]
    farm = [decision(20_000 + n, subjects={"user": f"f{n % 9}", "device": "farm"}) for n in range(40)]
    drawn = probed()
    passed = [structs.replace(outcome(20_000, "challenge_passed", drawn[0].ts + 5_000, user="p0"), ref=drawn[0].id)]
    return world._replace(decisions=[*world.decisions, *moved, *farm, *drawn], outcomes=[*world.outcomes, *passed])


@pytest.fixture(scope="module")
def told_once(clickhouse_server: ClickHouseServer, world: World) -> Answers:
    """What every query says after one delivery."""
    with closing(ClickHouse(clickhouse_server.url, fresh_name("once").replace("-", "_"), answer_s=PATIENT_S)) as made:
        migrate(made)
        store(new_writer(made), batches(world))
        want = answers(made)
        made.command(f"DROP DATABASE {made.database}")
    assert all(want.values())
    return want


def same_batch_twice_and_by_another_process(writer: Writer, clickhouse: ClickHouse, world: World) -> None:
    store(writer, batches(world))
    store(writer, batches(world))
    store(new_writer(clickhouse), batches(world))


def overlapping_batches(writer: Writer, clickhouse: ClickHouse, world: World) -> None:
    for whole in batches(world):
        cut = len(whole.records) // 2
        store(writer, [whole._replace(records=whole.records[: cut + 9])])
        store(writer, [whole._replace(records=whole.records[cut - 9 : cut + 20])])
        store(new_writer(clickhouse), [whole._replace(records=whole.records[cut:])])


def a_crash_after_every_insert(writer: Writer, clickhouse: ClickHouse, world: World) -> None:
    """Each process dies after one more insert than the one before, and reads everything again."""
    for survived in range(4):
        for whole in batches(world):
            dying = new_writer(clickhouse)
            prepared = dying.prepare(whole)
            del prepared.parts[survived:]
            dying.store(prepared)
    store(writer, batches(world))


def a_new_incarnation_from_offset_0(writer: Writer, _clickhouse: ClickHouse, world: World) -> None:
    store(writer, batches(world))
    half = World(*(events[: len(events) // 2] for events in world))
    store(writer, batches(half, incarnation="i2")[:3])


def published_twice_under_other_offsets(writer: Writer, _clickhouse: ClickHouse, world: World) -> None:
    store(writer, batches(world))
    store(writer, batches(world, first=5000)[:3])
    store(writer, batches(world, partition=3)[:3])
    store(writer, [batch("dead_letters", [letter(n) for n in range(40)], first=700)])


def a_file_read_twice(writer: Writer, _clickhouse: ClickHouse, world: World) -> None:
    """The same ids again, in another order and other batches."""
    store(writer, batches(world))
    again = random.Random(3).sample(world.decisions, len(world.decisions))
    for start in range(0, len(again), 70):
        store(writer, [batch("decisions", list(again[start : start + 70]), first=9000 + start)])


@pytest.mark.parametrize(
    "story",
    [
        same_batch_twice_and_by_another_process,
        overlapping_batches,
        a_crash_after_every_insert,
        a_new_incarnation_from_offset_0,
        published_twice_under_other_offsets,
        a_file_read_twice,
    ],
)
def test_every_shipped_query_answers_as_if_all_came_once(
    clickhouse: ClickHouse, told_once: Answers, world: World, story: Callable[[Writer, ClickHouse, World], None]
) -> None:
    """Whatever comes again, every query says what it says after one delivery, before and after merges and roll-ups."""
    story(new_writer(clickhouse), clickhouse, world)
    assert answers(clickhouse) == told_once
    rollups.refresh(clickhouse, T0_MS, quiet_s=0)
    for table in TABLES:
        clickhouse.command(f"OPTIMIZE TABLE {table} FINAL")
    rollups.refresh(clickhouse, T0_MS, quiet_s=0)
    assert answers(clickhouse) == told_once


def test_what_is_stored_is_dropped_before_the_insert(clickhouse: ClickHouse, writer: Writer, world: World) -> None:
    """A redelivered batch inserts nothing: the watermark of its partition and incarnation has passed it."""
    whole = batch("decisions", list(world.decisions))
    writer.store(writer.prepare(whole))
    again = new_writer(clickhouse).prepare(whole)
    assert (again.rows, again.repeated, again.parts) == (0, len(world.decisions), [])
    other = new_writer(clickhouse).prepare(whole._replace(incarnation="i2"))
    assert (other.rows, other.repeated) == (len(world.decisions), 0)


def test_a_crash_between_two_months_skips_nothing(clickhouse: ClickHouse, writer: Writer) -> None:
    """Months alternate record by record; after the first month's insert the watermark claims none of the batch."""
    mixed = batch("decisions", [decision(n, ts=T0_MS + (n % 2) * 40 * DAY_MS + n) for n in range(100)], first=50)
    prepared = writer.prepare(mixed)
    assert [part.num_rows for part in prepared.parts] == [50, 50]
    del prepared.parts[1]
    writer.store(prepared)
    assert new_writer(clickhouse).watermark("decisions", "i1", 0) == 49
    writer.store(writer.prepare(mixed))
    assert new_writer(clickhouse).watermark("decisions", "i1", 0) == 149
    assert clickhouse.rows("SELECT count() AS n FROM decisions FINAL")[0]["n"] == 100


def test_old_events_stay(clickhouse: ClickHouse, writer: Writer) -> None:
    """Rows expire by the time they were stored: a log of 2015 survives its merges."""
    writer.store(writer.prepare(batch("decisions", [decision(n, ts=1_431_857_103_000 + n) for n in range(5)])))
    clickhouse.command("OPTIMIZE TABLE decisions FINAL")
    assert clickhouse.rows("SELECT count() AS n FROM decisions FINAL")[0]["n"] == 5


def test_one_insert_is_one_part(clickhouse: ClickHouse, writer: Writer) -> None:
    """A whole batch of one month becomes one part: stored in full or not at all."""
    clickhouse.command("SYSTEM STOP MERGES decisions")
    try:
        writer.store(writer.prepare(batch("decisions", [decision(n) for n in range(30_000)])))
        parts = clickhouse.rows(
            "SELECT rows FROM system.parts WHERE database = currentDatabase() AND table = 'decisions' AND active"
        )
    finally:
        clickhouse.command("SYSTEM START MERGES decisions")
    assert [part["rows"] for part in parts] == [30_000]


def test_the_watermark_is_read_from_the_projection(clickhouse: ClickHouse, writer: Writer) -> None:
    """Assignment must not scan the table: the plan reads the small projection."""
    writer.store(writer.prepare(batch("decisions", [decision(n) for n in range(2000)])))
    plan = clickhouse.rows(
        "EXPLAIN SELECT max(stored_through) FROM decisions WHERE incarnation = 'i1' AND kafka_partition = 0 "
        "GROUP BY incarnation, kafka_partition"
    )
    assert "watermarks" in str(plan)


def test_a_failed_insert_is_repeated_where_it_failed(clickhouse: ClickHouse, world: World) -> None:
    """An outage in the middle of a batch raises StoreUnavailable; storing the same batch again completes it."""
    flaky = Flaky(clickhouse, failures=2)
    writer = new_writer(flaky)  # type: ignore[arg-type]
    prepared = writer.prepare(batch("decisions", list(world.decisions)))
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            writer.store(prepared)
    writer.store(prepared)
    assert clickhouse.rows("SELECT count() AS n FROM decisions")[0]["n"] == len(world.decisions)


class Flaky:
    """A database whose second insert fails a few times."""

    def __init__(self, clickhouse: ClickHouse, failures: int) -> None:
        self._clickhouse = clickhouse
        self._inserts = 0
        self._failures = failures
        self.rows = clickhouse.rows

    def insert(self, table: str, rows: pa.Table) -> None:
        self._inserts += 1
        if 1 < self._inserts <= 1 + self._failures:
            raise StoreUnavailable("away")
        self._clickhouse.insert(table, rows)
