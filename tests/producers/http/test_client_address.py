"""Whose address a request has: the tables of the page, the PROXY protocol, and chains that nobody can forge."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penaltybox.contracts.errors import BadEvent, ConfigurationError
from penaltybox.contracts.subjects import canonical_ip
from penaltybox.producers.http.client_address import Client, ClientAddresses, read_address
from penaltybox.producers.http.proxy_protocol import Proxied, read_proxy_header

PAGE = (Path(__file__).parents[3] / "docs" / "limiter.md").read_text(encoding="utf-8")
TRUSTED = ("10.0.0.0/8", "unix")


def rows(header: str) -> list[tuple[str, str, str, str]]:
    """The table of the page about one header: peer, header, client, how."""
    table = PAGE.partition(f"| connection from | {header} | client | found by |\n|---|---|---|---|\n")[2]
    lines = table.partition("\n\n")[0].splitlines()
    found = []
    for line in lines:
        peer, value, client, how = (cell.strip() for cell in line.strip("|").split("|"))
        found.append((peer.strip("`"), value.strip("`"), client.strip("`"), re.split(r"[: ]", how)[0]))
    return found


ROWS = [(header, *row) for header in ("X-Forwarded-For", "Forwarded") for row in rows(header)]


@pytest.mark.parametrize(("header", "peer", "value", "client", "how"), ROWS)
def test_the_page_says_what_happens(header: str, peer: str, value: str, client: str, how: str) -> None:
    """Every row of the two tables is true; there are as many as were written."""
    assert len(ROWS) > 35
    found = ClientAddresses(TRUSTED, header).find(peer, [value] if value else [])
    assert (found.address or "nobody", found.how) == (client, how)


def test_no_header_is_believed_by_default() -> None:
    """Without a setting the peer counts, trusted or not, whatever stands in the header."""
    assert ClientAddresses().find("203.0.113.7", ["6.6.6.6"]) == Client("203.0.113.7", "peer", through_proxy=False)
    assert ClientAddresses(TRUSTED).find("10.0.0.1", ["6.6.6.6"]) == Client("10.0.0.1", "peer", through_proxy=True)
    assert ClientAddresses(["10.0.0.0/8"], "X").find("unix:", ["6.6.6.6"]).address is None


def test_header_lines_are_one_chain() -> None:
    """A proxy may add a line of its own instead of appending: the last line is the right end."""
    addresses = ClientAddresses(TRUSTED, "X-Forwarded-For")
    assert addresses.find("10.0.0.1", ["6.6.6.6", "198.51.100.1, 10.0.0.2", "10.0.0.3"]).address == "198.51.100.1"
    forwarded = ClientAddresses(TRUSTED, "Forwarded")
    assert forwarded.find("10.0.0.1", ['for="6.6.6.6', "for=198.51.100.1", "for=10.0.0.3"]).address == "198.51.100.1"


def test_what_is_unreadable_can_be_nobodys() -> None:
    """So that strangers whom a proxy hides don't count for the proxy; the scenario's `missing` decides."""
    addresses = ClientAddresses(TRUSTED, "Forwarded", unreadable="missing")
    assert addresses.find("10.0.0.1", ["for=_hidden"]) == Client(None, "unreadable", through_proxy=True)
    assert addresses.find("10.0.0.1", []).address == "10.0.0.1"


@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
@pytest.mark.parametrize(
    ("value", "how"),
    [
        ("," * 10_240, "unreadable"),
        ("10.0.0.2," * 1_200, "unreadable"),
        ("x" * 10_240, "unreadable"),
        ('"' * 10_240, "unreadable"),
        ("\\" * 10_240, "unreadable"),
        (";" * 10_240, "unreadable"),
    ],
    ids=["commas", "trusted", "letters", "quotes", "backslashes", "semicolons"],
)
def test_a_chain_of_ten_kilobytes_ends(header: str, value: str, how: str) -> None:
    """Only a bounded part of it is read; it is no client's address."""
    found = ClientAddresses(TRUSTED, header).find("10.0.0.1", [value])
    assert (found.address, found.how) == ("10.0.0.1", how)


def forged(right: str) -> st.SearchStrategy[str]:
    """A chain whose right end a proxy wrote, and everything else a client."""
    signs = st.text(st.sampled_from('for=6.7, ;"\\[]:_%\t') | st.characters(), max_size=60)
    return signs.map(lambda left: f"{left}, {right}" if left else right)


@given(forged("198.51.100.1"), forged("198.51.100.1, 10.0.0.2"))
def test_nothing_left_of_the_client_forges_it(one: str, two: str) -> None:
    """X-Forwarded-For: whatever a client sends, its address is what the proxy appended."""
    addresses = ClientAddresses(TRUSTED, "X-Forwarded-For")
    assert addresses.find("10.0.0.1", [one]).address == "198.51.100.1"
    assert addresses.find("10.0.0.1", [two]).address == "198.51.100.1"


@given(forged('for="[2001:db8::1]:80";host="x,\\"y"'), forged("for=198.51.100.1;proto=https, For=10.0.0.2"))
def test_nothing_left_of_the_client_forges_it_in_forwarded(one: str, two: str) -> None:
    """Forwarded: neither open quotes nor backslashes of a client reach into the proxy's element."""
    addresses = ClientAddresses(TRUSTED, "Forwarded")
    assert addresses.find("10.0.0.1", [one]).address == "2001:db8::1"
    assert addresses.find("10.0.0.1", [two]).address == "198.51.100.1"


