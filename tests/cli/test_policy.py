"""`policy` against a real Redis; Kafka is away, which it says and bears."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import yaml
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import encode
from penaltybox.contracts.policy_file import parse_policy
from tests.processors.worker_driver import denial
from tests.redis_servers import BINARIES
from tests.servers import fresh_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

POLICY = """# ours
limits: {coupon_claim: {user: [{name: daily, limit: 3, window: 1d}]}}
rules: {abuse: {on: user, count: 3, window: 10m, then: {level: 5m}}}
"""
STRICT = POLICY.replace("count: 3", "count: 1")
WHY = ("--reason", "ticket 4711", "--actor", "alice")
QUICK = (*WHY, "--yes", "--no-replay")


@pytest.fixture
def call(redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    """Runs ``policy`` and gives its result."""
    monkeypatch.setenv("PENALTYBOX_REDIS_URL", f"redis://127.0.0.1:{redis_by_kind[next(iter(BINARIES))].port}")
    monkeypatch.setenv("PENALTYBOX_REDIS_PREFIX", fresh_name("policy"))
    monkeypatch.setenv("PENALTYBOX_KAFKA", "127.0.0.1:1")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "strict.yaml").write_text(STRICT)
    return lambda *arguments: CliRunner().invoke(app, ["policy", *arguments], catch_exceptions=False)


def test_a_policy_is_applied_shown_and_taken_back(call: Callable[..., Any]) -> None:
    """Each step stands in the history with who and why; Kafka's absence is said and costs nothing."""
    assert "Nothing was ever applied" in call("history").stdout
    first, second = parse_policy(POLICY).version, parse_policy(STRICT).version
    done = call("apply", "policy.yaml", *QUICK)
    assert done.exit_code == 0
    assert f"Version {first} is in force, by alice: ticket 4711." in done.stdout
    assert "the control topic does not know of it yet" in done.stderr.replace("\n", " ")
    shown = json.loads(call("show", "--json").stdout)
    assert (shown["version"], shown["policy"]["rules"]["abuse"]["count"]) == (first, 3)
    assert call("show", "--source").stdout.endswith(POLICY)
    assert parse_policy(call("show").stdout).version == first
    assert "nothing to do" in call("apply", "policy.yaml", *QUICK).stdout
    applied = json.loads(call("apply", "strict.yaml", *QUICK, "--json").stdout)
    assert (applied["before"], applied["version"], applied["told"]) == (first, second, False)
    assert applied["changes"][0]["fields"] == [{"field": "count", "before": 3, "after": 1}]
    back = json.loads(call("rollback", *WHY, "--yes", "--json").stdout)
    assert (back["before"], back["version"]) == (second, first)
    switches = json.loads(call("history", "--json").stdout)["switches"]
    assert [(one["version"], one.get("verb", "apply")) for one in switches] == [
        (first, "rollback"), (second, "apply"), (first, "apply")
    ]  # fmt: skip
    assert "in force" in call("history").stdout
    assert call("rollback", second, *WHY, "--yes").exit_code == 0
    assert json.loads(call("show", "--json").stdout)["version"] == second
    assert "count: 3 → 1" in call("diff", first, "current").stdout
    assert json.loads(call("diff", "policy.yaml", "--json").stdout)["changes"][0]["kind"] == "changed"
    assert "Nothing differs" in call("diff", "strict.yaml").stdout


def test_without_yes_it_asks(call: Callable[..., Any]) -> None:
    """No answer is no."""
    asked = call("apply", "policy.yaml", *WHY, "--no-replay")
    assert asked.exit_code == 1
    assert "Nothing was ever applied" in call("history").stdout


@pytest.mark.parametrize(
    ("without", "sentence"),
    [
        ("limits", "This one has no limits: limiters refuse only who is blocked."),
        ("rules", "This one has no rules: it punishes nobody."),
    ],
)
def test_what_the_first_policy_takes_away(
    call: Callable[..., Any], tmp_path: Path, without: str, sentence: str
) -> None:
    """Nobody knows the programs' own files; what this one leaves out of theirs is told before it is put in force."""
    assert "This one has" not in call("apply", "policy.yaml", *WHY, "--no-replay").stdout
    rest = [line for line in POLICY.splitlines() if not line.startswith(without)]
    (tmp_path / "part.yaml").write_text("\n".join(rest) or "{}")
    asked = call("apply", "part.yaml", *WHY, "--no-replay")
    assert sentence in " ".join(asked.stdout.split())
    assert "Nothing was ever applied" in call("history").stdout


