"""The path of a request as a server looks for its handler: decoded once, without query, dots and doubled slashes."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote, unquote

from penaltybox.contracts.ids import stable_id
from penaltybox.producers.routes import INVALID, METHODS

MAX_ROUTE: Final = 256
_AUTHORITY: Final = re.compile(r"[a-z][a-z0-9+.\-]*://[^/?#]*", re.ASCII | re.IGNORECASE)
_TEMPLATE: Final = "/-._~!$&'()*+,;=:@{}<>[]^|?\\ "


def target_path(target: str) -> str:
    """The plain path of a request target as it stands on the wire: ``/a%20b//./c?x=1`` is ``/a b/c``."""
    authority = _AUTHORITY.match(target)
    path = target[authority.end() :] or "/" if authority is not None else target
    return written_path(path.partition("?")[0].partition("#")[0])


def written_path(path: str) -> str:
    """The plain path of one as clients write it, without query: ``/%6cogin`` and ``/x/../login`` are ``/login``."""
    return plain_path(unquote(path))


def plain_path(path: str) -> str:
    """A decoded path without empty, ``.`` and ``..`` segments; nothing that a rule is about can hide behind them."""
    if "//" not in path and "/." not in path:
        return path
    kept: list[str] = []
    for segment in path.split("/"):
        if segment == "..":
            del kept[-1:]
        elif segment not in ("", "."):
            kept.append(segment)
    return f"/{'/'.join(kept)}" if path.startswith("/") else "/".join(kept)


def counted_method(method: str) -> str:
    """The method as it counts: HEAD as GET, since it is answered by the same code; empty for one that is none."""
    method = method.upper()
    return "GET" if method == "HEAD" else method if method in METHODS else ""


def template_route(method: str, template: str) -> str:
    """``POST /coupons/{id}/claim`` of a framework's own template; printable ASCII, at most `MAX_ROUTE` long."""
    if not method:
        return INVALID
    text = f"{method} {quote(template if template.startswith('/') else f'/{template}', safe=_TEMPLATE)}"
    return text if len(text) <= MAX_ROUTE else f"{text[: MAX_ROUTE - 9]}~{stable_id('route', text)[:8]}"
