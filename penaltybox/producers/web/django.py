"""Django middleware, synchronous and asynchronous. Settings: ``PENALTYBOX = {...}``."""

from __future__ import annotations

import asyncio
import re
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import django.conf
import django.http
import django.urls
from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.utils.module_loading import import_string

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.policy_file import load_policy
from penaltybox.producers.web.admission import Admission
from penaltybox.producers.web.blocking import Blocking
from penaltybox.producers.web.decorator import Refused
from penaltybox.producers.web.marks import exempt, mark_of, scenario
from penaltybox.producers.web.protection import Protection, awaited
from penaltybox.producers.web.wsgi import facts_of_environ

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penaltybox.producers.http.answers import Answer
    from penaltybox.producers.http.requests import Facts
    from penaltybox.producers.web.marks import Mark

__all__ = ["PenaltyboxMiddleware", "exempt", "protection_of", "scenario"]

_CONVERTER: Final = re.compile(r"<(?:[^<>:]*:)?([^<>:]+)>")
_NAMED_GROUP: Final = re.compile(r"\(\?P<(\w+)>(?:[^()]|\([^()]*\))*\)")
_UNNAMED_GROUP: Final = re.compile(r"\((?:\?:)?[^()]*\)\??")
_ANCHORS: Final = re.compile(r"[\^$]|\\Z|\\A|\?")
_DOTTED: Final = (
    "limiter", "settings", "user", "subjects", "established", "cost", "attrs", "idempotency_key", "challenge",
    "answers",
)  # fmt: skip


_MADE: Final[deque[tuple[object, Protection]]] = deque(maxlen=8)


class PenaltyboxMiddleware:
    """Asks the limiter before the view; ``request.penaltybox`` is the decision within it.

    It stands below the middleware that finds the user, so that ``request.user`` is there for the hooks.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        self.protection = protection_of(getattr(django.conf.settings, "PENALTYBOX", None))
        self._limiter = Blocking(self.protection.access)
        self._awaits = iscoroutinefunction(get_response)
        if self._awaits:
            markcoroutinefunction(self)

    def __call__(self, request: django.http.HttpRequest) -> Any:
        """The response, or what it can be awaited from."""
        return self._acall(request) if self._awaits else self._call(request)

    def _call(self, request: django.http.HttpRequest) -> Any:
        seen = self._see(request)
        if seen is None:
            return self.get_response(request)
        facts, mark = seen
        question = self.protection.question(facts, mark, self.protection.hear_now(request))
        decided = self._limiter.admit(question)
        answer = self._decided(request, decided, facts)
        if answer.status is not None:
            return self.protection.challenge_of(request, decided) or _response(answer)
        return self._finish(decided, answer, self.get_response(request))

    async def _acall(self, request: django.http.HttpRequest) -> Any:
        seen = self._see(request)
        if seen is None:
            return await self.get_response(request)
        facts, mark = seen
        access = self.protection.access
        question = self.protection.question(facts, mark, await self.protection.hear(request))
        decided = Admission(question, await access.decide(question), access, asyncio.get_running_loop())
        answer = self._decided(request, decided, facts)
        if answer.status is not None:
            shown = self.protection.challenge_of(request, decided)
            return await awaited(shown, self.protection) or _response(answer)
        return self._finish(decided, answer, await self.get_response(request))

    def process_exception(self, request: django.http.HttpRequest, error: Exception) -> django.http.HttpResponse | None:
        """A limit within the view has refused: the request is answered as if the middleware had."""
        if not isinstance(error, Refused):
            return None
        answer = self.protection.refusal(error.verdict, error.request, facts_of_environ(request.META))
        return _response(answer)

    def _see(self, request: django.http.HttpRequest) -> tuple[Facts, Mark] | None:
        """What there is to ask about; None when nobody shall be asked."""
        facts = facts_of_environ(request.META)._replace(path=request.path)
        if self.protection.excluded(facts.path):
            return None
        try:
            match = django.urls.resolve(request.path_info, urlconf=getattr(request, "urlconf", None))
        except django.urls.Resolver404:
            return facts, mark_of(None)
        mark = mark_of(match.func)
        return None if mark.exempt else (facts._replace(template=template_of(match.route)), mark)

    def _decided(self, request: Any, decided: Admission, facts: Facts) -> Answer:
        request.penaltybox = decided
        return self.protection.answer(decided.verdict, decided.request, facts)

    def _finish(self, decided: Admission, answer: Answer, response: Any) -> Any:
        for name, value in answer.headers:
            response.headers[name] = value
        self.protection.settle(decided, response.status_code)
        return response


def protection_of(configured: Protection | Mapping[str, Any] | str | None) -> Protection:
    """The protection that ``settings.PENALTYBOX`` describes: one, a dotted name of one, or the arguments of one.

    Among the arguments a text is a dotted name for ``limiter``, ``settings``, ``answers`` and every hook, and a file
    for ``policy``.

    Raises:
        ConfigurationError: a name that is not there, or arguments that make no protection.
    """
    for known, made in _MADE:
        if known is configured:  # every handler that Django makes, e.g. of a test client, shares one limiter
            return made
    made = _made_of(configured)
    _MADE.append((configured, made))
    return made


def _made_of(configured: Protection | Mapping[str, Any] | str | None) -> Protection:
    if isinstance(configured, str):
        configured = _imported("PENALTYBOX", configured)
    if isinstance(configured, Protection):
        return configured
    if not configured or isinstance(configured, str):
        raise ConfigurationError('settings.PENALTYBOX: got nothing, wanted {"policy": …, "limiter": …}')
    values = {
        name: _imported(name, value) if name in _DOTTED and isinstance(value, str) else value
        for name, value in dict(configured).items()
    }
    if isinstance(values.get("policy"), str):
        values["policy"] = load_policy(values["policy"])
    values.setdefault("user", user_of)
    try:
        return Protection(**values)
    except TypeError as error:
        raise ConfigurationError(f"settings.PENALTYBOX: {error}") from error


async def _user_soon(request: Any) -> str | None:
    user = await request.auser()
    return str(user.pk) if user.is_authenticated else None


def user_of(request: Any) -> Any:
    """The hook in use if there is no other: the primary key of ``request.user``, where Django authenticates."""
    if not hasattr(request, "user"):
        return None
    if hasattr(request, "auser") and _in_event_loop():
        return _user_soon(request)
    return str(request.user.pk) if request.user.is_authenticated else None


def template_of(route: str) -> str:
    """``/coupons/{pk}/claim/`` of Django's ``coupons/<int:pk>/claim/``, and likewise of a regular expression."""
    text = _UNNAMED_GROUP.sub("{}", _NAMED_GROUP.sub(r"{\1}", route))
    if text != route or "^" in text:
        text = _ANCHORS.sub("", text)
    return "/" + _CONVERTER.sub(r"{\1}", text).lstrip("/")


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _imported(name: str, dotted: str) -> Any:
    try:
        return import_string(dotted)
    except ImportError as error:
        raise ConfigurationError(f"settings.PENALTYBOX: {name}: {error}") from error


def _response(answer: Answer) -> django.http.HttpResponse:
    response = django.http.HttpResponse(answer.body or b"", status=answer.status)
    del response.headers["Content-Type"]
    for name, value in answer.headers:
        response.headers[name] = value
    return response
