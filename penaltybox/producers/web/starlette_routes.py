"""The route that Starlette or FastAPI will take, found before it is taken. Duck-typed: neither is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, MutableMapping

_FULL: Final = 2
_PARTIAL: Final = 1
_MAX_DEPTH: Final = 8


class Found(NamedTuple):
    """A route: its template without the method (``/coupons/{id}/claim``), and the function that serves it."""

    template: str
    endpoint: object


def find_route(app: object, scope: MutableMapping[str, Any]) -> Found | None:
    """The application's route for a request; None when the application has none, or is of another kind."""
    routes = getattr(app, "routes", None)
    if routes is None:
        return None
    try:
        return _search(routes, scope, 0)
    except Exception:  # noqa: BLE001 - another version's routes: the path's own template is used instead
        return None


def _search(routes: Iterable[Any], scope: MutableMapping[str, Any], depth: int) -> Found | None:
    partial = None
    tried = dict(scope)  # FastAPI notes something in it while it matches
    for route in _flat(routes):
        match, child_scope = route.matches(tried)
        if match.value == _FULL:
            return _found(route, tried | child_scope, depth)
        if match.value == _PARTIAL and partial is None:  # the path is right, the method is not
            partial = _found(route, tried | child_scope, depth)
    return partial


def _flat(routes: Iterable[Any]) -> Iterator[Any]:
    """Routes, those of included routers among them (FastAPI keeps these as they are since 0.13x)."""
    for route in routes:
        included = getattr(route, "effective_route_contexts", None)
        if included is None:
            yield route
        else:
            yield from included()


def _found(route: Any, scope: MutableMapping[str, Any], depth: int) -> Found:
    route = getattr(route, "starlette_route", None) or route
    within = getattr(route, "routes", None)
    if within is None:
        return Found(getattr(route, "path_format", None) or route.path, getattr(route, "endpoint", None))
    prefix = getattr(route, "path", "")
    found = _search(within, scope, depth + 1) if depth < _MAX_DEPTH else None
    return Found(prefix + (found.template if found else "/{rest}"), found.endpoint if found else None)
