"""A signed POST to a webhook: TLS verified, redirects not followed, a deadline, and nothing secret in what it says."""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Self
from urllib.parse import urlsplit

import aiohttp

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from types import TracebackType

SIGNATURE: Final = "X-Penaltybox-Signature"
TIMESTAMP: Final = "X-Penaltybox-Timestamp"
IDENTITY: Final = "X-Penaltybox-Id"
CONNECT_S: Final = 5.0
ANSWER_S: Final = 10.0
_SUCCESS: Final = range(200, 300)
_PASSING: Final = frozenset({408, 409, 421, 425, 429})
_SERVER: Final = range(500, 600)
_LONGEST_WISH_S: Final = 300.0


class Answer(NamedTuple):
    """What became of a POST.

    Attributes:
        kind: ``done``; ``again``: it may work later; ``refused``: it will not.
        says: in words, without a secret.
        wait_s: how long the receiver asks to be left alone.
    """

    kind: Literal["done", "again", "refused"]
    says: str
    wait_s: float = 0.0


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """``v1=`` and the hex HMAC-SHA256 of timestamp, a dot, and the body, under the secret."""
    return "v1=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


class Webhook:
    """Where alerts go. An asynchronous context manager; one POST at a time is enough.

    Args:
        url: ``http://`` or ``https://``.
        secret: signs; empty: nothing is signed.
        answer_s: how long a POST may take in all.

    Raises:
        ConfigurationError: a URL of another kind.
    """

    def __init__(self, url: str, secret: str = "", answer_s: float = ANSWER_S) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError("PENALTYBOX_ALERT_WEBHOOK_URL: wanted http://host/path or https://host/path")
        self.where = f"{parts.scheme}://{parts.hostname}"
        self._url = url
        self._secret = secret
        self._timeout = aiohttp.ClientTimeout(total=answer_s, connect=min(CONNECT_S, answer_s))
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        """Open the client; nothing is connected yet."""
        self._session = aiohttp.ClientSession(timeout=self._timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    async def post(self, body: bytes, identity: str, now_ms: int) -> Answer:
        """Send one JSON body.

        Args:
            body: as it is signed.
            identity: the same for each attempt: the receiver can tell what it had before.
            now_ms: wall clock, for the signature.
        """
        if self._session is None:
            raise RuntimeError("a Webhook is used inside `async with`")
        timestamp = str(now_ms // 1000)
        headers = {"Content-Type": "application/json", TIMESTAMP: timestamp, IDENTITY: identity}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, timestamp, body)
        try:
            async with self._session.post(self._url, data=body, headers=headers, allow_redirects=False) as response:
                return _judge(response.status, response.headers.get("Retry-After", ""))
        except TimeoutError:
            return Answer("again", f"no answer within {self._timeout.total:g} s")
        except aiohttp.InvalidURL:
            return Answer("refused", "its URL cannot be used")
        except (aiohttp.ClientError, OSError) as error:  # its text may quote the URL, and with it a key
            return Answer("again", f"cannot be reached ({type(error).__name__})")


def _judge(status: int, retry_after: str) -> Answer:
    if status in _SUCCESS:
        return Answer("done", f"answered {status}")
    if status in _SERVER or status in _PASSING:
        wish_s = float(retry_after) if retry_after.isascii() and retry_after.isdecimal() else 0.0
        return Answer("again", f"answered {status}", min(wish_s, _LONGEST_WISH_S))
    return Answer("refused", f"answered {status}{', and redirects are not followed' if 300 <= status < 400 else ''}")  # noqa: PLR2004 - 3xx
