"""Who may ask the console for what: host names, origins, the token; and the headers that bind browsers."""

from __future__ import annotations

from hmac import compare_digest
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from penaltybox.producers.service.replies import Refusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penaltybox.producers.service.calls import Call

_DIRECTIVES: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "connect-src 'self'",
    "manifest-src 'self'",
    "form-action 'none'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types lit-html",  # the library's own, for its constant templates; no page script has one
)
CONTENT_SECURITY: Final = "; ".join(_DIRECTIVES)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_SECURITY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_SCHEME: Final = "Bearer "


class Access:
    """What is refused.

    Args:
        token: what every call of the API must carry.
        names: host names by which the console may be asked for, beside those of this machine itself.
    """

    def __init__(self, token: str, names: Sequence[str] = ()) -> None:
        self._token = token.encode()
        self._names = {"localhost", *(name.lower() for name in names if name)}

    def check_host(self, call: Call) -> None:
        """Refuses a name that is not ours: a stranger's page could point its own name at this address.

        Raises:
            Refusal: 421.
        """
        given = (call.header(b"host") or b"").decode("latin-1")
        if not self._is_ours(host_of(given)):
            raise Refusal(
                421,
                f"Host: got {given[:80]!r}, which is none of this console's names; ask for it as 127.0.0.1 or "
                "localhost, or set PENALTYBOX_CONSOLE_NAMES",
            )

    def _is_ours(self, host: str) -> bool:
        if host in self._names:
            return True
        try:
            return ip_address(host).is_loopback
        except ValueError:
            return False

    def check_caller(self, call: Call) -> None:
        """Refuses whoever has no token, and any other site's page, even if it had one.

        There is no cookie: nothing that a browser adds by itself opens anything.

        Raises:
            Refusal: 401, 403.
        """
        if (call.header(b"sec-fetch-site") or b"none") not in (b"same-origin", b"none"):
            raise Refusal(403, "Sec-Fetch-Site: another site's page may not ask here")
        origin = call.header(b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc.encode("latin-1") != call.header(b"host"):
            raise Refusal(403, "Origin: another site's page may not ask here")
        given = (call.header(b"authorization") or b"").decode("latin-1")
        if not given.startswith(_SCHEME) or not compare_digest(given[len(_SCHEME) :].encode("latin-1"), self._token):
            raise Refusal(
                401,
                "Authorization: wanted Bearer and the token that `penaltybox console` printed at its start",
                {"www-authenticate": "Bearer"},
            )


def host_of(given: str) -> str:
    """The host of a Host header, in lower case, without port and brackets."""
    try:
        return (urlsplit(f"//{given}").hostname or "").lower()
    except ValueError:
        return ""
