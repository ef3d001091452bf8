"""What the probe says about false positives, against worlds whose truth is known."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from penaltybox.sinks.clickhouse import queries
from tests.sinks.clickhouse.reference import wilson
from tests.sinks.clickhouse.worlds import HOUR_MS, T0_MS, batch, decision, outcome

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision, Outcome
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = pytest.mark.stack
AS_OF_MS = T0_MS + 5 * HOUR_MS


class Scene:
    """Refusals and how their challenges ended; numbered, one second apart."""

    def __init__(self) -> None:
        self.decisions: list[Decision] = []
        self.outcomes: list[Outcome] = []

    def refuse(self, user: str, *, share: str = "", passed: bool = False, late: bool = False, **fields: Any) -> None:
        number = len(self.decisions)
        fields = {"action": "challenge" if share else "deny", "ts": T0_MS + number * 1000} | fields
        made = decision(
            number,
            subjects={"user": user},
            reason="over_limit",
            violated=("user:daily",),
            window_s=60,
            attrs={"probe": share} if share else {},
            **fields,
        )
        self.decisions.append(made)
        if passed:
            self.label("challenge_passed", user, made.ts + (2 * HOUR_MS if late else 5_000), ref=made.id)

    def label(self, label: str, user: str, ts: int = T0_MS, ref: str = "") -> None:
        self.outcomes.append(structs.replace(outcome(len(self.outcomes), label, ts, user=user), ref=ref))

    def known(self, people: int = 40, honest: float = 1.0, caught: float = 0.0) -> None:
        """Challenges of so many trusted users and as many confirmed abusers, and the share of each that passes."""
        for n in range(people):
            self.refuse(f"trusted{n}", action="challenge", established=True, passed=n < honest * people)
            self.refuse(f"caught{n}", action="challenge", passed=n < caught * people)
            self.label("confirmed_abuse", f"caught{n}")

    def estimate(self, clickhouse: ClickHouse, writer: Writer) -> dict[str, Any]:
        writer.store(writer.prepare(batch("decisions", list(self.decisions))))
        writer.store(writer.prepare(batch("outcomes", list(self.outcomes))))
        (row,) = queries.probe_estimates(clickhouse, T0_MS, AS_OF_MS, AS_OF_MS)
        return row


def test_the_estimate_is_that_of_the_definition(clickhouse: ClickHouse, writer: Writer) -> None:
    """(pass rate - s_b) / (s_h - s_b), and the three Wilson intervals joined at their far ends."""
    scene = Scene()
    scene.known(honest=0.9, caught=0.1)
    for n in range(50):
        scene.refuse(f"u{n}", share="0.02", passed=n < 20)
    row = scene.estimate(clickhouse, writer)
    assert (row["dimension"], row["drawn"], row["drawn_passed"], row["probe_status"]) == ("user", 50, 20, "report only")
    assert (row["trusted"], row["abusers"], row["probe_n"]) == (40, 40, pytest.approx(50))
    assert row["fdr_probe"] == pytest.approx((0.4 - 0.1) / (0.9 - 0.1))
    (p_low, p_high), (h_low, h_high), (b_low, b_high) = wilson(0.4, 50), wilson(0.9, 40), wilson(0.1, 40)
    assert row["fdr_probe_low"] == pytest.approx((p_low - b_high) / (h_high - b_high))
    assert row["fdr_probe_high"] == pytest.approx((p_high - b_low) / (h_low - b_low))


@pytest.mark.parametrize(("drawn", "people"), [(29, 40), (40, 29)])
def test_too_few_give_no_percentage(clickhouse: ClickHouse, writer: Writer, drawn: int, people: int) -> None:
    """Under 30 drawn episodes, or people whose pass rate is known, the status is insufficient."""
    scene = Scene()
    scene.known(people)
    for n in range(drawn):
        scene.refuse(f"u{n}", share="0.02", passed=True)
    row = scene.estimate(clickhouse, writer)
    assert (row["probe_status"], row["fdr_probe"], row["fdr_probe_low"], row["fdr_probe_high"]) == (
        "insufficient", None, None, None,
    )  # fmt: skip


def test_a_challenge_that_abusers_pass_tells_nothing(clickhouse: ClickHouse, writer: Writer) -> None:
    """With less than 0.2 between the pass rates of the trusted and the caught there is no estimate."""
    scene = Scene()
    scene.known(honest=0.9, caught=0.75)
    for n in range(40):
        scene.refuse(f"u{n}", share="0.02", passed=True)
    row = scene.estimate(clickhouse, writer)
    assert (row["probe_status"], row["fdr_probe"]) == ("indistinct", None)


def test_only_first_denials_in_time_count(clickhouse: ClickHouse, writer: Writer) -> None:
    """Later draws of an episode, late passes, young challenges and marks that no probe makes are left out."""
    scene = Scene()
    scene.known()
    for n in range(40):
        scene.refuse(f"u{n}", share="0.02", passed=n < 10, late=n >= 5)
    for n in range(5):
        scene.refuse(f"later{n}")
        scene.refuse(f"later{n}", share="0.02", passed=True)
        scene.refuse(f"young{n}", share="0.02", passed=True, ts=AS_OF_MS - 600_000 + n)
        scene.refuse(f"odd{n}", share="0.5", passed=True)
        scene.refuse(f"text{n}", share="yes", passed=True)
    row = scene.estimate(clickhouse, writer)
    assert (row["drawn"], row["drawn_passed"], row["fdr_probe"]) == (40, 5, pytest.approx(5 / 40))


def test_shares_weigh(clickhouse: ClickHouse, writer: Writer) -> None:
    """An episode drawn at 1 percent stands for five that are drawn at 5."""
    scene = Scene()
    scene.known()
    for n in range(40):
        scene.refuse(f"rare{n}", share="0.01", passed=True)
        scene.refuse(f"often{n}", share="0.05")
    row = scene.estimate(clickhouse, writer)
    assert row["fdr_probe"] == pytest.approx(5 / 6)
    assert row["probe_n"] == pytest.approx((40 * 120) ** 2 / (40 * (100**2 + 20**2)))


def test_long_episodes_do_not_bias_it(clickhouse: ClickHouse, writer: Writer) -> None:
    """Abusers are denied twenty times as often in an episode; the interval still holds the truth by episodes."""
    rng, scene = random.Random(5), Scene()
    scene.known(120)
    for n in range(1_500):
        person = rng.random() < 0.3
        for _ in range(1 if person else 20):
            drawn = rng.random() < 0.05
            at = T0_MS + n * 5_000 + len(scene.decisions) % 1000
            scene.refuse(f"u{n}", share="0.05" if drawn else "", passed=drawn and person, ts=at)
    row = scene.estimate(clickhouse, writer)
    assert row["fdr_probe_low"] < 0.3 < row["fdr_probe_high"]
    assert row["fdr_probe_high"] < 0.6
