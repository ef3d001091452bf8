"""A call as it reaches the service: one HTTP request of a gateway or a program, its body bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import parse_qs

from penaltybox.producers.service.replies import Refusal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping, Sequence

    Scope = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
    Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_BODY_BYTES: Final = 16_384
_MAX_PARAMETERS: Final = 8


class Call(NamedTuple):
    """What somebody asks of the service.

    Attributes:
        method: of the call itself.
        path: decoded.
        raw_path: as it was sent, without the query.
        query: as it was sent.
        headers: lower-case names and values, in their order.
        peer: address of whoever is connected; ``""`` on a Unix socket.
    """

    method: str
    path: str
    raw_path: str
    query: str
    headers: Sequence[tuple[bytes, bytes]]
    peer: str

    @classmethod
    def of(cls, scope: Scope) -> Call:
        """The call of an ASGI scope."""
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        client = scope.get("client")
        return cls(
            scope["method"],
            scope["path"],
            raw.decode("latin-1"),
            scope["query_string"].decode("latin-1"),
            scope["headers"],
            client[0] if client else "",
        )

    def header(self, name: bytes) -> bytes | None:
        """The value of a header that stands once; None when it is absent or stands twice."""
        found = [value for one, value in self.headers if one == name]
        return found[0] if len(found) == 1 else None

    def parameter(self, name: str) -> str:
        """A parameter of the query; ``""`` when it is absent.

        Raises:
            Refusal: more parameters than any call has.
        """
        if not self.query:
            return ""
        try:
            return parse_qs(self.query, max_num_fields=_MAX_PARAMETERS).get(name, [""])[-1]
        except ValueError:
            raise Refusal(400, f"query: wanted at most {_MAX_PARAMETERS} parameters") from None


async def read_body(call: Call, receive: Receive) -> bytes:
    """The whole body of a call.

    Raises:
        Refusal: it is larger than `MAX_BODY_BYTES`; no more than that is read.
    """
    told = call.header(b"content-length")
    if told is not None and told.isdigit() and int(told[:20]) > MAX_BODY_BYTES:
        raise _too_large()
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            raise _too_large()
        if not message.get("more_body", False):
            return bytes(body)


def _too_large() -> Refusal:
    return Refusal(413, f"body: wanted at most {MAX_BODY_BYTES:,} bytes", {"connection": "close"})
