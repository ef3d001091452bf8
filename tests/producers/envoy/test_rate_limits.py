"""The rate limit service asked by a real gRPC client, on a limiter in memory; and beside another service."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.subjects import Canonicaliser
from penaltybox.producers.envoy.grpc_server import other_service, served
from penaltybox.producers.envoy.rate_limits import RateLimits, Tee, asked_by
from penaltybox.producers.envoy.wire import Question, Status, read_answer, write_answer, write_question
from penaltybox.producers.http.testimony import MAX_COST, secret_name
from penaltybox.producers.memory import MemoryLimiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

POLICY = parse_policy(
    "limits: {web: {ip: [{name: pages, limit: 2, window: 1d}]}, "
    "spin: {user: [{name: few, limit: 1, window: 1d, answer: shadow}]}}"
)
WORD = "a word of ours"
METHOD = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"


class Published(list[Decision]):
    def offer(self, record: Any) -> None:
        self.append(decode_decision(encode(record), now_ms(), Canonicaliser()))


@pytest.fixture
def published() -> Published:
    return Published()


@asynccontextmanager
async def asking(answer: Callable[[bytes], Awaitable[bytes]], **more: Any) -> AsyncIterator[Any]:
    """A client of a server that answers so."""
    async with (
        served(answer, "127.0.0.1", 0, **more) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield channel.unary_unary(METHOD)


def question(*descriptors: dict[str, str], domain: str = "web", hits: int = 1) -> bytes:
    return write_question(Question(domain, tuple(tuple(one.items()) for one in descriptors), hits))


async def test_the_limiter_answers(published: Published) -> None:
    """Allowed, then over the limit with its figures for each descriptor; hits are the cost; it is published."""
    limits = RateLimits(MemoryLimiter(POLICY, publisher=published), POLICY)
    address = {"remote_address": "192.0.2.1"}
    async with asking(limits.answer) as ask:
        for left in (1, 0):
            over, (status,) = read_answer(await ask(question(address)))
            assert (over, status.over, status.limit, status.remaining) == (False, False, 2, left)
        raw = await ask(question(address, {"device": "d1"}))
        over, statuses = read_answer(raw)
        assert (over, [status.over for status in statuses]) == (True, [True, True])
        assert b"retry-after" in raw
        assert b"quota-exceeded" in raw  # the problem, for the client
        assert read_answer(await ask(question({"remote_address": "192.0.2.2"}, hits=3)))[0]
        assert b"shadow" not in await ask(question({"user": "u"}, domain="spin"))
        shadowed = await ask(question({"user": "u", "scenario": "spin"}))
        assert (read_answer(shadowed)[0], b"shadow" in shadowed) == (False, True)
    assert [one.action for one in published] == ["allow", "allow", "deny", "deny", "allow", "shadow"]
    assert published[2].subjects == {"ip": "192.0.2.1", "device": "d1"}
    assert published[2].violated == ("ip:pages",)


async def test_keys_and_costs_are_those_of_the_other_ways_in(published: Published) -> None:
    """Of an API key only the digest is told, which the middlewares count too; a cost is one that events can say."""
    limits = RateLimits(MemoryLimiter(POLICY, publisher=published), POLICY)
    for hits in (1, (1 << 32) - 1, 1 << 63):
        await limits.answer(question({"api_key": "a secret"}, hits=hits))
    assert [one.subjects for one in published] == [{"api_key": secret_name("a secret")}] * 3
    assert [one.cost for one in published] == [1, MAX_COST, MAX_COST]


async def test_who_may_ask(published: Published) -> None:
    """The secret is wanted as metadata; nonsense and an unknown scenario are refused, not answered."""
    limits = RateLimits(MemoryLimiter(POLICY, publisher=published), POLICY)
    async with asking(limits.answer, secret=WORD) as ask:
        for metadata in ((), (("x-penaltybox-secret", "another"),)):
            with pytest.raises(grpc.aio.AioRpcError, match="secret"):
                await ask(question(), metadata=metadata)
        mine = (("x-penaltybox-secret", WORD),)
        for raw in (b"\xff", question({"scenario": "sipn"})):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await ask(raw, metadata=mine)
            assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert list(published) == []
    async with served(limits.answer, "127.0.0.1", 0) as port:
        with pytest.raises(ConfigurationError, match="cannot listen"):
            async with served(limits.answer, "127.0.0.1", port):
                pass


async def test_beside_another_service(published: Published) -> None:
    """Its answer goes back as it came; what it decided is told, with what was over; its failure stays one."""
    answers = [
        write_answer(over=False, statuses=[Status(False, 10, 60, 9), Status(False)]) + b"\x92\x03\x01x",
        write_answer(over=True, statuses=[Status(False, 10, 60, 3), Status(True, 5, 3600, 0)]),
        b"\xff",
    ]

    async def other(_: bytes) -> bytes:
        return answers[0]

    asked = question({"remote_address": "192.0.2.1"}, {"user": "u", "generic_key": "x"})
    async with served(other, "127.0.0.1", 0) as port, other_service(f"127.0.0.1:{port}") as through:
        tee = Tee(through, published, lambda name: name == "web")
        async with asking(tee.answer) as ask:
            while answers:
                assert await ask(asked) == answers[0]
                answers.pop(0)
    assert [(one.action, one.violated, one.scenario) for one in published] == [
        ("allow", (), "web"), ("deny", ("user:5_per_3600s",), "web"),
    ]  # fmt: skip
    assert published[1].subjects == {"ip": "192.0.2.1", "user": "u"}
    async with other_service("127.0.0.1:1") as through, asking(Tee(through, published, bool).answer) as ask:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await ask(asked)
        assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


async def test_a_limit_that_all_share_charges_nobody(published: Published) -> None:
    """A descriptor that names nobody (`generic_key`) is over for everybody: no address is charged for it."""

    async def other(_: bytes) -> bytes:
        return write_answer(over=True, statuses=[Status(True, 1000, 1, 0), Status(False, 10, 60, 9)])

    await Tee(other, published, bool).answer(question({"generic_key": "all"}, {"remote_address": "192.0.2.1"}))
    assert [(one.violated, one.subjects) for one in published] == [(("shared:1000_per_1s",), {"ip": "192.0.2.1"})]


@pytest.mark.parametrize("user", ["x" * 129, "x" * 60_000, "a\x00b", "\u202e"])
async def test_a_header_that_cannot_be_a_subject_hides_no_address(published: Published, user: str) -> None:
    """What a client writes into a header of a descriptor makes no dead letter of its address' denial."""

    async def other(_: bytes) -> bytes:
        return write_answer(over=True, statuses=[Status(True, 5, 60, 0), Status(True, 5, 60, 0)])

    asked = question({"remote_address": "192.0.2.1"}, {"user": user}, hits=(1 << 32) - 1)
    await Tee(other, published, bool).answer(asked)
    (one,) = published
    assert (one.subjects, one.violated, one.cost) == (
        {"ip": "192.0.2.1"},
        ("ip:5_per_60s", "shared:5_per_60s"),
        1 << 31,
    )


