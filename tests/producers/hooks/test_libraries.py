"""Each hook in the real library: what it decides is published, and what it answers is as without the hook."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import limits
import limits.aio
import pytest
import throttled
import throttled.asyncio
from django.test import RequestFactory
from django_ratelimit.decorators import ratelimit
from fastapi import FastAPI, Request
from flask import Flask
from flask_limiter import Limiter as FlaskLimiter
from slowapi import Limiter as SlowLimiter
from slowapi import _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded

from penaltybox.producers.hooks import (
    for_django_ratelimit,
    for_flask_limiter,
    for_limits,
    for_slowapi,
    for_throttled,
)
from penaltybox.producers.hooks.telling import Teller, by_prefix, of
from tests.producers.web.django_project import configure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.producers.hooks.conftest import Published

_groups = count()
TWO = limits.parse("2/minute")
ALLOWED, DENIED = ("allow", {"user": "u"}, ()), ("deny", {"user": "u"}, ("user:2_per_60s",))


def test_limits(published: Published) -> None:
    """Every hit is told, with its scenario; after the end none is; `test` and statistics are as before."""
    strategy = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    end = for_limits.watch(strategy, Teller(published, of("user")))
    assert [strategy.hit(TWO, "u", "claim") for _ in range(3)] == [True, True, False]
    assert published.told == [ALLOWED, ALLOWED, DENIED]
    assert {(one.scenario, one.cost) for one in published} == {("claim", 1)}
    assert strategy.test(TWO, "other")
    assert not strategy.hit(TWO, "v", cost=3)
    assert published[-1].cost == 3
    end()
    strategy.hit(TWO, "u")
    assert len(published) == 4


async def test_limits_async(published: Published) -> None:
    """The same for strategies of `limits.aio`."""
    strategy = limits.aio.strategies.MovingWindowRateLimiter(limits.aio.storage.MemoryStorage())
    for_limits.watch(strategy, Teller(published, of("user")))
    assert [await strategy.hit(TWO, "u") for _ in range(3)] == [True, True, False]
    assert published.told == [ALLOWED, ALLOWED, DENIED]


def test_flask_limiter(published: Published) -> None:
    """One decision a request about all its limits, with template and endpoint; a broken publisher changes no answer."""
    app = Flask("shop")
    limiter = FlaskLimiter(lambda: "ip:192.0.2.1", app=app, storage_uri="memory://", default_limits=["100 per hour"])

    @app.get("/items/<number>")
    @limiter.limit("2 per minute", key_func=lambda: "user:u", override_defaults=False)
    def item(number: str) -> str:
        return number

    @app.get("/free")
    @limiter.exempt
    def free() -> str:
        return "free"

    for_flask_limiter.watch(app, limiter, Teller(published, by_prefix("user", "ip")))
    client = app.test_client()
    assert [client.get("/items/7").status_code for _ in range(3)] == [200, 200, 429]
    assert client.get("/free").status_code == 200
    both = {"ip": "192.0.2.1", "user": "u"}
    assert [(action, dict(sorted(subjects.items())), over) for action, subjects, over in published.told] == [
        ("allow", both, ()), ("allow", both, ()), ("deny", {"user": "u"}, ("user:2_per_60s",)),
    ]  # fmt: skip
    assert {(one.scenario, one.route) for one in published} == {("item", "GET /items/<number>")}
    published.broken = True
    assert client.get("/items/7").status_code == 429
    assert client.get("/free").status_code == 200


async def test_slowapi(published: Published) -> None:
    """One decision a request, with the route's template; after the end none."""
    app = FastAPI()
    limiter = SlowLimiter(key_func=lambda: "u")
    app.state.limiter = limiter
    app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)  # type: ignore[arg-type]
    end = for_slowapi.watch(limiter, Teller(published, of("user")))

    @app.get("/items/{number}")
    @limiter.limit("100/hour")
    @limiter.limit("2/minute")
    async def item(request: Request, number: str) -> str:
        return f"{number} {request.method}"

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        assert [(await client.get("/items/7")).status_code for _ in range(3)] == [200, 200, 429]
        assert published.told == [ALLOWED, ALLOWED, DENIED]
        assert {(one.scenario, one.route) for one in published} == {("/items/{number}", "GET /items/{number}")}
        end()
        assert (await client.get("/items/7")).status_code == 429
    assert len(published) == 3


class User:
    def __init__(self, name: str = "") -> None:
        self.pk, self.is_authenticated = name or None, bool(name)


@pytest.fixture
def view(published: Published) -> Iterator[Callable[..., Any]]:
    """Views with a key each, which say whether the request was over."""
    configure()
    end = for_django_ratelimit.watch(Teller(published, by_prefix("user", "ip")))

    def made(key: Any, rate: Any = "2/d") -> Any:
        limited = ratelimit(group=f"g{next(_groups)}", key=key, rate=rate, block=False)
        return limited(lambda request: request.limited)

    yield made
    end()


def ask(view: Any, name: str = "", address: str = "192.0.2.1", **headers: str) -> list[bool]:
    """Three requests."""
    answers = []
    for _ in range(3):
        request = RequestFactory().get("/claim", REMOTE_ADDR=address, headers=headers)
        request.user = User(name)
        answers.append(view(request))
    return answers


