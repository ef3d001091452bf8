from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.sinks.clickhouse import queries
from tests.sinks.clickhouse.reference import episodes, false_positives, nat, wilson
from tests.sinks.clickhouse.worlds import DAY_MS, HOUR_MS, T0_MS, World, batch, denial, outcome, penalty, random_world

if TYPE_CHECKING:
    from penaltybox.sinks.clickhouse.client import ClickHouse
    from penaltybox.sinks.clickhouse.writer import Writer

pytestmark = pytest.mark.stack
END_MS = T0_MS + DAY_MS


def store(writer: Writer, world: World) -> None:
    writer.store(writer.prepare(batch("decisions", list(world.decisions))))
    writer.store(writer.prepare(batch("outcomes", list(world.outcomes))))
    writer.store(writer.prepare(batch("penalties", list(world.penalties))))


@pytest.mark.parametrize("seed", range(4))
def test_episodes_are_those_of_the_definition(clickhouse: ClickHouse, writer: Writer, seed: int) -> None:
    """On random worlds the SQL finds exactly the episodes that a loop over sorted denials finds."""
    world = random_world(seed)
    store(writer, world)
    got = queries.episodes(clickhouse, T0_MS + HOUR_MS, END_MS - HOUR_MS)
    want = episodes(world.decisions, world.penalties, T0_MS + HOUR_MS, END_MS - HOUR_MS)
    assert want
    assert sorted(
        (row["dimension"], row["subject"], _ms(row["started"]), _ms(row["ended"]), row["denials"]) for row in got
    ) == sorted(want)


@pytest.mark.parametrize("seed", range(4))
def test_rates_equal_a_computation_by_hand(clickhouse: ClickHouse, writer: Writer, seed: int) -> None:
    """FDR and FPR with their intervals equal the definitions computed in plain Python, for every dimension."""
    world = random_world(seed)
    store(writer, world)
    for as_of_h, matures_s in ((25, 3600), (36, -1), (24 * 60, -1)):
        as_of = T0_MS + as_of_h * HOUR_MS
        want = false_positives(world, T0_MS, END_MS, as_of, matures_s)
        got = {row["dimension"]: row for row in queries.false_positives(clickhouse, T0_MS, END_MS, as_of, matures_s)}
        assert want.keys() == got.keys(), as_of_h
        assert want
        for dimension, row in got.items():
            compare_fdr(row, want[dimension])
            compare_fpr(row, want[dimension])


def compare_fdr(row: dict[str, Any], want: dict[str, Any]) -> None:
    n = want["episodes"]
    assert (row["episodes"], row["immature"], row["labelled"]) == (n, want["immature"], want["labelled"])
    assert row["legitimate"] == pytest.approx(want["legitimate"])
    if n < 30:
        assert row["fdr_status"] == "insufficient"
    elif not want["labelled"]:
        assert row["fdr_status"] == "unlabelled"
    else:
        assert row["fdr_status"] == ("report only" if n < 100 else "actionable")
        share = want["legitimate"] / n
        assert row["fdr_lower_bound"] == pytest.approx(share)
        assert (row["fdr_low"], row["fdr_high"]) == pytest.approx(wilson(share, n))
        compare_estimate(row, want)
        return
    assert row["fdr_lower_bound"] is row["fdr_low"] is row["fdr_high"] is None


def compare_estimate(row: dict[str, Any], want: dict[str, Any]) -> None:
    n, share = want["estimate"]["n"], want["estimate"]["share"]
    assert row["fdr_n"] == pytest.approx(n)
    if n < 30:
        assert (row["fdr_estimate_status"], row["fdr_estimate"]) == ("insufficient", None)
    else:
        assert row["fdr_estimate"] == pytest.approx(share)
        assert (row["fdr_estimate_low"], row["fdr_estimate_high"]) == pytest.approx(wilson(share, n))


def compare_fpr(row: dict[str, Any], want: dict[str, Any]) -> None:
    seen, hurt = math.fsum(want["seen"]), math.fsum(want["hurt"])
    assert row["legitimate_seen"] == pytest.approx(seen)
    assert row["legitimate_limited"] == pytest.approx(hurt)
    weighted = want["weighted"]
    assert row["fpr_n"] == pytest.approx(weighted["n"])
    if weighted["n"] < 30:
        assert row["fpr_status"] == "insufficient"
        assert row["fpr"] is row["fpr_low"] is row["fpr_high"] is None
    elif weighted["unknown"]:
        assert (row["fpr_status"], row["fpr"]) == ("unlabelled", None)
    else:
        assert row["fpr"] == pytest.approx(weighted["fpr"])
        assert (row["fpr_low"], row["fpr_high"]) == pytest.approx((weighted["low"], weighted["high"]))


@pytest.mark.parametrize("seed", range(3))
def test_shared_addresses_equal_a_computation_by_hand(clickhouse: ClickHouse, writer: Writer, seed: int) -> None:
    """Effective users, over-limit users and collateral per address equal the definitions in plain Python."""
    world = random_world(seed)
    store(writer, world)
    want = nat(world, T0_MS, END_MS)
    got = {row["place"]: row for row in queries.nat(clickhouse, T0_MS, END_MS)}
    assert {place for place, row in want.items() if row["denied_users"] or row["ip_episodes"]} == got.keys()
    for place, row in got.items():
        for column, value in want[place].items():
            assert row[column] == pytest.approx(value), (place, column)
        share = row["denied_within_limit"] / row["denied_users"]
        if row["denied_users"] >= 30:
            assert row["collateral"] == pytest.approx(share)
            assert (row["collateral_low"], row["collateral_high"]) == pytest.approx(wilson(share, row["denied_users"]))
        else:
            assert row["status"] == "insufficient"
            assert row["collateral"] is None


