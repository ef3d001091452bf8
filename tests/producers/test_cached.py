"""What a decider behind caches answers, asks and publishes."""

from __future__ import annotations

from typing import Any

import pytest

from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import BadEvent
from penaltybox.contracts.events import encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.cached import CachedDecider
from tests.producers.deciders import PLAIN, Blocking, Hears, Published, Time, request
from tests.waiting import wait_until


class Rig:
    """A cached decider on a clock that stands."""

    def __init__(self, inner: Blocking | None = None, policy: Any = PLAIN, **options: Any) -> None:
        self.time = Time()
        self.inner = inner or Blocking(policy)
        self.published = Published()
        self.hears = Hears(self.time)
        self.cached = CachedDecider(
            self.inner,
            policy,
            source="edge/1",
            publisher=self.published,
            hearing=self.hears,
            clock=self.time,
            **options,
        )

    async def ask(self, number: int, **changed: Any) -> Any:
        return await self.cached.decide(request(number, self.time.wall, **changed))

    async def pass_ms(self, duration_ms: int) -> None:
        """Time passes; what is due is done."""
        self.time.ms += duration_ms
        await self.cached._catch_up()


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_flood_of_a_blocked_subject_costs_one_look_and_a_record_a_second(rig: Rig) -> None:
    """30,000 requests in 3 s ask Redis once; 4 records stand for all of them, under ids of their own, also at the end.

    A caddy under attack wrote a log line per denied request (caddy-ratelimit 103).
    """
    rig.inner.blocks["ip:192.0.2.1"] = ("deny", rig.time.wall + 60_000)
    flood = {"subjects": {"ip": "192.0.2.1"}}
    for tenth in range(30):
        for number in range(1000):
            verdict = await rig.ask(tenth * 1000 + number, **flood)
            assert verdict.action == "deny"
        await rig.pass_ms(100)
    assert rig.inner.calls == 1
    assert [one.count for one in rig.published] == [1, 9_999, 10_000, 10_000]
    for number in range(7):
        await rig.ask(40_000 + number, **flood)
    await rig.cached.close()
    assert sum(one.count for one in rig.published) == 30_007
    assert len({one.id for one in rig.published}) == len(rig.published) == 5
    assert [one.cached for one in rig.published] == [False, True, True, True, True]
    for one in rig.published:
        decode_decision(encode(one), rig.time.wall, Canonicaliser())


async def test_the_flood_is_told_without_anybody_doing_anything() -> None:
    """On a real clock, the last denials of a flood are published about a second later though no request follows."""
    inner, published = Blocking(), Published()
    inner.blocks["user:u"] = ("deny", None)
    cached = CachedDecider(inner, PLAIN, source="edge/1", publisher=published)
    for number in range(100):
        await cached.decide(request(number))
    await wait_until(lambda: sum(one.count for one in published) == 100, 3)
    assert len(published) == 2
    await cached.close()


async def test_the_wait_shrinks_until_the_block_ends(rig: Rig) -> None:
    """A remembered block tells what is left of it at every request, and at its end the decider inside is asked."""
    rig.inner.blocks["user:u"] = ("deny", rig.time.wall + 5_000)
    waits = []
    for number in range(6):
        waits.append((await rig.ask(number)).retry_after_ms)
        rig.time.ms += 1_000
    assert waits == [5_000, 4_000, 3_000, 2_000, 1_000, None]
    assert rig.inner.calls == 2
    await rig.cached.close()


async def test_a_permanent_block_stays_permanent(rig: Rig) -> None:
    """From memory it is as permanent as from Redis, without a time to come back."""
    rig.inner.blocks["user:u"] = ("deny", None)
    first, second = await rig.ask(1), await rig.ask(2)
    for verdict in (first, second):
        assert (verdict.action, verdict.reason, verdict.permanent, verdict.retry_after_ms, verdict.listed) == (
            "deny", "blocklist", True, None, "user:u",
        )  # fmt: skip
    assert rig.inner.calls == 1
    await rig.cached.close()


async def test_an_unban_is_asked_for_at_the_next_request(rig: Rig) -> None:
    """A message about a subject makes the cache forget it; other subjects stay remembered."""
    rig.inner.blocks |= {"user:u": ("deny", None), "user:other": ("deny", None)}
    other = {"subjects": {"user": "other"}}
    await rig.ask(1)
    await rig.ask(2, **other)
    del rig.inner.blocks["user:u"]
    assert (await rig.ask(3)).action == "deny"
    rig.cached.changed("user:u")
    assert (await rig.ask(4)).action == "allow"
    assert (await rig.ask(5, **other)).action == "deny"
    assert rig.inner.calls == 3
    await rig.cached.close()


async def test_an_answer_that_was_under_way_during_an_unban_is_not_remembered() -> None:
    """Read before the unban, arrived after its message: such an answer is given once and not kept."""

    class Slow(Blocking):
        async def decide(self, asked: Any) -> Any:
            verdict = await super().decide(asked)
            if self.blocks.pop("user:u", None):
                cached.changed("user:u")
            return verdict

    inner = Slow()
    inner.blocks["user:u"] = ("deny", None)
    time = Time()
    cached = CachedDecider(inner, PLAIN, source="edge/1", hearing=Hears(time), clock=time)
    assert [(await cached.decide(request(n))).action for n in (1, 2)] == ["deny", "allow"]


