"""A verdict as an HTTP answer: status, header fields, and a body that people and programs can read.

allow      the application answers; the quota fields are added to its answer
shadow     the same, or a canned success; nothing tells the difference
deny       429 and Retry-After; 403 for a block without an end; 503 when the limiter itself is away
challenge  403 and a problem type of its own
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from penaltybox.contracts.errors import ConfigurationError, shown
from penaltybox.producers.http.preferences import preferred_language, preferred_media
from penaltybox.producers.http.quotas import (
    MAX_SECONDS,
    Fields,
    HeaderMode,
    Late,
    public_name,
    quota_fields,
    told_limits,
    whole_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penaltybox.contracts.policy import Scenario
    from penaltybox.producers.verdict import Verdict

Kind = Literal["quota", "blocked", "banned", "unavailable", "challenge", "missing"]
PROBLEM: Final = "application/problem+json"
_MEDIA: Final = (PROBLEM, "application/json", "text/plain", "text/html")
_REGISTRY: Final = "https://iana.org/assignments/http-problem-types#"
_TYPES: Final[dict[Kind, str]] = {
    "quota": f"{_REGISTRY}quota-exceeded",
    "blocked": f"{_REGISTRY}abnormal-usage-detected",
    "banned": f"{_REGISTRY}abnormal-usage-detected",
    "unavailable": f"{_REGISTRY}temporary-reduced-capacity",
    "challenge": "urn:problem-type:penaltybox:challenge",
    "missing": "urn:problem-type:penaltybox:missing",
}
_TITLES: Final[dict[Kind, str]] = {
    "quota": "Request cannot be satisfied as assigned quota has been exceeded",
    "blocked": "Request not satisfied due to detection of abnormal request pattern",
    "banned": "Request not satisfied due to detection of abnormal request pattern",
    "unavailable": "Request cannot be satisfied due to temporary server capacity constraints",
    "challenge": "Request cannot be satisfied before a challenge is passed",
    "missing": "Request lacks what the service needs to know",
}
_TEXTS: Final[dict[Kind, str]] = {
    "quota": "Too many requests. Please try again later.",
    "blocked": "Too many requests. Access is suspended for a while.",
    "banned": "Access is blocked.",
    "unavailable": "The service is busy. Please try again later.",
    "challenge": "Please confirm that you are not a robot.",
    "missing": "The request is incomplete.",
}
_STATUSES: Final[dict[Kind, int]] = {
    "quota": 429, "blocked": 429, "banned": 403, "unavailable": 503, "challenge": 403, "missing": 400,
}  # fmt: skip
_TAG: Final = re.compile(r"[a-z]{1,8}(-[a-z0-9]{1,8}){0,7}", re.ASCII)
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class Jitter(NamedTuple):
    """By how much a wait is lengthened: a random whole number of seconds, evenly from 0 to the spread.

    The spread is `percent` of the wait, at least `least_s` and at most `most_s`. A wait is never shortened.
    """

    percent: int = 25
    least_s: int = 2
    most_s: int = 300

    def late_s(self, wait_s: int, share: float) -> int:
        """Seconds to add to a wait; `share` is the random number, from 0 up to 1."""
        spread_s = min(self.most_s, max(self.least_s, wait_s * self.percent // 100))
        return min(spread_s, max(0, int(share * (spread_s + 1))))


_JITTER: Final = Jitter()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretence:
    """What a client gets instead of the application's answer when it shall believe that it succeeded."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """What answers look like, the same for all scenarios.

    Raises:
        ConfigurationError: a status, a jitter or a header field that cannot be sent.
    """

    headers: HeaderMode = "structured"
    """``structured`` (the IETF draft), ``triple`` (RateLimit-*), ``x_triple`` (X-RateLimit-*), ``none``."""
    x_reset: Literal["epoch", "seconds"] = "epoch"
    """What X-RateLimit-Reset says; there is no standard. The RateLimit-Reset of the triple is always in seconds."""
    jitter: Jitter = _JITTER
    show_names: bool = True
    """False: limits have digits for names, and nobody is told what a request lacks."""
    untold: frozenset[str] = frozenset({"login_name"})
    """Dimensions whose quotas are not told: the caller has not shown to be who he names."""
    statuses: Mapping[Kind, int] = field(default_factory=dict)
    """Other statuses than the usual ones."""
    types: Mapping[Kind, str] = field(default_factory=dict)
    """Other problem types than the usual ones."""
    challenge_url: str = ""
    """Where a challenge can be passed; told as ``challenge-url`` in the body."""
    language: str = "en"
    """The language for those who ask for none, or for none that there is."""
    pretence: Pretence | None = None
    """A canned success for `shadow`; None: the application runs and asks the middleware whether to withhold."""

    def __post_init__(self) -> None:
        statuses = [*self.statuses.values(), *([self.pretence.status] if self.pretence else [])]
        wrong = [status for status in statuses if not 200 <= status <= 599]  # noqa: PLR2004 - final HTTP statuses
        if wrong:
            raise ConfigurationError(f"answer options: got status {wrong[0]}, wanted 200 to 599")
        if min(self.jitter) < 0:
            raise ConfigurationError(f"answer options: got {self.jitter}, wanted no negative number")
        for name, value in self.pretence.headers if self.pretence else ():
            if not _FIELD_NAME.fullmatch(name) or any(sign in value for sign in "\r\n\0"):
                raise ConfigurationError(f"answer options: header {shown(name)} cannot be sent; wanted one line")


class Answer(NamedTuple):
    """What is sent. `status` None: the application answers, and `headers` are added to its answer.

    `withheld`: a false success; the application must not grant the benefit. `message` is the sentence for people.
    """

    status: int | None
    headers: Fields
    body: bytes | None
    withheld: bool = False
    message: str = ""


def answer(
    verdict: Verdict,
    scenario: Scenario,
    options: AnswerOptions | None = None,
    accept_language: str = "",
    *,
    accept: str = "",
    method: str = "GET",
    now_ms: int | None = None,
    partition: bytes | None = None,
    draw: Callable[[], float] = random.random,
) -> Answer:
    """The answer to a request.

    Args:
        verdict: what the limiter decided.
        scenario: how the policy treats the scenario (`Policy.scenario`); its messages are used.
        options: see there.
        accept_language: the request's field, whatever is in it; empty if there is none.
        accept: likewise.
        method: a HEAD request gets the header fields only.
        now_ms: the time, wanted where X-RateLimit-Reset is one.
        partition: told as the draft's partition key, base64; it must be no secret and name nobody.
        draw: random numbers from 0 up to 1, for the jitter.
    """
    options = options or _DEFAULTS
    share = draw()
    late: Late = lambda wait_s: options.jitter.late_s(wait_s, share)  # noqa: E731 - one draw for the whole answer
    retry_after_s = _retry_after_s(verdict, late)
    told = told_limits(
        verdict, hidden=not options.show_names, untold=options.untold, late=late, retry_after_s=retry_after_s
    )
    epoch_s = None if now_ms is None or options.x_reset == "seconds" else -(-now_ms // 1000)
    quotas = quota_fields(options.headers, told, epoch_s=epoch_s, partition=partition)
    if verdict.allowed:
        return Answer(None, quotas, None)
    if verdict.action == "shadow":
        message = _message(verdict, scenario, options, accept_language, None)[1]
        return _pretend(options.pretence, quotas, method, message)
    language, message = _message(verdict, scenario, options, accept_language, retry_after_s)
    return _refuse(verdict, options, quotas, retry_after_s, language, message, accept, method)


def kind_of(verdict: Verdict) -> Kind:
    """Which kind of refusal a verdict is."""
    if verdict.action == "challenge":
        return "challenge"
    if verdict.missing:
        return "missing"
    if verdict.reason == "fail_closed":
        return "unavailable"
    if verdict.reason == "blocklist":
        return "banned" if verdict.permanent else "blocked"
    return "quota"


def _retry_after_s(verdict: Verdict, late: Late) -> int | None:
    """Retry-After in seconds, at least 1; None when there is no such time, or nobody shall know."""
    if verdict.retry_after_ms is None or verdict.permanent or verdict.action in ("allow", "shadow"):
        return None
    wait_s = max(1, whole_seconds(verdict.retry_after_ms))
    return min(MAX_SECONDS, wait_s + late(wait_s))


def _pretend(pretence: Pretence | None, quotas: Fields, method: str, message: str) -> Answer:
    if pretence is None:
        return Answer(None, quotas, None, withheld=True, message=message)
    headers = [*pretence.headers, ("Content-Length", str(len(pretence.body))), *quotas]
    body = None if method.upper() == "HEAD" else pretence.body
    return Answer(pretence.status, headers, body, withheld=True, message=message)


def _message(
    verdict: Verdict, scenario: Scenario, options: AnswerOptions, accept_language: str, retry_after_s: int | None
) -> tuple[str, str]:
    """(language, sentence): the policy's in the best language, else English; ``{seconds}`` in it is the wait."""
    kind = kind_of(verdict)
    texts = scenario.messages.get(verdict.action, {}) if kind not in ("missing", "unavailable") else {}
    if retry_after_s is None:
        texts = {language: text for language, text in texts.items() if "{seconds}" not in text}
    default = options.language if options.language in texts or not texts else next(iter(texts))
    language = preferred_language(accept_language, [*texts, *([] if "en" in texts else ["en"])]) or default
    if language not in texts:
        return "en", _TEXTS[kind]
    return language, texts[language].replace("{seconds}", str(retry_after_s))


