"""The console's API: what can be asked, with what, and what comes back. OpenAPI and the application both read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from penaltybox.cli.console_page.answers import (
    About,
    BanBody,
    BlockPage,
    Done,
    Funnel,
    Places,
    Rates,
    Status,
    Subject,
    UnbanBody,
)
from penaltybox.producers.service.replies import Refusal

if TYPE_CHECKING:
    import msgspec

PREFIX: Final = "/api/v1"
STREAM: Final = "text/event-stream"
PERIODS: Final = {"1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000, "7d": 604_800_000, "30d": 2_592_000_000}


class Parameter(NamedTuple):
    """One parameter of a query."""

    name: str
    says: str
    kind: Literal["text", "number"] = "text"
    one_of: tuple[str, ...] = ()
    default: str | int = ""
    required: bool = False
    most: int = 1_000_000

    def read(self, given: str) -> str | int:
        """The value.

        Raises:
            Refusal: 422, it is not allowed.
        """
        if not given:
            if self.required:
                raise Refusal(422, f"{self.name}: got nothing, wanted {self.says}")
            return self.default
        if self.kind == "number":
            if not given.isascii() or not given.isdecimal() or int(given[:12]) > self.most:
                raise Refusal(422, f"{self.name}: got {given[:40]!r}, wanted a number from 0 to {self.most}")
            return int(given)
        if self.one_of and given not in self.one_of:
            raise Refusal(422, f"{self.name}: got {given[:40]!r}, wanted one of {', '.join(filter(None, self.one_of))}")
        return given


class Route(NamedTuple):
    """One operation.

    Attributes:
        name: of the desk's method, and the operation's id.
        answer: type of the JSON that comes back; None: something else, see `media`.
        body: type of the JSON that is sent.
        changes: it acts; refused where the console is read-only.
        open: needs no token.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    says: str
    answer: type[msgspec.Struct] | None
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    media: str = "application/json"
    changes: bool = False
    open: bool = False


_SINCE: Final = Parameter("since", "a period until now", one_of=tuple(PERIODS), default="24h")

ROUTES: Final = (
    Route("GET", f"{PREFIX}/about", "about", "Whose console this is, and what it may do.", About),
    Route("GET", f"{PREFIX}/status", "status", "The state of things in one glance.", Status),
    Route(
        "GET",
        f"{PREFIX}/blocks",
        "blocks",
        "Who is denied or challenged now, a page of it; and the banned ranges.",
        BlockPage,
        (
            Parameter("dimension", "only its subjects, e.g. ip"),
            Parameter("kind", "only these", one_of=("deny", "challenge")),
            Parameter("text", "what subject or rule contain"),
            Parameter("order", "by end or subject", one_of=("last", "first", "subject"), default="last"),
            Parameter("offset", "of the first row", "number", default=0),
            Parameter("limit", "rows, at most 500", "number", default=50, most=500),
        ),
    ),
    Route(
        "GET",
        f"{PREFIX}/subject",
        "subject",
        "Why a subject is treated as it is: what `penaltybox explain --json` prints.",
        Subject,
        (
            Parameter("subject", "dimension:value, or an address", required=True),
            Parameter("limit", "moments from either end of the timeline", "number", default=10, most=200),
        ),
    ),
    Route("GET", f"{PREFIX}/funnel", "funnel", "Penalties by rule and rung.", Funnel, (_SINCE,)),
    Route("GET", f"{PREFIX}/rates", "rates", "False-positive rates with intervals.", Rates, (_SINCE,)),
    Route(
        "GET",
        f"{PREFIX}/places",
        "places",
        "Shared addresses where people were denied.",
        Places,
        (_SINCE, Parameter("by", "address or prefix", one_of=("ip", "prefix"), default="ip")),
    ),
    Route("POST", f"{PREFIX}/ban", "ban", "Deny a subject or range, with a reason.", Done, body=BanBody, changes=True),
    Route(
        "POST",
        f"{PREFIX}/unban",
        "unban",
        "Lift what is in force against a subject or range, with a reason.",
        Done,
        body=UnbanBody,
        changes=True,
    ),
    Route(
        "GET",
        f"{PREFIX}/stream",
        "stream",
        "Server-sent events: `status` (a Status, every second) and `penalties` (an array of Penalty records, newest "
        "first; the first event has the last hundred).",
        None,
        media=STREAM,
    ),
    Route("GET", f"{PREFIX}/openapi.json", "openapi", "This description.", None, open=True),
    Route("GET", "/healthz", "healthz", "Whether the console is alive.", None, open=True),
)
