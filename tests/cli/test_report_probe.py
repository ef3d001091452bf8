"""The probe's estimate in `penaltybox report false-positives`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.report_sections import rate_sections
from penaltybox.cli.report_view import Period
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from penaltybox.sinks.clickhouse.queries import BY_LABEL
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.test_probe import AS_OF_MS, Scene
from tests.sinks.clickhouse.worlds import T0_MS, batch

if TYPE_CHECKING:
    from penaltybox.embedded.clickhouse_server import ClickHouseServer

pytestmark = pytest.mark.stack


@pytest.mark.parametrize(("drawn", "told"), [(50, "40.0% (2"), (29, "insufficient"), (0, "off")])
def test_it_stands_beside_the_labels_rates(
    clickhouse_server: ClickHouseServer, fresh_database: str, drawn: int, told: str
) -> None:
    """A percentage with its interval, or the word why there is none; programs get every figure."""
    scene = Scene()
    scene.known()
    for n in range(drawn):
        scene.refuse(f"u{n}", share="0.02", passed=n < 0.4 * drawn)
    clickhouse = ClickHouse(clickhouse_server.url, fresh_database, answer_s=PATIENT_S)
    migrate(clickhouse)
    writer = new_writer(clickhouse)
    writer.store(writer.prepare(batch("decisions", list(scene.decisions))))
    writer.store(writer.prepare(batch("outcomes", list(scene.outcomes))))
    (section,) = rate_sections(clickhouse, Period(T0_MS, AS_OF_MS, AS_OF_MS), "user", BY_LABEL)
    clickhouse.close()
    (cells,), (row,) = section.cells, section.rows
    assert str(cells[list(section.columns).index("FDR by probe")]).startswith(told)
    assert row["drawn"] == drawn
    assert (row["fdr_probe"] is None) == (drawn < 30)
    assert section.plot is not None
    assert ("FDR by probe user" in {name for name, *_ in section.plot.dots}) == (drawn >= 30)
