"""The views of migrations 0007 to 0011 against those they replaced, which answered the same with more work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from penaltybox.sinks.clickhouse import migrations, queries, rollups
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.test_redelivery import answers, batches, store
from tests.sinks.clickhouse.worlds import DAY_MS, T0_MS, World, batch, decision, denial, outcome, random_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.embedded.clickhouse_server import ClickHouseServer

pytestmark = pytest.mark.stack
REPLACED = (
    "decisions_per_minute", "denied_subjects", "sightings", "episodes", "judged_episodes", "false_positives_as_of",
    "nat", "nat_false_positives", "probe_estimates", "account_farms",
)  # fmt: skip
OLD = 6


@pytest.fixture
def old_views(
    clickhouse_server: ClickHouseServer, fresh_database: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ClickHouse]:
    """A database of the version before."""
    made = ClickHouse(clickhouse_server.url, f"{fresh_database}_old", answer_s=PATIENT_S)
    known = migrations.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "migrations", lambda: known[:OLD])
        migrate(made)
    yield made
    made.close()


def delivered(clickhouse: ClickHouse, world: World) -> None:
    """Stored, some of it delivered and some published again; of the newest schema, a part of the roll-ups built."""
    store(new_writer(clickhouse), batches(world))
    half = World(*(events[: len(events) // 2] for events in world))
    store(new_writer(clickhouse), batches(half, first=7))
    store(new_writer(clickhouse), batches(half, incarnation="i2")[:3])
    if migrations.applied(clickhouse) == {one.version for one in migrations.migrations()}:
        for group in rollups.by_hour(rollups.stale_slots(clickhouse, 0)[20:40]):
            rollups.build(clickhouse, group, T0_MS + DAY_MS)
    late = [denial(50_000 + n, ts=T0_MS + n * 1_800_000, count=2) for n in range(20)]
    store(new_writer(clickhouse), [batch("decisions", [*late, *late[:5]], first=9000)])


def test_answers_are_those_of_the_views_before(clickhouse: ClickHouse, old_views: ClickHouse) -> None:
    """A random world with redelivery: from rows, roll-ups and both, every replaced view says what it said before."""
    world = random_world(11, requests=400)
    # Several denials of a subject in one slot, whose beginnings and ends are in another order, with other windows.
    crowd = [
        denial(40_000 + n, ts=T0_MS + n * 171_000, window_s=(60, 86_400, 900)[n % 3], route=f"/{n % 2}",
               subjects={"device": "crowd", "user": f"c{n % 4}"})
        for n in range(120)
    ]  # fmt: skip
    # Two refusals of a user at one instant: the probe counts an episode by the one with the lower id.
    drawn = [
        decision(70_000 + n, ts=T0_MS + n // 2 * 700_000, subjects={"user": f"q{n // 2 % 5}"}, established=n % 4 < 2,
                 action="challenge" if n % 3 else "deny", reason="over_limit", violated=("user:daily",), window_s=60,
                 attrs={"probe": "0.02"} if n % 3 else {})
        for n in range(160)
    ]  # fmt: skip
    passed = [
        structs.replace(
            outcome(70_000 + n, "challenge_passed", one.ts + n * 60_000, user=one.subjects["user"]), ref=one.id
        )
        for n, one in enumerate(drawn)
    ]
    more = [decision(60_000 + n, subjects={"user": f"u{n}", "order": "o1"}) for n in range(20)]
    decisions = sorted([*world.decisions, *crowd, *drawn, *more], key=lambda event: event.ts)
    spoken = ["it's", "a\\b", "new\nline", "x,[y]", "{z:String}", "üñï"]
    said = [outcome(80_000 + n, spoken[n % 6], T0_MS + n * 900_000, user=f"u{n % 20}") for n in range(60)]
    world = world._replace(decisions=decisions, outcomes=[*world.outcomes, *passed, *said])
    # Names of labels go into a view as a parameter.
    odd = [r"it''s", r"a\\b", r"new\nline", "x,[y]", "{z:String}", "üñï"]
    labels = ", ".join(f"('{label}', 0.{n + 1}, {n * 3600}, false, {n % 2})" for n, label in enumerate(odd))
    for database in (clickhouse, old_views):
        database.command(
            f"INSERT INTO label_weights (label, weight, matures_s, after_limit, abuse) VALUES {labels}"  # noqa: S608
        )
        delivered(database, world)
    want = answers(old_views, REPLACED)
    assert answers(clickhouse, REPLACED) == want
    assert len(want["episodes"]) > 150
    assert any(row["abusive_accounts"] + row["legitimate_accounts"] for row in want["account_farms"])
    assert any(10 < row["drawn_passed"] < row["drawn"] - 10 for row in want["probe_estimates"]), want["probe_estimates"]
    assert {row["dimension"] for row in want["false_positives_as_of"]} >= {"user", "device", "ip"}


def test_more_than_a_year_of_roll_ups_is_planned(clickhouse: ClickHouse) -> None:
    """400 days of ten minutes, as many slots as roll-ups are kept for, are a plan that a view can be given."""
    world = random_world(3, requests=200)
    store(new_writer(clickhouse), batches(world))
    span: dict[str, int | str] = {
        "from": T0_MS - 399 * DAY_MS, "to": T0_MS + DAY_MS, "as_of": T0_MS + 40 * DAY_MS, "matures_s": -1, "by": "ip",
    }  # fmt: skip
    names = ("false_positives_as_of", "probe_estimates", "nat")
    before = answers(clickhouse, names, span)
    assert before["nat"]
    first_s, slots = T0_MS // 1000 - 399 * 86_400, 399 * 144
    clickhouse.command(
        "INSERT INTO rollups (slot, build, rows, fingerprint, sealed_at) "  # noqa: S608 - numbers of ours
        f"SELECT {first_s} + number * 600, 7, 0, 0, '2100-01-01' FROM numbers({slots})"
    )
    (plan,) = clickhouse.rows(
        "SELECT length(plan.1) AS slots "
        "FROM reading_slots(from = {from:DateTime64(3, 'UTC')}, to = {to:DateTime64(3, 'UTC')})",
        {"from": "2024-11-17 00:00:00", "to": "2025-12-23 00:00:00"},
    )
    assert plan["slots"] > 57_000
    assert answers(clickhouse, names, span) == before


PARAMETER = re.compile(r"\{(\w+):((?:[^{}'\\]|'[^']*')+)\}")
GIVEN = {
    "from": "2025-12-22 00:00:00", "to": "2025-12-23 00:00:00", "as_of": "2026-01-01 00:00:00", "matures_s": "-1",
    "by": "ip", "prefix": "", "change": "2025-12-22 12:00:00", "edition": "1", "mature_before_ms": "1766361600000",
    "kind": "([],[],[],[],[])",
}  # fmt: skip


def test_every_view_of_the_schema_can_be_asked(clickhouse: ClickHouse) -> None:
    """Also those that no shipped query is: a migration that changes one view has not forgotten who uses it."""
    views = clickhouse.rows(
        "SELECT name, as_select FROM system.tables WHERE database = currentDatabase() AND engine = 'View'"
    )
    assert len(views) > len(queries.QUERIES)
    for view in views:
        types = dict(PARAMETER.findall(view["as_select"]))
        values = {name: GIVEN[name] if name in GIVEN else plan_of(kind) for name, kind in types.items()}
        arguments = ", ".join(f"{name} = {{{name}:{types[name]}}}" for name in values)
        source = f"{view['name']}({arguments})" if types else view["name"]
        clickhouse.rows(f"SELECT * FROM {source} LIMIT 1", values)  # noqa: S608 - names of the schema


def plan_of(kind: str) -> str:
    """An empty plan of as many parts."""
    return f"({','.join(['[]'] * kind.count('DateTime'))})"
