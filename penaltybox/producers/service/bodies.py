"""The JSON that programs send and get: one struct each, unknown fields refused."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from penaltybox.contracts.events import Action, Id, Label, Reason, Subjects, Text  # noqa: TC001 - msgspec reads them
from penaltybox.contracts.subjects import MAX_VALUE_BYTES
from penaltybox.producers.service.replies import Refusal

if TYPE_CHECKING:
    from penaltybox.producers.http.answers import Answer
    from penaltybox.producers.verdict import Verdict

_HALF_PAIR: Final = re.compile("[\ud800-\udfff]")
Body = TypeVar("Body", bound=msgspec.Struct)
Key = Annotated[str, Meta(min_length=1, max_length=128)]


class DecideBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/decide. `cost` absent: what the policy's costs say about the route, else 1."""

    scenario: Text = ""
    subjects: Subjects
    route: Annotated[str, Meta(max_length=256)] = ""
    cost: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    idempotency_key: Annotated[str, Meta(max_length=128)] = ""
    established: bool | None = None
    attrs: Annotated[dict[str, Text], Meta(max_length=8)] = {}
    id: Id | None = None


class RefundBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """POST /v1/refund."""

    idempotency_key: Key


class OutcomeBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/outcomes."""

    label: Label
    subjects: Subjects
    ref: Annotated[str, Meta(max_length=128)] = ""
    id: Id | None = None


class ToldLimit(msgspec.Struct, frozen=True):
    """A `LimitState` as JSON."""

    name: str
    limit: int
    window_ms: int
    remaining: int
    reset_ms: int
    wait_ms: int
    answer: str
    dry_run: bool


class ToldHttp(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a server would tell the client; `status` null: the application answers. `body` is a problem document."""

    status: int | None
    headers: dict[str, str]
    body: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class Refunded(msgspec.Struct, frozen=True):
    """Whether something was given back."""

    refunded: bool


class Taken(msgspec.Struct, frozen=True):
    """The id under which a record is published."""

    id: str


class Problem(msgspec.Struct, frozen=True):
    """A problem document about a call (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = ""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """The answer about a request, as JSON; `http` is how a server would tell it to the client."""

    id: str
    action: Action
    reason: Reason | None
    violated: tuple[str, ...]
    retry_after_ms: int | None
    permanent: bool
    missing: str
    limits: list[ToldLimit]
    http: ToldHttp

    @classmethod
    def of(cls, request_id: str, verdict: Verdict, answer: Answer) -> Told:
        """A verdict, and the HTTP answer made of it: status null where the application answers."""
        body = msgspec.Raw(answer.body) if answer.body else msgspec.UNSET
        return cls(
            id=request_id,
            action=verdict.action,
            reason=verdict.reason,
            violated=verdict.violated,
            retry_after_ms=verdict.retry_after_ms,
            permanent=verdict.permanent,
            missing=verdict.missing,
            limits=[ToldLimit(*limit) for limit in verdict.limits],
            http=ToldHttp(answer.status, dict(answer.headers), body),
        )


def parsed(body: bytes, kind: type[Body]) -> Body:
    """A body of this kind.

    Raises:
        Refusal: no JSON (400), or JSON of another form (422), with the field; also where a name stands twice, because
            whoever looked at it before us may have taken the other one.
    """
    try:
        found = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise Refusal(422, str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, _half_pair(body) or f"not JSON: {error}") from error
    json.loads(body, object_pairs_hook=_once)
    for field in ("id", "route", "ref", "attrs"):
        _check_text(field, getattr(found, field, None))
    return found


def _check_text(field: str, said: str | dict[str, str] | None) -> None:
    """Refuses what would make a dead letter of the record: its request would be decided, and nobody charged for it."""
    texts = (said,) if isinstance(said, str) else [*said, *said.values()] if said else ()
    for text in texts:
        if not text.isprintable():
            raise Refusal(422, f"{field}: got {text[:40]!a}, wanted characters that can be printed")
        if field == "attrs" and len(text.encode()) > MAX_VALUE_BYTES:
            raise Refusal(422, f"{field}: got {text[:40]!a}, wanted at most {MAX_VALUE_BYTES} bytes")


def _half_pair(body: bytes) -> str:
    """Which half of a surrogate pair a body has, that was not understood: `msgspec` would say that it is cut off."""
    try:
        text = json.dumps(json.loads(body), ensure_ascii=False)
    except (ValueError, RecursionError):
        return ""
    found = _HALF_PAIR.search(text)
    return f"not text: \\u{ord(found[0]):04x} is half of a surrogate pair, which is no character" if found else ""


def _once(pairs: list[tuple[str, Any]]) -> None:
    """Refuses an object with a name that stands twice."""
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise Refusal(422, f"{name[:40]!a}: this name stands twice; wanted every name once")
        names.add(name)
