"""ASGI middleware, in front of FastAPI, Starlette and a bare application."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import FastAPI, HTTPException
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.routing import Mount, Route

from penaltybox.producers.http.answers import AnswerOptions, Pretence
from penaltybox.producers.memory import MemoryLimiter
from penaltybox.producers.web.asgi import PenaltyboxMiddleware
from penaltybox.producers.web.decorator import limited
from penaltybox.producers.web.marks import scenario
from tests.producers.web.asgi_shop import client, fastapi_app, protection, user_of_scope
from tests.producers.web.shop import POLICY, USER, BrokenLimiter, RefundingLimiter
from tests.waiting import wait_until


async def test_a_request_over_its_limit_is_answered_in_the_applications_place(limiter: RefundingLimiter) -> None:
    """Two claims pass and tell what is left, the third is a 429 with wait, quota, and a sentence in its language."""
    async with client(fastapi_app(protection(limiter))) as http:
        first, _, third = [await http.post("/coupons/5/claim", headers={"Accept-Language": "de"}) for _ in range(3)]
    assert first.json() == {"coupon": 5, "left": 1}
    assert (first.headers["ratelimit-policy"], first.headers["ratelimit"]) == (
        '"user:daily";q=2;w=86400',
        '"user:daily";r=1;t=86400',
    )
    assert (third.status_code, third.headers["content-type"]) == (429, "application/problem+json")
    assert int(third.headers["retry-after"]) >= 86_400
    assert third.json()["violated-policies"] == ["user:daily"]
    assert third.json()["detail"] == "Bis morgen."


async def test_the_frameworks_route_is_told(limiter: RefundingLimiter) -> None:
    """Routes of included routers are known by their template; what has no route gets a template of its path."""
    async with client(fastapi_app(protection(limiter))) as http:
        for path in ("/coupons/5/claim", "/v1/coupons/6/claim", "/coupons/none/7", "/reviews"):
            await http.post(path)
    assert [(one.scenario, one.route) for one in limiter.asked] == [
        ("claim", "POST /coupons/{coupon}/claim"),
        ("web", "POST /v1/coupons/{coupon}/claim"),
        ("claim", "POST /coupons/none/{n}"),
        ("review", "POST /reviews"),
    ]
    assert limiter.asked[0].subjects == {"user": "ann", "ip": "203.0.113.7"}


async def test_routes_below_mounts_are_told(limiter: RefundingLimiter) -> None:
    """A mounted application's route is told with the mount's prefix, and its view's mark holds."""

    @scenario("report")
    async def page(request: Any) -> PlainTextResponse:
        return PlainTextResponse(request.path_params["page"])

    inner = Starlette(routes=[Route("/pages/{page}", page)])
    app = Starlette(routes=[Mount("/docs/{language}", app=inner), Mount("/files", app=PlainTextResponse("file"))])
    app.add_middleware(PenaltyboxMiddleware, protection=protection(limiter))
    async with client(app) as http:
        assert (await http.get("/docs/en/pages/7")).text == "7"
        assert (await http.get("/files/17/x")).text == "file"
    assert [(one.route, one.scenario) for one in limiter.asked] == [
        ("GET /docs/{language}/pages/{page}", "report"),
        ("GET /files/{rest}", "web"),
    ]


async def test_a_shadow_is_the_applications_to_withhold(limiter: RefundingLimiter) -> None:
    """The second review looks like the first, and the application knows that it must not publish it."""
    async with client(fastapi_app(protection(limiter))) as http:
        first, second = [await http.post("/reviews") for _ in range(2)]
    assert [one.json()["published"] for one in (first, second)] == [True, False]
    assert (first.status_code, set(first.headers)) == (second.status_code, set(second.headers))


async def test_a_shadow_can_be_canned(limiter: RefundingLimiter) -> None:
    """With a pretence configured, the application is not called at all."""
    pretence = Pretence(status=201, headers=(("Content-Type", "application/json"),), body=b'{"published":true}')
    guard = protection(limiter, answers=AnswerOptions(pretence=pretence))
    async with client(fastapi_app(guard)) as http:
        answers = [await http.post("/reviews") for _ in range(2)]
    assert [(one.status_code, one.json()) for one in answers] == [
        (200, {"published": True}),
        (201, {"published": True}),
    ]