async def test_without_a_listener_nothing_is_believed_longer_than_a_second(rig: Rig) -> None:
    """While changes cannot be heard, a block is asked for again after a second, as often as it is needed."""
    rig.inner.blocks["user:u"] = ("deny", None)
    rig.hears.connected = False
    for number in range(30):
        await rig.ask(number)
        rig.time.ms += 100
    assert rig.inner.calls == 3
    del rig.inner.blocks["user:u"]
    rig.time.ms += 900
    assert (await rig.ask(99)).action == "allow"
    await rig.cached.close()


async def test_when_hearing_comes_back_everything_is_asked_for_anew(rig: Rig) -> None:
    """What was said in the gap is unknown, so nothing from before it is believed."""
    rig.inner.blocks["user:u"] = ("deny", None)
    await rig.ask(1)
    del rig.inner.blocks["user:u"]
    rig.cached.missed()
    assert (await rig.ask(2)).action == "allow"
    await rig.cached.close()


async def test_a_record_says_only_what_all_its_denials_have_in_common(rig: Rig) -> None:
    """Device, route and attrs differ: they are left out; another user or scenario has a record of its own."""
    rig.inner.blocks["ip:192.0.2.1"] = ("deny", None)
    users = [{"ip": "192.0.2.1", "user": name} for name in "ab"]
    for subjects in users:
        await rig.ask(0, subjects=subjects)
    rig.published.clear()
    for number in range(10):
        for subjects in users:
            more = {"device": f"d{number}"} if subjects["user"] == "a" else {"device": "same"}
            await rig.ask(number, subjects=subjects | more, route=f"GET /{number}", attrs={"k": "v", "n": str(number)})
    await rig.cached.close()
    assert [(one.subjects, one.route, one.attrs, one.count) for one in rig.published] == [
        ({"ip": "192.0.2.1", "user": "a"}, "", {"k": "v"}, 10),
        ({"ip": "192.0.2.1", "user": "b", "device": "same"}, "", {"k": "v"}, 10),
    ]


async def test_addresses_of_a_blocked_prefix_are_one_subject(rig: Rig) -> None:
    """An attacker who changes addresses inside a /64 costs one look and one record, which still names an address."""
    rig.inner.blocks["ip:2001:db8::/64"] = ("deny", None)
    for number in range(50):
        await rig.ask(number, subjects={"ip": f"2001:db8::{number:x}"})
    await rig.cached.close()
    assert rig.inner.calls == 1
    assert [(one.subjects, one.count) for one in rig.published] == [
        ({"ip": "2001:db8::0"}, 1), ({"ip": "2001:db8::1"}, 49),
    ]  # fmt: skip


async def test_an_established_user_stays_evidence_for_a_shared_address() -> None:
    """Each user of a blocked address is looked at once, and the records of their denials say who is established."""
    rig = Rig(Blocking(established={"good": True, "new": False}))
    rig.inner.blocks["ip:192.0.2.1"] = ("deny", rig.time.wall + 60_000)
    for number in range(10):
        for user in ("good", "new"):
            await rig.ask(number, subjects={"user": user, "ip": "192.0.2.1"})
    await rig.cached.close()
    assert rig.inner.calls == 2
    told = [(one.subjects["user"], one.established, one.count) for one in rig.published]
    assert told == [("good", True, 1), ("new", False, 1), ("good", True, 9), ("new", False, 9)]


async def test_made_up_users_cannot_make_a_flood() -> None:
    """A blocked address that names 5,000 users costs 64 looks, and in a second 65 records beside those."""
    rig = Rig()
    rig.inner.blocks["ip:192.0.2.1"] = ("deny", None)
    for number in range(5_000):
        await rig.ask(number, subjects={"user": f"u{number}", "ip": "192.0.2.1"})
    assert rig.inner.calls == 64
    rig.published.clear()
    for number in range(5_000):
        await rig.ask(number, subjects={"user": f"u{number}", "ip": "192.0.2.1"})
    await rig.pass_ms(1_000)
    await rig.cached.close()
    assert rig.inner.calls == 64
    assert len(rig.published) <= 65
    assert sum(one.count for one in rig.published) == 5_000 + 5_000 - 64
    assert rig.published[-1].subjects == {"ip": "192.0.2.1"}


async def test_a_challenge_of_an_address_is_asked_for_each_user(rig: Rig) -> None:
    """A user or device may have passed it, so only a request with neither is answered from memory."""
    rig.inner.blocks["ip:192.0.2.1"] = ("challenge", rig.time.wall + 60_000)
    for number in range(5):
        assert (await rig.ask(number)).action == "challenge"
    assert rig.inner.calls == 5
    for number in range(5):
        assert (await rig.ask(number, subjects={"ip": "192.0.2.1"})).action == "challenge"
    assert rig.inner.calls == 5
    rig.inner.blocks = {"user:u": ("challenge", rig.time.wall + 60_000)}
    rig.cached.missed()
    rig.time.ms += 1
    verdicts = [await rig.ask(number) for number in range(5)]
    assert {(one.action, one.reason, one.permanent) for one in verdicts} == {("challenge", "challenged", False)}
    assert rig.inner.calls == 6
    await rig.cached.close()


