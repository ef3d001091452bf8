"""A Django project of one module: urls, views, and the protection that its settings name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import include, path, re_path
from django.utils.decorators import method_decorator
from django.views import View

from penaltybox.producers.web.decorator import limited
from penaltybox.producers.web.django import exempt, scenario
from tests.producers.web.shop import RefundingLimiter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

LIMITER = RefundingLimiter()


def user_of(request: Any) -> str | None:
    """The test's stand-in for a session."""
    found: str | None = request.headers.get("X-Test-User")
    return found


async def user_soon(request: Any) -> str | None:
    """The same as a coroutine function."""
    return user_of(request)


def challenge(request: Any, admission: Any) -> HttpResponse:
    """The shop's captcha."""
    return HttpResponse(f"captcha for {request.path} {admission.verdict.action}", status=401)


def claim(request: Any, pk: int) -> JsonResponse:
    """A view without async."""
    return JsonResponse({"coupon": pk, "left": request.penaltybox.verdict.limits[0].remaining})


async def aclaim(request: Any, code: str) -> JsonResponse:
    """A view with async."""
    return JsonResponse({"coupon": code, "left": request.penaltybox.verdict.limits[0].remaining})


@scenario("report", cost=20)
def report(request: HttpRequest, year: str = "") -> HttpResponse:
    """A view that says its scenario."""
    return HttpResponse(f"{request.method} {year}")


@method_decorator(scenario("report", cost=50), name="dispatch")
class Reports(View):
    """A class of views that says its scenario."""

    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(request.method)


@exempt
def free(request: HttpRequest) -> HttpResponse:
    """A view about which nobody is asked."""
    return HttpResponse(str(hasattr(request, "penaltybox")))


def order(request: Any) -> HttpResponse:
    """A duplicate."""
    del request
    return HttpResponse("duplicate", status=409)


def review(request: Any) -> JsonResponse:
    """Published, or so it seems."""
    return JsonResponse({"published": not request.penaltybox.withheld})


def mail(request: HttpRequest) -> HttpResponse:
    """A limit within the view."""
    send = limited(LIMITER, scenario="claim", subjects=lambda: {"user": "bob"})(lambda: "sent")
    return HttpResponse(send(), headers={"X-Method": str(request.method)})


def stream(request: HttpRequest) -> StreamingHttpResponse:
    """Parts, asynchronous ones."""

    async def parts() -> AsyncIterator[str]:
        for part in ("a", "b", str(request.method)):
            yield part

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("coupons/", include([path("<int:pk>/claim", claim), path("code/<slug:code>/claim", aclaim)])),
    re_path(r"^old/(?P<year>[0-9]{4})/(?:index)?$", report),
    path("report", report),
    path("reports", Reports.as_view()),
    path("free", free),
    path("health/live", free),
    path("orders", order),
    path("reviews", review),
    path("mail", mail),
    path("stream", stream),
]
