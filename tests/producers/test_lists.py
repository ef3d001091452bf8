"""Lists in memory find what a walk over all entries finds, in microseconds."""

from __future__ import annotations

import logging
import random
import time
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.keyspace import slot_of
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.links.connections import open_link, parse_endpoint
from penaltybox.producers.lists import Lists, ListSource, Range
from tests.producers.deciders import request
from tests.producers.limiters import url_of
from tests.redis_servers import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable

NAMES = Canonicaliser()


def find(lists: Lists, ts_ms: int = 1_000, **subjects: str) -> tuple[str, str] | None:
    """(action, name) of what the lists say about these subjects."""
    asked = request(1, ts_ms, subjects=subjects)
    listing = lists.find(asked, NAMES.names(subjects), subjects.get("ip"))
    return None if listing is None else (listing.action, listing.name)


def test_an_allowlisted_address_in_a_banned_range_is_allowed() -> None:
    """The allowlist wins, whatever is more specific (crowdsec 4022: it stayed blocked)."""
    lists = Lists()
    assert lists.ban("203.0.113.0/24")
    assert lists.ban("203.0.113.9/32")
    assert lists.allow("203.0.113.9")
    assert lists.allow("203.0.113.128/25")
    assert find(lists, ip="203.0.113.9") == ("allow", "203.0.113.9")
    assert find(lists, ip="203.0.113.200") == ("allow", "203.0.113.128/25")
    assert find(lists, ip="203.0.113.10") == ("deny", "203.0.113.0/24")
    assert find(lists, ip="203.0.112.10") is None


def test_entries_end_at_their_time() -> None:
    """At its end an entry is gone, and another one for the same range or a wider one still holds."""
    lists = Lists()
    lists.allow("user:u", 2_000)
    lists.allow("user:u", 1_500)
    lists.ban("192.0.2.0/24", "deny", 1_200)
    lists.ban("192.0.2.7/24", "challenge", 1_400)
    lists.ban("192.0.0.0/16", "challenge", 1_300)
    seen = [find(lists, ts, ip="192.0.2.1") for ts in (1_199, 1_200, 1_399, 1_400)]
    assert seen == [("deny", "192.0.2.0/24"), ("challenge", "192.0.2.7/24"), ("challenge", "192.0.2.7/24"), None]
    assert find(lists, 1_999, user="u") == ("allow", "user:u")
    assert find(lists, 2_000, user="u") is None


def test_subjects_and_combinations_are_found_by_their_canonical_text() -> None:
    """An entry is found however its value was typed, and one for a combination only when all parts are there."""
    lists = Lists()
    for entry in ("user:a@b", "device+scenario:d+s", "ip:::ffff:198.51.100.1"):
        assert lists.allow(entry)
    assert find(lists, user="a@b") == ("allow", "user:a%40b")
    assert find(lists, device="d") == ("allow", "device+scenario:d+s")
    assert find(lists, device="e", user="u") is None
    assert find(lists, ip="198.51.100.1") == ("allow", "ip:::ffff:198.51.100.1")
    assert find(lists, ip="::ffff:198.51.100.1") is not None


def test_an_ipv6_address_on_the_allowlist_lists_its_prefix() -> None:
    """The /64 is what counts and would be blocked, so it is listed as one; a ban means exactly its range."""
    lists = Lists()
    lists.allow("2001:db8::1")
    assert find(lists, ip="2001:db8::ffff") == ("allow", "2001:db8::1")
    assert find(lists, ip="2001:db8:0:1::1") is None
    banned = Lists()
    banned.ban("2001:db8::1/128")
    banned.ban("fe80::/10")
    assert find(banned, ip="2001:db8::1") == ("deny", "2001:db8::1/128")
    assert find(banned, ip="2001:db8::2") is None
    assert find(banned, ip="fe80::1") == ("deny", "fe80::/10")


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3", "1.2.3.4/33", "1.2.3.4/-1", "1.2.3.4/", "::/129", "fe80::1%eth0", "1\0"]
)
def test_what_is_no_range_is_none(text: str) -> None:
    """Text that only looks like an address or range is no entry, and no error."""
    assert Range.of(text) is None
    assert not Lists().ban(text)


ADDRESSES = st.one_of(
    st.integers(0, 255).map(lambda n: IPv4Address(0xC0000200 + n)),
    st.integers(0, 255).map(lambda n: IPv6Address((0x20010DB8 << 96) + (n << 60))),
)
RANGES = st.tuples(ADDRESSES, st.integers(0, 128)).map(
    lambda pair: ip_network((pair[0], min(pair[1], pair[0].max_prefixlen)), strict=False)
)
ENDS = st.one_of(st.none(), st.integers(0, 20))


