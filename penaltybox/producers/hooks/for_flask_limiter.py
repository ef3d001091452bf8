"""Tells what Flask-Limiter decides, after each request: one decision about all limits that it looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flask import request

from penaltybox.producers.hooks.telling import Limit

if TYPE_CHECKING:
    from penaltybox.producers.hooks.telling import Teller


def watch(app: Any, limiter: Any, teller: Teller) -> None:
    """From now on the decisions of this application's limiter are told; the endpoint is the scenario.

    Args:
        app: the Flask application.
        limiter: its `flask_limiter.Limiter`.
        teller: publishes.
    """

    def tell() -> None:
        limits = [
            Limit(str(one.request_args[-2]), one.limit.amount, one.limit.get_expiry(), bool(one.breached))
            for one in _looked_at(limiter)
        ]
        if limits:
            route = f"{request.method} {request.url_rule.rule}" if request.url_rule is not None else ""
            teller.tell(limits, limiter="flask-limiter", scenario=request.endpoint or "", route=route)

    def told(response: Any) -> Any:
        teller.attempt("flask-limiter", tell)
        return response

    app.after_request(told)


def _looked_at(limiter: Any) -> list[Any]:
    try:
        return list(limiter.current_limits)
    except Exception:  # noqa: BLE001 - another version, or none were: the response goes out
        return []
