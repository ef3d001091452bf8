"""Django middleware, synchronous and asynchronous, with Django's own test clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from django.test import AsyncClient, Client, override_settings

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import default_policy_path
from penaltybox.contracts.settings import Settings
from penaltybox.producers.web.django import protection_of, template_of
from penaltybox.producers.web.protection import Protection
from tests.producers.web import django_shop
from tests.producers.web.django_project import CONFIGURED, SHOP, configure
from tests.producers.web.shop import POLICY, BrokenLimiter, RefundingLimiter
from tests.waiting import block_until


@pytest.fixture(scope="module", autouse=True)
def project() -> None:
    """Django is configured once per process."""
    configure()


@pytest.fixture(autouse=True)
def limiter() -> RefundingLimiter:
    """A new limiter where the settings look for it."""
    django_shop.LIMITER = RefundingLimiter()
    return django_shop.LIMITER


class Caller:
    """Django's client of either kind, behind one face."""

    def __init__(self, kind: str, **changed: Any) -> None:
        self.kind = kind
        self._configured = CONFIGURED | changed

    def __call__(self, method: str, path: str, user: str = "ann", **more: Any) -> Any:
        with override_settings(PENALTYBOX=self._configured):
            headers = ({"X-Test-User": user} if user else {}) | more
            if self.kind == "sync":
                return getattr(self._client(), method)(path, headers=headers, REMOTE_ADDR="203.0.113.7")
            client = AsyncClient(raise_request_exception=False)
            return asyncio.run(getattr(client, method)(path, headers=headers))

    @staticmethod
    def _client() -> Client:
        return Client(raise_request_exception=False)


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_request_over_its_limit_is_answered_in_the_views_place(kind: str, limiter: RefundingLimiter) -> None:
    """Two claims pass and tell what is left, the third is a 429; Django's route is told, whatever kind of view."""
    call = Caller(kind)
    first, second, third = (
        call("post", "/coupons/5/claim"),
        call("post", "/coupons/code/x7/claim"),
        call("post", "/coupons/6/claim"),
    )
    assert (first.json(), second.json()) == ({"coupon": 5, "left": 1}, {"coupon": "x7", "left": 0})
    assert first.headers["RateLimit"] == '"user:daily";r=1;t=86400'
    assert (third.status_code, third.headers["Content-Type"]) == (429, "application/problem+json")
    assert int(third.headers["Retry-After"]) >= 86_399
    assert [one.route for one in limiter.asked] == [
        "POST /coupons/{pk}/claim",
        "POST /coupons/code/{code}/claim",
        "POST /coupons/{pk}/claim",
    ]
    assert limiter.asked[0].subjects["user"] == "ann"


def test_views_say_their_scenario(kind: str, limiter: RefundingLimiter) -> None:
    """Functions and classes say scenario and cost; an exempt view and excluded paths are not asked about, a 404 is."""
    call = Caller(kind)
    paths = ("/report", "/reports", "/reports", "/old/1999/")
    assert [call("get", path).status_code for path in paths] == [200, 200, 429, 200]
    assert [call("get", path).content for path in ("/free", "/health/live")] == [b"False", b"False"]
    assert call("get", "/none").status_code == 404
    assert [(one.scenario, one.cost, one.route) for one in limiter.asked[1:]] == [
        ("report", 50, "GET /reports"),
        ("report", 50, "GET /reports"),
        ("report", 20, "GET /old/{year}/{}"),
        ("web", 1, "GET /none"),
    ]


def test_answers_other_than_a_refusal(kind: str) -> None:
    """A shadow is the view's to withhold, a challenge the hook's to show, and a missing user refused."""
    call = Caller(kind, challenge=f"{SHOP}.challenge")
    assert [call("post", "/reviews").json()["published"] for _ in range(2)] == [True, False]
    assert [call("post", "/login").status_code for _ in range(2)] == [404, 401]
    assert call("get", "/strict", user="").status_code == 400


def test_quota_is_given_back_when_the_response_says_so(kind: str, limiter: RefundingLimiter) -> None:
    """A 409 gives back, the refusal after it does not."""
    call = Caller(kind, refund_on_status=[409])
    assert [call("post", "/orders").status_code for _ in range(2)] == [409, 429]
    if kind == "sync":  # the asynchronous client's loop has ended, and its errands with it
        assert block_until(lambda: limiter.refunded == [limiter.asked[0].id])


def test_a_limit_within_a_view_is_answered_like_the_middlewares(kind: str) -> None:
    """`Refused` from a decorated function becomes the 429 that the middleware would have sent."""
    answers = [Caller(kind)("post", "/mail") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[2].json()["violated-policies"] == ["user:daily"]


def test_a_broken_limiter_breaks_nothing(kind: str) -> None:
    """The failure policy decides, open or closed."""
    call = Caller(kind, limiter=BrokenLimiter())
    assert (call("get", "/report").status_code, call("get", "/closed").status_code) == (200, 503)


def test_hooks_may_be_coroutines(limiter: RefundingLimiter) -> None:
    """In asynchronous Django a hook is awaited."""
    Caller("async", user=f"{SHOP}.user_soon")("get", "/report")
    assert limiter.asked[0].subjects["user"] == "ann"


async def test_streams_are_untouched() -> None:
    """An asynchronous stream goes through with its quota fields."""
    with override_settings(PENALTYBOX=CONFIGURED):
        response = await AsyncClient().get("/stream")
        assert b"".join([part async for part in response]) == b"abGET"
    assert "RateLimit" in response.headers


def test_configuration() -> None:
    """The settings may name a protection or its arguments; what is wrong with them is a sentence."""
    guard = Protection(POLICY, RefundingLimiter())
    assert protection_of(guard) is guard
    arguments = {"policy": str(default_policy_path()), "limiter": f"{SHOP}.LIMITER", "settings": Settings()}
    made = protection_of(arguments)
    assert "coupon_claim" in made.reader.policy.limits
    assert protection_of(arguments) is made
    for configured, what in (
        (None, "got nothing"),
        ("no.such.module", "no"),
        ({"policy": POLICY, "limiter": "no.such"}, "limiter"),
        ({"policy": POLICY}, "limiter"),
        ({"policy": "none.yaml", "limiter": guard.access}, "none.yaml"),
        ({"policy": POLICY, "limiter": guard.access, "refund_on_status": ["often"]}, "refund_on_status"),
        ({"policy": POLICY, "limiter": guard.access, "exclude": ["health"]}, "exclude"),
    ):
        with pytest.raises(ConfigurationError, match=what):
            protection_of(configured)


def test_templates_of_routes() -> None:
    """Django's converters and groups become braces."""
    assert template_of("coupons/<int:pk>/claim") == "/coupons/{pk}/claim"
    assert template_of("api/^articles/(?P<year>[0-9]{4})/(?P<slug>(a|b)+)/$") == "/api/articles/{year}/{slug}/"
    assert template_of("") == "/"
