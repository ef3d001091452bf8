"""How a web application is protected: what the limiter is asked about a request, and what its verdict becomes.

The same for every framework, and without I/O: the skins (asgi, wsgi, django, flask) read requests, ask the limiter, and
write answers.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.contracts.settings import Settings
from penaltybox.producers.http.answers import Answer, AnswerOptions, answer
from penaltybox.producers.http.paths import plain_path
from penaltybox.producers.http.requests import RequestReader
from penaltybox.producers.http.testimony import whole_cost
from penaltybox.producers.web.access import Access, Complaints

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.policy import Policy
    from penaltybox.producers.http.requests import Facts
    from penaltybox.producers.limiter import Request
    from penaltybox.producers.verdict import Verdict
    from penaltybox.producers.web.access import Opening
    from penaltybox.producers.web.admission import Admission
    from penaltybox.producers.web.marks import Mark

Hook = Callable[[Any], Any]
Said = dict[str, Any]
"""What the application's hooks said about a request, by the hook's name."""

_CLASSES: Final = {f"{first}xx": first for first in range(1, 6)}
_CHAINS: Final = frozenset({"x-forwarded-for", "forwarded"})
_log = logging.getLogger("penaltybox.web")


class Protection:
    """One application's limiter, and how its requests are told apart and answered.

    Every hook gets the framework's own request (ASGI: the scope; WSGI: the environ; Flask and Django: the request
    object). In ASGI and asynchronous Django a hook may be a coroutine function. A hook that fails says nothing, and is
    logged.

    Args:
        policy: limits, and which routes belong to which scenario.
        limiter: a limiter, or a function that opens one; see `Opening`.
        settings: trusted proxies, and which headers name user, API key and device.
        user: hook: the authenticated user's id, None for nobody.
        subjects: hook: further dimensions -> values (``device``, ``api_key``, ``activity``, …).
        established: hook: whether the user is known and trusted, where Redis does not say so.
        cost: hook: what the request costs; else its view's mark says it, else the policy.
        attrs: hook: short texts for the event, such as the hash of an address.
        idempotency_key: hook: under which the application will find the request to refund it, perhaps in another
            process. Every request is charged, also under a key that was there before; one charge of a key can be
            given back. The key should be the application's (an order's number): a client's could be another's too.
        challenge: hook with (request, admission): the response that shows the application's challenge; None for the
            usual 403.
        exclude: paths about which the limiter is never asked, with everything below them: ``/health``, ``/static``.
        refunds: every request can be refunded (it costs a small key per request).
        refund_on_status: statuses, or classes such as ``5xx``, with which a request gets back what it took.
        answers: header fields, jitter, languages, a canned success.
    """

    def __init__(
        self,
        policy: Policy,
        limiter: Opening | Access,
        *,
        settings: Settings | None = None,
        user: Hook | None = None,
        subjects: Hook | None = None,
        established: Hook | None = None,
        cost: Hook | None = None,
        attrs: Hook | None = None,
        idempotency_key: Hook | None = None,
        challenge: Callable[[Any, Admission], Any] | None = None,
        exclude: Iterable[str] = (),
        refunds: bool = False,
        refund_on_status: Iterable[int | str] = (),
        answers: AnswerOptions | None = None,
    ) -> None:
        self.access = limiter if isinstance(limiter, Access) else Access(limiter, policy)
        settings = settings or Settings()
        self.reader = RequestReader.of(settings, policy)
        """Its `ignored` counts what requests said that could not be used."""
        self.challenge = challenge
        hooks = {
            "user": user, "subjects": subjects, "established": established,
            "cost": cost, "attrs": attrs, "idempotency_key": idempotency_key,
        }  # fmt: skip
        self._hooks = {name: hook for name, hook in hooks.items() if hook is not None}
        self._excluded = tuple(_prefix(path) for path in exclude)
        self._refund_statuses = _statuses(refund_on_status)
        self._refunds = refunds or bool(self._refund_statuses)
        self._answers = answers or AnswerOptions()
        self._complaints = Complaints()
        self._warns = not settings.client_ip_header

    def excluded(self, path: str) -> bool:
        """Whether the limiter is not asked about this path."""
        # As it came and as it is meant: neither /health/../admin nor /admin/../health is about health.
        return self._below(path) and self._below(plain_path(path))

    def _below(self, path: str) -> bool:
        return any(path == prefix or path.startswith(f"{prefix}/") for prefix in self._excluded)

    async def hear(self, native: object) -> Said:
        """What the hooks say about a request; those that are coroutine functions are awaited."""
        said: Said = {}
        for name, hook in self._hooks.items():
            try:
                value = hook(native)
                said[name] = await value if inspect.isawaitable(value) else value
            except Exception as error:  # noqa: BLE001 - the application's own; its request goes on
                self.complain(f"the hook {name} failed, the request goes on without it", error)
        return said

    def hear_now(self, native: object) -> Said:
        """`hear` for code without an event loop."""
        said: Said = {}
        for name, hook in self._hooks.items():
            try:
                said[name] = hook(native)
            except Exception as error:  # noqa: BLE001 - as above
                self.complain(f"the hook {name} failed, the request goes on without it", error)
        return said

    def question(self, facts: Facts, mark: Mark, said: Said) -> Request:
        """What the limiter is asked."""
        reader, policy = self.reader, self.access.policy
        if policy is not None and policy is not reader.policy:  # the limiter's was switched
            reader.replace_policy(policy)
        usual: Said = {"scenario": mark.scenario, "cost": mark.cost}
        asked = reader.read(facts, now_ms(), **(usual | self._typed(said)))
        request = asked.request
        if self._warns and asked.client.through_proxy:
            self._warn(facts)
        if self._refunds and not request.idempotency_key:
            request = msgspec.structs.replace(request, idempotency_key=request.id)
        return request

    def _typed(self, said: Said) -> Said:
        """What the hooks said, as the reader wants it. A word that cannot be used is left out, the others are not."""
        found: Said = {}
        for name, value in said.items():
            try:
                word = _word(name, value)
            except (TypeError, ValueError, AttributeError) as error:
                self.complain(f"what the hook {name} said cannot be used, the request goes on without it", error)
                continue
            if word is not None:
                found[name] = word
        return found

    def _warn(self, facts: Facts) -> None:
        """Once: everybody behind a proxy of ours is counted as one, because nobody said which header it writes."""
        if any(name.lower() in _CHAINS for name, _ in facts.headers):
            self._warns = False
            _log.warning(
                "requests through the trusted proxy %s all count for its address, because client_ip_header is not set; "
                "set PENALTYBOX_CLIENT_IP_HEADER to the header that it writes, such as X-Forwarded-For",
                facts.peer or "on the Unix socket",
            )

    def answer(self, verdict: Verdict, request: Request, facts: Facts) -> Answer:
        """What the client gets; with status None the application answers, and gets the header fields added."""
        fields: dict[str, str] = {}
        for name, value in facts.headers:
            fields.setdefault(name.lower(), value)
        return answer(
            verdict,
            self.reader.policy.scenario(request.scenario),
            self._answers,
            fields.get("accept-language", ""),
            accept=fields.get("accept", ""),
            method=facts.method,
            now_ms=request.ts_ms,
        )

    def challenge_of(self, native: object, admission: Admission) -> Any:
        """What the hook `challenge` returns for a challenged request; None: the usual answer."""
        if admission.verdict.action != "challenge" or self.challenge is None:
            return None
        try:
            return self.challenge(native, admission)
        except Exception as error:  # noqa: BLE001 - the application's own; the usual answer does
            self.complain("the hook challenge failed", error)
            return None

    def refusal(self, verdict: Verdict, request: Request, facts: Facts) -> Answer:
        """`answer` where the application cannot go on, because a limit within its view has refused."""
        found = self.answer(verdict, request, facts)
        if found.status is not None:
            return found
        empty = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", "0"), *found.headers]
        return found._replace(status=200, headers=empty, body=b"")  # false success

    def settle(self, admission: Admission, status: int) -> None:
        """Gives back what the request took if the response's status says so; nobody waits for it."""
        if status in self._refund_statuses and admission.charged:
            admission.refund_soon()

    def complain(self, what: str, error: Exception) -> None:
        """Logs an error of the application's own hooks, at most once a minute."""
        self._complaints.say(what, error)