async def test_the_severest_of_several_blocks_answers(rig: Rig) -> None:
    """Deny over challenge, permanent over an end, as far as they are remembered."""
    rig.inner.blocks["device:d"] = ("challenge", rig.time.wall + 90_000)
    await rig.ask(1, subjects={"device": "d"})
    rig.inner.blocks["ip:192.0.2.1"] = ("deny", rig.time.wall + 10_000)
    await rig.ask(2, subjects={"ip": "192.0.2.1"})
    rig.inner.blocks["user:u"] = ("deny", rig.time.wall + 20_000)
    await rig.ask(3, subjects={"user": "u"})
    assert (await rig.ask(4)).retry_after_ms == 20_000
    assert rig.inner.calls == 3
    await rig.cached.close()


async def test_memory_is_bounded() -> None:
    """Of more blocked subjects than fit, those seen least lately are forgotten, and asked for again."""
    rig = Rig(max_subjects=100)
    for number in range(500):
        rig.inner.blocks[f"user:u{number}"] = ("deny", None)
        await rig.ask(number, subjects={"user": f"u{number}"})
    assert len(rig.cached._blocked) == 100
    await rig.ask(1000, subjects={"user": "u499"})
    assert rig.inner.calls == 500
    await rig.ask(1001, subjects={"user": "u0"})
    assert rig.inner.calls == 501
    await rig.cached.close()


LISTS = """
limits: {s: {user: [{name: hour, limit: 1, window: 1h}]}}
allow: [{cidr: 192.0.2.128/25}, {subject: "user:vip"}]
"""


async def test_lists_come_first() -> None:
    """An allowlisted request is allowed and counts nothing, also inside a banned range; others there are denied."""
    rig = Rig(policy=parse_policy(LISTS))
    rig.cached.lists.ban("192.0.2.0/24", "deny", rig.time.wall + 9_000)
    for number in range(3):
        assert (await rig.ask(number, subjects={"user": "u", "ip": "192.0.2.200"})).allowed
        assert (await rig.ask(number, subjects={"user": "vip", "ip": "192.0.2.1"})).allowed
        verdict = await rig.ask(number, subjects={"user": "u", "ip": "192.0.2.1"})
        assert (verdict.action, verdict.reason, verdict.retry_after_ms) == ("deny", "blocklist", 9_000)
    assert rig.inner.calls == 0
    rig.time.ms += 9_000
    assert (await rig.ask(9, subjects={"user": "u", "ip": "192.0.2.1"})).allowed
    assert rig.inner.calls == 1
    await rig.cached.close()
    told = [(one.action, one.count, one.status, one.cached) for one in rig.published]
    assert told == [("allow", 1, None, False)] * 7 + [("deny", 3, 403, False)]


class Passed:
    """Knows one user who passed."""

    async def passed(self, asked: Any) -> bool:
        return asked.subjects.get("user") == "human"


async def test_a_challenged_range_lets_those_through_who_passed() -> None:
    """A challenge of a range is like one of an address: whoever passed one goes on to the limits."""
    rig = Rig(passes=Passed())
    rig.cached.lists.ban("192.0.2.0/24", "challenge")
    verdict = await rig.ask(1)
    assert (verdict.action, verdict.reason, verdict.permanent) == ("challenge", "challenged", False)
    assert (await rig.ask(2, subjects={"user": "human", "ip": "192.0.2.1"})).allowed
    assert (await rig.ask(3, subjects={"ip": "192.0.2.1"})).action == "challenge"
    assert rig.inner.calls == 1
    await rig.cached.close()


async def test_the_same_contract_as_the_decider_inside(rig: Rig) -> None:
    """A bad subject raises and counts nothing; a refund goes through; a request without subjects is not published."""
    with pytest.raises(BadEvent):
        await rig.ask(1, subjects={"user": ""})
    assert rig.inner.calls == 0
    assert await rig.cached.refund("known")
    assert not await rig.cached.refund("unknown")
    assert (await rig.ask(2, subjects={})).allowed
    assert rig.published == []


async def test_a_new_policy_reaches_the_decider_inside_and_the_lists() -> None:
    """Scenario settings, allowlist and the decider inside change at once."""
    seen = []

    class Inner(Blocking):
        def replace_policy(self, policy: Any) -> None:
            seen.append(policy)

    rig = Rig(Inner())
    other = parse_policy("allow: ['user:u']\nlimits: {s: {ip: [{name: x, limit: 1, window: 1m}]}}")
    rig.cached.replace_policy(other)
    assert seen == [other]
    assert (await rig.ask(1)).allowed
    assert rig.inner.calls == 0
    await rig.cached.close()
