"""The views of migrations 0007 to 0010 against those they replaced, which answered the same with more work."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from penaltybox.sinks.clickhouse import migrations, rollups
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
    "nat", "probe_estimates",
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
    world = world._replace(decisions=decisions, outcomes=[*world.outcomes, *passed])
    for database in (clickhouse, old_views):
        delivered(database, world)
    want = answers(old_views, REPLACED)
    assert answers(clickhouse, REPLACED) == want
    assert len(want["episodes"]) > 150
    assert any(10 < row["drawn_passed"] < row["drawn"] - 10 for row in want["probe_estimates"]), want["probe_estimates"]
    assert {row["dimension"] for row in want["false_positives_as_of"]} >= {"user", "device", "ip"}
