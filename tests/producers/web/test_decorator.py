"""The decorator for plain functions."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.http.testimony import secret_name
from penaltybox.producers.web.access import Access
from penaltybox.producers.web.decorator import Refused, limited
from tests.producers.web.shop import POLICY, BrokenLimiter, RefundingLimiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def subjects(user: str, *_: Any, **__: Any) -> dict[str, str]:
    return {"user": user}


async def test_async_functions_are_limited(limiter: RefundingLimiter) -> None:
    """The third call within the day raises, with the verdict and a sentence; the function has run twice."""
    ran: list[str] = []

    @limited(limiter, scenario="claim", subjects=subjects)
    async def claim(user: str) -> int:
        ran.append(user)
        return len(ran)

    assert [await claim("ann"), await claim(user="ann")] == [1, 2]
    with pytest.raises(Refused, match=r"claim: deny \(user:daily\); again in 86400 s") as caught:
        await claim("ann")
    assert caught.value.verdict.violated == ("user:daily",)
    assert caught.value.request.subjects == {"user": "ann"}
    assert (await claim("bob"), ran) == (3, ["ann", "ann", "bob"])
    assert claim.__name__ == "claim"


def test_sync_functions_are_limited(limiter: RefundingLimiter) -> None:
    """The same without an event loop, with a cost per call, from many threads, exactly."""

    @limited(limiter, scenario="report", subjects=subjects, cost=lambda _, pages: pages)
    def report(user: str, pages: int) -> str:
        return f"{pages} for {user}"

    assert report("ann", pages=90) == "90 for ann"
    with pytest.raises(Refused):
        report("ann", pages=11)
    answers: list[str] = []

    def ask() -> None:
        try:
            answers.append(report("ann", pages=1))
        except Refused:
            answers.append("refused")

    threads = [threading.Thread(target=ask) for _ in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("1 for ann") == 10


async def test_sync_functions_work_within_a_loop(limiter: RefundingLimiter) -> None:
    """A plain function that is called by async code is decided on the process's loop, not on the caller's."""
    access = Access(limiter.opening, POLICY)

    @limited(access, scenario="report", subjects=subjects)
    def plain(user: str) -> str:
        return user

    @limited(access, scenario="report", subjects=subjects)
    async def coroutine(user: str) -> str:
        return await asyncio.to_thread(plain, user) + plain(user)

    assert await coroutine("ann") == "annann"
    assert limiter.opened == 2
    await access.close()


async def test_an_error_gives_back(limiter: RefundingLimiter) -> None:
    """What a call took is given back when it raises one of the named errors, and no other."""

    class Duplicate(Exception):  # noqa: N818 - the application's word
        pass

    @limited(limiter, scenario="claim", subjects=subjects, refund_on=(Duplicate,))
    async def claim(user: str, error: type[Exception]) -> None:
        raise error(user)

    @limited(limiter, scenario="claim", subjects=subjects, refund_on=(Duplicate,), idempotency_key="order:{}".format)
    def order(user: str) -> None:
        raise Duplicate(user)

    with pytest.raises(Duplicate):
        await claim("ann", Duplicate)
    with pytest.raises(LookupError):
        await claim("ann", LookupError)
    with pytest.raises(Duplicate):
        order("bob")
    assert limiter.refunded == [limiter.asked[0].id, "order:bob"]


async def test_a_shadow_runs_something_else(limiter: RefundingLimiter) -> None:
    """The pretended success comes from a function of the application; without one the call raises."""

    def pretend(user: str) -> str:
        return f"thank you, {user}"

    @limited(limiter, scenario="review", subjects=subjects, on_shadow=pretend)
    async def review(user: str) -> str:
        return f"published for {user}"

    assert [await review("ann") for _ in range(2)] == ["published for ann", "thank you, ann"]
    plain = limited(limiter, scenario="review", subjects=subjects, on_shadow=pretend)(str.upper)
    assert plain("ann") == "thank you, ann"
    with pytest.raises(Refused, match="shadow"):
        await limited(limiter, scenario="review", subjects=subjects)(review)("ann")


async def test_a_broken_limiter_breaks_nothing() -> None:
    """The failure policy decides: open runs the function, closed raises."""
    run = {
        name: limited(BrokenLimiter(), scenario=name, subjects=subjects, policy=POLICY)(subjects)
        for name in ("report", "closed")
    }
    assert run["report"]("ann") == {"user": "ann"}
    with pytest.raises(Refused, match="fail_closed"):
        run["closed"]("ann")


async def test_hostile_values_count_and_only_nobody_is_missing(limiter: RefundingLimiter) -> None:
    """A value that no key can hold counts under its digest; an empty one is skipped, or refused where it is wanted."""
    for name in ("report", "strict"):
        for value in ("a\x00b", "é" * 100, "x" * 10_000, "\ud800", "a}:block{b"):
            assert limited(limiter, scenario=name, subjects=subjects)(subjects)(value) == {"user": value}
            assert "user" in limiter.asked[-1].subjects
    assert limited(limiter, scenario="report", subjects=subjects)(subjects)("") == {"user": ""}
    with pytest.raises(Refused, match=r"deny \(user\)"):
        limited(limiter, scenario="strict", subjects=subjects)(subjects)("")


def test_what_cannot_be_limited_is_told_at_once(limiter: RefundingLimiter) -> None:
    """An async generator has no moment at which to refuse, and a thing that is no limiter cannot be asked."""

    async def numbers(user: str) -> AsyncIterator[int]:
        yield len(user)

    with pytest.raises(ConfigurationError, match="async generator"):
        limited(limiter, scenario="claim", subjects=subjects)(numbers)
    with pytest.raises(ConfigurationError, match="wanted a limiter"):
        limited("redis://", scenario="claim", subjects=subjects)  # type: ignore[arg-type] # the mistake itself


def test_subjects_are_the_middlewares_subjects(limiter: RefundingLimiter) -> None:
    """A number is a user like its text, an API key leaves only as its digest, a long name counts under its own."""
    call = limited(limiter, scenario="claim", subjects=lambda **said: said)(dict)
    call(user=17, api_key="a secret", device=None)
    call(user="17")
    with pytest.raises(Refused):
        call(user=17)
    call(user="x" * 200)
    assert limiter.asked[0].subjects == {"user": "17", "api_key": secret_name("a secret")}
    assert limiter.asked[-1].subjects["user"].startswith("sha256-")


def test_costs_come_whole(limiter: RefundingLimiter) -> None:
    """A negative cost adds no quota and half a page is a page; a cost that is no number is an error in one sentence."""
    call = limited(limiter, scenario="claim", subjects=subjects, cost=lambda _, cost: cost)(lambda _, cost: cost)
    call("ann", -100)
    assert [call("ann", 0.5), call("ann", 0.5)] == [0.5, 0.5]
    with pytest.raises(Refused):
        call("ann", 0.5)
    for nonsense in (float("nan"), float("inf"), None, "many"):
        with pytest.raises(ConfigurationError, match="limited: cost: got"):
            call("bob", nonsense)