def test_another_one_was_faster(call: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """While one person reads the question, another one switches: the answer was to something else, and is void."""
    call("apply", "policy.yaml", *QUICK)
    (tmp_path / "gentle.yaml").write_text(POLICY.replace("count: 3", "count: 30"))
    for arguments in (("apply", "strict.yaml", *WHY, "--no-replay"), ("rollback", *WHY)):
        with monkeypatch.context() as patched:
            patched.setattr("typer.confirm", lambda *_, **__: call("apply", "gentle.yaml", *QUICK))
            if arguments[0] == "rollback":
                patched.setattr("typer.confirm", lambda *_, **__: call("apply", "policy.yaml", *QUICK))
            with pytest.raises(ConfigurationError, match=r"nothing was changed, .* by alice: ticket 4711"):
                call(*arguments)
    assert json.loads(call("show", "--json").stdout)["version"] == parse_policy(POLICY).version


def test_a_policy_that_bans_everybody_is_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    """Tried on recorded traffic it would deny more than the stated share; forced it is applied all the same."""
    lines = [encode(denial(n, user=f"u{n % 50}")) for n in range(100)]
    (tmp_path / "traffic.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    call("apply", "policy.yaml", *QUICK)
    trying = ("apply", "strict.yaml", *WHY, "--yes", "--source", "traffic.jsonl")
    refused = call(*trying)
    assert refused.exit_code == 3
    said = " ".join(refused.stderr.split())
    assert "Not applied: it would have denied 50 of 50 subjects of the dimension user (100.0 %; 0 under" in said
    as_json = call(*trying, "--json")
    assert as_json.exit_code == 3
    document = json.loads(as_json.stdout)
    assert (document["applied"], document["trial"][0]["denied"]) == (False, 50)
    assert json.loads(call("show", "--json").stdout)["version"] == parse_policy(POLICY).version
    assert call(*trying, "--most", "100").exit_code == 0
    call("rollback", *WHY, "--yes")
    assert call(*trying, "--force").exit_code == 0


def test_limits_that_refuse_everybody_are_refused(call: Callable[..., Any], tmp_path: Path) -> None:
    """A limit with a digit too few bans nobody, but would have refused most of what was allowed: that is tried, too."""
    allowed = [
        msgspec.structs.replace(denial(n, user=f"u{n % 5}"), action="allow", reason=None, violated=())
        for n in range(100)
    ]
    (tmp_path / "traffic.jsonl").write_bytes(b"\n".join(map(encode, allowed)) + b"\n")
    (tmp_path / "tight.yaml").write_text(
        "limits: {coupon_claim: {user: [{name: daily, limit: 2, window: 1d}]}}\nrules: {}\n"
    )
    call("apply", "policy.yaml", *QUICK)
    trying = ("apply", "tight.yaml", *WHY, "--yes", "--source", "traffic.jsonl")
    refused = call(*trying)
    assert refused.exit_code == 3
    said = " ".join(refused.stderr.split())
    assert "its limits would have refused 90 of 100 requests that were allowed (90.0 %), and --most allows 10 %" in said
    assert call(*trying, "--most", "95").exit_code == 0


def test_the_first_policy_is_tried_with_its_limits(call: Callable[..., Any], tmp_path: Path) -> None:
    """Nothing is in force, so nobody knows whose limits the requests met: they are asked of the new ones all the same.

    What was refused then stays in the trial of the rules. A sample of the requests cannot be asked, and that is said.
    """
    allowed = [
        msgspec.structs.replace(denial(n, user=f"u{n % 5}"), action="allow", reason=None, violated=())
        for n in range(100)
    ]
    (tmp_path / "traffic.jsonl").write_bytes(b"\n".join(map(encode, allowed)) + b"\n")
    (tmp_path / "tight.yaml").write_text(
        "limits: {coupon_claim: {user: [{name: daily, limit: 2, window: 1d}]}}\nrules: {}\n"
    )
    trying = ("apply", "tight.yaml", *WHY, "--yes", "--source", "traffic.jsonl")
    refused = call(*trying)
    assert refused.exit_code == 3
    assert "refused by its limits: 90 of 100 requests that were allowed" in " ".join(refused.stdout.split())
    assert "its limits would have refused 90 of 100" in " ".join(refused.stderr.split())
    document = json.loads(call(*trying, "--json").stdout)
    assert (document["applied"], document["limits"]["newly_refused"]) == (False, 90)
    sampled = [msgspec.structs.replace(one, sample_rate=0.5) for one in allowed]
    (tmp_path / "sampled.jsonl").write_bytes(b"\n".join(map(encode, sampled)) + b"\n")
    applied = call(*trying[:-1], "sampled.jsonl")
    assert applied.exit_code == 0
    assert "limits were not tried: only a share of the allowed requests was recorded" in " ".join(
        applied.stdout.split()
    )


def test_there_is_no_traffic_yet(call: Callable[..., Any], tmp_path: Path) -> None:
    """Whoever applies the first policy of a new installation reads what to say instead, in words of this command."""
    (tmp_path / "traffic.jsonl").write_text("\n")
    with pytest.raises(ConfigurationError, match=r"no traffic to try it on: traffic\.jsonl.* --no-replay") as caught:
        call("apply", "policy.yaml", *WHY, "--yes", "--source", "traffic.jsonl")
    assert "--from" not in str(caught.value)


def test_the_first_policy_bans_everybody(call: Callable[..., Any], tmp_path: Path) -> None:
    """Denials that other limits made stay what they were, so its rules are judged by them."""
    lines = [encode(denial(n, user=f"u{n % 50}")) for n in range(100)]
    (tmp_path / "traffic.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    refused = call("apply", "strict.yaml", *WHY, "--yes", "--source", "traffic.jsonl")
    assert refused.exit_code == 3
    assert "it would have denied 50 of 50 subjects" in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("apply", "none.yaml", *QUICK), "none.yaml: cannot be read"),
        (("apply", "policy.yaml", "--yes", "--reason", " ", "--actor", "bob"), "--reason: got nothing"),
        (("apply", "policy.yaml", *WHY, "--yes"), "--no-replay applies it without"),
        (("apply", "policy.yaml", *WHY, "--last", "6 hours"), "--last: got '6 hours'"),
        (("rollback", *WHY, "--yes"), "no version before the one in force"),
        (("rollback", "0123456789ab", *WHY, "--yes"), "wanted one that Redis knows"),
        (("show", "0123456789ab"), "wanted one that Redis knows"),
        (("diff", "policy.yaml", "none.yaml"), "none.yaml: cannot be read"),
        (("test", "."), "no decisions.jsonl"),
    ],
)
def test_what_cannot_be_done(call: Callable[..., Any], arguments: tuple[str, ...], sentence: str) -> None:
    """Each mistake is a sentence that says what is wanted."""
    with pytest.raises(ConfigurationError, match=sentence):
        call(*arguments)