def test_an_office_is_attributed_to_its_shared_address(clickhouse: ClickHouse, writer: Writer) -> None:
    """Forty established colleagues within their own limits make the IP's episode NAT-attributable, all collateral."""
    office = [
        denial(n, "ip:soft", subjects={"user": f"u{n % 40}", "ip": "198.51.100.9"}, established=True)
        for n in range(400)
    ]
    writer.store(writer.prepare(batch("decisions", list(office))))
    for by, place in (("ip", "198.51.100.9"), ("prefix", "198.51.100.0/24")):
        row = queries.nat(clickhouse, T0_MS, END_MS, by)[0]  # type: ignore[arg-type]
        assert (row["place"], row["nat_attributable"], row["ip_episodes"]) == (place, 1, 1)
        assert row["n_eff"] == pytest.approx(40)
        assert (row["denied_users"], row["collateral"]) == (40, 1.0)


def test_one_user_over_the_limit_spoils_attribution(clickhouse: ClickHouse, writer: Writer) -> None:
    """With a user over the user limit on it, the address is no longer excused, and that user is no collateral."""
    office = [
        denial(n, "ip:soft", subjects={"user": f"u{n % 40}", "ip": "198.51.100.9"}, established=True)
        for n in range(400)
    ]
    office.append(denial(400, "user:daily", subjects={"user": "u1", "ip": "198.51.100.9"}, established=True))
    writer.store(writer.prepare(batch("decisions", list(office))))
    row = queries.nat(clickhouse, T0_MS, END_MS)[0]
    assert (row["nat_attributable"], row["users_over_limit"], row["denied_within_limit"]) == (0, 1, 39)


def test_few_episodes_show_no_percentage(clickhouse: ClickHouse, writer: Writer) -> None:
    """Twenty-nine episodes are insufficient; the thirtieth brings a rate; abuse cancels labels."""
    denials = [denial(n, subjects={"device": f"d{n}"}) for n in range(29)]
    labels = [outcome(n, "payment_ok", T0_MS + 1000, device=f"d{n}") for n in range(10)]
    writer.store(writer.prepare(batch("decisions", list(denials))))
    writer.store(
        writer.prepare(batch("outcomes", [*labels, outcome(10, "confirmed_abuse", T0_MS + 2000, device="d0")]))
    )
    (row,) = queries.false_positives(clickhouse, T0_MS, END_MS, END_MS, 0)
    assert (row["fdr_status"], row["fdr_lower_bound"]) == ("insufficient", None)
    writer.store(writer.prepare(batch("decisions", [denial(29, subjects={"device": "d29"})], first=29)))
    (row,) = queries.false_positives(clickhouse, T0_MS, END_MS, END_MS, 3600)
    assert (row["fdr_status"], row["episodes"], row["labelled"]) == ("report only", 30, 10)
    assert row["fdr_lower_bound"] == pytest.approx(9 * 0.9 / 30)


def test_label_weights_are_settings(clickhouse: ClickHouse, writer: Writer) -> None:
    """A new row for a label in label_weights changes what it is worth, at once."""
    writer.store(writer.prepare(batch("decisions", [denial(n, subjects={"device": f"d{n}"}) for n in range(30)])))
    writer.store(writer.prepare(batch("outcomes", [outcome(1, "payment_ok", T0_MS + 1000, device="d1")])))
    clickhouse.command(
        "INSERT INTO label_weights (label, weight, matures_s, abuse, after_limit) "
        "VALUES ('payment_ok', 0.5, 60, false, false)"
    )
    (row,) = queries.false_positives(clickhouse, T0_MS, END_MS, END_MS)
    assert (row["episodes"], row["legitimate"]) == (30, 0.5)


def test_sampled_and_aggregated_records_weigh_what_they_stand_for(clickhouse: ClickHouse, writer: Writer) -> None:
    """Requests = count / sample rate, in totals and in the shares of denials."""
    events = [denial(1, count=9), denial(2, "user:daily"), denial(3, "user:daily", enforced=False)]
    writer.store(writer.prepare(batch("decisions", [*events, *random_world(1).decisions[:0]])))
    rows = queries.blocks_by_dimension(clickhouse, T0_MS, END_MS)
    assert [(row["dimension"], row["denials"], row["share"]) for row in rows] == [("device", 9, 0.9), ("user", 1, 0.1)]
    totals = queries.totals(clickhouse, T0_MS, END_MS)
    assert {(row["enforced"], row["requests"]) for row in totals} == {(True, 10.0), (False, 1.0)}


def test_penalties_by_rule_and_rung(clickhouse: ClickHouse, writer: Writer) -> None:
    """Shadow penalties stand apart from real ones; subjects are counted once."""
    steps = [penalty(n, f"device:d{n % 2}", T0_MS + n) for n in range(4)]
    writer.store(writer.prepare(batch("penalties", [*steps, penalty(9, "device:d1", T0_MS, shadow=True, late=True)])))
    rows = queries.penalties_by_rung(clickhouse, T0_MS, END_MS)
    assert [(r["rule"], r["rung"], r["shadow"], r["penalties"], r["subjects"], r["late_ones"]) for r in rows] == [
        ("device_farm", "5m", False, 4, 2, 0),
        ("device_farm", "5m", True, 1, 1, 1),
    ]


def _ms(instant: Any) -> int:
    return round(instant.timestamp() * 1000)
