"""The comparison as `penaltybox replay` shows it: terminal, JSON, and as a gate."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from rich.console import Console
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.cli.replay_report import report_view
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.processors.replay.conditions import Failure
from penaltybox.processors.replay.findings import report_of
from penaltybox.processors.replay.observer import BASELINE, CANDIDATE
from penaltybox.processors.replay.report import Report
from tests.processors.replay.runs import Run, hold
from tests.processors.replay.traffic import households, write
from tests.stack.households import POLICY

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).with_name("replay_report.json")
HOSTILE = "<script>alert(1)</script>[red]\x1b[31m$x^2$&\"'"


def story() -> Run:
    """A run with something in every part of a report, and with texts that want to be obeyed."""
    policies = {
        BASELINE: parse_policy("rules: {r: {on: user, count: 9, window: 10m, then: step}}\nallow: ['user:vip']"),
        CANDIDATE: parse_policy("rules: {r: {on: user, count: 5, window: 10m, then: step}}"),
    }
    run = Run(policies, matures_ms=600_000)
    for n in range(40):
        subjects = {"user": f"u{n}", "ip": f"203.0.113.{n % 3}"}
        run.decision(n / 10, subjects=subjects, established=True, scenario=HOSTILE, route=HOSTILE)
        run.denial(n / 10, subjects=subjects, scenario=HOSTILE, route=HOSTILE, violated=("user:daily", HOSTILE[:60]))
        run.penalty(CANDIDATE, f"user:u{n}", n / 10, to="permanent" if n % 9 == 0 else "5m")
        if n % 2:
            run.penalty(BASELINE, f"user:u{n}", n / 10 + 1)
        if n % 3 == 0:
            run.outcome("payment_ok", n / 10 + 1, user=f"u{n}")
    run.penalty(CANDIDATE, "ip:203.0.113.1", 5, to="1h", rule=HOSTILE)
    run.penalty(CANDIDATE, "user:vip", 5)
    run.penalty(CANDIDATE, "user:u1", 6, shadow=True, rule="tried")
    run.penalty(BASELINE, "user:gone%3Cscript%3E", 6, action="challenge", to="none", rule="asks")
    run.outcome("chargeback", 7, user="gone<script>")
    run.decision(8, stopped={BASELINE: hold(), CANDIDATE: hold(HOSTILE)}, count=12, subjects={"user": "u1"})
    run.decision(9, action="deny", reason="blocklist", stopped={CANDIDATE: hold()}, count=5, subjects={"user": "u2"})
    run.decision(30, sample_rate=0.5, subjects={"user": "vip", "ip": "203.0.113.9"}, stopped={CANDIDATE: hold()})
    return run


def golden() -> str:
    """The story's report, laid out for people."""
    found = json.loads(msgspec.json.encode(report_of(story().comparison)))
    return json.dumps(found, indent=1) + "\n"


def test_the_report_as_json_is_what_it_was() -> None:
    """Keys are stable. `python -m tests.cli.test_replay_report` renews the file; its diff is for a person to read."""
    assert golden() == GOLDEN.read_text(encoding="utf-8")
    msgspec.json.decode(GOLDEN.read_bytes(), type=Report)


