from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from penaltybox.contracts.errors import StoreUnavailable
from penaltybox.sinks.clickhouse import migrations, queries, rollups
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.test_redelivery import SPAN_MS, VALUES, answers, batches, store
from tests.sinks.clickhouse.worlds import (
    DAY_MS,
    HOUR_MS,
    T0_MS,
    World,
    batch,
    decision,
    denial,
    outcome,
    probed,
    random_world,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = pytest.mark.stack
NOW_MS = T0_MS + DAY_MS
FEW = ("decisions_per_minute", "episodes", "shared_ips")
COUNT = "SELECT sum(decisions) AS n FROM decisions_per_minute(from = '2025-12-01 00:00:00', to = '2026-01-01 00:00:00')"


def build(clickhouse: ClickHouse) -> int:
    return rollups.refresh(clickhouse, NOW_MS, quiet_s=0)


def counted(clickhouse: ClickHouse) -> int:
    return int(clickhouse.rows(COUNT)[0]["n"])


def farmed(world: World) -> World:
    """With a farm in it, so that every query has something to say."""
    farm = [decision(20_000 + n, subjects={"user": f"f{n % 9}", "device": "farm"}) for n in range(40)]
    return world._replace(decisions=[*world.decisions, *farm])


def test_rollups_change_no_answer(clickhouse: ClickHouse, writer: Writer) -> None:
    """Every shipped query says the same from rows, from roll-ups, and from both."""
    store(writer, batches(farmed(random_world(1, 300, SPAN_MS))))
    want = answers(clickhouse)
    for group in rollups.by_hour(rollups.stale_slots(clickhouse, 0)[::3]):
        rollups.build(clickhouse, group, NOW_MS)
    assert answers(clickhouse, FEW) == {name: want[name] for name in FEW}
    assert build(clickhouse) > 12
    assert answers(clickhouse) == want


@pytest.mark.parametrize("few", [0, 150, 1_000_000])
def test_few_rows_and_many_are_read_alike(clickhouse: ClickHouse, writer: Writer, few: int) -> None:
    """What no roll-up covers gives the same by hash and FINAL, whatever came again; of two versions the last counts."""
    world = farmed(random_world(4, 300, SPAN_MS))
    store(writer, batches(world))
    clickhouse.command("INSERT INTO rollup_settings (name, value) VALUES ('few_rows', 0)")
    want = answers(clickhouse)
    clickhouse.command(f"INSERT INTO rollup_settings (name, value) VALUES ('few_rows', {few})")  # noqa: S608 - a number
    store(writer, batches(world, first=5000)[:1])
    store(writer, batches(world, incarnation="i2")[:1])
    assert answers(clickhouse) == want
    again = [structs.replace(one, scenario="corrected") for one in world.decisions[::3]]
    store(writer, [batch("decisions", [*again, *again[:9]], first=20_000)])
    (found,) = clickhouse.rows(COUNT.replace("(decisions)", "(if(scenario = 'corrected', decisions, 0))"))
    assert found["n"] == len(again)
    assert counted(clickhouse) == len(world.decisions)


def test_a_period_may_cut_a_slot(clickhouse: ClickHouse, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """From and to in the middle of ten minutes: the pieces at the ends are read from the rows."""
    store(writer, batches(farmed(random_world(2, 300, SPAN_MS))))
    period = {"from": T0_MS + HOUR_MS // 2 + 123_456, "to": T0_MS + 3 * HOUR_MS + 1}
    monkeypatch.setattr("tests.sinks.clickhouse.test_redelivery.VALUES", VALUES | period)
    want = answers(clickhouse, FEW)
    build(clickhouse)
    assert answers(clickhouse, FEW) == want


def test_what_comes_late_is_in_the_next_answer(clickhouse: ClickHouse, writer: Writer) -> None:
    """A row for a slot that has a roll-up counts at once, and only its slot is built again."""
    store(writer, [batch("decisions", [decision(n, ts=T0_MS + n * 60_000) for n in range(100)])])
    assert build(clickhouse) == 10
    store(writer, [batch("decisions", [denial(500, ts=T0_MS + 90_000)], first=100)])
    assert counted(clickhouse) == 101
    assert [slot.start_s for slot in rollups.stale_slots(clickhouse, 0)] == [T0_MS // 1000]
    assert build(clickhouse) == 1
    assert counted(clickhouse) == 101


def test_what_comes_again_is_not(clickhouse: ClickHouse, writer: Writer) -> None:
    """An event published again under another offset makes its slot stale and changes no number."""
    events = [decision(n, ts=T0_MS + n * 60_000) for n in range(100)]
    store(writer, [batch("decisions", list(events))])
    build(clickhouse)
    store(writer, [batch("decisions", list(events[:5]), first=100)])
    assert counted(clickhouse) == 100
    assert build(clickhouse) == 1
    assert counted(clickhouse) == 100


def test_what_is_deleted_by_hand_is_gone(clickhouse: ClickHouse, writer: Writer) -> None:
    """Rows deleted with ALTER TABLE are in no answer any more, before and after the next build."""
    store(writer, [batch("decisions", [decision(n, ts=T0_MS + n * 60_000) for n in range(70)])])
    build(clickhouse)
    clickhouse.command("ALTER TABLE decisions DELETE WHERE user = 'u3' SETTINGS mutations_sync = 2")
    assert counted(clickhouse) == 60
    build(clickhouse)
    assert counted(clickhouse) == 60
    clickhouse.command("ALTER TABLE decisions DELETE WHERE true SETTINGS mutations_sync = 2")
    assert counted(clickhouse) == 0


@pytest.mark.parametrize("survived", range(5))
def test_a_crash_in_a_build_changes_nothing(clickhouse: ClickHouse, writer: Writer, survived: int) -> None:
    """After each statement of a build a process may die: answers stay right, and the next build completes it."""
    store(writer, batches(farmed(random_world(5, 200, SPAN_MS))))
    want = answers(clickhouse, FEW)
    with pytest.raises(StoreUnavailable):
        build(Dying(clickhouse, survived))  # type: ignore[arg-type]
    assert answers(clickhouse, FEW) == want
    build(clickhouse)
    assert not rollups.stale_slots(clickhouse, 0)
    assert answers(clickhouse, FEW) == want


def test_rows_that_come_during_a_build_are_not_lost(clickhouse: ClickHouse, writer: Writer) -> None:
    """The build that was under way is not taken: its slot is stale still, and counted right."""
    store(writer, [batch("decisions", [decision(n, ts=T0_MS + n) for n in range(50)])])
    seen = rollups.stale_slots(clickhouse, 0)
    store(writer, [batch("decisions", [decision(50 + n, ts=T0_MS + n) for n in range(7)], first=50)])
    rollups.build(clickhouse, seen, NOW_MS)
    assert rollups.stale_slots(clickhouse, 0)
    assert counted(clickhouse) == 57


def test_two_builders_do_no_harm(clickhouse: ClickHouse, writer: Writer) -> None:
    """Two roles that build the same slots at once leave one good roll-up; the other's rows are deleted by tidy."""
    store(writer, [batch("decisions", [decision(n, ts=T0_MS + n * 60_000) for n in range(100)])])
    for group in rollups.by_hour(rollups.stale_slots(clickhouse, 0)):
        rollups.build(clickhouse, group, NOW_MS)
        rollups.build(clickhouse, group, NOW_MS)
    assert counted(clickhouse) == 100
    assert clickhouse.rows("SELECT sum(decisions) AS n FROM decisions_1m")[0]["n"] == 200
    assert rollups.tidy(clickhouse, NOW_MS) == 0
    assert rollups.tidy(clickhouse, NOW_MS + 2 * HOUR_MS) > 0
    clickhouse.command("OPTIMIZE TABLE decisions_1m FINAL")
    assert clickhouse.rows("SELECT sum(decisions) AS n FROM decisions_1m")[0]["n"] == 100
    assert counted(clickhouse) == 100


def test_a_slot_that_is_written_to_is_left_alone(clickhouse: ClickHouse, writer: Writer) -> None:
    """Rows that were stored just now are quiet only later; until then they are read as they are."""
    store(writer, [batch("decisions", [decision(n) for n in range(10)])])
    assert rollups.stale_slots(clickhouse, 3600) == []
    assert len(rollups.stale_slots(clickhouse, 0)) == 1


def test_rollups_outlive_their_rows(clickhouse: ClickHouse, writer: Writer) -> None:
    """What was stored longer ago than sealed_after_days stays in the per-minute figures when rows expire."""
    store(writer, [batch("decisions", [decision(n, ts=T0_MS + n * 60_000) for n in range(100)])])
    clickhouse.command("INSERT INTO rollup_settings (name, value) VALUES ('sealed_after_days', -1)")
    build(clickhouse)
    clickhouse.command("ALTER TABLE decisions DELETE WHERE user != 'u1' SETTINGS mutations_sync = 2")
    assert counted(clickhouse) == 100
    clickhouse.command("TRUNCATE TABLE decisions")
    assert counted(clickhouse) == 100
    assert build(clickhouse) == 0


@pytest.mark.parametrize("days", [80, -1])
def test_a_build_of_before_has_no_challenges(clickhouse: ClickHouse, writer: Writer, days: int) -> None:
    """The probe reads its slots from the rows and says the same; it is built anew, unless it is sealed."""
    drawn = probed(30)
    passed = [structs.replace(outcome(n, "challenge_passed", one.ts + 9, user=f"p{n}"), ref=one.id)
              for n, one in enumerate(drawn[:9])]  # fmt: skip
    clickhouse.command(f"INSERT INTO rollup_settings (name, value) VALUES ('sealed_after_days', {days})")  # noqa: S608 - a number
    store(writer, [batch("decisions", [*drawn, *(denial(n) for n in range(20))]), batch("outcomes", list(passed))])
    store(writer, [batch("decisions", list(drawn), first=500)])
    probe = ("probe_estimates",)
    want = answers(clickhouse, probe)
    (row,) = want["probe_estimates"]
    assert (row["drawn"], row["drawn_passed"]) == (30, 9)
    slots = build(clickhouse)
    assert answers(clickhouse, probe) == want
    clickhouse.command("TRUNCATE TABLE challenges_10m")
    clickhouse.command("ALTER TABLE rollups UPDATE edition = 0 WHERE true SETTINGS mutations_sync = 2")
    assert answers(clickhouse, probe) == want
    assert rollups.refresh(clickhouse, NOW_MS + HOUR_MS, quiet_s=0) == (0 if days < 0 else slots)
    assert answers(clickhouse, probe) == want
    assert build(clickhouse) == 0
    assert clickhouse.rows("SELECT count() AS n FROM challenges_10m")[0]["n"] == (0 if days < 0 else len(drawn))


@pytest.fixture
def old_database(clickhouse_server: ClickHouseServer, fresh_database: str) -> Iterator[ClickHouse]:
    made = ClickHouse(clickhouse_server.url, fresh_database, answer_s=PATIENT_S)
    yield made
    made.close()


def test_a_filled_database_of_version_2_is_upgraded_in_place(
    old_database: ClickHouse, clickhouse_server: ClickHouseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that the first schema stored are in the answers of the newest, as if they had been stored by it."""
    world = farmed(random_world(3, span_ms=SPAN_MS))
    known = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: known[:2])
    assert migrate(old_database) == ["0001_tables.sql", "0002_views.sql"]
    store(new_writer(old_database), batches(world))
    monkeypatch.undo()
    assert migrate(old_database)[0] == "0003_rollups.sql"
    assert migrate(old_database) == []
    got = answers(old_database)
    build(old_database)
    assert answers(old_database) == got
    other = ClickHouse(clickhouse_server.url, f"{old_database.database}_new", answer_s=PATIENT_S)
    migrate(other)
    store(new_writer(other), batches(world))
    assert answers(other) == got
    assert got.keys() == queries.QUERIES.keys()
    other.close()


def test_roll_ups_of_before_the_keys_are_good(old_database: ClickHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and roll-ups stored before subjects had keys get the same keys, and every query says what it said."""
    world = farmed(random_world(5, 300, SPAN_MS))
    known = migrations.migrations()
    monkeypatch.setattr(migrations, "migrations", lambda: known[:9])
    assert migrate(old_database)[-1] == "0009_challenges.sql"
    store(new_writer(old_database), batches(world))
    want = answers(old_database)
    for group in rollups.by_hour(rollups.stale_slots(old_database, 0)[::2]):
        rollups.build(old_database, group, NOW_MS)
    monkeypatch.undo()
    assert migrate(old_database)[0] == "0010_keys.sql"
    assert answers(old_database) == want
    build(old_database)
    assert answers(old_database) == want
    for table, key, value, subject in (
        ("sightings_10m", "user_key", "user", "concat('user:', user)"),
        ("sightings_10m", "device_key", "device", "concat('device:', device)"),
        ("denials_10m", "subject_key", "subject", "subject"),
    ):
        named = f"countIf({value} != '') AS n, countIf({value} != '' AND {key} != sipHash64({subject})) AS wrong"
        (found,) = old_database.rows(f"SELECT {named} FROM {table}")  # noqa: S608 - our own names
        assert found["n"] > 20
        assert not found["wrong"]


class Dying:
    """A database that answers `survived` statements more and then no more."""

    def __init__(self, clickhouse: ClickHouse, survived: int) -> None:
        self._clickhouse = clickhouse
        self._left = survived
        self.rows = clickhouse.rows

    def command(self, sql: str) -> None:
        if not self._left:
            raise StoreUnavailable("away")
        self._left -= 1
        self._clickhouse.command(sql)
