"""Alerts: which penalties, what they say, delivery to a receiver that fails, once each, not too many, signed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Penalty, encode
from penaltybox.links.webhook import SIGNATURE, TIMESTAMP, Webhook
from penaltybox.processors.alert_delivery import Delivery, Timing
from penaltybox.processors.alert_messages import Choice, Overflow, penalty_alert
from penaltybox.processors.cycle import Run
from tests.receiver import Receiver, receiving
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

NOW_MS = 1_800_000_000_000
QUICK = Timing(first_retry_s=0.01, longest_retry_s=0.02)


def penalty(number: int = 1, **changes: Any) -> Penalty:
    """A deny of an hour by a rule."""
    made = Penalty(
        id=f"p{number}",
        ts=NOW_MS,
        subject="user:u",
        from_="none",
        to="1h",
        to_ms=3_600_000,
        action="deny",
        until=NOW_MS + 3_600_000,
        rule="farm",
        policy_version="v",
        trigger_id=f"t{number}",
    )
    return msgspec.structs.replace(made, **changes)


class Remembering:
    """A `Memory` in this process."""

    def __init__(self) -> None:
        self.identities: set[str] = set()
        self.asked = 0

    async def known(self, identities: Sequence[str]) -> set[str]:
        self.asked += 1
        return self.identities & set(identities)

    async def add(self, identities: Sequence[str]) -> None:
        self.identities.update(identities)

    async def claim(self, identity: str) -> bool:
        fresh = identity not in self.identities
        self.identities.add(identity)
        return fresh

    async def forget(self, identity: str) -> None:
        self.identities.discard(identity)


class Acks(list[int]):
    """Which runs were acknowledged."""

    def run(self, number: int, *penalties: Penalty) -> Run:
        records = [SimpleNamespace(offset=0, timestamp=NOW_MS, value=encode(one)) for one in penalties]
        return Run("penalties", 0, records, lambda: self.append(number))


@asynccontextmanager
async def delivering(
    receiver: Receiver,
    memory: Remembering | None = None,
    *,
    timing: Timing = QUICK,
    choice: Choice | None = None,
    answer_s: float = 5.0,
    wall_ms: int = NOW_MS,
) -> AsyncIterator[Delivery]:
    async with Webhook(receiver.url, "key", answer_s) as webhook:

        async def post(body: bytes, identity: str) -> Any:
            return await webhook.post(body, identity, wall_ms)

        made = Delivery(choice or Choice(), post, memory or Remembering(), lambda: wall_ms, timing=timing)
        task = asyncio.create_task(made.deliver())
        try:
            yield made
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize(
    ("choice", "changes", "wanted"),
    [
        (Choice(), {}, True),
        (Choice(), {"action": "challenge"}, False),
        (Choice(), {"action": "lift", "to": "none"}, False),
        (Choice(), {"action": "note"}, False),
        (Choice(), {"shadow": True}, True),
        (Choice(shadow=False), {"shadow": True}, False),
        (Choice(rungs=("permanent",)), {}, False),
        (Choice(rungs=("permanent",)), {"to": "permanent", "until": None}, True),
        (Choice(rungs=("warn",)), {"to": "warn", "action": "warn"}, True),
        (Choice(rules=("fa*",)), {}, True),
        (Choice(rules=("hand",)), {}, False),
        (Choice(rules=("hand",)), {"rule": "hand", "origin": "hand"}, True),
    ],
)
def test_which_penalties_alert(choice: Choice, changes: dict[str, Any], wanted: bool) -> None:
    """Rungs and rules choose; without rungs, what denies; lifts never."""
    assert choice.wants(penalty(**changes)) is wanted


def test_titles() -> None:
    """A title says who, what, how long and why; a shadow penalty says that nothing was done, in a field too."""
    assert penalty_alert(penalty()).title == "user:u is denied for 1h by rule farm"
    hand = penalty(origin="hand", rule="hand", actor="ann", note="fraud", until=None)
    assert penalty_alert(hand).title == "user:u is denied permanently by ann: fraud"
    shadow = penalty_alert(penalty(shadow=True))
    assert shadow.title == "[shadow, nothing was done] user:u would be denied for 1h by rule farm"
    assert msgspec.json.decode(shadow.body)["shadow"] is True
    assert msgspec.json.decode(penalty_alert(penalty()).body)["shadow"] is False


def test_a_summary() -> None:
    """What goes beyond the rate is told by rung and rule."""
    overflow = Overflow()
    for number in range(37):
        overflow.add(penalty(number, shadow=number < 2, rule="a" if number else "b"))
    alert = overflow.summary()
    assert alert.title == "and 37 more, 2 of them shadow (a 36, b 1)"
    assert msgspec.json.decode(alert.body)["by_rule"] == {"a": 36, "b": 1}


async def test_it_is_signed() -> None:
    """The signature is the HMAC-SHA256 of timestamp, dot and body; the id tells attempts of one alert from others."""
    async with receiving() as receiver, delivering(receiver) as delivery:
        acks = Acks()
        await delivery.take(acks.run(1, penalty()))
        await wait_until(lambda: acks == [1])
        ((headers, body, _),) = receiver.requests
        signed = hmac.new(b"key", headers[TIMESTAMP].encode() + b"." + body, hashlib.sha256).hexdigest()
        assert headers[SIGNATURE] == f"v1={signed}"
        assert (headers[TIMESTAMP], headers["X-Penaltybox-Id"]) == (str(NOW_MS // 1000), "p1")


async def test_tried_again_until_it_arrives(caplog: pytest.LogCaptureFixture) -> None:
    """500, 429, a hanging receiver: tried again, acknowledged after it arrived; the URL's key is in no log line."""
    caplog.set_level(logging.INFO)
    async with receiving() as receiver, delivering(receiver, answer_s=0.2) as delivery:
        receiver.script = [500, 429, "hang"]
        acks = Acks()
        await delivery.take(acks.run(1, penalty()))
        await wait_until(lambda: len(receiver.requests) == 1)
        assert acks == []
        await wait_until(lambda: acks == [1])
        assert [answer for _, _, answer in receiver.requests] == [500, 429, "hang", 200]
        assert len(receiver.accepted) == delivery.delivered == 1
    assert "s3cret" not in caplog.text
    assert "answered 500" in caplog.text


