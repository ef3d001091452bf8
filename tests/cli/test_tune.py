"""`penaltybox tune` on a small world in ClickHouse: offices that are refused, a rule that hurts, one that does not."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.commands import app
from penaltybox.cli.policy_source import read_file
from penaltybox.cli.tune import tune
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import load_policy
from penaltybox.contracts.settings import Settings
from penaltybox.sinks.clickhouse.client import PATIENT_S, ClickHouse
from penaltybox.sinks.clickhouse.migrations import migrate
from tests.sinks.clickhouse.conftest import new_writer
from tests.sinks.clickhouse.worlds import DAY_MS, HOUR_MS, T0_MS, batch, denial, outcome, penalty

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from penaltybox.embedded.clickhouse_server import ClickHouseServer

pytestmark = pytest.mark.stack
POLICY = """\
limits:
  coupon_claim:
    user: [{name: daily, limit: 3, window: 1d}]
    ip:   [{name: soft, limit: 10, window: 1m, answer: challenge}]   # offices
  login:
    ip:   [{name: soft, limit: 200, window: 10m, answer: challenge}]
rules:
  device_farm: {on: device, distinct: user, n: 4, window: 10m, then: {level: 5m}}   # hurts
  user_abuse:  {on: user, count: 20, window: 10m, then: step}
"""
OFFICES, STAFF = 40, 4
SPAN = {"since": str(T0_MS), "until": str(T0_MS + DAY_MS)}


@pytest.fixture(scope="module")
def server(clickhouse_server: ClickHouseServer) -> Iterator[ClickHouseServer]:
    """Forty offices with paying staff, forty devices of families, forty abusers; five addresses at the log-in."""
    clickhouse = ClickHouse(clickhouse_server.url, "tuning", answer_s=PATIENT_S)
    migrate(clickhouse)
    offices = [(office, f"198.51.100.{office}") for office in range(OFFICES)]
    decisions = [
        denial(office * STAFF + person, "ip:soft", established=True,
               subjects={"user": f"staff{office}-{person}", "device": f"d{office}-{person}", "ip": ip})
        for office, ip in offices for person in range(STAFF)
    ]  # fmt: skip
    decisions += [denial(9000 + n, "ip:soft", scenario="login", subjects={"ip": f"192.0.2.{n}"}) for n in range(5)]
    outcomes = [outcome(n, "payment_ok", T0_MS + HOUR_MS, ip=ip) for n, ip in offices]
    outcomes += [outcome(100 + n, "payment_ok", T0_MS + HOUR_MS, device=f"family{n}") for n in range(40)]
    outcomes += [outcome(200 + n, "confirmed_abuse", T0_MS + HOUR_MS, user=f"bad{n}") for n in range(400)]
    penalties = [penalty(n, f"device:family{n}", T0_MS + n) for n in range(40)]
    penalties += [penalty(100 + n, f"user:bad{n}", T0_MS + n, rule="user_abuse") for n in range(400)]
    writer = new_writer(clickhouse)
    for one in (batch("decisions", decisions), batch("outcomes", outcomes), batch("penalties", penalties)):  # type: ignore[arg-type]
        writer.store(writer.prepare(one))
    yield clickhouse_server
    clickhouse.command("DROP DATABASE tuning")
    clickhouse.close()


@pytest.fixture
def policy(server: ClickHouseServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PENALTYBOX_CLICKHOUSE_URL", server.url)
    monkeypatch.setenv("PENALTYBOX_CLICKHOUSE_DATABASE", "tuning")
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY, encoding="utf-8")
    return path


def test_what_hurts_is_softened_and_the_rest_stays(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The limit of the offices goes to their figure, the rule on families asks, abusers and the log-in stay."""
    tune(policy_file=policy, out_file=policy.with_name("candidate.yaml"), as_json=True, **SPAN)
    told = json.loads(capsys.readouterr().out)
    found: dict[str, Any] = {one["figure"]["name"]: one for one in told["findings"]}
    assert {name: one["verdict"] for name, one in found.items()} == {
        "coupon_claim/ip:soft": "proposed",
        "login/ip:soft": "insufficient",
        "device_farm": "proposed",
        "user_abuse": "under the target",
    }
    limit = found["coupon_claim/ip:soft"]
    assert (limit["figure"]["episodes"], limit["figure"]["independent"]) == (OFFICES, OFFICES)
    assert limit["step"]["after"] == 12
    assert "user:daily 3 * N_eff 4.0 = 12; now 10" in limit["why"]
    made = load_policy(policy.with_name("candidate.yaml"))
    assert (made.version, told["comments_kept"]) == (told["candidate"], True)
    assert [(one["section"], one["name"]) for one in told["changes"]] == [
        ("limits", "coupon_claim/ip:soft"),
        ("rules", "device_farm"),
    ]


def test_people_read_the_diff_and_how_to_judge_it(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Table, reasons, diff and the replay command; the policy itself stays as it is, and no file is made unasked."""
    tune(policy_file=policy, **SPAN)
    told = capsys.readouterr().out
    assert "then: {level: 5m} → {challenge: 5m}" in told
    assert "limit: 10 → 12" in told
    command = f"penaltybox replay --policy candidate.yaml --baseline {policy} --source clickhouse --from {T0_MS}"
    assert f"{command} --to {T0_MS + DAY_MS}" in told
    assert list(policy.parent.iterdir()) == [policy]
    assert policy.read_text(encoding="utf-8") == POLICY


def test_the_candidate_keeps_the_comments(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The file is the original but for the two values."""
    out_file = policy.with_name("softer.yaml")
    tune(policy_file=policy, out_file=out_file, **SPAN)
    assert f"{out_file} has it" in "".join(capsys.readouterr().out.split("\n"))
    expected = POLICY.replace("limit: 10,", "limit: 12,").replace("{level: 5m}", "{challenge: 5m}")
    assert out_file.read_text(encoding="utf-8") == expected
    assert read_file(out_file, Settings()).policy.version == load_policy(out_file).version


def test_the_replay_that_it_names_runs(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command that judges the candidate, as it is printed, replays what ClickHouse has beside the policy."""
    tune(policy_file=policy, out_file=policy.with_name("candidate.yaml"), matures="1h", **SPAN)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "penaltybox replay" in line]
    name, *arguments = shlex.split(line)
    assert name == "penaltybox"
    app([*arguments, "--json"], standalone_mode=False)
    told = json.loads(capsys.readouterr().out)
    assert told["decisions"] == OFFICES * STAFF + 5


def test_nothing_over_the_target_makes_no_file(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a target that nothing exceeds the answer is that nothing is proposed."""
    tune(policy_file=policy, target=0.99, out_file=policy.with_name("candidate.yaml"), **SPAN)
    assert capsys.readouterr().out.endswith("Nothing is proposed.\n")
    assert list(policy.parent.iterdir()) == [policy]


def test_mistakes_are_sentences(policy: Path) -> None:
    """A target of 1 %, written as 1, and --out on the policy itself are refused."""
    with pytest.raises(ConfigurationError, match=r"--target: got 1, wanted a share above 0 and below 1"):
        tune(policy_file=policy, target=1.0)
    with pytest.raises(ConfigurationError, match="got the policy itself, wanted another file"):
        tune(policy_file=policy, out_file=policy)
    with pytest.raises(ConfigurationError, match=r"--since now is not before --until now"):
        tune(policy_file=policy, since="now")
