"""What labels are worth: one table in Python and in ClickHouse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from penaltybox.contracts.events import Label
from penaltybox.contracts.labels import ABUSE, KINDS, legitimacy

SCHEMA = Path(__file__).parents[2] / "penaltybox" / "sinks" / "clickhouse" / "schema" / "0001_tables.sql"


def test_the_table_is_the_one_that_clickhouse_begins_with() -> None:
    """Weight, maturity, abuse and after_limit of every label are what the migration inserts."""
    rows = re.findall(
        r"\('(\w+)',\s*([\d.]+),\s*(\d+),\s*(true|false),\s*(true|false),", SCHEMA.read_text(encoding="utf-8")
    )
    inserted = {
        label: (float(weight), int(matures_s) * 1000, abuse == "true", after_limit == "true")
        for label, weight, matures_s, abuse, after_limit in rows
    }
    ours = {name: (kind.weight, kind.matures_ms, False, kind.after_limit) for name, kind in KINDS.items()}
    assert inserted == ours | dict.fromkeys(ABUSE, (0.0, 0, True, False))


def test_every_label_is_one_of_the_wire() -> None:
    """A label that no outcome can carry would never be met."""
    assert {*KINDS, *ABUSE} <= set(get_args(Label))


def test_kinds_combine_and_count_once() -> None:
    """1 - (1 - 0.9)(1 - 0.7) = 0.97; the same kind twice is no more; nothing is 0."""
    assert legitimacy([]) == 0
    assert legitimacy(["payment_ok", "payment_ok"]) == pytest.approx(0.9)
    assert legitimacy(["payment_ok", "challenge_passed"]) == pytest.approx(0.97)
