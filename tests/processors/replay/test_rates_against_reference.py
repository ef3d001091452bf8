"""The rates of a comparison against the slow reference that ClickHouse's queries are tested with."""

from __future__ import annotations

import pytest

from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.processors.replay.comparison import Comparison
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.observer import CANDIDATE
from tests.sinks.clickhouse.reference import false_positives, wilson
from tests.sinks.clickhouse.worlds import DAY_MS, T0_MS, World, random_world


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("matures_s", [-1, 3600])
def test_rates_are_those_of_the_reference(seed: int, matures_s: int) -> None:
    """Episodes, maturity, labels, FDR and FPR of random worlds agree in every dimension."""
    world = random_world(seed)
    as_of_ms = T0_MS + (9 if seed % 2 else 40) * DAY_MS
    # The limits' own denials are the same on both sides of a replay, and left out.
    decisions = [decision for decision in world.decisions if not decision.violated]
    told = World(decisions, world.outcomes, world.penalties)
    canonicaliser = Canonicaliser()
    comparison = Comparison({}, canonicaliser, matures_ms=matures_s * 1000 if matures_s >= 0 else None)
    for event in sorted([*told.decisions, *told.penalties, *told.outcomes], key=lambda one: one.ts):
        if event in told.decisions:
            comparison.decision(event, canonicaliser.names(event.subjects), {}, True)
        elif event in told.penalties:
            comparison.penalty(CANDIDATE, event, True)
        else:
            comparison.outcome(event, True)
    expected = false_positives(told, T0_MS, T0_MS + 2 * DAY_MS, as_of_ms, matures_s)
    rates = report_of(comparison, as_of_ms=as_of_ms).rates
    assert {name for name, row in expected.items() if row["episodes"] or row["immature"] or row["seen"]} == set(rates)
    for dimension, found in rates.items():
        row, mine = expected[dimension], found.candidate
        assert (mine.episodes, mine.immature, mine.labelled) == (row["episodes"], row["immature"], row["labelled"])
        assert mine.legitimate == pytest.approx(row["legitimate"])
        assert (mine.legitimate_seen, mine.legitimate_limited) == pytest.approx((sum(row["seen"]), sum(row["hurt"])))
        if mine.fdr.low is not None:
            assert (mine.fdr.low, mine.fdr.high) == pytest.approx(
                wilson(row["legitimate"] / row["episodes"], row["episodes"])
            )
