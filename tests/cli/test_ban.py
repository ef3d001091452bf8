"""`ban`, `unban` and `pardon` against real servers, with Kafka away."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import BadEvent, ConfigurationError, StoreUnavailable
from tests.cli.desks import WHY, Desk
from tests.redis_servers import BINARIES, KINDS

if TYPE_CHECKING:
    from pathlib import Path

ONE = next(iter(BINARIES))


@pytest.mark.parametrize("kind", KINDS)
def test_a_ban_denies_at_once_and_a_lift_frees(
    kind: str, redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """On every kind of Redis: the key is there, a permanent one without an end; pardon and unban take it away."""
    desk = Desk(redis_by_kind[kind], monkeypatch, tmp_path)
    desk.begin()
    assert "user:u1 is denied permanently, rung permanent, by alice: ticket 4711" in desk.run(
        "ban", "user:u1", "--level", "permanent", *WHY
    )
    assert desk.key("user:u1")["until"] is None
    assert "goes from permanent to 1h" in desk.run("pardon", "user:u1", *WHY)
    assert desk.key("user:u1") is None
    told = desk.json("ban", "user:u1", "--for", "36h", *WHY)
    assert told["penalties"][0]["from"] == "1h"
    assert desk.key("user:u1")["until"] == told["penalties"][0]["until"]
    desk.run("unban", "user:u1", *WHY)
    assert desk.key("user:u1") is None


def test_a_ban_without_a_level_is_the_next_rung_that_denies(desk: Desk) -> None:
    """The first is 5m, not a warning, the next 1h; it goes over caps."""
    assert desk.json("ban", "ip:203.0.113.7", *WHY)["penalties"][0]["to"] == "5m"
    assert desk.json("ban", "ip:203.0.113.7", *WHY)["penalties"][0]["to"] == "1h"
    assert desk.json("ban", "203.0.113.7", *WHY)["penalties"][0]["to"] == "permanent"


def test_a_range_is_banned_in_the_list_that_limiters_read(desk: Desk) -> None:
    """The hash has it, its record waits for Kafka, and no block key pretends that bare GETs see it."""
    assert "Every address of 203.0.113.0/24 is denied" in desk.run("ban", "ip:203.0.113.0/24", *WHY)
    assert desk.redis("HGET", f"{desk.prefix}:cidr", "203.0.113.0/24") == (
        b'{"action":"deny","until":null,"reason":"ticket 4711","actor":"alice"}'
    )
    (record,) = desk.told()
    assert (record["kind"], record["key"], record["actor"]) == ("cidr", "cidr:203.0.113.0/24", "alice")
    assert desk.key("ip:203.0.113.7") is None
    assert "203.0.113.7 is in 203.0.113.0/24, which is denied" in desk.run("allow", "check", "203.0.113.7")
    assert "is not banned any more" in desk.run("unban", "203.0.113.0/24", *WHY)
    assert desk.redis("HLEN", f"{desk.prefix}:cidr") == 0
    assert desk.told()[-1].get("value", "") == ""
    assert "was not banned" in desk.run("unban", "203.0.113.0/24", *WHY)


def test_the_prefix_that_counts_is_a_subject_and_longer_ones_are_ranges(desk: Desk) -> None:
    """A /64 has a ladder; an address within it can be banned exactly, as a range; a /32 of IPv4 is its address."""
    assert desk.json("ban", "ip:2001:db8::/64", *WHY)["subject"] == "ip:2001:db8::/64"
    assert desk.json("ban", "ip:2001:db8::7", *WHY)["subject"] == "ip:2001:db8::/64"
    assert desk.json("ban", "ip:2001:db8::7/128", *WHY)["range"] == "2001:db8::7/128"
    assert desk.json("ban", "203.0.113.7/32", *WHY)["subject"] == "ip:203.0.113.7"
    assert desk.json("ban", "::ffff:203.0.113.0/120", *WHY)["range"] == "203.0.113.0/24"


def test_a_shorter_ban_says_that_it_is_one(desk: Desk) -> None:
    """Whoever bans for five minutes whom another one had banned for good is told what that takes away."""
    assert "ends sooner" not in desk.run("ban", "user:u1", "--level", "permanent", *WHY)
    said = desk.run("ban", "user:u1", "--for", "5m", *WHY)
    assert "That ends sooner than before: it was denied permanently, by hand." in said
    assert "ends sooner" not in desk.run("ban", "user:u1", "--for", "1h", *WHY)
    assert "ends sooner than before: it was denied until" in desk.run("ban", "user:u1", "--for", "5m", *WHY)


def test_nobody_is_told_free_who_is_within_a_banned_range(desk: Desk) -> None:
    """A lift of the address alone says that the range goes on, and which commands end that; a listed one is free."""
    desk.run("ban", "203.0.113.0/24", *WHY)
    desk.run("ban", "203.0.113.7", *WHY)
    for verb in ("unban", "pardon"):
        said = desk.run(verb, "203.0.113.7", *WHY)
        assert "is free now" not in said
        assert "ip:203.0.113.7 has no block of its own now" in said
        assert "within 203.0.113.0/24 (deny: ticket 4711), which is banned by hand" in said
        assert "penaltybox unban 203.0.113.0/24" in said
        assert desk.json(verb, "203.0.113.7", *WHY)["banned_ranges"] == ["203.0.113.0/24 (deny: ticket 4711)"]
        assert "ip:203.0.114.7 is free now" in desk.run(verb, "203.0.114.7", *WHY)
    desk.run("allow", "add", "203.0.113.7", *WHY)
    assert "ip:203.0.113.7 is free now" in desk.run("unban", "203.0.113.7", *WHY)


@pytest.mark.parametrize("verb", ["explain", "pardon", "forget", "allow check", "quota show"])
def test_a_range_is_not_taken_for_its_first_address(desk: Desk, verb: str) -> None:
    """What is about one subject refuses a range, which has none; a /32, and the /64 that counts, are one."""
    why = () if verb in ("explain", "allow check", "quota show") else WHY
    for text in ("203.0.113.0/24", "ip:203.0.113.0/31", "2001:db8::/32", "::ffff:203.0.113.0/120"):
        with pytest.raises(ConfigurationError, match="which is a range: wanted one subject"):
            desk.run(*verb.split(), text, *why)
    if verb == "allow check":
        assert "ip:203.0.113.7 is not allowlisted" in desk.run(*verb.split(), "203.0.113.7/32")
        assert "ip:2001:db8::/64 is not" in desk.run(*verb.split(), "2001:db8::/64")


def test_a_pause_that_is_one_already_says_so(desk: Desk) -> None:
    """Two people pause for two reasons: the second is told of the first, and explain of the pause itself."""
    assert "paused already" not in desk.run("pause", "--reason", "too strict", "--actor", "bob")
    said = desk.run("pause", *WHY)
    assert "It was paused already: too strict. One resume ends both." in said
    assert "new blocks are paused for everybody: ticket 4711" in desk.run("explain", "user:u1")
    assert desk.json("explain", "user:u1")["now"]["paused"] == "ticket 4711"
    assert desk.json("resume", *WHY)["before"] == "ticket 4711"
    assert "paused" not in desk.run("explain", "user:u1")


def test_the_actor_of_the_environment_counts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A support tool sets it once; the option wins."""
    monkeypatch.setenv("PENALTYBOX_ACTOR", "support-tool")
    assert "by support-tool: abuse" in desk.run("ban", "user:u1", "--reason", "abuse")
    assert "by bob: abuse" in desk.run("ban", "user:u1", "--reason", "abuse", "--actor", "bob")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("user:u1", "--reason", " ", "--actor", "bob"), "--reason"),
        (("user:u1", "--reason", "two\nlines", "--actor", "bob"), "printable"),
        (("user:u1", "--reason", "x", "--actor", "\x1b[31m"), "printable"),
        (("user:u1", "--level", "9y", *WHY), "wanted a rung of the policy"),
        (("user:u1", "--for", "1h", "--until", "2099-01-01", *WHY), "got both"),
        (("user:u1", "--until", "2001-01-01", *WHY), "has passed"),
        (("user:u1", "--challenge", *WHY), "--challenge"),
        (("203.0.113.0/24", "--level", "1h", *WHY), "has no ladder"),
        (("203.0.113.7/24", *WHY), "which is within 203.0.113.0/24"),
        (("0.0.0.0/0", *WHY), "everybody"),
        (("10.0.0.0/7", *WHY), "host bits|within|large part"),
        (("example.com", *WHY), "names of hosts are not looked up"),
        (("fe80::1%eth0", *WHY), "wanted"),
    ],
)
def test_what_cannot_be_banned(desk: Desk, arguments: tuple[str, ...], sentence: str) -> None:
    """Each is a sentence, and nothing is written."""
    with pytest.raises((ConfigurationError, BadEvent), match=sentence):
        desk.run("ban", *arguments)
    assert desk.told() == []


@pytest.mark.parametrize("value", ["}:block", "a b", "x{y}", "=1+1"])
def test_no_value_forges_a_key(desk: Desk, value: str) -> None:
    """Braces and the like are percent-encoded."""
    subject = desk.json("ban", f"user:{value}", *WHY)["subject"]
    assert not set("{} =") & set(subject)
    assert desk.key(subject)


@pytest.mark.parametrize("value", ["\x1b[31m", "\u202eabc", "\n"])
def test_what_a_terminal_would_obey_is_refused(desk: Desk, value: str) -> None:
    """Control characters are no part of a subject."""
    with pytest.raises(BadEvent, match="printed"):
        desk.run("ban", f"user:{value}", *WHY)


def test_a_redis_without_workers_is_told(
    redis_by_kind: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The wrong server is the likelier reason."""
    with pytest.raises(StoreUnavailable, match="never seen a worker"):
        Desk(redis_by_kind[ONE], monkeypatch, tmp_path).run("ban", "user:u1", *WHY)