def _refuse(
    verdict: Verdict,
    options: AnswerOptions,
    quotas: Fields,
    retry_after_s: int | None,
    language: str,
    message: str,
    accept: str,
    method: str,
) -> Answer:
    kind = kind_of(verdict)
    status = options.statuses.get(kind, _STATUSES[kind])
    media = preferred_media(accept, _MEDIA)
    if media in (PROBLEM, "application/json"):
        body = _problem(verdict, options, kind, status, retry_after_s, message)
    else:
        media, body = "text/plain; charset=utf-8", message.encode("utf-8", "replace") + b"\n"
    headers = [("Content-Type", media), ("Content-Length", str(len(body))), ("Cache-Control", "no-store")]
    if _TAG.fullmatch(language):
        headers.append(("Content-Language", language))
    if retry_after_s is not None:
        headers.append(("Retry-After", str(retry_after_s)))
    return Answer(status, headers + quotas, None if method.upper() == "HEAD" else body, message=message)


def _problem(
    verdict: Verdict, options: AnswerOptions, kind: Kind, status: int, retry_after_s: int | None, message: str
) -> bytes:
    """The body of RFC 9457, with the draft's ``violated-policies``.

    ``retry-after`` is in it for scripts in a browser, which do not see the field of an answer from another origin.
    """
    problem: dict[str, object] = {
        "type": options.types.get(kind, _TYPES[kind]),
        "title": _TITLES[kind],
        "status": status,
        "detail": message.encode("utf-8", "replace").decode(),
    }
    if kind != "missing":
        secret = {limit.name for limit in verdict.limits if limit.answer == "shadow"}
        problem["violated-policies"] = [
            public_name(name, hidden=not options.show_names) for name in verdict.violated if name not in secret
        ]
    elif options.show_names:
        problem["missing"] = verdict.missing
    if kind == "challenge" and options.challenge_url:
        problem["challenge-url"] = options.challenge_url
    if retry_after_s is not None:
        problem["retry-after"] = retry_after_s
    return msgspec.json.encode(problem)


_DEFAULTS: Final = AnswerOptions()
