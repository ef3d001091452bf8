"""WSGI middleware for any WSGI application and server, threads and forked workers included."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from penaltybox.producers.http.requests import Facts
from penaltybox.producers.web.blocking import Blocking
from penaltybox.producers.web.decorator import Refused
from penaltybox.producers.web.marks import Mark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from penaltybox.producers.http.answers import Answer
    from penaltybox.producers.web.admission import BlockingAdmission
    from penaltybox.producers.web.protection import Protection

    Environ = dict[str, Any]
    StartResponse = Callable[..., Any]
    Application = Callable[[Environ, StartResponse], Iterable[bytes]]

KEY = "penaltybox"
"""Where in the environ the application finds the decision."""


class PenaltyboxWSGI:
    """Asks the limiter before the application.

    The application finds the decision in ``environ["penaltybox"]``, a `BlockingAdmission`. The limiter is opened by the
    first request of each process.

    Args:
        app: the application.
        protection: see there; its hooks get the environ.
    """

    def __init__(self, app: Application, protection: Protection) -> None:
        self.app = app
        self.protection = protection
        self._limiter = Blocking(protection.access)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """The WSGI application."""
        protection, facts = self.protection, facts_of_environ(environ)
        if protection.excluded(facts.path):
            return self.app(environ, start_response)
        request = protection.question(facts, Mark(), protection.hear_now(environ))
        admission = self._limiter.admit(request)
        environ[KEY] = admission
        answer = protection.answer(admission.verdict, request, facts)
        if answer.status is not None:
            return self._refuse(environ, start_response, admission, answer)
        return self._pass(environ, start_response, admission, answer, facts)

    def _refuse(
        self, environ: Environ, start_response: StartResponse, admission: BlockingAdmission, answer: Answer
    ) -> Iterable[bytes]:
        shown = self.protection.challenge_of(environ, admission)
        if shown is not None:
            answered: Iterable[bytes] = shown(environ, start_response)
            return answered
        start_response(status_line(answer.status or 0), list(answer.headers))
        return [answer.body or b""]

    def _pass(
        self,
        environ: Environ,
        start_response: StartResponse,
        admission: BlockingAdmission,
        answer: Answer,
        facts: Facts,
    ) -> Iterable[bytes]:
        begun = False

        def start(status: str, headers: list[tuple[str, str]], *more: Any) -> Any:
            nonlocal begun
            if not begun and status[:3].isdecimal():
                self.protection.settle(admission, int(status[:3]))
            begun = True
            return start_response(status, [*headers, *answer.headers], *more)

        try:
            return self.app(environ, start)
        except Refused as refused:
            if begun:
                raise
            again = self.protection.refusal(refused.verdict, refused.request, facts)
            return self._refuse(environ, start_response, admission.of(refused.request, refused.verdict), again)
        except Exception:
            if not begun:
                self.protection.settle(admission, 500)
            raise


def facts_of_environ(environ: Mapping[str, Any]) -> Facts:
    """What the limiter may know of a request, out of a WSGI environ (Django's ``META`` is one)."""
    path = f"{environ.get('SCRIPT_NAME', '')}{environ.get('PATH_INFO', '')}"
    headers = [
        (name[5:].replace("_", "-").lower(), value)
        for name, value in environ.items()
        if name.startswith("HTTP_") and isinstance(value, str)
    ]
    return Facts(
        method=environ.get("REQUEST_METHOD", "GET"),
        path=path.encode("latin-1", "replace").decode("utf-8", "replace"),  # PEP 3333: bytes as latin-1
        headers=headers,
        peer=environ.get("REMOTE_ADDR") or "",
    )


def status_line(status: int) -> str:
    """``429 Too Many Requests``."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"{status} Refused"
