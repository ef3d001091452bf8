"""What a limiter remembers of Redis' answers: who is blocked until when, and what was recalled since.

An over-limit denial is not remembered: a refund, a plan or trust would make it wrong without a message, and it is an
offence that must name all its limits. docs/decisions/0016 has the argument.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from penaltybox.links.listening import fresh
from penaltybox.producers.aggregation import user_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from penaltybox.contracts.events import Action, Reason
    from penaltybox.producers.limiter import Request

MAX_IDENTITIES: Final = 64
"""Users of one blocked subject that are told apart: as many as a `distinct` rule or `shared_ip` can ask for."""


class Held:
    """A block or challenge of one subject, as Redis told it.

    Args:
        subject: canonical.
        action: deny or challenge.
        reason: as in the decision.
        status: HTTP status of the decision.
        read_ms: when Redis was asked (monotonic).
        until_ms: its end (monotonic); None: permanent, or unknown.
        permanent: it has no end.
    """

    __slots__ = ("action", "established", "permanent", "read_ms", "reason", "status", "subject", "until_ms")

    def __init__(
        self,
        subject: str,
        action: Action,
        reason: Reason | None,
        status: int | None,
        *,
        read_ms: int,
        until_ms: int | None,
        permanent: bool,
    ) -> None:
        self.subject = subject
        self.action: Action = action
        self.reason: Reason | None = reason
        self.status = status
        self.read_ms = read_ms
        self.until_ms = until_ms
        self.permanent = permanent
        self.established: dict[str, bool | None] = {}
        """Users seen under it -> whether they are established; at most `MAX_IDENTITIES`."""

    def left_ms(self, now_ms: int) -> int | None:
        """How long it still lasts, at least 1 ms; None when it has no end."""
        return None if self.until_ms is None else max(1, self.until_ms - now_ms)

    @property
    def weight(self) -> tuple[bool, bool, int]:
        """Deny over challenge, then the later end."""
        return self.action == "deny", self.permanent, self.until_ms or 0

    def answers(self, request: Request) -> bool:
        """Whether this is the whole answer about a request of its subject.

        A challenge of an address may not be meant for a user or device that passed one. And whether a user is
        established has to be read once, because it is evidence that an address is shared.
        """
        if self.action == "challenge" and self.subject.startswith("ip:"):
            return not any(name in request.subjects for name in ("user", "api_key", "device"))
        user = user_of(request)
        if not user or request.established is not None or user in self.established:
            return True
        return len(self.established) >= MAX_IDENTITIES

    def known(self, request: Request) -> bool | None:
        """Whether the request's user is established, as far as it is known."""
        return request.established if request.established is not None else self.established.get(user_of(request))


class BlockedCache:
    """Blocked subjects, the least recently seen forgotten first. Every operation takes constant time.

    Args:
        max_subjects: that are remembered.
    """

    def __init__(self, max_subjects: int = 100_000) -> None:
        self._max_subjects = max_subjects
        self._held: OrderedDict[str, Held] = OrderedDict()

    def __len__(self) -> int:
        return len(self._held)

    def remember(self, held: Held) -> None:
        """A block that Redis told; what was known of its subject's users stays."""
        before = self._held.pop(held.subject, None)
        if before is not None:
            known = before.established | held.established
            held.established = known if len(known) <= MAX_IDENTITIES else held.established
        elif len(self._held) >= self._max_subjects:
            self._held.popitem(last=False)
        self._held[held.subject] = held

    def find(self, subject: str, now_ms: int, heard_ms: int | None) -> Held | None:
        """What holds this subject: not ended, and known to have been true within the last second."""
        held = self._held.get(subject)
        if held is None:
            return None
        if held.until_ms is not None and held.until_ms <= now_ms:
            del self._held[subject]
            return None
        if not fresh(held.read_ms, heard_ms, now_ms):
            return None
        self._held.move_to_end(subject)
        return held

    def forget(self, subject: str) -> None:
        """Its block changed."""
        self._held.pop(subject, None)

    def clear(self) -> None:
        """All may have changed."""
        self._held.clear()


class Moment(NamedTuple):
    """When Redis was asked: monotonic milliseconds, and how many recalls there had been."""

    ms: int
    recalls: int


class Recalls:
    """Which subjects changed lately, so that an answer which was under way meanwhile is not remembered.

    Args:
        most: subjects that are kept; what is older counts as a change of all.
    """

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._at: OrderedDict[str, int] = OrderedDict()
        self._all_at = 0
        self.count = 0
        """Changes so far."""

    def note(self, subject: str) -> None:
        """This subject changed."""
        self.count += 1
        self._at[subject] = self.count
        self._at.move_to_end(subject)
        if len(self._at) > self._most:
            self._all_at = self._at.popitem(last=False)[1]

    def note_all(self) -> None:
        """Anything may have changed."""
        self.count += 1
        self._at.clear()
        self._all_at = self.count

    def since(self, subjects: Iterable[str], moment: Moment) -> bool:
        """Whether one of them changed after that moment."""
        before = moment.recalls
        if before == self.count:
            return False
        at = self._at
        return self._all_at > before or any(at.get(subject, 0) > before for subject in subjects)
