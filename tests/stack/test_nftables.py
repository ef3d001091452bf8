"""The nftables script and the rules of its page in a kernel: in a network of the test's own."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections import Counter
from ipaddress import ip_network
from pathlib import Path

import pytest

from penaltybox.cli.address_formats import FORMATS
from penaltybox.cli.address_lists import AddressList, Ban
from penaltybox.contracts.clock import now_ms

pytestmark = pytest.mark.stack
PAGE = Path(__file__).parents[2] / "docs" / "gateways" / "lists.md"
PROBE = """
add table inet probe
add chain inet probe input { type filter hook input priority 0; }
add set inet probe some { type ipv4_addr; flags interval, timeout; }
add rule inet probe input ip saddr @some drop
"""
INSIDE = """
import fcntl, json, socket, struct, subprocess, sys, threading, time

def lift_loopback():
    with socket.socket() as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP

def passes(source, patience_s):
    there = "::1" if ":" in source else "127.0.0.1"
    try:
        with socket.create_connection((there, 8000), patience_s, source_address=(source, 0)) as one:
            return one.recv(1) == b"x"
    except TimeoutError:
        return False

def serve(listening):
    while True:
        one, _ = listening.accept()
        one.sendall(b"x")
        one.close()

folder, rules = sys.argv[1], json.loads(sys.argv[2])
lift_loopback()
for address, family in (("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)):
    listening = socket.create_server((address, 8000), family=family)
    threading.Thread(target=serve, args=(listening,), daemon=True).start()
told = {}
subprocess.run(["nft", "-f", folder + "/first.nft"], check=True)
for rule in rules:
    subprocess.run(rule, check=True)
told["first"] = {at: passes(at, 1) for at in ("127.0.0.50", "127.0.9.7", "127.0.0.51", "::1")}
subprocess.run(["nft", "-f", folder + "/second.nft"], check=True)
told["second"] = {at: passes(at, 30 if at != "127.0.0.51" else 1) for at in ("127.0.0.50", "127.0.0.51", "::1")}
ends = time.monotonic() + 60
while not passes("127.0.0.51", 1) and time.monotonic() < ends:
    pass
told["ended by itself"] = time.monotonic() < ends
print(json.dumps(told))
"""


def ban(where: str, until: int | None = None) -> Ban:
    return Ban(ip_network(where), "deny", until)


def own_network() -> list[str]:
    """How a program is started in a network of its own; nothing where the machine does not let a test have one."""
    way = ["unshare", "--map-root-user", "--net"]
    try:
        tried = subprocess.run(
            [*way, "nft", "-f", "-"], input=PROBE, text=True, capture_output=True, timeout=60, check=False
        )
    except FileNotFoundError:
        return []
    return way if tried.returncode == 0 else []


@pytest.mark.programs("nft")
def test_the_kernel_drops_what_is_in_the_sets(tmp_path: Path) -> None:
    """Addresses, ranges, IPv6; a new file takes the place of the old one; what runs out is let through by the kernel.

    Without the right to a network of its own only the form of the page's rules is looked at.
    """
    (block,) = re.findall(r"```sh\n(penaltybox enforce file .*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    rules = [shlex.split(line) for line in block.splitlines() if line.startswith("nft ")]
    assert [rule[:3] for rule in rules] == [["nft", "add", "chain"], *[["nft", "add", "rule"]] * 2]
    way = own_network()
    if not way:
        return
    at_ms = now_ms()
    first = [ban("127.0.0.50/32"), ban("127.0.9.0/24"), ban("::1/128")]
    second = [ban("127.0.0.51/32", at_ms + 6_000)]
    for name, bans in (("first", first), ("second", second)):
        (tmp_path / f"{name}.nft").write_text(FORMATS["nftables"](AddressList(bans, Counter()), at_ms).text)
    done = subprocess.run(
        [*way, sys.executable, "-c", INSIDE, str(tmp_path), json.dumps(rules)],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "first": {"127.0.0.50": False, "127.0.9.7": False, "127.0.0.51": True, "::1": False},
        "second": {"127.0.0.50": True, "127.0.0.51": False, "::1": True},
        "ended by itself": True,
    }