@pytest.mark.parametrize(
    "more",
    [{"route": "\u202e"}, {"route": "GET /\x1b"}, {"route": "\u20ac" * 5000}, {f"d{n}": "x" * 128 for n in range(40)}],
)
async def test_nothing_beside_an_address_hides_its_denials(published: Published, more: dict[str, str]) -> None:
    """What clients can put into a descriptor makes no dead letter of a decision, whoever made it."""

    async def other(_: bytes) -> bytes:
        return write_answer(over=True, statuses=[Status(True, 5, 60, 0)])

    limits = RateLimits(MemoryLimiter(POLICY, publisher=published), POLICY)
    asked = question({"remote_address": "192.0.2.1"} | more)
    for answer in (limits.answer, limits.answer, limits.answer, Tee(other, published, bool).answer):
        await answer(asked)
    for scenario in ("\u202e", "x" * 500):
        await Tee(other, published, bool).answer(question({"remote_address": "192.0.2.1", "scenario": scenario}))
    assert [one.subjects["ip"] for one in published if one.action == "deny"] == ["192.0.2.1"] * 4


async def test_another_service_that_answers_nonsense_fills_no_log(
    published: Published, caplog: pytest.LogCaptureFixture
) -> None:
    """Envoy gets the answer as it came; that it was not told is logged at the 1st, 2nd, 4th and 8th time."""

    async def other(_: bytes) -> bytes:
        return b"\xff"

    tee = Tee(other, published, bool)
    for _ in range(10):
        assert await tee.answer(question({"remote_address": "192.0.2.1"})) == b"\xff"
    assert (tee.untold, len(caplog.records), published) == (10, 4, [])


async def test_large_headers_get_an_answer(published: Published) -> None:
    """A header as large as Envoy takes one, in two descriptors, is refused by the limiter, not passed by Envoy."""
    limits = RateLimits(MemoryLimiter(POLICY, publisher=published), POLICY)
    large = {"user": "x" * 60_000}
    async with asking(limits.answer) as ask:
        over, _ = read_answer(await ask(question({"remote_address": "192.0.2.1"} | large, large)))
    assert over


def test_whose_a_descriptor_is() -> None:
    """Envoy's own keys that stand for nobody are nobody; names that are no dimension too."""
    given = {
        "generic_key": "a", "header_match": "b", "masked_remote_address": "192.0.2.0/24", "Not A Dimension": "c",
        "remote_address": "192.0.2.1", "user": "u", "device": "", "route": "GET /x",
    }  # fmt: skip
    asked = asked_by(Question("elsewhere", (tuple(given.items()),), 2), lambda name: name == "web")
    assert asked == ({"ip": "192.0.2.1", "user": "u"}, "", "GET /x", 2)
