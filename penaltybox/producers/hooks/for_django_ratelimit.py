"""Tells what django-ratelimit decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from django_ratelimit import core, decorators

from penaltybox.producers.hooks.telling import Limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.producers.hooks.telling import Teller


def watch(teller: Teller) -> Callable[[], None]:
    """From now on the decorator `ratelimit` tells its decisions; the group is the scenario.

    The keys `ip`, `user` and `user_or_ip` reach the teller's `subjects` as `ip:…` and `user:…` (`by_prefix` reads
    these); what functions of yours make, as they make it. Of the keys `header:…`, `get:…` and `post:…`, which a client
    says itself, and of users who are not signed in, nothing is told.

    Args:
        teller: publishes.

    Returns:
        What ends it.
    """
    asked = decorators.is_ratelimited

    def watched(
        request: Any, group: Any = None, fn: Any = None, key: Any = None, rate: Any = None, method: Any = core.ALL,
        increment: bool = False,  # noqa: FBT001, FBT002 - the library's signature
    ) -> bool:  # fmt: skip
        seen: list[tuple[str, str]] = []
        rates: list[Any] = []
        usage = core.get_usage(
            request, group, fn, _watched_key(key, seen), _watched_rate(rate, rates), method, increment
        )
        if usage is None:
            return False
        over = bool(usage["should_limit"])
        if increment and seen:
            teller.attempt("django-ratelimit", lambda: _tell(teller, request, seen[-1], rates[-1], usage, over=over))
        return over

    decorators.is_ratelimited = watched

    def end() -> None:
        if decorators.is_ratelimited is watched:
            decorators.is_ratelimited = asked

    return end


def _watched_key(key: Any, seen: list[tuple[str, str]]) -> Any:
    """The key as a function that remembers what it said; a key that a client says itself stays as it is."""
    if callable(key):
        value = key
    elif key in ("ip", "user", "user_or_ip"):
        value = _simple(key)
    elif isinstance(key, str) and ":" not in key and "." in key:
        value = core.import_string(key)
    else:
        return key

    def remembering(group: str, request: Any) -> Any:
        said = value(group, request)
        if isinstance(said, _Named):
            seen.append((group, said.name))
            return str(said)
        seen.append((group, str(said)))
        return said

    return remembering


def _watched_rate(rate: Any, seen: list[Any]) -> Any:
    """The rate, remembered; a function is called once, as without a hook: it may ask a database."""
    if isinstance(rate, str) and "." in rate:
        rate = core.import_string(rate)
    if not callable(rate):
        seen.append(rate)
        return rate

    def remembering(group: str, request: Any) -> Any:
        seen.append(rate(group, request))
        return seen[-1]

    return remembering


class _Named(str):  # noqa: SLOT000 - it has a name beside its text
    """A value as the library has it, and how it is told."""

    name: str

    def __new__(cls, value: str, name: str) -> Self:
        made = super().__new__(cls, value)
        made.name = name
        return made


def _simple(key: str) -> Callable[[str, Any], _Named]:
    def value(_: str, request: Any) -> _Named:
        said = core._SIMPLE_KEYS[key](request)  # noqa: SLF001 - what the library does with this key
        signed_in = key != "ip" and request.user.is_authenticated
        dimension = "user" if signed_in else "ip" if key != "user" else ""
        return _Named(said, f"{dimension}:{said}" if dimension else "")

    return value


def _tell(teller: Teller, request: Any, seen: tuple[str, str], rate: Any, usage: Any, *, over: bool) -> None:
    if not usage["limit"]:
        return  # the cache is away
    group, key = seen
    match = getattr(request, "resolver_match", None)
    route = f"{request.method} /{match.route}" if match is not None else ""
    window_s = core._split_rate(rate)[1]  # noqa: SLF001 - as the library reads it
    limit = Limit(key, usage["limit"], window_s, over)
    teller.tell(
        [limit],
        limiter="django-ratelimit",
        scenario=group,
        route=route,
        remaining=max(0, usage["limit"] - usage["count"]),
        retry_after_s=max(0, usage["time_left"]),
    )
