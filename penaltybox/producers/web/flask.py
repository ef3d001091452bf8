"""Flask extension: asks the limiter before each view, by its route and its own scenario."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import flask

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.web.blocking import Blocking
from penaltybox.producers.web.decorator import Refused
from penaltybox.producers.web.marks import exempt, mark_of, scenario
from penaltybox.producers.web.wsgi import KEY, facts_of_environ

if TYPE_CHECKING:
    from penaltybox.producers.http.answers import Answer
    from penaltybox.producers.http.requests import Facts
    from penaltybox.producers.web.admission import BlockingAdmission
    from penaltybox.producers.web.protection import Protection

__all__ = ["Penaltybox", "admission", "exempt", "scenario"]

_CONVERTER: Final = re.compile(r"<(?:[^<>:]*:)?([^<>:]+)>")


class Penaltybox:
    """Asks the limiter before each view; ``admission()`` is the decision within it.

    Args:
        app: the application; or call `init_app` later.
        protection: see there; its hooks get ``flask.request``. They run before the view, when session and `g` are
            there, and after the `before_request` functions that were registered earlier.
    """

    def __init__(self, app: flask.Flask | None = None, protection: Protection | None = None) -> None:
        self._protection = protection
        if app is not None:
            self.init_app(app)

    def init_app(self, app: flask.Flask, protection: Protection | None = None) -> None:
        """Protects an application.

        Raises:
            ConfigurationError: neither this call nor the constructor got a protection.
        """
        protection = protection or self._protection
        if protection is None:
            raise ConfigurationError("Penaltybox: got no protection, wanted Penaltybox(app, protection)")
        guard = _Guard(protection)
        app.extensions["penaltybox"] = protection
        app.before_request(guard.ask)
        app.after_request(guard.finish)
        app.teardown_request(guard.abandon)
        app.register_error_handler(Refused, guard.refuse)


def admission() -> BlockingAdmission | None:
    """The decision about the current request; None when nobody was asked about it."""
    found: BlockingAdmission | None = flask.request.environ.get(KEY)
    return found


class _Guard:
    """The functions that one application calls."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection
        self._limiter = Blocking(protection.access)

    def ask(self) -> Any:
        request = flask.request
        protection, facts = self._protection, self._facts()
        mark = mark_of(flask.current_app.view_functions.get(request.endpoint or ""))
        if protection.excluded(facts.path) or mark.exempt:
            return None
        question = protection.question(facts, mark, protection.hear_now(request))
        decided = self._limiter.admit(question)
        request.environ[KEY] = decided
        answer = protection.answer(decided.verdict, question, facts)
        if answer.status is None:
            flask.g.penaltybox_headers = answer.headers
            return None
        return self._response(decided, answer)

    def refuse(self, refused: Refused) -> Any:
        decided = admission()
        answer = self._protection.refusal(refused.verdict, refused.request, self._facts())
        return self._response(decided and decided.of(refused.request, refused.verdict), answer)

    def finish(self, response: flask.Response) -> flask.Response:
        for name, value in flask.g.pop("penaltybox_headers", ()):
            response.headers.add(name, value)
        decided = admission()
        if decided is not None:
            flask.g.penaltybox_settled = True
            self._protection.settle(decided, response.status_code)
        return response

    def abandon(self, error: BaseException | None) -> None:
        """A request whose error nobody has made a response of (in tests, or while debugging)."""
        decided = admission()
        if error is not None and decided is not None and not flask.g.pop("penaltybox_settled", None):
            self._protection.settle(decided, 500)

    def _response(self, decided: BlockingAdmission | None, answer: Answer) -> Any:
        shown = None if decided is None else self._protection.challenge_of(flask.request, decided)
        if shown is not None:
            return flask.make_response(shown)
        response = flask.Response(answer.body or b"", answer.status)
        if answer.body is not None:
            del response.headers["Content-Type"]
        for name, value in answer.headers:
            response.headers[name] = value
        return response

    @staticmethod
    def _facts() -> Facts:
        rule = flask.request.url_rule
        facts = facts_of_environ(flask.request.environ)
        return facts if rule is None else facts._replace(template=_CONVERTER.sub(r"{\1}", rule.rule))
