"""Rates of decisions from looks at Kafka's offsets."""

from __future__ import annotations

from penaltybox.cli.console_page.flow import STANDING_S, Look, Meter


def meter(*looks: tuple[float, int, int | None]) -> Meter:
    made = Meter()
    for look in looks:
        made.look(Look(*look))
    return made


def test_rates_and_lag() -> None:
    """Over the last seconds; the history has one figure a look."""
    flow = meter((0, 1000, 900), (1, 1100, 950), (2, 1300, 1250)).flow
    assert (flow.published_per_s, flow.judged_per_s, flow.lag, flow.history) == (150, 175, 50, [100, 200])


def test_what_is_not_known_is_null() -> None:
    """Before the second look there is no rate, and without a committed offset no lag; afterwards an outage forgets."""
    assert meter().flow.published_per_s is None
    assert meter((0, 10, 5)).flow.published_per_s is None
    flow = meter((0, 10, None), (1, 20, None)).flow
    assert (flow.published_per_s, flow.judged_per_s, flow.lag) == (10, None, None)
    made = meter((0, 10, 5), (1, 20, 5))
    made.lost()
    assert made.flow.lag is None
    assert made.flow.history == []


def test_a_topic_made_anew_is_no_negative_rate() -> None:
    """Offsets that begin again are zero decisions."""
    flow = meter((0, 1000, 1000), (1, 5, 5)).flow
    assert (flow.published_per_s, flow.judged_per_s, flow.history) == (0, 0, [0])


def test_workers_that_stand_still() -> None:
    """Only while decisions wait and nothing is acknowledged; a backlog that shrinks is no standstill."""
    still = meter(*((second, 100, 50) for second in range(31)))
    assert still.standing_s == 30 > STANDING_S
    assert meter(*((second, 1000, 50 + second) for second in range(31))).standing_s == 0
    assert meter(*((second, 100, 100) for second in range(31))).standing_s == 0
    assert meter(*((second, 100, None) for second in range(31))).standing_s == 0


def test_the_history_is_bounded() -> None:
    """Two minutes."""
    assert len(meter(*((second, second, second) for second in range(500))).flow.history) == 120