def test_check_says_what_is_probably_not_meant(call: Callable[..., Any], tmp_path: Path) -> None:
    """Errors with their place, warnings with what to do instead, also as JSON and exit code."""
    right = call("check", "policy.yaml")
    assert f"version {parse_policy(POLICY).version}, 1 rules" in right.stdout
    (tmp_path / "odd.yaml").write_text(
        """
limits: {s: {user: [{name: daily, limit: 3, window: 1d}]}}
scenarios: {s: {failure: closed}}
rules:
  far: {on: tenant, count: 3, window: 10m, then: step}
  rack: {on: device, count: 3, window: 10m, then: step}
  net: {on: ip, distinct: user, n: 3, window: 10m, then: {level: permanent}}
  try: {on: ip, distinct: user, n: 3, window: 10m, then: {level: 5m}, shadow: true}
allow: [{subject: "user:qa", until: 2020-01-01T00:00:00Z}]
breaker: false
"""
    )
    odd = call("check", "odd.yaml", "--strict", "--json")
    assert odd.exit_code == 1
    found = [(one["where"], one["says"].split(":")[0]) for one in json.loads(odd.stdout)["warnings"]]
    assert [where for where, _ in found] == [
        "rules.far", "rules.far", "rules.rack", "rules.net", "rules.net", "breaker", "allow", "scenarios.s"
    ]  # fmt: skip
    assert "no limit has the dimension tenant" in call("check", "odd.yaml").stdout
    (tmp_path / "wrong.yaml").write_text("rules: {x: {on: user}}\n")
    with pytest.raises(ConfigurationError, match=r"wrong\.yaml"):
        call("check", "wrong.yaml")
    assert "rules.x" in json.loads(call("check", "wrong.yaml", "--json").stdout)["error"]


