"""Lists of networks: what is in force, without overlaps, in the form of other programs."""

from __future__ import annotations

import json
import subprocess
from ipaddress import ip_address, ip_network
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penaltybox.cli.address_formats import AWS_MOST, FORMATS, LINES, KeptLines
from penaltybox.cli.address_lists import AddressList, Ban, LiveList, address_list
from penaltybox.contracts.clock import now_ms
from penaltybox.producers.feed.lines import InForce

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.producers.feed.lines import Name
    from tests.cli.desks import Desk

NOW = 1_000_000
WEIGHTS = {"allow": 2, "deny": 1, "challenge": 0}
ENTRIES = st.dictionaries(
    st.tuples(st.integers(0, 255), st.integers(24, 32)).map(
        lambda drawn: ("range", str(ip_network((f"192.0.2.{drawn[0]}", drawn[1]), strict=False)))
    ),
    st.builds(
        InForce, st.sampled_from(["allow", "deny", "challenge"]), st.sampled_from([None, NOW - 1, NOW + 1, NOW + 9])
    ).map(lambda one: (one,)),
    max_size=12,
)


@settings(deadline=None, max_examples=60)
@given(ENTRIES)
def test_every_address_gets_what_weighs_most(names: dict[Name, tuple[InForce, ...]]) -> None:
    """Whatever overlaps: each address is in at most one network, with the action and end of what holds for it."""
    bans = address_list(names, NOW).bans
    for last in range(0, 256, 3):
        address = ip_address(f"192.0.2.{last}")
        around = [
            one
            for (_, text), (one,) in names.items()
            if address in ip_network(text) and (one.until is None or one.until > NOW)
        ]
        heaviest = max(around, key=lambda one: (WEIGHTS[one.action], one.until or 1 << 62), default=None)
        found = [(ban.action, ban.until) for ban in bans if address in ban.network]
        wanted = [] if heaviest is None or heaviest.action == "allow" else [(heaviest.action, heaviest.until)]
        assert found == wanted


@settings(deadline=None, max_examples=100)
@given(st.lists(ENTRIES, max_size=6), st.lists(st.sampled_from(range(9)), max_size=6), st.sampled_from(sorted(LINES)))
def test_a_list_that_is_kept_is_the_list_made_anew(
    steps: list[dict[Name, tuple[InForce, ...]]], lifted: list[int], form: str
) -> None:
    """Whatever comes, is told anew, and goes: a list changed step by step has the bans, and the lines, of a new one."""
    live, lines = LiveList(), KeptLines(LINES[form])
    names: dict[Name, tuple[InForce, ...]] = {}
    for number, step in enumerate(steps):
        gone = {name: () for at, name in enumerate(names) if number < len(lifted) and at % 9 == lifted[number]}
        before = live.bans()
        names |= step
        names = {name: told for name, told in names.items() if name not in gone or name in step}
        difference = live.take({**gone, **step}, NOW)
        whole = address_list(names, NOW)
        assert live.bans() == whole.bans
        assert set(difference.gone) <= set(before)
        assert (set(before) - set(difference.gone)) | set(difference.come) == set(whole.bans)
        lines.change(difference)
        written = FORMATS[form](whole, NOW)
        assert sorted(lines.text().splitlines()) == sorted(written.text.splitlines())
        assert lines.left_out(live.left_out) == written.left_out


def test_a_change_touches_what_it_overlaps_with_and_no_more() -> None:
    """A ban among many is one line that comes; told anew with another end its line stays where it stands."""
    live, lines = LiveList(), KeptLines(LINES["plain"])
    lines.change(live.take({("subject", f"ip:10.0.{at}.1"): deny() for at in range(200)}, NOW))
    assert live.take({("subject", "ip:10.0.7.2"): deny()}, NOW) == ([], [Ban(ip_network("10.0.7.2/32"), "deny", None)])
    before = lines.text()
    difference = live.take({("subject", "ip:10.0.9.1"): deny(NOW + 5)}, NOW)
    assert [ban.until for ban in (*difference.gone, *difference.come)] == [None, NOW + 5]
    lines.change(difference)
    assert lines.text() == before
    assert live.take({("allow", "10.0.9.0/24"): (InForce("allow", None),)}, NOW).gone == difference.come


def deny(until: int | None = None) -> tuple[InForce, ...]:
    return (InForce("deny", until),)


def test_what_no_list_of_addresses_can_hold_is_counted() -> None:
    """Users, combinations, hashed addresses; an allowlisted user is nothing that anybody would miss."""
    found = address_list(
        {
            ("subject", "ip:192.0.2.1"): deny(),
            ("subject", "ip:2001:db8::/64"): deny(),
            ("subject", "user:a"): deny(),
            ("subject", "user:b"): deny(),
            ("subject", "user:gone"): deny(1),
            ("subject", "ip+user:192.0.2.1+a"): deny(),
            ("subject", "ip:Zm9vYmFyYmF6cXV4MTIzNA"): deny(),
            ("allow", "user:vip"): (InForce("allow", None),),
            ("allow", "ip:192.0.2.1"): (InForce("allow", NOW),),
        },
        NOW,
    )
    assert [str(ban.network) for ban in found.bans] == ["192.0.2.1/32", "2001:db8::/64"]
    assert found.left_out == {"user": 2, "ip+user": 1, "ip (hashed)": 1}


