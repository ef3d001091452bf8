"""The probe's estimate in `penaltybox report false-positives`."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from penaltybox.cli.console_page.figures import Figures
from penaltybox.cli.report_sections import rate_sections
from penaltybox.cli.report_view import Period
from penaltybox.cli.tune import tune
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from penaltybox.sinks.clickhouse.queries import BY_LABEL
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.test_probe import AS_OF_MS, Scene
from tests.sinks.clickhouse.worlds import T0_MS, batch

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.embedded.clickhouse_server import ClickHouseServer

pytestmark = pytest.mark.stack


@pytest.mark.parametrize(("drawn", "told"), [(50, "40.0% (2"), (29, "insufficient"), (0, "off")])
def test_it_stands_beside_the_labels_rates(
    clickhouse_server: ClickHouseServer, fresh_database: str, drawn: int, told: str
) -> None:
    """A percentage with its interval, or the word why there is none; programs and the console get every figure."""
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
    shown = asyncio.run(Figures(clickhouse, lambda: AS_OF_MS, list, None).rates(AS_OF_MS - T0_MS))
    clickhouse.close()
    (cells,), (row,) = section.cells, section.rows
    assert str(cells[list(section.columns).index("FDR by probe")]).startswith(told)
    assert row["drawn"] == drawn
    assert (row["fdr_probe"] is None) == (drawn < 30)
    (rate,) = shown.rows
    assert (rate.drawn, rate.probe_status, rate.fdr_probe) == (drawn, row["probe_status"], row["fdr_probe"])
    assert (rate.fdr_probe_low, rate.fdr_probe_high) == (row["fdr_probe_low"], row["fdr_probe_high"])
    assert section.plot is not None
    assert ("FDR by probe user" in {name for name, *_ in section.plot.dots}) == (drawn >= 30)


def test_tune_tells_it(
    clickhouse_server: ClickHouseServer, fresh_database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Beside what labels say, and for programs; it proposes nothing by itself."""
    scene = Scene()
    scene.known()
    for n in range(50):
        scene.refuse(f"u{n}", share="0.02", passed=n < 20)
    clickhouse = ClickHouse(clickhouse_server.url, fresh_database, answer_s=PATIENT_S)
    migrate(clickhouse)
    writer = new_writer(clickhouse)
    writer.store(writer.prepare(batch("decisions", list(scene.decisions))))
    writer.store(writer.prepare(batch("outcomes", list(scene.outcomes))))
    clickhouse.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENALTYBOX_CLICKHOUSE_URL", clickhouse_server.url)
    monkeypatch.setenv("PENALTYBOX_CLICKHOUSE_DATABASE", fresh_database)
    span = {"since": str(T0_MS), "until": str(AS_OF_MS)}
    tune(**span)
    told = " ".join(capsys.readouterr().out.split())
    assert "by probe, limits on user: FDR 40.0% (2" in told
    assert "50 episodes drawn" in told
    tune(as_json=True, **span)
    (row,) = json.loads(capsys.readouterr().out)["probe"]
    assert (row["dimension"], row["drawn"], row["fdr_probe"]) == ("user", 50, pytest.approx(0.4))