@pytest.mark.parametrize("status", [302, 400, 404])
async def test_a_refusal_is_not_tried_again(status: int, caplog: pytest.LogCaptureFixture) -> None:
    """A redirect is not followed, and what a receiver refuses is given up with a log line; the next one goes on."""
    async with receiving() as receiver, delivering(receiver) as delivery:
        receiver.script = [status]
        acks = Acks()
        await delivery.take(acks.run(1, penalty(1), penalty(2)))
        await wait_until(lambda: acks == [1])
        assert [one["id"] for one in receiver.accepted] == ["p2"]
        assert (delivery.given_up, len(receiver.requests)) == (1, 2)
    assert f"answered {status}" in caplog.text


async def test_each_alert_once() -> None:
    """A penalty that comes twice, also after a restart, alerts once."""
    memory = Remembering()
    async with receiving() as receiver:
        for number in (1, 2):
            async with delivering(receiver, memory) as delivery:
                acks = Acks()
                await delivery.take(acks.run(number, penalty(), penalty()))
                await wait_until(lambda acks=acks, number=number: acks == [number])
        assert len(receiver.requests) == 1


async def test_not_too_many() -> None:
    """Beyond the rate there is one summary; what is in it is acknowledged after the summary, and remembered."""
    memory = Remembering()
    timing = Timing(per_minute=2, window_s=0.3)
    async with receiving() as receiver, delivering(receiver, memory, timing=timing) as delivery:
        acks = Acks()
        await delivery.take(acks.run(1, *(penalty(number) for number in range(7))))
        await wait_until(lambda: len(receiver.accepted) == 2)
        assert acks == []
        assert delivery.waiting
        await wait_until(lambda: acks == [1])
        assert [one["title"] for one in receiver.accepted][2:] == ["and 5 more (farm 5)"]
        assert "p6" in memory.identities


async def test_a_flood_is_no_stall() -> None:
    """An import of thousands is looked up together, not one by one; a delivery is progress before its run is done."""
    memory = Remembering()
    timing = Timing(per_minute=3, window_s=0.3)
    async with receiving() as receiver, delivering(receiver, memory, timing=timing) as delivery:
        acks = Acks()
        await delivery.take(acks.run(1, *(penalty(number) for number in range(5000))))
        await wait_until(lambda: delivery.waiting)
        assert (memory.asked, delivery.acknowledged, delivery.progress) == (1, 0, 3)
        await wait_until(lambda: acks == [1])
        assert [one["title"] for one in receiver.accepted][3:] == ["and 4997 more (farm 4997)"]


async def test_a_stop_does_not_wait_for_the_minute() -> None:
    """Draining sends the summary at once."""
    timing = Timing(per_minute=1, window_s=60)
    async with receiving() as receiver, delivering(receiver, timing=timing) as delivery:
        acks = Acks()
        await delivery.take(acks.run(1, penalty(1), penalty(2)))
        await wait_until(lambda: delivery.waiting)
        await delivery.drain(asyncio.get_running_loop().time() + 5)
        assert acks == [1]
        assert len(receiver.accepted) == 2


async def test_old_penalties_do_not_alert() -> None:
    """A first start on a topic of 90 days is no flood: what is too old is acknowledged without an alert."""
    async with receiving() as receiver, delivering(receiver, wall_ms=NOW_MS + 3_600_001) as delivery:
        acks = Acks()
        await delivery.take(acks.run(1, penalty()))
        await wait_until(lambda: acks == [1])
        assert (receiver.requests, delivery.too_old) == ([], 1)


async def test_records_that_are_no_penalties() -> None:
    """What somebody else wrote into the topic is passed over."""
    async with receiving() as receiver, delivering(receiver) as delivery:
        acks = Acks()
        record = SimpleNamespace(offset=0, timestamp=0, value=b"junk")
        await delivery.take(Run("penalties", 0, [record], lambda: acks.append(1)))
        await wait_until(lambda: acks == [1])
        assert receiver.requests == []


async def test_a_pause_alerts_once() -> None:
    """The breaker's pause is told once, and again only after it was resumed."""
    reasons: list[str | None] = [None, "too many", "too many", None, "too many"]
    seen: list[str | None] = []

    async def reason() -> str | None:
        seen.append(reasons[min(len(seen), len(reasons) - 1)])
        return seen[-1]

    async with receiving() as receiver, delivering(receiver) as delivery:
        watching = asyncio.create_task(delivery.watch_pauses(reason, 0.01))
        await wait_until(lambda: len(seen) > len(reasons) + 2)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert [one["type"] for one in receiver.accepted] == ["pause", "pause"]


@pytest.mark.parametrize("url", ["ftp://host/x", "http:///path", "file:///etc/passwd"])
def test_only_http(url: str) -> None:
    """Any other URL is refused, without telling it."""
    with pytest.raises(ConfigurationError) as caught:
        Webhook(url)
    assert url not in str(caught.value)


async def test_nobody_listens() -> None:
    """A receiver that is not there is tried again."""
    async with Webhook("http://127.0.0.1:1/k3y") as webhook:
        answer = await webhook.post(b"{}", "x", NOW_MS)
    assert answer.kind == "again"
    assert "k3y" not in answer.says