async def test_a_challenge_is_a_403_or_the_applications_own(limiter: RefundingLimiter) -> None:
    """Without a hook a problem document, with one what the application shows; None from the hook means the former."""

    def show(scope: Any, admission: Any) -> Any:
        if user_of_scope(scope) == "api":
            return None
        return HTMLResponse(f"<p>captcha for {admission.request.subjects['ip']}</p>", 401)

    async with client(fastapi_app(protection(limiter))) as http:
        _, usual = [await http.post("/login") for _ in range(2)]
    assert (usual.status_code, usual.json()["type"]) == (403, "urn:problem-type:penaltybox:challenge")
    async with client(fastapi_app(protection(limiter, challenge=show))) as http:
        shown = await http.post("/login")
        other = await http.post("/login", headers={USER: "api"})
    assert (shown.status_code, shown.text) == (401, "<p>captcha for 203.0.113.7</p>")
    assert other.status_code == 403


async def test_marked_views_have_their_scenario_and_cost(limiter: RefundingLimiter) -> None:
    """A view says its scenario and cost; five calls of twenty use a hundred up; an exempt view is not asked about."""
    async with client(fastapi_app(protection(limiter))) as http:
        answers = [await http.get("/report") for _ in range(6)]
        assert (await http.get("/free")).json() is False
        assert (await http.get("/health/live")).json() is False
        assert (await http.get("/healthy")).status_code == 404
    assert [one.status_code for one in answers] == [200] * 5 + [429]
    assert answers[0].json() == {"cost": 20}
    assert [one.route for one in limiter.asked[6:]] == ["GET /healthy"]


def test_an_excluded_path_is_one_however_it_is_read(limiter: RefundingLimiter) -> None:
    """Neither a path that only begins like an excluded one, nor one that only leads to it, gets around the limiter."""
    guard = protection(limiter)
    paths = ("/health", "/health/", "/health/live", "/healthy", "/health/../admin", "/admin/../health", "//health")
    assert [guard.excluded(path) for path in paths] == [True, True, True, False, False, False, False]


async def test_quota_is_given_back_when_the_response_says_so(limiter: RefundingLimiter) -> None:
    """A 409 and a crash give back, a success does not, and neither does a refusal."""
    app = fastapi_app(protection(limiter, refund_on_status=(409, "5xx")))
    async with client(app, raise_app_exceptions=False) as http:
        answers = [await http.post("/orders"), await http.post("/orders"), await http.get("/report")]
        assert (await http.get("/crash")).status_code == 500
    assert [one.status_code for one in answers] == [409, 429, 200]
    wanted = [limiter.asked[0].id, limiter.asked[3].id]
    assert await wait_until(lambda: limiter.refunded == wanted)


async def test_of_one_order_one_duplicate_is_given_back() -> None:
    """Each request under an order's number is charged; a duplicate's 409 gives one back, and further ones nothing."""
    limiter = MemoryLimiter(POLICY)
    guard = protection(limiter, refund_on_status=[409], idempotency_key=lambda _: "order 7")
    app = FastAPI()
    app.add_middleware(PenaltyboxMiddleware, protection=guard)
    answers = iter((200, 409, 409))

    @app.post("/coupons/7/claim")
    async def claim() -> None:
        status = next(answers)
        if status != 200:
            raise HTTPException(status)

    async with client(app) as http:
        told = [await http.post("/coupons/7/claim") for _ in range(2)]
        assert await wait_until(lambda: limiter._charges["order 7"] is None, what="the duplicate to be given back")
        told += [await http.post("/coupons/7/claim") for _ in range(2)]
    assert [one.status_code for one in told] == [200, 409, 409, 429]


