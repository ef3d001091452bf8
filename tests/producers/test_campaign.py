"""The simulated campaign: it repeats, its events are good, its truth stays hidden, and it does what it says."""

from __future__ import annotations

from collections import Counter

import pytest

from penaltybox.contracts.decoding import decode_decision, decode_outcome
from penaltybox.contracts.events import Decision, Outcome, encode
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.campaign import Campaign
from penaltybox.producers.campaign_cast import FARM_DEVICE, OFFICE_IP, STUFFING_IP, Sizes
from penaltybox.producers.limiter import Listed, Request

START_MS = 1_800_000_000_000
POLICY = load_policy(default_policy_path())
SMALL = Sizes(normal=60, office=40, cafes=1, families=4, farm_accounts=30, phones=3, scrapers=2, greedy=3)


def campaign(seed: int = 1, sizes: Sizes = SMALL, **changed: object) -> Campaign:
    """A small campaign of nine minutes."""
    return Campaign(POLICY, start_ms=START_MS, seed=seed, sizes=sizes, **changed)  # type: ignore[arg-type]


def play(one: Campaign) -> list[Decision | Outcome]:
    """All events of a campaign."""
    return list(one.until(one.end_ms + 120_000))


def test_the_same_seed_gives_the_same_events() -> None:
    """Played twice, in one go or in waves, a seed gives the same bytes; another seed gives others."""
    whole = [encode(event) for event in play(campaign())]
    waves = campaign()
    parts = [encode(event) for end in range(30, 700, 30) for event in waves.until(START_MS + end * 1000)]
    assert parts == whole
    assert [encode(event) for event in play(campaign(seed=2))] != whole


def test_events_are_good_and_in_order() -> None:
    """Every event decodes, times never run backwards, and no id comes twice."""
    canonicaliser = Canonicaliser()
    last, ids = 0, []
    for event in play(campaign()):
        decode = decode_decision if isinstance(event, Decision) else decode_outcome
        assert decode(encode(event), event.ts, canonicaliser) == event
        assert event.ts >= last
        last = event.ts
        ids.append(event.id)
    assert len(ids) == len(set(ids))


def test_the_truth_covers_everybody_and_is_told_to_nobody() -> None:
    """Each subject of each decision has a truth, and roles stand in no event."""
    one = campaign()
    canonical = Canonicaliser().subject
    for event in play(one):
        assert {canonical(*pair) for pair in event.subjects.items()} <= one.truth.keys()
        assert not any(role.encode() in encode(event) for role in one.treatments)
    honest = {role for role, legitimate in ((t.role, t.legitimate) for t in one.truth.values()) if legitimate}
    assert honest == {"normal users", "NAT office", "café guests", "families", "typed names"}
    assert one.truth[f"device:{FARM_DEVICE}"].legitimate is False
    assert one.truth[f"ip:{STUFFING_IP}"].legitimate is False
    assert one.truth[f"ip:{OFFICE_IP}"].legitimate is True


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_only_the_stated_fraction_is_labelled(fraction: float) -> None:
    """Outcomes are about the stated share of people and nobody else."""
    one = campaign(sizes=Sizes(normal=300, office=0, greedy=0, scrapers=0, stuffing_per_s=1, labelled=fraction))
    events = play(one)
    seen = {event.subjects["user"] for event in events if isinstance(event, Decision) and "user" in event.subjects}
    told = {event.subjects["user"] for event in events if isinstance(event, Outcome) and "user" in event.subjects}
    assert told <= seen
    assert len(told) / len(seen) <= fraction + 0.05
    assert len(told) / len(seen) >= fraction * 0.5


def test_everybody_plays_their_part() -> None:
    """Farm and robots hit limits, most honest people do not, the office feels its shared address."""
    one = campaign(sizes=Sizes(normal=300, scrapers=2, stuffing_per_s=1))
    play(one)
    treated = one.treatments
    assert treated["coupon farm"].limited > 0.9 * treated["coupon farm"].requests
    assert treated["greedy accounts"].limited > 0.9 * treated["greedy accounts"].requests
    assert treated["normal users"].limited < 0.02 * treated["normal users"].requests
    assert treated["NAT office"].people == 200
    assert 0 < treated["NAT office"].limited < treated["NAT office"].requests / 2
    assert one.played == one.planned == sum(treatment.requests for treatment in treated.values())


def test_the_blocklist_feeds_back() -> None:
    """A listed device is refused without counting; who passes a challenge is let through."""

    def listed(request: Request) -> Listed | None:
        if request.subjects.get("device") == FARM_DEVICE:
            return Listed("deny", None)
        return Listed("challenge", START_MS + 900_000) if request.subjects["ip"] == OFFICE_IP else None

    one = campaign(listed=listed)
    reasons = Counter(
        (one.truth[f"user:{event.subjects['user']}"].role, event.reason)
        for event in play(one)
        if isinstance(event, Decision) and "user" in event.subjects
    )
    assert {reason for role, reason in reasons if role == "coupon farm"} == {"blocklist"}
    assert reasons["NAT office", "challenged"] > 0
    assert reasons["NAT office", None] > reasons["NAT office", "challenged"]
    assert one.labels["challenge_passed"] > 0


def test_history_explains_who_is_established() -> None:
    """Before it starts, exactly the established users have an outcome, a day old."""
    one = campaign()
    users = {person.subjects["user"] for person in one.people if person.established}
    assert {event.subjects["user"] for event in one.history()} == users
    assert {event.ts for event in one.history()} == {START_MS - 86_400_000}