def test_scenarios_say_what_came_otherwise(call: Callable[..., Any], tmp_path: Path) -> None:
    """As expected: 0. Otherwise 1, with what was missing and what came instead; rules that nothing tests are named."""
    policy = POLICY.replace("rules: {", "rules: {quiet: {on: device, count: 9, window: 1m, then: step}, ")
    (tmp_path / "policy.yaml").write_text(policy)
    folder = tmp_path / "scenarios" / "three_denials"
    folder.mkdir(parents=True)
    line: dict[str, Any] = {"t": "0s", "times": 3, "every": "1s", "action": "deny", "reason": "over_limit"}
    line |= {"violated": ["user:daily"], "subjects": {"user": "amy"}}
    (folder / "decisions.jsonl").write_text(json.dumps(line) + "\n")
    wanted = {"t": "2s", "subject": "user:amy", "rule": "abuse", "from": "none", "to": "5m", "action": "deny"}
    (folder / "expected.jsonl").write_text("// three are enough\n" + json.dumps({**wanted, "until": "5m2s"}) + "\n")
    good = call("test", "scenarios", "--policy", "policy.yaml")
    assert good.exit_code == 0
    assert "1 of 1 scenarios came as expected; 2 rules, 1 of which fired in none:\n  quiet" in good.stdout
    (tmp_path / "strict.yaml").write_text(STRICT)
    bad = call("test", "scenarios/three_denials", "--policy", "strict.yaml")
    assert bad.exit_code == 1
    assert "- expected       2s  user:amy  abuse: none → 5m, deny until 5m2s" in bad.stdout
    assert "+ came           0s  user:amy  abuse: none → 5m, deny until 5m" in bad.stdout
    document = json.loads(call("test", "scenarios", "--policy", "strict.yaml", "--json").stdout)
    assert document["failed"][0]["scenario"] == "three_denials"
    (folder / "decisions.jsonl").write_text('{"times": 3}\n')
    with pytest.raises(ConfigurationError, match="event 1: no 't'"):
        call("test", "scenarios", "--policy", "policy.yaml")


def test_commands_work_by_the_policy_in_force(call: Callable[..., Any]) -> None:
    """Where nothing is said, not the file counts but what Redis has; so do `quota` and the doctor."""
    call("apply", "policy.yaml", *QUICK)
    quota = CliRunner().invoke(app, ["quota", "show", "user:u1", "--json"], catch_exceptions=False)
    assert list(json.loads(quota.stdout)["limits"]) == ["coupon_claim/user:daily"]
    found = json.loads(CliRunner().invoke(app, ["doctor", "--json"]).stdout)["findings"]
    says = [one["says"] for one in found if one["part"] == "policy"]
    assert any(f"in force: version {parse_policy(POLICY).version} from Redis" in one for one in says)
    assert yaml.safe_load(call("show").stdout)["limits"] == msgspec.to_builtins(
        json.loads(call("show", "--json").stdout)["policy"]["limits"]
    )


def test_a_broken_scenario_hides_no_other(call: Callable[..., Any], tmp_path: Path) -> None:
    """It is told, with exit code 2; what came of the others is told before."""
    for name, line in (("a", "{"), ("b", ""), ("c", "[1]")):
        folder = tmp_path / "all" / name
        folder.mkdir(parents=True)
        (folder / "decisions.jsonl").write_text(line)
        (folder / "expected.jsonl").write_text("")
    with pytest.raises(ConfigurationError, match=r"c/decisions.jsonl:1: got '\[1\]', wanted a JSON object"):
        call("test", "all")
    (tmp_path / "all" / "a" / "decisions.jsonl").write_text("")
    (tmp_path / "all" / "c" / "decisions.jsonl").write_text("")
    assert "3 of 3 scenarios" in call("test", "all").stdout


def test_the_source_is_printed_sign_for_sign(call: Callable[..., Any], tmp_path: Path) -> None:
    """What goes into a file is the file: a tab, or a sign that nobody sees, is not printed as its code there."""
    text = f"{POLICY}# \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645\ta tab\n"
    (tmp_path / "signs.yaml").write_text(text, encoding="utf-8")
    assert call("show", "signs.yaml", "--source").stdout.endswith(text)