def shown(width: int = 80) -> str:
    """The report on a terminal."""
    console = Console(width=width, record=True, highlight=False, file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123
    console.print(report_view(report_of(story().comparison), [Failure("new.total > 0", "new.total is 22")]))
    console.file.close()
    return console.export_text()


def test_eighty_columns_are_enough() -> None:
    """No line is longer, no figure is cut, and every part is there."""
    text = shown()
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    for part in ("newly penalised", "Penalised subjects", "By rule and rung", "False positives by rules", "shadow",
                 "Requests stopped", "N_eff", "Allowlisted", "user:vip", "Subjects that differ most",
                 "blocklist of then", "Allowed requests are sampled", "Failed: new.total > 0"):  # fmt: skip
        assert part in " ".join(text.split()), part


def test_texts_from_outside_are_only_shown() -> None:
    """Neither terminal escapes nor the markup of tables are obeyed."""
    text = shown(200)
    assert "\x1b" not in text
    assert "[red]" in text


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs ``replay`` over 3,000 decisions of households, a stricter policy beside the one of then."""
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "events.jsonl", households())
    (tmp_path / "then.yaml").write_text(POLICY, encoding="utf-8")
    strict = POLICY.replace("user_abuse:   {on: user, count: 5", "user_abuse:   {on: user, count: 3")
    assert strict != POLICY
    (tmp_path / "strict.yaml").write_text(strict, encoding="utf-8")
    usual = ("--source", "events.jsonl", "--policy", "strict.yaml")
    return lambda *arguments: CliRunner().invoke(app, ["replay", *usual, *arguments], catch_exceptions=False)


def test_a_stricter_policy_penalises_more(call: Callable[..., Any]) -> None:
    """The JSON has the report beside the replay's own figures; both count the same penalties."""
    found = json.loads(call("--baseline", "then.yaml", "--json").stdout)
    diff = msgspec.convert(found["diff"], Report)
    assert diff.total.new.total > 0
    assert diff.decisions == found["decisions"] == 3000
    for side in ("baseline", "candidate"):
        steps = {rung: n for rung, n in found[side]["by_rung"].items() if rung not in ("lift", "note")}
        assert getattr(diff.total.penalties, side) == sum(steps.values())
        assert getattr(diff.total, side).total == found[side]["subjects_penalised"]
    assert diff.top[0].steps[0].decisions[-1].trigger
    assert found["failed"] == []


def test_two_replays_report_the_same(call: Callable[..., Any]) -> None:
    """A report is as repeatable as the replay itself."""
    one, other = (json.loads(call("--baseline", "then.yaml", "--json").stdout)["diff"] for _ in range(2))
    assert one == other


def test_a_policy_beside_itself_changes_nothing(call: Callable[..., Any]) -> None:
    """Nobody is new or gone; the terminal says so and the gate stays open."""
    result = call("--baseline", "strict.yaml", "--fail-if", "new.total > 0", "--fail-if", "longer.total > 0")
    assert result.exit_code == 0
    assert "0 subjects would be newly penalised, 0 no longer." in result.stdout


def test_a_condition_that_holds_is_exit_code_3(call: Callable[..., Any]) -> None:
    """Both ways of printing; the sentence has the figure."""
    conditions = ("--baseline", "then.yaml", "--fail-if", "new.total >= 1", "--fail-if", "new.total > 100000")
    result = call(*conditions)
    assert result.exit_code == 3
    assert re.search(r"Failed: new.total >= 1: new.total is \d+", result.stdout)
    result = call(*conditions, "--json")
    assert result.exit_code == 3
    assert [one["condition"] for one in json.loads(result.stdout)["failed"]] == ["new.total >= 1"]
    assert "Failed: new.total >= 1" in result.stderr


def test_a_rate_of_too_few_does_not_pass(call: Callable[..., Any]) -> None:
    """Without outcomes an FDR is unlabelled or insufficient: the gate stays shut unless told otherwise."""
    result = call("--baseline", "then.yaml", "--fail-if", "fdr.user > 0.9")
    assert result.exit_code == 3
    assert re.search(r"fdr.user is (insufficient|unlabelled)", " ".join(result.stdout.split()))
    assert call("--baseline", "then.yaml", "--fail-if", "fdr.user? > 0.9").exit_code == 0


def test_without_a_baseline_everything_is_new(call: Callable[..., Any]) -> None:
    """Conditions alone compare with no policy at all; without them there is no comparison."""
    found = json.loads(call("--fail-if", "new.total < 1", "--json").stdout)
    assert found["diff"]["total"]["new"]["total"] == found["candidate"]["subjects_penalised"]
    assert "diff" not in json.loads(call("--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--fail-if", "new.totl > 0"), r"no figure 'new.totl'. There are .*new"),
        (("--fail-if", "many"), "--fail-if: got 'many'"),
        (("--html", "nowhere/page.html"), "--html nowhere/page.html: wanted the name of a file in a folder"),
        (("--matures", "soon"), "--matures"),
        (("--warm-up", "2h"), "--warm-up: got '2h' without --from"),
    ],
)
def test_what_cannot_work_is_refused_before_the_replay(
    call: Callable[..., Any], arguments: tuple[str, ...], sentence: str
) -> None:
    """A sentence that says what was wanted."""
    Path("events.jsonl").unlink()
    with pytest.raises(ConfigurationError, match=sentence):
        call("--baseline", "then.yaml", *arguments)


def test_an_option_that_nothing_would_use_is_refused(call: Callable[..., Any]) -> None:
    """Labels matter to a comparison only: whoever says how soon they come meant one."""
    with pytest.raises(ConfigurationError, match="--matures: got '1h', and nothing is compared"):
        call("--matures", "1h")


if __name__ == "__main__":
    GOLDEN.write_text(golden(), encoding="utf-8")
