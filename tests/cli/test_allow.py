"""`allow` against real servers, with Kafka away."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.cli.console import instant
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent, ConfigurationError
from tests.cli.desks import WHY, Desk
from tests.redis_servers import BINARIES, KINDS

if TYPE_CHECKING:
    from pathlib import Path

ONE = next(iter(BINARIES))


@pytest.mark.parametrize("kind", KINDS)
def test_a_listing_hides_a_block_and_its_end_brings_it_back(
    kind: str, redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On every kind of Redis, without a worker: hidden when the command returns, back after."""
    desk = Desk(redis_by_kind[kind], monkeypatch, tmp_path)
    desk.begin()
    for subject in ("ip:203.0.113.7", "user:u1"):
        desk.run("ban", subject, "--level", "1h", *WHY)
        before = desk.key(subject)
        entry = subject if subject.startswith("user") else "203.0.113.0/24"
        assert desk.json("allow", "add", entry, *WHY)["hidden"] == 1
        assert desk.key(subject) is None
        assert desk.json("allow", "remove", entry, *WHY)["back"] == 1
        assert desk.key(subject) == before
    assert [record["key"] for record in desk.told()] == ["allow:203.0.113.0/24"] * 2 + ["allow:user:u1"] * 2


def test_a_ban_of_a_listed_subject_says_so(desk: Desk) -> None:
    """It stands on the ladder, the key stays hidden, and the sentence says why."""
    desk.run("allow", "add", "user:u1", *WHY)
    assert "It is on the allowlist, which wins" in desk.run("ban", "user:u1", *WHY)
    assert desk.key("user:u1") is None


def test_check_names_the_entry_and_its_end(desk: Desk) -> None:
    """The policy's own entries and those by hand, ranges, and bans that lose against them."""
    (desk.folder / "policy.yaml").write_text(
        "rules: {}\nallow: [{cidr: 192.0.2.0/24, note: office, until: 2099-01-01T00:00:00Z}]"
    )
    end = instant(now_ms() + 86_400_000)
    desk.run("allow", "add", "203.0.113.0/24", "--until", end, *WHY)
    desk.run("ban", "203.0.0.0/16", *WHY)
    said = desk.run("allow", "check", "ip:203.0.113.7")
    assert f"allowlisted until {end}, by 203.0.113.0/24 in the list kept by hand" in said
    assert "is in 203.0.0.0/16, which is denied until it is removed: ticket 4711; the allowlist wins" in said
    assert "by 192.0.2.0/24 in the policy: office" in desk.run("allow", "check", "::ffff:192.0.2.9")
    assert desk.json("allow", "check", "ip:198.51.100.1") == {
        "subject": "ip:198.51.100.1", "allowlisted": False, "allow": [], "banned": []
    }  # fmt: skip
    assert "device+user:d1+u1 is allowlisted" in (
        desk.run("allow", "add", "user:u1", *WHY) and desk.run("allow", "check", "device+user:d1+u1")
    )


def test_an_ipv6_address_lists_its_prefix(desk: Desk) -> None:
    """The unit that counts is the unit that is listed; a bare address needs no dimension."""
    assert desk.json("allow", "add", "2001:db8::7", *WHY)["entry"] == "ip:2001:db8::/64"
    assert desk.json("allow", "check", "2001:db8::9")["allowlisted"] is True
    assert desk.json("allow", "add", "2001:db8:1::/48", *WHY)["entry"] == "2001:db8:1::/48"


def test_a_file_of_fail2ban_and_one_with_a_header(desk: Desk) -> None:
    """Comments, continued lines and other settings are understood; lines that are no entry are told by number."""
    (desk.folder / "jail.local").write_text(
        "[DEFAULT]\n# office\nignoreip = 127.0.0.1/8 ::1\n           10.20.30.40/16, 198.51.100.7 # vpn\n"
        "bantime = 10m\n[sshd]\nenabled = true\n"
    )
    told = desk.json("allow", "import", "jail.local", *WHY)
    assert (told["listed"], told["wrong"]) == (4, [])
    entries = desk.result("allow", "list", "--json").stdout.splitlines()
    assert sorted(json.loads(line)["entry"] for line in entries) == [
        "10.20.0.0/16", "127.0.0.0/8", "ip:198.51.100.7", "ip:::/64"
    ]  # fmt: skip
    (desk.folder / "list.csv").write_text(
        'entry,until,note\nuser:u1,2099-01-01,"VIP, gold"\nuser:u2,2001-01-01,old\n'
        "nonsense,,\n0.0.0.0/0,,\nuser:u3,never,\n"
    )
    result = desk.result("allow", "import", "list.csv", *WHY)
    assert result.exit_code == 1
    assert "list.csv:3: until: 2001-01-01 has passed" in result.stderr
    assert "list.csv:4: got 'nonsense', wanted" in result.stderr
    assert "list.csv:5: 0.0.0.0/0 is everybody" in result.stderr
    assert desk.json("allow", "check", "user:u1")["allow"][0]["note"] == "VIP, gold"
    assert desk.json("allow", "check", "user:u3")["allow"][0]["until"] is None


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """It says how many would be listed."""
    (desk.folder / "list").write_text("user:u1\nuser:u2\n")
    assert "2 entries would be" in desk.run("allow", "import", "list", "--dry-run", *WHY)
    assert desk.redis("EXISTS", f"{desk.prefix}:allow") == 0


def test_many_entries_are_listed_in_seconds(desk: Desk) -> None:
    """Twenty thousand, in chunks, each with its record; a restore and the audit have all of them. Again: no record."""
    (desk.folder / "list").write_text("".join(f"user:u{number}\n" for number in range(20_000)))
    began = now_ms()
    desk.run("allow", "import", "list", *WHY)
    assert desk.redis("HLEN", f"{desk.prefix}:allow") == desk.redis("LLEN", f"{desk.prefix}:untold") == 20_000
    assert now_ms() - began < 20_000
    again = desk.json("allow", "import", "list", *WHY)
    assert (again["listed"], again["already"], again["hidden"]) == (0, 20_000, 0)
    assert desk.redis("LLEN", f"{desk.prefix}:untold") == 20_000
    (desk.folder / "list").write_text("entry,until\nuser:u1,2099-01-01\nuser:u2,\nuser:new,\n")
    again = desk.json("allow", "import", "list", *WHY)
    assert (again["listed"], again["already"]) == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "0.0.0.0/0", *WHY), "everybody"),
        (("add", "user", *WHY), "wanted dimension:value"),
        (("add", "user:\x07", *WHY), "printed"),
        (("remove", "user:u9", *WHY), "is not on the list that is kept by hand"),
        (("import", "nowhere", *WHY), "cannot be read"),
    ],
)
def test_what_cannot_be_listed(desk: Desk, arguments: tuple[str, ...], sentence: str) -> None:
    """Each is a sentence."""
    with pytest.raises((ConfigurationError, BadEvent), match=sentence):
        desk.run("allow", *arguments)


def test_what_kafka_is_not_told_yet_is_said_in_plain_words(desk: Desk) -> None:
    """Nothing of how a library writes an address; the entry is in force all the same."""
    result = desk.result("allow", "add", "user:u1", *WHY)
    said = " ".join(result.stderr.split())
    assert "does not know of it yet: Kafka at 127.0.0.1:1 does not answer. The record is kept in Redis" in said
    assert desk.json("allow", "check", "user:u1")["allowlisted"]
