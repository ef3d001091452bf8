"""The shop of these tests as an ASGI application, and its client."""

from __future__ import annotations

from typing import Any

import httpx
from fastapi import APIRouter, FastAPI, Request, WebSocket

from penaltybox.producers.web.asgi import PenaltyboxMiddleware
from penaltybox.producers.web.marks import exempt, scenario
from penaltybox.producers.web.protection import Protection
from tests.producers.web.shop import POLICY, USER


def user_of_scope(scope: Any) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == USER.encode()), None)


def protection(limiter: Any, **given: Any) -> Protection:
    return Protection(POLICY, limiter, **({"user": user_of_scope, "exclude": ["/health"]} | given))


def client(app: Any, peer: str = "203.0.113.7", **given: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, client=(peer, 4711), **given)
    return httpx.AsyncClient(transport=transport, base_url="http://shop.test", headers={USER: "ann"})


def fastapi_app(guard: Protection) -> FastAPI:
    app = FastAPI()
    app.add_middleware(PenaltyboxMiddleware, protection=guard)
    coupons = APIRouter(prefix="/coupons")

    @coupons.post("/{coupon:int}/claim")
    async def claim(coupon: int, request: Request) -> dict[str, Any]:
        return {"coupon": coupon, "left": request.state.penaltybox.verdict.limits[0].remaining}

    @app.post("/reviews")
    def review(request: Request) -> dict[str, bool]:
        return {"published": not request.state.penaltybox.withheld}

    @app.get("/report")
    @scenario("report", cost=20)
    async def report(request: Request) -> dict[str, int]:
        return {"cost": request.state.penaltybox.request.cost}

    @app.post("/orders", status_code=409)
    async def order() -> None: ...

    @app.get("/crash")
    async def crash() -> None:
        raise LookupError("the application's own")

    @app.post("/challenges")
    def passed(request: Request) -> bool:
        return bool(request.state.penaltybox.outcome("challenge_passed"))

    @app.get("/free")
    @exempt
    async def free(request: Request) -> bool:
        return hasattr(request.state, "penaltybox")

    @app.get("/health/live")
    async def live(request: Request) -> bool:
        return hasattr(request.state, "penaltybox")

    @app.websocket("/strict/live")
    async def feed(socket: WebSocket) -> None:
        await socket.accept()
        await socket.send_text("hello")
        await socket.close()

    app.include_router(coupons, prefix="/v1")
    app.include_router(coupons)
    return app
