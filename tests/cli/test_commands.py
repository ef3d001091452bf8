"""The command line as a person meets it: help, sentences, JSON. Nothing here needs a server."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from penaltybox.cli.commands import app
from penaltybox.cli.console import instant, left
from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.contracts.subjects import Canonicaliser, hash_value

ROOT = Path(__file__).parent.parent.parent
LOG = ROOT / "tests" / "data" / "apache_access.log"
POLICY = ROOT / "policies" / "access-log.yaml"


def call(*arguments: str, given: bytes | None = None) -> str:
    """Standard output of a command in this process; its errors are raised."""
    result = CliRunner().invoke(app, list(arguments), input=given, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, without any setting."""
    return subprocess.run(
        [sys.executable, "-m", "penaltybox", *arguments],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "COLUMNS": "120", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def every_command() -> list[list[str]]:
    """The names of all commands and groups."""
    root = get_command(app)
    found: list[list[str]] = []
    for name, one in root.commands.items():  # type: ignore[attr-defined]
        found.append([name])
        found += [[name, inner] for inner in getattr(one, "commands", ())]
    return found


def test_an_early_interrupt_is_no_traceback() -> None:
    """Ctrl-C while the modules are still being read ends the command like a later one."""
    hook = (
        "import sys\n"
        "class Interrupts:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'penaltybox.cli.commands': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupts())\n"
        "from penaltybox.cli.main import run\n"
        "run()\n"
    )
    done = subprocess.run([sys.executable, "-c", hook], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("arguments", [("replay", "--speed"), ("demo", "--labelled")])
@pytest.mark.parametrize("number", ["inf", "-inf", "nan", "1e400"])
def test_no_number_is_infinite(arguments: tuple[str, str], number: str) -> None:
    """What is no number of anything is a sentence about the option, and no traceback later."""
    result = CliRunner().invoke(app, [*arguments, number])
    assert result.exit_code == 2
    assert arguments[1] in result.output


@pytest.mark.parametrize("names", every_command(), ids=" ".join)
def test_every_command_explains_itself(names: list[str]) -> None:
    """Each command has a help text, and each of its options one of its own."""
    text = call(*names, "--help")
    assert "Usage" in text
    one = get_command(app)
    for name in names:
        one = one.commands[name]  # type: ignore[attr-defined]
    assert one.help
    assert all(getattr(parameter, "help", "") for parameter in one.params)


def test_offline_as_json() -> None:
    """What would have been done to the real log, for programs."""
    document = json.loads(call("ingest", "combined", str(LOG), "--offline", "--policy", str(POLICY), "--json"))
    assert document["log"]["lines"] == 10_000
    assert document["summary"]["by_rule"] == {"web_flood": 2}
    assert document["summary"]["stopped"] == 32


def test_offline_for_people() -> None:
    """What would have been done to the real log, in sentences and tables; a policy of the package by its name."""
    text = " ".join(call("ingest", "combined", str(LOG), "--offline", "--policy", "access-log").split())
    assert "Of 10,000 requests 9,913 would have been allowed and 87 refused" in text
    assert "ip:75.97.9.59 5m 2" in text


def test_dry_run_prints_decisions() -> None:
    """Each line is a decision that the workers would take; standard input and gzip give the same."""
    head = b"".join(LOG.read_bytes().splitlines(keepends=True)[:100]) + b"nonsense\n"
    piped = call("ingest", "combined", "-", "--dry-run", given=head)
    canonicaliser = Canonicaliser()
    decisions = [decode_decision(line.encode(), 1 << 50, canonicaliser) for line in piped.splitlines()]
    assert len(decisions) == 100


def test_compressed_and_shifted(tmp_path: Path) -> None:
    """A compressed log can be shifted: it ends now, and standard input can be shifted too."""
    zipped = tmp_path / "log.gz"
    head = b"".join(LOG.read_bytes().splitlines(keepends=True)[:100])
    zipped.write_bytes(gzip.compress(head))
    from_file = call("ingest", "combined", str(zipped), "--dry-run", "--shift", "now").splitlines()
    from_pipe = call("ingest", "combined", "-", "--dry-run", "--shift", "now", given=head).splitlines()
    for lines in (from_file, from_pipe):
        times = [json.loads(line)["ts"] for line in lines]
        assert times == sorted(times)
        assert times[-1] > 1_700_000_000_000


def test_hashed_dimensions_leave_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a hash key no address is printed or published, and a host name is still no address."""
    monkeypatch.setenv("PENALTYBOX_HASHED_DIMENSIONS", "ip")
    monkeypatch.setenv("PENALTYBOX_HASH_KEY", "k")
    line = b'%s - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 12\n'
    piped = call("ingest", "combined", "-", "--dry-run", given=line % b"192.0.2.7" + line % b"evil.example")
    (decision,) = [json.loads(text) for text in piped.splitlines()]
    assert decision["subjects"] == {"ip": hash_value(b"k", "ip", "192.0.2.7")}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["ingest", "combined", "nothere.log", "--offline"], "log nothere.log: cannot be read"),
        (["ingest", "combined", str(LOG), "--offline", "--scenario", "x"], "the policy has no limits for it"),
        (["ingest", "combined", str(LOG), "--offline", "--map", "/a"], "--map: got '/a'"),
        (["ingest", "combined", str(LOG), "--shift", "later"], "--shift: got 'later'"),
        (["ingest", "combined", str(LOG), "--policy", "none.yaml"], "policy none.yaml: cannot be read"),
        (["ingest", "combined", str(POLICY), "--shift", "now"], "no line in combined or common format"),
        (["explain", "nonsense"], "wanted dimension:value"),
        (["blocks", "IP!"], "dimension: got 'IP!'"),
        (["pause", "--reason", " ", "--actor", "ann"], "reason: got nothing"),
        (["run"], "wanted a role"),
        (["run", "penalties", "--embedded"], "wanted a role"),
    ],
)
def test_errors_are_sentences(arguments: list[str], sentence: str) -> None:
    """What a person got wrong is told in one sentence; the console script makes it exit code 2."""
    with pytest.raises(PenaltyboxError) as caught:
        call(*arguments)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_console_script_shows_no_traceback() -> None:
    """An error goes to standard error as one line, with exit code 2; so does a server that is away."""
    for arguments in (["explain", "nonsense"], ["blocks"]):
        done = command(*arguments, PENALTYBOX_REDIS_URL="redis://127.0.0.1:1/0")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1


def test_a_wrong_setting_tells_no_secret() -> None:
    """A URL with a password that cannot be used is told without it."""
    done = command("blocks", PENALTYBOX_REDIS_URL="redis://u:hunter2@127.0.0.1:1/0", PENALTYBOX_KAFKA_PARTITIONS="x")
    assert done.returncode == 2
    assert "hunter2" not in done.stderr


def test_doctor_without_servers() -> None:
    """With nothing there the doctor finds what is wrong, says what to do, and exits with 1."""
    away = {
        "PENALTYBOX_KAFKA": "127.0.0.1:1",
        "PENALTYBOX_REDIS_URL": "redis://127.0.0.1:1/0",
        "PENALTYBOX_CLICKHOUSE_URL": "http://127.0.0.1:1",
        "PENALTYBOX_REDIS_PASSWORD": "hunter2",
    }
    done = command("doctor", "--json", "--settings", **away)
    assert done.returncode == 1
    document = json.loads(done.stdout)
    states = {finding["part"]: finding["state"] for finding in document["findings"]}
    assert states == {"policy": "ok", "kafka": "wrong", "redis": "wrong", "clickhouse": "wrong"}
    assert "***" in document["settings"].values()
    assert "hunter2" not in done.stdout + done.stderr


def test_version() -> None:
    """The version is told, also as JSON."""
    assert call("version").startswith("penaltybox ")
    assert {"penaltybox", "aiokafka"} <= json.loads(call("version", "--json")).keys()


@pytest.mark.parametrize(
    ("duration_ms", "text"),
    [
        (None, "permanent"),
        (0, "0s"),
        (1, "1s"),
        (61_000, "1m 1s"),
        (3_600_000, "1h"),
        (90_061_000, "1d 1h"),
        (-5, "0s"),
    ],
)
def test_durations_for_people(duration_ms: int | None, text: str) -> None:
    """What is left of a block, in its two largest units."""
    assert left(duration_ms) == text


def test_instants_for_people() -> None:
    """Times are UTC to the second; a list that somebody wrote in microseconds can be shown, too."""
    assert (instant(None), instant(1_431_857_100_000)) == ("never", "2015-05-17 10:05:00Z")
    assert (instant(1 << 52), instant(-(1 << 60))) == (f"{1 << 52} ms", f"{-(1 << 60)} ms")