@given(st.text() | st.none(), st.lists(st.text(), max_size=3), st.sampled_from(["", "X-Forwarded-For", "Forwarded"]))
def test_every_outcome_is_an_address_or_nobody(peer: str | None, lines: list[str], header: str) -> None:
    """No peer and no header fails, and what is found is an address that counts."""
    for start in (peer, "10.0.0.1"):
        found = ClientAddresses(TRUSTED, header).find(start, lines)
        assert found.address is None or canonical_ip(found.address)


@pytest.mark.parametrize(
    ("trusted", "header"),
    [(["10.0.0.1/8"], ""), (["0.0.0.0/0"], "X"), (["::/0"], ""), (["proxy"], ""), ([], "X-Forwarded-For")],
)
def test_wrong_proxies_are_refused(trusted: list[str], header: str) -> None:
    """Host bits, everybody, a name, nobody at all: told at the start."""
    with pytest.raises(ConfigurationError):
        ClientAddresses(trusted, header)


def test_a_mapped_range_is_the_ipv4_range() -> None:
    """Proxies written as IPv4 in IPv6 are trusted under either form."""
    assert ClientAddresses(["::ffff:10.0.0.0/104"], "X").find("10.1.2.3", ["198.51.100.1"]).how == "header"


@pytest.mark.parametrize(
    "text", ["", "1", "1.2.3", "1.2.3.4.5", "\uff11.2.3.4", "1.2.3.4\n", "::1%", "[::1]", "0x7f.1"]
)
def test_texts_that_are_no_address(text: str) -> None:
    """Short forms, other digits, brackets and empty zones are not guessed at."""
    assert read_address(text) is None


SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V4 = bytes([198, 51, 100, 1, 10, 0, 0, 1]) + struct.pack("!HH", 4711, 443)
V6 = bytes.fromhex("20010db8000000000000000000000001" * 2) + struct.pack("!HH", 4711, 443)
MAPPED = bytes(10) + b"\xff\xff" + bytes([198, 51, 100, 1]) + bytes(16) + struct.pack("!HH", 1, 2)


def version_2(command: int, family: int, body: bytes, length: int | None = None) -> bytes:
    """A header of version 2."""
    return SIGNATURE + struct.pack("!BBH", command, family, len(body) if length is None else length) + body


@pytest.mark.parametrize(
    ("data", "source", "port"),
    [
        (b"PROXY TCP4 198.51.100.1 10.0.0.1 4711 443\r\n", "198.51.100.1", 4711),
        (b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 443\r\n", "2001:db8::1", 4711),
        (b"PROXY TCP6 ::ffff:198.51.100.1 ::1 1 2\r\n", "198.51.100.1", 1),
        (b"PROXY UNKNOWN\r\n", None, None),
        (b"PROXY UNKNOWN ffff:f...f:ffff 65535 65535\r\n", None, None),
        (version_2(0x21, 0x11, V4), "198.51.100.1", 4711),
        (version_2(0x21, 0x11, V4 + b"\x03\x00\x04crc!"), "198.51.100.1", 4711),
        (version_2(0x21, 0x21, V6), "2001:db8::1", 4711),
        (version_2(0x21, 0x21, MAPPED), "198.51.100.1", 1),
        (version_2(0x20, 0x00, b""), None, None),
        (version_2(0x20, 0x11, V4), None, None),
        (version_2(0x21, 0x31, b"/run/x".ljust(108, b"\0") * 2), None, None),
        (version_2(0x21, 0x00, b"any"), None, None),
    ],
)
def test_proxy_headers(data: bytes, source: str | None, port: int | None) -> None:
    """Both versions name the source; the stream begins right after them, and no beginning of them is complete."""
    assert read_proxy_header(data + b"GET / HTTP/1.1\r\n") == Proxied(source, port, len(data))
    assert all(read_proxy_header(data[:size]) is None for size in range(len(data)))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"PROXY TCP4 198.51.100.1 10.0.0.1 4711\r\n",
        b"PROXY TCP4 198.51.100.1 10.0.0.1 4711 65536\r\n",
        b"PROXY TCP4 2001:db8::1 10.0.0.1 1 2\r\n",
        b"PROXY TCP6 198.51.100.1 10.0.0.1 1 2\r\n",
        b"PROXY TCP4 198.51.100.1 10.0.0.1  1 2\r\n",
        b"PROXY TCP4 198.51.100.01 10.0.0.1 1 2\r\n",
        b"PROXY TCP5 198.51.100.1 10.0.0.1 1 2\r\n",
        b"PROXY UNKNOWN \x00\r\n",
        b"PROXY UNKNOWN " + b"x" * 200,
        version_2(0x11, 0x11, V4),
        version_2(0x22, 0x11, V4),
        version_2(0x21, 0x41, V4),
        version_2(0x21, 0x11, V4[:8]),
        version_2(0x21, 0x11, V4, 5_000),
        SIGNATURE[:-1] + b"x",
    ],
)
def test_what_is_no_proxy_header_is_refused(data: bytes) -> None:
    """A connection that begins with anything else is closed; the message shows no more than its beginning."""
    with pytest.raises(BadEvent) as caught:
        read_proxy_header(data)
    assert caught.value.reason == "bad_proxy_header"
    assert len(caught.value.detail) < 200


@given(
    st.binary(max_size=300), st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11\x00"])
)
def test_no_stream_breaks_the_reader(data: bytes, start: bytes) -> None:
    """Every stream has a header, has none, or is not complete yet."""
    try:
        found: Any = read_proxy_header(start + data)
    except BadEvent:
        return
    assert found is None or (found.source is None or canonical_ip(found.source))
