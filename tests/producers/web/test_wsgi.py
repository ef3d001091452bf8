"""WSGI middleware in front of a bare application."""

from __future__ import annotations

import sys
from io import BytesIO
from typing import TYPE_CHECKING, Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from penaltybox.producers.web.decorator import limited
from penaltybox.producers.web.protection import Protection
from penaltybox.producers.web.wsgi import PenaltyboxWSGI
from tests.producers.web.shop import POLICY, USER, BrokenLimiter, RefundingLimiter
from tests.waiting import block_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

FIELD = f"HTTP_{USER.upper().replace('-', '_')}"


def protection(limiter: Any, **given: Any) -> Protection:
    return Protection(POLICY, limiter, **({"user": lambda environ: environ.get(FIELD), "exclude": ["/health"]} | given))


def call(
    app: Any, path: str, method: str = "GET", user: str = "ann", **environ: str
) -> tuple[int, dict[str, str], bytes]:
    """(status, headers, body) of one request, by the rules of PEP 3333 on both sides."""
    given: dict[str, Any] = {
        "SCRIPT_NAME": "",
        "PATH_INFO": path,
        "REQUEST_METHOD": method,
        "REMOTE_ADDR": "203.0.113.7",
        "wsgi.input": BytesIO(),
        "wsgi.errors": sys.stderr,
        "QUERY_STRING": "",
    }
    given |= ({FIELD: user} if user else {}) | environ
    setup_testing_defaults(given)
    started: list[Any] = []

    def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        started[:] = [int(status[:3]), dict(headers)]
        return lambda _: None

    parts = validator(app)(given, start_response)
    try:
        body = b"".join(parts)
    finally:
        parts.close()
    return started[0], started[1], body


def shop(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    """Says whether it knows of the decision; `/crash`, `/conflict` do what they say."""
    if environ["PATH_INFO"] == "/crash":
        raise LookupError("the application's own")
    status = "409 Conflict" if environ["PATH_INFO"] == "/conflict" else "200 OK"
    start_response(status, [("Content-Type", "text/plain")])
    admission = environ.get("penaltybox")
    return [b"nobody asked" if admission is None else admission.verdict.action.encode()]


def test_a_request_over_its_limit_is_answered_in_the_applications_place(limiter: RefundingLimiter) -> None:
    """Two claims pass and tell what is left, the third is a 429; HEAD gets the fields without a body."""
    app = PenaltyboxWSGI(shop, protection(limiter))
    first, _, third = [call(app, "/coupons/5/claim", "POST") for _ in range(3)]
    assert (first[0], first[2], first[1]["RateLimit"]) == (200, b"allow", '"user:daily";r=1;t=86400')
    assert (third[0], third[1]["Content-Type"]) == (429, "application/problem+json")
    assert int(third[1]["Retry-After"]) >= 86_400
    assert [one.route for one in limiter.asked] == ["POST /coupons/{n}/claim"] * 3
    assert limiter.asked[0].subjects == {"user": "ann", "ip": "203.0.113.7"}


def test_excluded_paths_and_missing_users(limiter: RefundingLimiter) -> None:
    """Nobody asks about an excluded path; a scenario that wants a user refuses who has none."""
    app = PenaltyboxWSGI(shop, protection(limiter))
    assert call(app, "/health/live")[2] == b"nobody asked"
    assert call(app, "/strict", user="")[0] == 400
    assert call(app, "/strict")[0] == 200


def test_quota_is_given_back_when_the_response_says_so(limiter: RefundingLimiter) -> None:
    """A 409 and a crash give back, without anybody waiting for it."""
    app = PenaltyboxWSGI(shop, protection(limiter, refund_on_status=[409, "5xx"]))
    assert [call(app, path)[0] for path in ("/conflict", "/")] == [409, 200]
    with pytest.raises(LookupError):
        call(app, "/crash")
    wanted = [limiter.asked[0].id, limiter.asked[2].id]
    assert block_until(lambda: limiter.refunded == wanted)


def test_refund_and_outcome_within_the_application(limiter: RefundingLimiter) -> None:
    """The application gives back once, and tells what became of the request."""

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        admission = environ["penaltybox"]
        return [str([admission.refund(), admission.refund(), admission.outcome("duplicate_request")]).encode()]

    assert call(PenaltyboxWSGI(app, protection(limiter, refunds=True)), "/")[2] == b"[True, False, True]"
    assert limiter.published[-1].label == "duplicate_request"


def test_a_challenge_can_be_the_applications_own(limiter: RefundingLimiter) -> None:
    """The hook's response is a WSGI application."""

    def show(_: dict[str, Any], admission: Any) -> Any:
        def page(_: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            start_response("401 Unauthorized", [("Content-Type", "text/plain")])
            return [admission.verdict.violated[0].encode()]

        return page

    app = PenaltyboxWSGI(shop, protection(limiter, challenge=show))
    assert call(app, "/login", "POST")[0] == 200
    assert call(app, "/login", "POST")[0::2] == (401, b"ip:burst")


def test_a_limit_within_the_application_is_answered_like_the_middlewares(limiter: RefundingLimiter) -> None:
    """`Refused` from a decorated function becomes an answer, a false success an empty 200."""
    guard = protection(limiter)

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        @limited(guard.access, scenario=environ["PATH_INFO"][1:], subjects=lambda: {"user": "bob"})
        def work() -> bytes:
            return b"done"

        body = work()
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]

    protected = PenaltyboxWSGI(app, guard)
    assert [call(protected, "/claim")[0] for _ in range(3)] == [200, 200, 429]
    assert [call(protected, "/review")[0::2] for _ in range(2)] == [(200, b"done"), (200, b"")]


def test_a_stream_is_closed_and_not_read_ahead(limiter: RefundingLimiter) -> None:
    """The application's own iterable reaches the server: its parts one by one, and its close."""
    seen: list[str] = []

    class Parts:
        def __iter__(self) -> Iterator[bytes]:
            for part in (b"a", b"b"):
                seen.append(part.decode())
                yield part

        def close(self) -> None:
            seen.append("closed")

    def app(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        del environ
        start_response("200 OK", [("Content-Type", "text/plain")])
        return Parts()

    environ: dict[str, Any] = {"PATH_INFO": "/", "REQUEST_METHOD": "GET"}
    parts: Any = PenaltyboxWSGI(app, protection(limiter))(environ, lambda *_: None)
    assert seen == []
    iterator = iter(parts)
    assert (next(iterator), seen) == (b"a", ["a"])
    parts.close()
    assert seen[-1] == "closed"


def test_a_broken_limiter_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """The failure policy decides, and a hundred failures are one line in the log."""
    app = PenaltyboxWSGI(shop, protection(BrokenLimiter()))
    assert {call(app, "/report")[0] for _ in range(50)} == {200}
    assert {call(app, "/closed")[0] for _ in range(50)} == {503}
    assert len([record for record in caplog.records if record.name.startswith("penaltybox")]) == 1


def test_paths_are_decoded_once(limiter: RefundingLimiter) -> None:
    """PEP 3333 has bytes in latin-1; the prefix under which the application is mounted belongs to the path."""
    app = PenaltyboxWSGI(shop, protection(limiter))
    call(app, "/straße".encode().decode("latin-1"), SCRIPT_NAME="/coupons", method="POST")
    assert (limiter.asked[0].scenario, limiter.asked[0].route) == ("claim", "POST /coupons/{text}")
