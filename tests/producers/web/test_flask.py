"""Flask extension, with Flask's own test client."""

from __future__ import annotations

from typing import Any

import flask
import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.web.decorator import limited
from penaltybox.producers.web.flask import Penaltybox, admission, exempt, scenario
from penaltybox.producers.web.protection import Protection
from tests.producers.web.shop import POLICY, USER, BrokenLimiter, RefundingLimiter
from tests.waiting import block_until


def protection(limiter: Any, **given: Any) -> Protection:
    return Protection(
        POLICY, limiter, **({"user": lambda request: request.headers.get(USER), "exclude": ["/static"]} | given)
    )


def shop(guard: Protection) -> Any:
    """The test client of a shop in which ann is logged in."""
    app = flask.Flask(__name__)
    penaltybox = Penaltybox(protection=guard)
    penaltybox.init_app(app)

    @app.post("/coupons/<int:coupon>/claim")
    def claim(coupon: int) -> dict[str, Any]:
        decided = admission()
        assert decided is not None
        return {"coupon": coupon, "left": decided.verdict.limits[0].remaining}

    @app.get("/report")
    @scenario("report", cost=20)
    def report() -> str:
        return "report"

    @app.get("/free")
    @exempt
    def free() -> str:
        return str(admission())

    @app.post("/orders")
    def order() -> tuple[str, int]:
        return "duplicate", 409

    @app.get("/crash")
    def crash() -> None:
        raise LookupError

    @app.post("/reviews")
    def review() -> dict[str, bool]:
        decided = admission()
        return {"published": decided is not None and not decided.withheld}

    @app.post("/mail")
    def mail() -> str:
        @limited(guard.access, scenario="claim", subjects=lambda: {"user": "bob"})
        def send() -> str:
            return "sent"

        return send()

    client = app.test_client()
    client.environ_base |= {f"HTTP_{USER.upper().replace('-', '_')}": "ann", "REMOTE_ADDR": "203.0.113.7"}
    return client


def test_a_request_over_its_limit_is_answered_in_the_views_place(limiter: RefundingLimiter) -> None:
    """Two claims pass and tell what is left, the third is a 429; Flask's rule is the route."""
    http = shop(protection(limiter))
    first, _, third = [http.post("/coupons/5/claim") for _ in range(3)]
    assert (first.json, first.headers["RateLimit"]) == ({"coupon": 5, "left": 1}, '"user:daily";r=1;t=86400')
    assert (third.status_code, third.content_type) == (429, "application/problem+json")
    assert third.get_json(force=True)["violated-policies"] == ["user:daily"]
    assert third.headers.getlist("RateLimit") == [third.headers["RateLimit"]]
    assert {one.route for one in limiter.asked} == {"POST /coupons/{coupon}/claim"}
    assert limiter.asked[0].subjects == {"user": "ann", "ip": "203.0.113.7"}


def test_views_say_their_scenario(limiter: RefundingLimiter) -> None:
    """Scenario and cost of a view hold, an exempt view and static files are not asked about, a 404 is."""
    http = shop(protection(limiter))
    assert [http.get("/report").status_code for _ in range(6)] == [200] * 5 + [429]
    assert http.get("/free").text == "None"
    assert [http.get(path).status_code for path in ("/static/x.css", "/none")] == [404, 404]
    assert [one.route for one in limiter.asked[6:]] == ["GET /none"]


def test_a_shadow_is_the_views_to_withhold(limiter: RefundingLimiter) -> None:
    """The second review looks like the first, and is not published."""
    http = shop(protection(limiter))
    assert [http.post("/reviews").json["published"] for _ in range(2)] == [True, False]


def test_a_challenge_can_be_the_applications_own(limiter: RefundingLimiter) -> None:
    """The hook returns what a view may return."""
    http = shop(protection(limiter, challenge=lambda request, _: (f"captcha for {request.path}", 401)))
    first, second = [http.post("/login") for _ in range(2)]
    assert (first.status_code, second.status_code, second.text) == (404, 401, "captcha for /login")


@pytest.mark.parametrize("propagate", [True, False])
def test_quota_is_given_back_when_the_response_says_so(limiter: RefundingLimiter, propagate: bool) -> None:
    """A 409 and a crash give back, once each, also where Flask lets the error out."""
    http = shop(protection(limiter, refund_on_status=[409, "5xx"]))
    http.application.config["PROPAGATE_EXCEPTIONS"] = propagate
    assert [http.post("/orders").status_code for _ in range(2)] == [409, 429]
    if propagate:
        with pytest.raises(LookupError):
            http.get("/crash")
    else:
        assert http.get("/crash").status_code == 500
    wanted = [limiter.asked[0].id, limiter.asked[2].id]
    assert block_until(lambda: limiter.refunded == wanted)


def test_a_limit_within_a_view_is_answered_like_the_extensions(limiter: RefundingLimiter) -> None:
    """`Refused` from a decorated function becomes the 429 that the extension would have sent."""
    http = shop(protection(limiter))
    answers = [http.post("/mail") for _ in range(3)]
    assert [one.status_code for one in answers] == [200, 200, 429]
    assert answers[2].get_json(force=True)["violated-policies"] == ["user:daily"]


def test_a_broken_limiter_breaks_nothing() -> None:
    """The failure policy decides, open or closed."""
    http = shop(protection(BrokenLimiter()))
    assert (http.get("/report").status_code, http.get("/closed").status_code) == (200, 503)


def test_it_wants_a_protection() -> None:
    """An extension without one says so at once."""
    with pytest.raises(ConfigurationError, match="wanted Penaltybox"):
        Penaltybox(flask.Flask(__name__))