async def awaited(shown: Any, protection: Protection) -> Any:
    """What `Protection.challenge_of` said, also where the hook is a coroutine function."""
    if not inspect.isawaitable(shown):
        return shown
    try:
        return await shown
    except Exception as error:  # noqa: BLE001 - as above
        protection.complain("the hook challenge failed", error)
        return None


def _word(name: str, value: Any) -> Any:
    """What one hook said, as the reader wants it; None for nothing.

    ``request.user and request.user.id`` is False, or an empty text, for nobody: that is no user whom all of them share.
    """
    if value is None:
        return None
    if name == "established":
        return bool(value)  # an event with any other value is a dead letter
    if value is False or value == "":
        return None
    if name in ("user", "idempotency_key"):
        return str(value)
    if name in ("subjects", "attrs"):
        said = value.items()
        return {str(key): str(one) for key, one in said if one is not None and one is not False}
    return whole_cost(value) if name == "cost" else value


def _prefix(path: str) -> str:
    if not path.startswith("/"):
        raise ConfigurationError(f"exclude: got {path!r}, wanted a path such as /health")
    return path.removesuffix("*").rstrip("/")


def _statuses(wanted: Iterable[int | str]) -> frozenset[int]:
    """Every status that a list such as ``(409, "5xx")`` means."""
    found: set[int] = set()
    for one in wanted:
        first = _CLASSES.get(str(one).lower())
        if first is not None:
            found.update(range(first * 100, first * 100 + 100))
        elif str(one).isdecimal() and 100 <= int(one) <= 599:  # noqa: PLR2004 - HTTP's statuses
            found.add(int(one))
        else:
            raise ConfigurationError(f"refund_on_status: got {one!r}, wanted a status, or a class such as 5xx")
    return frozenset(found)
