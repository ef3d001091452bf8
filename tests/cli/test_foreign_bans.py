"""Ban lists of fail2ban and CrowdSec: what is read, what is left out and why, and what is in force afterwards."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.cli.block_files import WrongLine
from penaltybox.cli.foreign_bans import READERS, ForeignBan, go_duration
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.desks import Desk

WHY = ("--reason", "moved over", "--actor", "alice")
HOUR = 3_600_000


def database(file: Path, bans: list[tuple[str, int, int]], table: str = "bips") -> Path:
    """A database as fail2ban 1.0 makes it, as far as it is read."""
    with closing(sqlite3.connect(file)) as base, base:
        base.execute(
            f"CREATE TABLE {table}(ip TEXT NOT NULL, jail TEXT NOT NULL, timeofban INTEGER NOT NULL, "
            "bantime INTEGER NOT NULL, bancount INTEGER NOT NULL default 1, data JSON)"
        )
        base.executemany(
            f"INSERT INTO {table}(ip, jail, timeofban, bantime) VALUES (?, 'sshd', ?, ?)",  # noqa: S608 - of this test
            bans,
        )
    return file


def decision(value: str, **changed: Any) -> dict[str, Any]:
    return {
        "duration": "3h59m45.100387557s", "id": 1, "origin": "crowdsec", "scenario": "crowdsecurity/ssh-bf",
        "scope": "Ip", "simulated": False, "type": "ban", "value": value,
    } | changed  # fmt: skip


def test_a_database_of_fail2ban(desk: Desk) -> None:
    """Each ban for what is left of it, permanent ones too; IPv6 by its /64; what has ended is counted only."""
    now_s = now_ms() // 1000
    file = database(
        desk.folder / "f.sqlite3",
        [
            ("192.0.2.1", now_s - 600, 4200),
            ("192.0.2.2", now_s - 600, -1),
            ("192.0.2.3", now_s - 600, 60),
            ("2001:db8::1", now_s, 3600),
            ("2001:db8::2", now_s, 7200),
            ("alice", now_s, 3600),
        ],
    )
    arguments = ("blocks", "import", str(file), "--format", "fail2ban", *WHY)
    told = desk.json(*arguments, "--dry-run")
    assert (told["subjects"], told["banned"], told["ended"]) == (3, 0, 1)
    told = desk.json(*arguments)
    assert (told["banned"], told["ranges"], len(told["wrong"])) == (3, 0, 1)
    assert "wanted an address" in told["wrong"][0]["says"]
    assert abs(desk.key("ip:192.0.2.1")["until"] - (now_s + 3600) * 1000) < 2000
    assert desk.key("ip:192.0.2.2")["until"] is None
    assert abs(desk.key("ip:2001:db8::/64")["until"] - (now_s + 7200) * 1000) < 2000
    assert desk.json(*arguments)["already"] == 3


def test_decisions_of_crowdsec(desk: Desk) -> None:
    """Bans, ranges, a captcha as a challenge of that address; simulated ones, countries and other types are told."""
    file = desk.folder / "decisions.json"
    alerts = [
        {"id": 1, "decisions": [decision("192.0.2.1"), decision("198.51.100.0/24", scope="Range")]},
        {"id": 2, "decisions": [decision("192.0.2.9", type="captcha", duration="1h"), decision("FR", scope="Country")]},
        {"id": 3, "decisions": [decision("192.0.2.7", simulated=True), decision("192.0.2.8", type="throttle")]},
        {"id": 4, "decisions": [decision("192.0.2.4", duration="-3s"), decision("0.0.0.0/0", scope="Range")]},
        {"id": 5, "decisions": None},
    ]
    file.write_text(json.dumps(alerts))
    arguments = ("blocks", "import", str(file), "--format", "crowdsec", *WHY)
    result = desk.result(*arguments)
    assert result.exit_code == 1
    assert "1 subjects are banned" in result.stdout
    assert "2 of 2 ranges are newly banned or challenged; 1 bans had ended" in " ".join(result.stdout.split())
    said = " ".join(result.stderr.split())
    for part in ("scope 'Country'", "simulated", "type 'throttle'", "0.0.0.0/0 is everybody"):
        assert part in said
    assert desk.key("ip:192.0.2.1")
    bans = dict(zip(*[iter(desk.redis("HGETALL", f"{desk.prefix}:cidr"))] * 2, strict=True))
    assert json.loads(bans[b"192.0.2.9/32"])["action"] == "challenge"
    assert json.loads(bans[b"198.51.100.0/24"])["actor"] == "alice"
    assert desk.json(*arguments)["ranges_banned"] == 0


def read(form: str, file: Path, text: str, at_s: float = 1_700_000_000) -> list[ForeignBan | WrongLine]:
    file.write_text(text)
    os.utime(file, (at_s, at_s))
    return list(READERS[form](file))


def test_the_other_forms(tmp_path: Path) -> None:
    """What the clients print: addresses without an end, lines with times, CSV of both kinds, an empty list."""
    file = tmp_path / "bans"
    assert read("fail2ban", file, "[{'sshd': ['192.0.2.1', '2001:db8::1']}, {'web': []}]\n") == [
        ForeignBan(1, "192.0.2.1", "deny", -1),
        ForeignBan(2, "2001:db8::1", "deny", -1),
    ]
    lines = (
        "192.0.2.1 \t2026-01-02 03:04:05 + 600 = 2026-01-02 03:14:05\n192.0.2.2 \t2026-01-02 03:04:05 + -1 = 9999\nx\n"
    )
    first, second, third = read("fail2ban", file, lines)
    assert isinstance(first, ForeignBan)
    assert first.until is not None
    assert first.until % 600_000 == (4 * 60 + 5) * 1000  # in whatever time zone
    assert second == ForeignBan(2, "192.0.2.2", "deny", None)
    assert isinstance(third, WrongLine)
    raw = (
        "id,source,ip,reason,action,country,as,events_count,expiration,simulated,alert_id\n"
        '1,crowdsec,Ip:192.0.2.1,crowdsecurity/ssh-bf,ban,ZZ,"64500 EXAMPLE, Inc",3,3h,false,1\n'
        "2,cscli,Range:198.51.100.0/24,manual,captcha,,,0,1m0.5s,false,2\n"
    )
    assert read("crowdsec", file, raw) == [
        ForeignBan(1, "192.0.2.1", "deny", 1_700_000_000_000 + 3 * HOUR),
        ForeignBan(2, "198.51.100.0/24", "challenge", 1_700_000_060_500),
    ]
    note = raw.replace("manual", "manual\u2028,,Ip:192.0.2.9,,ban,,,0,9h\u0085")
    assert [one.address for one in read("crowdsec", file, note) if isinstance(one, ForeignBan)] == ["192.0.2.1"]
    assert read("crowdsec", file, "duration,scope,value\n24h,ip,2001:db8::1\n") == [
        ForeignBan(1, "2001:db8::1", "deny", 1_700_000_000_000 + 24 * HOUR)
    ]
    assert read("crowdsec", file, json.dumps([decision("192.0.2.1", duration="1s")])) == [
        ForeignBan(1, "192.0.2.1", "deny", 1_700_000_001_000)
    ]
    taken = [ForeignBan(1, "192.0.2.1", "deny", 1_700_000_001_000)]
    stream = {"new": [decision("192.0.2.1", duration="1s")], "deleted": [decision("192.0.2.2")]}
    assert read("crowdsec", file, json.dumps(stream)) == taken
    assert read("crowdsec", file, "null") == read("crowdsec", file, '{"new": null, "deleted": null}') == []


def test_bans_without_an_end_want_one(desk: Desk) -> None:
    """`fail2ban-client banned` says no ends: without --for nothing of it is taken, never for good by mistake."""
    file = desk.folder / "banned"
    file.write_text("[{'sshd': ['192.0.2.1']}]")
    arguments = ("blocks", "import", str(file), "--format", "fail2ban", *WHY)
    told = desk.json(*arguments)
    assert (told["subjects"], len(told["wrong"])) == (0, 1)
    assert "--for 1h says" in told["wrong"][0]["says"]
    assert desk.json(*arguments, "--for", "2h")["banned"] == 1
    assert abs(desk.key("ip:192.0.2.1")["until"] - now_ms() - 2 * HOUR) < 60_000


@pytest.mark.parametrize(
    ("form", "content", "sentence"),
    [
        ("fail2ban", "[__import__('os')]", "not as `fail2ban-client banned`"),
        ("fail2ban", "[" * 5000, "not as `fail2ban-client banned`"),
        ("fail2ban", "\udcff", "UTF-8"),
        ("fail2ban", "SQLite format 3\x00 and no more", "cannot be read as a database"),
        ("crowdsec", "[1]", "no decisions in it"),
        ("crowdsec", "[{", "no JSON"),
        ("crowdsec", '{"message": "access forbidden"}', "no decisions in it"),
        ("crowdsec", "a,b\n1,2\n", "no header of CrowdSec's"),
        ("crowdsec", f"ip,expiration,{'x' * 200_000}\n", "no CSV: field larger than"),
        ("crowdsec", f"ip,expiration\n{'x' * 200_000},1h\n", "no CSV: field larger than"),
    ],
)
def test_what_is_no_list_is_refused(tmp_path: Path, form: str, content: str, sentence: str) -> None:
    """Before anything is changed, with what was wanted."""
    file = tmp_path / "bans"
    file.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError, match=sentence):
        list(READERS[form](file))


@settings(deadline=None)
@given(st.sampled_from(sorted(READERS)), st.text(max_size=200), st.sampled_from(["", "[", "ip,expiration\n", "[{"]))
def test_no_file_can_crash_a_reader(tmp_path_factory: pytest.TempPathFactory, form: str, text: str, start: str) -> None:
    """Whatever stands in it, a file is read or refused."""
    file = tmp_path_factory.mktemp("bans") / "bans"
    file.write_bytes((start + text).encode("utf-8", "surrogatepass"))
    try:
        rows = list(READERS[form](file))
    except ConfigurationError:
        return
    assert all(isinstance(row, (ForeignBan, WrongLine)) for row in rows)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("3h59m45.1s", 14_385_100),
        ("-3h", -3 * HOUR),
        ("500ms", 500),
        ("", None),
        ("3 h", None),
        ("30d", 30 * 24 * HOUR),
        ("1w", None),
        ("9" * 99 + "h", None),
    ],
)
def test_durations_of_go(text: str, wanted: int | None) -> None:
    """Days, as CrowdSec has them, hours, minutes, seconds and less; nothing else."""
    assert go_duration(text) == wanted