@pytest.mark.parametrize(
    ("key", "name", "subject"),
    [
        ("ip", "", {"ip": "192.0.2.1"}),
        ("user", "10086", {"user": "10086"}),
        ("user_or_ip", "10086", {"user": "10086"}),
        ("user_or_ip", "", {"ip": "192.0.2.1"}),
        (lambda _, request: f"user:{request.user.pk}", "7", {"user": "7"}),
    ],
    ids=["ip", "user", "signed in", "not signed in", "own function"],
)
def test_django_ratelimit(
    view: Callable[[Any], Any], published: Published, key: Any, name: str, subject: dict[str, str]
) -> None:
    """The decorator's decisions, by who its key stands for."""
    assert ask(view(key), name) == [False, False, True]
    (dimension,) = subject
    assert published.told == [("allow", subject, ())] * 2 + [("deny", subject, (f"{dimension}:2_per_86400s",))]
    assert [one.remaining for one in published] == [1, 0, 0]


@pytest.mark.parametrize("key", ["header:x-user", "get:user", "user"])
def test_what_a_client_says_itself_is_nobody(view: Callable[[Any], Any], published: Published, key: str) -> None:
    """Headers, parameters and users who are not signed in limit as ever, and are not told."""
    assert ask(view(key), **{"X-User": "user:victim"}) == [False, False, True]
    assert list(published) == []


def test_throttled(published: Published) -> None:
    """Its own kind of hook, with the quota's window as it was said."""
    limiter = throttled.Throttled(
        key="u", quota=throttled.rate_limiter.per_day(2), using="fixed_window", store=throttled.MemoryStore(),
        hooks=[for_throttled.hook(Teller(published, of("user")), window_s=86_400, scenario="claim")],
    )  # fmt: skip
    assert [limiter.limit().limited for _ in range(3)] == [False, False, True]
    assert published.told == [ALLOWED, ALLOWED, ("deny", {"user": "u"}, ("user:2_per_86400s",))]
    assert {(one.scenario, one.limit) for one in published} == {("claim", 2)}


async def test_throttled_async(published: Published) -> None:
    """The same for `throttled.asyncio`."""
    limiter = throttled.asyncio.Throttled(
        key="u", quota=throttled.asyncio.rate_limiter.per_day(2), using="fixed_window",
        store=throttled.asyncio.MemoryStore(),
        hooks=[for_throttled.async_hook(Teller(published, of("user")), window_s=86_400)],
    )  # fmt: skip
    assert [(await limiter.limit()).limited for _ in range(3)] == [False, False, True]
    assert published.told == [ALLOWED, ALLOWED, ("deny", {"user": "u"}, ("user:2_per_86400s",))]


def test_a_rate_that_is_a_function_is_asked_once(view: Callable[..., Any], published: Published) -> None:
    """It may ask a database: a hook makes no request slower."""
    asked: list[str] = []

    def rate(group: str, _: Any) -> str:
        asked.append(group)
        return "2/d"

    assert ask(view("ip", rate)) == [False, False, True]
    assert (len(asked), len(published), published[-1].window_s) == (3, 3, 86_400)


async def test_what_a_hook_does_not_find_breaks_no_request(
    published: Published, monkeypatch: pytest.MonkeyPatch, view: Callable[..., Any]
) -> None:
    """Another version of a library costs a count, and each limiter answers what it would."""

    def other(*_: Any) -> Any:
        raise AttributeError("another version")

    for hook in (for_django_ratelimit, for_flask_limiter, for_limits, for_slowapi, for_throttled):
        monkeypatch.setattr(hook, "Limit", other)
    teller = Teller(published, of("user"))
    strategy = limits.strategies.FixedWindowRateLimiter(limits.storage.MemoryStorage())
    for_limits.watch(strategy, teller)
    assert [strategy.hit(TWO, "u") for _ in range(3)] == [True, True, False]

    app = Flask("shop")
    flask_limiter = FlaskLimiter(lambda: "u", app=app, storage_uri="memory://", default_limits=["1 per hour"])
    app.add_url_rule("/", view_func=lambda: "item")
    for_flask_limiter.watch(app, flask_limiter, teller)
    assert [app.test_client().get("/").status_code for _ in range(2)] == [200, 429]

    limiter = SlowLimiter(key_func=lambda: "u")
    for_slowapi.watch(limiter, teller)

    @limiter.limit("1/minute")
    def item(request: Request) -> str:
        return request.method

    asked_app = SimpleNamespace(state=SimpleNamespace(limiter=limiter))

    def asked() -> Request:
        return Request({"type": "http", "method": "GET", "path": "/", "headers": [], "app": asked_app})

    assert item(asked()) == "GET"
    with pytest.raises(RateLimitExceeded):
        item(asked())
    assert ask(view("ip")) == [False, False, True]

    throttle = throttled.Throttled(key="u", store=throttled.MemoryStore(), hooks=[for_throttled.hook(teller)])
    assert not throttle.limit().limited
    assert list(published) == []
    assert teller.untold >= 7
