"""Two hundred small worlds with a hidden truth, in which limited people are labelled more often than others."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

import pytest

from penaltybox.sinks.clickhouse import queries
from tests.sinks.clickhouse.reference import wilson
from tests.sinks.clickhouse.worlds import DAY_MS, HOUR_MS, T0_MS, batch, decision, denial, outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.events import Decision, Outcome
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = [pytest.mark.stack, pytest.mark.slow]
WORLDS = 200


class World(NamedTuple):
    """What happens, and what nobody is told: each world's subjects are a dimension of their own."""

    decisions: list[Decision]
    outcomes: list[Outcome]
    fdr: float
    fpr: float


def make(number: int) -> World:
    """Up to 260 subjects; whether one is labelled depends on whether it was limited, and not on what it is."""
    rng = random.Random(number)
    name = f"w{number}"
    honest, hurt, caught = rng.uniform(0.5, 0.95), rng.uniform(0.02, 0.35), rng.uniform(0.5, 0.95)
    told = {True: rng.uniform(0.4, 0.9), False: rng.uniform(0.15, 0.5)}
    decisions, outcomes, good, bad, limited_good, all_good = [], [], 0, 0, 0, 0
    for person in range(rng.randrange(120, 260)):
        subjects = {name: f"s{person}"}
        first = number * 100_000 + person * 10
        legitimate = rng.random() < honest
        limited = rng.random() < (hurt if legitimate else caught)
        decisions.append(decision(first, ts=T0_MS + person, subjects=subjects))
        episodes = rng.randrange(1, 4) if limited else 0
        decisions += [
            denial(first + 1 + n, f"{name}:daily", ts=T0_MS + person + n * 5 * HOUR_MS, subjects=subjects)
            for n in range(episodes)
        ]
        good, bad = (good + episodes, bad) if legitimate else (good, bad + episodes)
        all_good, limited_good = all_good + legitimate, limited_good + (legitimate and limited)
        if rng.random() < told[limited]:
            labels = ("payment_ok", "identity_verified") if legitimate else ("confirmed_abuse",)
            outcomes += [outcome(first + n, label, T0_MS + 16 * HOUR_MS, **subjects) for n, label in enumerate(labels)]
    return World(decisions, outcomes, good / max(good + bad, 1), limited_good / max(all_good, 1))


def test_intervals_contain_the_truth(clickhouse: ClickHouse, writer: Writer, tell: Callable[[str], None]) -> None:
    """At least 95 % of the intervals of FPR and of the FDR among the labelled hold it; the plain share does not."""
    worlds = [make(number) for number in range(WORLDS)]
    for table, events in (
        ("decisions", [event for world in worlds for event in world.decisions]),
        ("outcomes", [event for world in worlds for event in world.outcomes]),
    ):
        writer.store(writer.prepare(batch(table, list(events))))  # type: ignore[arg-type]
    rows = queries.false_positives(clickhouse, T0_MS, T0_MS + DAY_MS, T0_MS + 3 * DAY_MS, 24 * 3600)
    held: dict[str, list[bool]] = {"fpr": [], "fdr_estimate": [], "plain fpr": []}
    for row in rows:
        world = worlds[int(row["dimension"][1:])]
        for name, truth in (("fpr", world.fpr), ("fdr_estimate", world.fdr)):
            if row[name] is not None:
                held[name].append(row[f"{name}_low"] <= truth <= row[f"{name}_high"])
        low, high = wilson(row["legitimate_limited"] / row["legitimate_seen"], row["legitimate_seen"])
        held["plain fpr"].append(low <= world.fpr <= high)
    shares = {name: sum(found) / len(found) for name, found in held.items()}
    figures = ", ".join(f"{name} {shares[name]:.1%} of {len(found)}" for name, found in held.items())
    tell(f"intervals that hold the truth: {figures}")
    assert len(held["fpr"]) >= WORLDS * 0.75
    assert len(held["fdr_estimate"]) >= WORLDS * 0.5
    assert min(shares["fpr"], shares["fdr_estimate"]) >= 0.95
    assert shares["plain fpr"] < 0.95