@given(
    st.lists(st.tuples(RANGES, ENDS), max_size=8),
    st.lists(st.tuples(RANGES, ENDS, st.sampled_from(["deny", "challenge"])), max_size=8),
    ADDRESSES,
    st.integers(0, 20),
)
def test_ranges_by_length_find_what_a_walk_finds(allowed: Any, banned: Any, address: Any, now: int) -> None:
    """Against a walk over all entries with the standard library: the same answer, whatever overlaps."""
    lists = Lists()
    for network, end in allowed:
        lists.allow(str(network), end)
    for network, end, action in banned:
        lists.ban(str(network), action, end)
    unit = IPv6Network((address, 64), strict=False) if address.version == 6 else ip_network(address)
    lives: Callable[[int | None], bool] = lambda end: end is None or end > now  # noqa: E731 - a line of the reference
    expected = None
    if any(lives(end) and n.version == address.version and n.overlaps(unit) for n, end in allowed):
        expected = "allow"
    else:
        holding = {action for n, end, action in banned if lives(end) and address in n}
        expected = "deny" if "deny" in holding else "challenge" if holding else None
    found = find(lists, now, ip=str(address))
    assert (found and found[0]) == expected


def test_a_look_up_among_100_000_entries_takes_microseconds(tell: Callable[[str], None]) -> None:
    """50,000 ranges of all lengths and 50,000 subjects: an address and a user are found or not in well under 100 µs."""
    seeded = random.Random(7)
    lists = Lists()
    for number in range(50_000):
        lists.allow(f"user:u{number}")
        family = seeded.random() < 0.5
        address = IPv4Address(seeded.getrandbits(32)) if family else IPv6Address(seeded.getrandbits(128))
        lists.ban(f"{address}/{seeded.randint(16, 32) if family else seeded.randint(32, 128)}")
    assert lists.size == 100_000
    asked = [
        request(n, 1_000, subjects={"user": f"x{n}", "ip": str(ip_address(seeded.getrandbits(32 if n % 2 else 128)))})
        for n in range(2_000)
    ]
    names = [NAMES.names(one.subjects) for one in asked]
    begun = time.process_time()
    for one, known in zip(asked, names, strict=True):
        lists.find(one, known, one.subjects["ip"])
    each_us = (time.process_time() - begun) / len(asked) * 1e6
    tell(f"{each_us:.1f} µs a look-up among 100,000 entries")
    assert each_us < 100  # 4 to 13 µs on an idle core


@pytest.mark.parametrize("kind", KINDS)
async def test_lists_are_read_from_redis(
    kind: str, redis_by_kind: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """On every kind of server: 3,000 entries in steps, those of the policy too; what cannot be read is told once."""
    link = open_link(parse_endpoint(url_of(redis_by_kind[kind])))
    source = ListSource(link, f"lists-{kind}")

    async def put(name: str, fields: dict[str, str]) -> None:
        key = f"lists-{kind}:{name}"
        flat = [text for pair in fields.items() for text in pair]
        await link.exchange([("HSET", key, *flat)], [slot_of(key)])

    await put("allow", {f"user:u{n}": '{"until":null,"note":"n","actor":"a"}' for n in range(3_000)})
    await put("allow", {"nobody": "{}", "user:bad": "[]", "ip:192.0.2.0/28": '{"until":1500}', "": "{}"})
    await put("cidr", {"192.0.2.0/24": '{"action":"deny","until":null,"reason":"r"}', "10.0.0.0/8": '{"action":"?"}'})
    entries = parse_policy("allow: ['user:policy']").allow
    with caplog.at_level(logging.WARNING):
        lists = await source.read(entries)
    await link.close()
    assert lists.size == 3_000 + 2 + 1
    assert [find(lists, user=user) is not None for user in ("u2999", "policy", "bad")] == [True, True, False]
    assert find(lists, 1_499, ip="192.0.2.1") == ("allow", "ip:192.0.2.0/28")
    assert find(lists, 1_500, ip="192.0.2.1") == ("deny", "192.0.2.0/24")
    assert find(lists, ip="10.0.0.1") is None
    (record,) = [one for one in caplog.records if "cannot be read" in one.message]
    assert "4 entries" in record.message
