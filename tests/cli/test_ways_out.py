"""What `explain` says of ways out, of banned ranges and of the allowlist; and how a long timeline is cut."""

from __future__ import annotations

from penaltybox.cli.explanation import Explanation, InForce, banned_by, describe_entry
from penaltybox.cli.timeline import Timeline, bounded, default_since
from penaltybox.cli.ways_out import ways_out
from penaltybox.contracts.policy import AllowEntry
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.processors.retelling.story import Moment, Step
from penaltybox.sinks.lists import Banned
from tests.processors.test_alerts import penalty

POLICY = load_policy(default_policy_path())
NOW_MS = 1_800_000_000_000


def held(subject: str, action: str, until: int | None) -> Explanation:
    """A subject with one hold."""
    hold = InForce(action=action, until=until, left_ms=None, rung="1h", rule="farm", penalty="p")
    return Explanation(subject=subject, known=True, in_force=[hold])


def test_nothing_in_force_needs_no_way_out() -> None:
    """Where nothing is in force, nothing is to be lifted."""
    assert ways_out(Explanation(subject="user:u", known=True), POLICY) == []


def test_a_block_ends_by_itself_or_by_command() -> None:
    """A block says when it ends, a permanent one that it does not; the command is the exact one, quoted."""
    time, command = ways_out(held("user:u", "deny", NOW_MS), POLICY)
    assert (time.by, time.at) == ("time", NOW_MS)
    assert command.command == 'penaltybox unban user:u --reason "…" --grace 1h'
    assert "does not end by itself" in ways_out(held("user:u", "deny", None), POLICY)[0].says
    assert "'user:a~b'" in ways_out(held("user:a~b", "deny", None), POLICY)[-1].command


def test_which_challenge_is_passed_by_whom() -> None:
    """A challenge of a user is lifted by passing it, that of an address or a login name is not."""
    assert "of this subject lifts" in ways_out(held("user:u", "challenge", NOW_MS), POLICY)[1].says
    assert "exempts its user and device" in ways_out(held("ip:203.0.113.7", "challenge", NOW_MS), POLICY)[1].says
    assert "no outcome" in ways_out(held("login_name:u", "challenge", NOW_MS), POLICY)[1].says


def test_a_banned_range() -> None:
    """The range around an address is told with the command that lifts it; ended and foreign ones are not."""
    banned = {
        "203.0.113.0/24": Banned(reason="scanner"),
        "203.0.0.0/16": Banned(until=NOW_MS - 1),
        "2001:db8::/32": Banned(),
        "198.51.100.0/24": Banned(),
    }
    one = Explanation(subject="ip:203.0.113.7", known=False, banned_ranges=banned_by(banned, "ip:203.0.113.7", NOW_MS))
    assert one.banned_ranges == ["203.0.113.0/24 (deny: scanner)"]
    assert [way.command for way in ways_out(one, POLICY)] == [
        'penaltybox unban 203.0.113.0/24 --reason "…"',
        'penaltybox allow add ip:203.0.113.7 --reason "…"',
    ]
    one.allowlisted = True
    assert [way.command for way in ways_out(one, POLICY)] == ['penaltybox unban 203.0.113.0/24 --reason "…"']
    assert banned_by(banned, "ip:AbCdEfGhIjKlMnOpQrStUv", NOW_MS) == []


def test_an_entry_that_has_ended() -> None:
    """An allowlist entry is told with its note, and whether it has ended."""
    assert describe_entry(AllowEntry(cidr="203.0.113.0/24", note="office"), NOW_MS) == "203.0.113.0/24 (office)"
    assert describe_entry(AllowEntry(subject="user:u", until=NOW_MS), NOW_MS) == "user:u has ended"


def moment(number: int, *steps: Step) -> Moment:
    """A moment with a number."""
    return Moment(at=NOW_MS + number, id=str(number), kind="decision", verdict="counted", why="", steps=list(steps))


def test_a_long_timeline_keeps_its_ends_and_its_penalties() -> None:
    """First and last moments and those with penalties stay; the rest is counted."""
    step = Step(told="both", penalty=penalty())
    moments = [moment(number, *([step] if number == 50 else [])) for number in range(100)]
    cut = bounded(Timeline(since=0, until=1, policy_version="v", moments=moments), 3)
    assert [one.id for one in cut.moments] == ["0", "1", "2", "50", "97", "98", "99"]
    assert (cut.left_out, cut.left_out_after) == (93, 3)


def test_where_a_timeline_begins() -> None:
    """One window of the rule before its last step; without a step the longest window before now."""
    steps = [penalty(1, rule="device_farm", ts=NOW_MS), penalty(2, action="lift", ts=NOW_MS + 5)]
    assert default_since(POLICY, "device:d", steps, NOW_MS + 9) == NOW_MS - 600_000
    assert default_since(POLICY, "device:d", [], NOW_MS) == NOW_MS - 3_600_000
