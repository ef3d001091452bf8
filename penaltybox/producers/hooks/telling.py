"""Makes a decision of what another limiter said about a key, and never gets in the way of the request."""

from __future__ import annotations

import logging
import random
import socket
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import BadEvent, ConfigurationError
from penaltybox.contracts.events import MAX_ROUTE, MAX_SCENARIO, Decision
from penaltybox.contracts.ids import ulid
from penaltybox.contracts.subjects import DIMENSION, Canonicaliser
from penaltybox.producers.adapters.reading import label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_log = logging.getLogger(__name__)
_DENIED: Final = 429
_MOST_LIMITS: Final = 16
_MOST_COST: Final = 1 << 31

Subjects: TypeAlias = "Callable[[str], Mapping[str, str]]"
"""Whose key it is: dimension to value; nobody's where it is empty."""


class Offering(Protocol):
    """Takes decisions and returns at once, as `BackgroundPublisher` does."""

    def offer(self, record: Decision) -> None:
        """One decision."""


class Limit(NamedTuple):
    """A limit that was looked at: how many within how many seconds, for which key, and whether it was over."""

    key: str
    amount: int
    window_s: int
    over: bool


def of(dimension: str) -> Subjects:
    """All keys of the limiter are values of this one dimension: `of("ip")` where they are addresses.

    Raises:
        ConfigurationError: no name of a dimension.
    """
    if DIMENSION.fullmatch(dimension) is None:
        raise ConfigurationError(f"dimension: got {dimension!r}, wanted for example ip, user or device")
    return lambda key: {dimension: key} if key else {}


def by_prefix(*dimensions: str) -> Subjects:
    """Keys are written `dimension:value` by the key functions; of other dimensions than these nothing is told.

    Raises:
        ConfigurationError: no name of a dimension.
    """
    known = {dimension: of(dimension) for dimension in dimensions}

    def subjects(key: str) -> Mapping[str, str]:
        dimension, colon, value = key.partition(":")
        return known[dimension](value) if colon and dimension in known else {}

    return subjects


class Teller:
    """Publishes decisions of another limiter.

    Args:
        publisher: a `BackgroundPublisher`, started and closed by whoever made it.
        subjects: whose a key is: `of("ip")`, `by_prefix("user", "ip")`, or a function. It must not be something that
            a client merely says, or it could get others banned.
        source: `limiter/instance`; the limiter's name and this host's by default.
        scenario: for decisions whose limiter names none.
        allows: the share of allowed requests that is published, 0 to 1; denials always are.

    Raises:
        ConfigurationError: a share that is none.
    """

    def __init__(
        self,
        publisher: Offering,
        subjects: Subjects,
        *,
        source: str = "",
        scenario: str = "",
        allows: float = 1.0,
    ) -> None:
        if not 0 <= allows <= 1:
            raise ConfigurationError(f"allows: got {allows}, wanted a share from 0 to 1")
        self._publisher = publisher
        self._subjects = subjects
        self._source = source
        self._scenario = scenario
        self._allows = allows
        self.untold = 0
        """Decisions that could not be told: keys of nobody, and mistakes in hook or key mapping."""

    def attempt(self, limiter: str, told: Callable[[], None]) -> None:
        """Does what a hook does after the limiter's answer: whatever fails there, the request goes on.

        Args:
            limiter: name of the library, for the log.
            told: reads what was decided, and tells it.
        """
        try:
            told()
        except Exception:  # noqa: BLE001 - whatever it is, the request goes on
            self.untold += 1
            if self.untold & (self.untold - 1) == 0:  # the 1st, 2nd, 4th, 8th: no flood
                _log.exception("a decision of %s was not told (%d so far)", limiter, self.untold)

    def tell(
        self,
        limits: Sequence[Limit],
        *,
        limiter: str,
        scenario: str = "",
        route: str = "",
        cost: int = 1,
        remaining: int | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        """One decision about all limits that were looked at for a request. Raises nothing, waits for nothing.

        Args:
            limits: the denial is told of the first one that was over.
            limiter: name of the library.
            scenario: which use of the API.
            route: method and template, never a raw path.
            cost: of the request.
            remaining: of the limit that was told.
            retry_after_s: when to come again.
        """

        def told() -> None:
            denied = any(limit.over for limit in limits)
            if not limits or (not denied and not self._drawn()):
                return
            decision = self._decision(limits, limiter, scenario, route)
            if decision is None:
                self.untold += 1
                return
            shown = next((limit for limit in limits if limit.over), limits[0])
            self._publisher.offer(
                _with(
                    decision,
                    denied=denied,
                    cost=cost,
                    limit=shown,
                    remaining=remaining,
                    retry_after_s=retry_after_s,
                    share=self._allows,
                )
            )

        self.attempt(limiter, told)

    def _drawn(self) -> bool:
        return self._allows > 0 and (self._allows >= 1 or random.random() < self._allows)  # noqa: S311 - no secret

    def _decision(self, limits: Sequence[Limit], limiter: str, scenario: str, route: str) -> _Told | None:
        subjects: dict[str, str] = {}
        violated: list[str] = []
        for limit in limits:
            mine = _possible(self._subjects(limit.key))
            subjects.update(mine)
            if limit.over and mine:
                violated.append(f"{next(iter(mine))}:{limit.amount}_per_{limit.window_s}s")
        if not subjects or (not violated and any(limit.over for limit in limits)):
            return None
        source = self._source or f"{limiter}/{socket.gethostname()}"
        return _Told(subjects, tuple(violated[:_MOST_LIMITS]), source[:128], scenario or self._scenario, route)


def _possible(subjects: Mapping[str, Any]) -> dict[str, str]:
    """Those that workers take. A key that a client has made impossible hides no other one of the same request."""
    found = {}
    for dimension, value in subjects.items():
        text = str(value) if isinstance(value, int) else value
        try:
            if text:
                Canonicaliser().subject(dimension, text)  # remembers nothing: keys are many
                found[dimension] = text
        except BadEvent as error:
            _log.debug("not told: %s", error)
    return found


class _Told(NamedTuple):
    subjects: dict[str, str]
    violated: tuple[str, ...]
    source: str
    scenario: str
    route: str


def _with(
    told: _Told,
    *,
    denied: bool,
    cost: int,
    limit: Limit,
    remaining: int | None,
    retry_after_s: int | None,
    share: float,
) -> Decision:
    at_ms = now_ms()
    return Decision(
        v=1,
        id=ulid(at_ms),
        ts=at_ms,
        source=told.source,
        scenario=label(told.scenario, MAX_SCENARIO),
        action="deny" if denied else "allow",
        reason="over_limit" if denied else None,
        violated=told.violated,
        subjects=told.subjects,
        route=label(told.route, MAX_ROUTE),
        status=_DENIED if denied else None,
        limit=limit.amount,
        window_s=limit.window_s,
        remaining=0 if denied else remaining,
        retry_after_s=retry_after_s if denied else None,
        cost=min(max(cost, 0), _MOST_COST),
        sample_rate=share if not denied and share < 1 else None,
    )