SOME = AddressList(
    [
        Ban(ip_network("192.0.2.1/32"), "deny", NOW + 1500),
        Ban(ip_network("198.51.100.0/24"), "deny", None),
        Ban(ip_network("203.0.113.7/32"), "challenge", None),
        Ban(ip_network("2001:db8::/64"), "deny", None),
        Ban(ip_network("2001:db8:1::1/128"), "deny", None),
    ],
    address_list({("subject", "user:a"): deny()}, NOW).left_out,
)


@pytest.mark.parametrize(
    ("form", "wanted", "left_out"),
    [
        ("plain", "192.0.2.1|198.51.100.0/24|2001:db8::/64|2001:db8:1::1|", {"user": 1, "challenged": 1}),
        (
            "haproxy",
            "192.0.2.1 deny|198.51.100.0/24 deny|203.0.113.7 challenge|2001:db8::/64 deny|2001:db8:1::1 deny|",
            {"user": 1},
        ),
        (
            "nginx-geo",
            (
                "192.0.2.1/32 deny;|198.51.100.0/24 deny;|203.0.113.7/32 challenge;|2001:db8::/64 deny;|"
                "2001:db8:1::1/128 deny;|"
            ),
            {"user": 1},
        ),
        (
            "nginx-deny",
            "deny 192.0.2.1;|deny 198.51.100.0/24;|deny 2001:db8::/64;|deny 2001:db8:1::1;|",
            {"user": 1, "challenged": 1},
        ),
        (
            "apache",
            (
                "Require not ip 192.0.2.1|Require not ip 198.51.100.0/24|Require not ip 2001:db8::/64|"
                "Require not ip 2001:db8:1::1|"
            ),
            {"user": 1, "challenged": 1},
        ),
    ],
)
def test_lines(form: str, wanted: str, left_out: dict[str, int]) -> None:
    """Each program's own way to write a network; challenges only where a word says what to do."""
    written = FORMATS[form](SOME, NOW)
    assert written.text.replace("\n", "|") == wanted
    assert written.left_out == left_out


def test_the_items_of_clouds() -> None:
    """Cloudflare takes IPv6 up to /64; an AWS set one IP version, and ten thousand networks, those that last."""
    written = FORMATS["cloudflare"](SOME, NOW)
    assert [item["ip"] for item in json.loads(written.text)] == ["192.0.2.1", "198.51.100.0/24", "2001:db8::/64"]
    assert written.left_out["too wide or too narrow for Cloudflare"] == 1
    assert json.loads(FORMATS["aws-waf-ipv6"](SOME, NOW).text) == ["2001:db8::/64", "2001:db8:1::1/128"]
    assert FORMATS["aws-waf-ipv6"](SOME, NOW).left_out["of the other IP version"] == 2
    many = [Ban(ip_network((10 << 24) + number), "deny", NOW + 1 + number) for number in range(AWS_MOST + 5)]
    written = FORMATS["aws-waf-ipv4"](AddressList(many, SOME.left_out), NOW)
    assert written.networks == len(json.loads(written.text)) == AWS_MOST
    assert "10.0.0.4/32" not in written.text
    assert written.left_out["beyond AWS' 10,000, those that end first"] == 5


@pytest.mark.programs("nft")
def test_nftables_takes_its_script(tmp_path: Path) -> None:
    """Debian's `nft --check` parses it, also one of many lines and an empty one."""
    many = [Ban(ip_network((10 << 24) + 2 * number), "deny", NOW + 1 + number) for number in range(1200)]
    for bans in ([*many, *SOME.bans], []):
        written = FORMATS["nftables"](AddressList(bans, SOME.left_out), NOW)
        file = tmp_path / "blocked.nft"
        file.write_text(written.text)
        done = subprocess.run(["nft", "-c", "-f", str(file)], capture_output=True, text=True, check=False, timeout=60)
        # Without the right to look at the kernel's tables it says so, after it has parsed the file.
        assert done.returncode == 0 or "Operation not permitted" in done.stderr, done.stderr
        assert "syntax error" not in done.stderr
    wrong = tmp_path / "wrong.nft"
    wrong.write_text("add element inet penaltybox deny4 { 192.0.2.300 }\n")
    done = subprocess.run(["nft", "-c", "-f", str(wrong)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode != 0


def test_an_export_of_what_is_in_force(desk: Desk) -> None:
    """Blocked addresses and banned ranges without the allowlist's, into a file that is replaced at once."""
    desk.run("ban", "ip:192.0.2.1", "--for", "1h", "--reason", "r", "--actor", "a")
    desk.run("ban", "user:u", "--for", "1h", "--reason", "r", "--actor", "a")
    desk.run("ban", "198.51.100.0/24", "--reason", "r", "--actor", "a")
    desk.run("allow", "add", "198.51.100.128/25", "--reason", "r", "--actor", "a")
    file = desk.folder / "blocked.map"
    file.write_text("old")
    file.chmod(0o640)
    result = desk.result("blocks", "export", str(file), "--format", "haproxy")
    assert (result.exit_code, " ".join(result.stderr.split()).endswith("Not in it: 1 user.")) == (0, True), (
        result.stderr
    )
    assert file.read_text() == "192.0.2.1 deny\n198.51.100.0/25 deny\n"
    assert file.stat().st_mode & 0o777 == 0o640
    assert "192.0.2.1 timeout 3" in desk.result("blocks", "export", "--format", "nftables").stdout
    assert abs(desk.key("ip:192.0.2.1")["until"] - now_ms() - 3_600_000) < 60_000