async def test_hooks_may_say_nonsense(limiter: RefundingLimiter, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be used is left out, and nothing else with it: else whoever brings about a bad cost has no limits."""
    user = {"user": lambda _: "ann"}
    costs = ("much", float("inf"), [])
    for hooks in (
        {"subjects": lambda _: ["ann"]},
        {"attrs": lambda _: 7},
        *({"cost": lambda _, it=it: it} for it in costs),
    ):
        async with client(fastapi_app(protection(limiter, **(user | hooks)))) as http:
            assert (await http.get("/report")).status_code == 200
        assert (limiter.asked[-1].subjects["user"], limiter.asked[-1].cost) == ("ann", 20)
    assert len([one for one in caplog.records if "cannot be used" in one.message]) == 5


async def test_hooks_may_name_nobody(limiter: RefundingLimiter) -> None:
    """`user and user.id` is False or empty for nobody, who is not one user that all of them share."""
    for nobody in (None, False, ""):
        hooks = {"user": lambda _, it=nobody: it, "subjects": lambda _, it=nobody: {"tenant": it}}
        async with client(fastapi_app(protection(limiter, **hooks))) as http:
            await http.get("/report")
        assert limiter.asked[-1].subjects.keys() == {"ip"}


async def test_established_is_true_or_false(limiter: RefundingLimiter) -> None:
    """Whatever a hook calls so: events take nothing else, and those of a request would be dead letters."""
    for said, stamped in ((None, None), (1, True), ("yes", True), (0, False), ("", False), (False, False)):
        hooks = {"user": lambda _: "ann", "established": lambda _, it=said: it}
        async with client(fastapi_app(protection(limiter, **hooks))) as http:
            await http.get("/report")
        assert limiter.asked[-1].established is stamped


async def test_a_broken_challenge_is_the_usual_one(limiter: RefundingLimiter) -> None:
    """A hook that fails, at once or when awaited, leaves the 403."""

    async def fail_later(_: Any, __: Any) -> None:
        raise LookupError

    def fail(_: Any, __: Any) -> None:
        raise LookupError

    for hook in (fail, fail_later):
        async with client(fastapi_app(protection(limiter, challenge=hook))) as http:
            answers = [await http.post("/login") for _ in range(2)]
        assert answers[-1].status_code == 403


async def test_outcomes_are_published_from_any_view(limiter: RefundingLimiter) -> None:
    """A view in a thread publishes what became of the request's subjects."""
    async with client(fastapi_app(protection(limiter))) as http:
        assert (await http.post("/challenges")).json() is True
    decision, outcome = limiter.published
    assert (outcome.label, outcome.ref, outcome.subjects) == ("challenge_passed", decision.id, decision.subjects)


async def test_a_refund_needs_a_key(limiter: RefundingLimiter) -> None:
    """Giving back by hand works with refunds=True, once; without it the application is told what to configure."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        given = [await scope["state"]["penaltybox"].refund() for _ in range(2)]
        await PlainTextResponse(str(given))(scope, receive, send)

    async with client(PenaltyboxMiddleware(app, protection(limiter, refunds=True))) as http:
        assert (await http.get("/")).text == "[True, False]"
    hook = {"idempotency_key": lambda scope: f"order:{user_of_scope(scope)}"}
    async with client(PenaltyboxMiddleware(app, protection(limiter, **hook))) as http:
        await http.get("/")
    assert limiter.refunded[2:] == ["order:ann"] * 2
    async with client(PenaltyboxMiddleware(app, protection(limiter))) as http:
        with pytest.raises(Exception, match="refunds=True"):
            await http.get("/")


async def test_a_limit_within_a_view_is_answered_like_the_middlewares(limiter: RefundingLimiter) -> None:
    """`Refused` from a decorated function becomes the 429 that the middleware would have sent."""
    app = FastAPI()
    guard = protection(limiter)
    app.add_middleware(PenaltyboxMiddleware, protection=guard)

    @limited(guard.access, scenario="claim", subjects=lambda user: {"user": user})
    async def mail(user: str) -> str:
        return user

    @app.post("/mail")
    async def send_mail() -> str:
        return await mail("bob")

    async with client(app) as http:
        answers = [await http.post("/mail") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[2].json()["violated-policies"] == ["user:daily"]


async def test_a_broken_limiter_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure policy decides, open or closed; two hundred failures are one line in the log."""
    broken = BrokenLimiter()
    async with client(fastapi_app(protection(broken))) as http:
        answers = [await http.get("/report") for _ in range(100)]
        closed = [await http.get("/closed") for _ in range(100)]
    assert {one.status_code for one in answers} == {200}
    assert {one.status_code for one in closed} == {503}
    assert int(closed[0].headers["retry-after"]) >= 1
    assert [record.name for record in caplog.records if record.name.startswith("penaltybox")] == ["penaltybox.web"]
    assert broken.calls == 200


async def test_a_broken_hook_breaks_nothing(limiter: RefundingLimiter, caplog: pytest.LogCaptureFixture) -> None:
    """A hook that fails has said nothing: its dimension is missing, and the scenario says what that means."""

    async def user(scope: Any) -> str:
        raise LookupError(scope["path"])

    async with client(fastapi_app(protection(limiter, user=user))) as http:
        assert (await http.get("/report")).status_code == 200
        assert (await http.get("/strict")).status_code == 400
    assert [record.message.partition(":")[0] for record in caplog.records if "hook" in record.message] == [
        "the hook user failed, the request goes on without it"
    ]
