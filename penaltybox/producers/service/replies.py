"""What the service sends back: a status, headers, a body; problems as RFC 9457 documents."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
LINES: Final = "application/x-ndjson"


class Reply(NamedTuple):
    """An HTTP response, before it is sent. Header names are lower case.

    Attributes:
        status: HTTP status.
        headers: without the body's length.
        body: of an answer that is known as a whole.
        pieces: of one that goes on, in its place.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""
    pieces: AsyncGenerator[bytes, None] | None = None


class Refusal(Exception):  # noqa: N818 - the caller is refused; nothing is wrong here
    """A call that is not answered: the caller's mistake, told as a problem.

    Args:
        status: HTTP status.
        detail: what was got, and what was wanted.
        headers: beside the problem.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.reply: Final = problem(status, detail, headers)


def document(value: Any, status: int = 200) -> Reply:
    """A JSON document."""
    return Reply(status, {"content-type": JSON}, msgspec.json.encode(value))


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Reply:
    """A problem about the call itself; an answer about a request is made by `producers/http`."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return Reply(status, {"content-type": PROBLEM, **(headers or {})}, msgspec.json.encode(body))
