"""Conditions that gate a pipeline."""

from __future__ import annotations

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.processors.replay.conditions import failures, parse_condition
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.metrics import metrics_of
from penaltybox.processors.replay.observer import CANDIDATE
from tests.processors.replay.runs import Run

METRICS: dict[str, float | str] = {"new.total": 3, "fdr.ip": 0.02, "fdr.user": "insufficient: 7 observations"}


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("new.total > 2", True),
        ("new.total >= 3", True),
        ("new.total>3", False),
        ("new.total < 4", True),
        ("new.total <= 2", False),
        ("new.total == 3", True),
        ("new.total != 3", False),
        ("fdr.ip >= 2%", True),
        ("fdr.ip > 2 %", False),
        ("new.total > -1", True),
        ("fdr.ip <= 1", True),
    ],
)
def test_a_condition_that_holds_fails_the_run(text: str, fails: bool) -> None:
    """Each comparison, with and without blanks, and percent."""
    assert bool(failures([parse_condition(text)], METRICS)) == fails


def test_too_little_known_does_not_pass_unless_told_so() -> None:
    """An insufficient rate fails whatever the comparison; a question mark lets it pass, and only it."""
    for text in ("fdr.user > 0.5", "fdr.user < 0.5"):
        (failure,) = failures([parse_condition(text)], METRICS)
        assert "insufficient: 7 observations" in failure.sentence
        assert "fdr.user?" in failure.sentence
    assert not failures([parse_condition("fdr.user? > 0.5")], METRICS)
    assert failures([parse_condition("new.total? > 2")], METRICS)


def test_an_unknown_figure_is_refused_with_those_that_there_are() -> None:
    """The sentence lists names, the same ones of several families once."""
    with pytest.raises(ConfigurationError, match=r"no figure 'fdr\.ipp'. There are fdr . ip, user; new . total"):
        failures([parse_condition("fdr.ipp > 0")], METRICS)


@pytest.mark.parametrize(
    "text",
    ["", "new.total", "new.total >", "> 3", "new.total > x", "new.total > 1e9", "new.total = 3", "new.total > 1 or 1",
     "new.total > 3 > 2", "a" * 300 + " > 1", "new total > 3", "new.total > 0x10", "new.total > nan"],
)  # fmt: skip
def test_anything_else_is_no_condition(text: str) -> None:
    """A name, a comparison and a plain number, nothing more."""
    with pytest.raises(ConfigurationError, match="--fail-if: got"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [("fdr.ip > 2", "0.02, or 2%"), ("baseline.fpr.user.high >= 101%", "0.02, or 2%"),
     ("fdr.ip > -1", "between 0 and 1"),
     ("new.total > 50%", "not a share"), ("stopped.change < 1 %", "not a share")],
)  # fmt: skip
def test_a_gate_that_would_never_shut_is_none(text: str, says: str) -> None:
    """A rate is never over 1, so such a gate would pass everything; and per cent of subjects are no number."""
    with pytest.raises(ConfigurationError, match=f"--fail-if: got .*{says}"):
        parse_condition(text)


def test_what_limits_nobody_cannot_be_wrong() -> None:
    """Without any episode on a dimension the rates are 0 and known; with one episode they are insufficient."""
    run = Run()
    run.denial()
    run.penalty(CANDIDATE, "user:u1")
    run.penalty(CANDIDATE, "ip:203.0.113.7", to="warn")
    metrics = metrics_of(report_of(run.comparison))
    assert metrics["baseline.fdr.user"] == 0.0
    assert str(metrics["fdr.user"]).startswith("insufficient: 1 observations, 30 are needed")
    assert metrics["new.ip"] == metrics["new.rung.warn"] == 1
    assert metrics["new.total"] == 2
    assert metrics["new.unknown"] == metrics["subjects.total"] == 2
