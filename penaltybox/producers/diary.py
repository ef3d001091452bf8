"""What the publisher says in the log about an outage: at most one line a minute, a mistake in the settings once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.contracts.errors import PenaltyboxError

GAP_S: Final = 60.0
log = logging.getLogger("penaltybox.publisher")
_LOUD: Final = (
    "aiokafka.client", "aiokafka.cluster", "aiokafka.conn", "aiokafka.producer.producer", "aiokafka.producer.sender",
)  # fmt: skip


class Diary:
    """Tells one thing that lasts: that it began, that it goes on, that it is over; never two lines within `GAP_S`.

    Args:
        figures: how a line ends: what became of the records meanwhile.
    """

    def __init__(self, figures: Callable[[], str]) -> None:
        self._figures = figures
        self._error: PenaltyboxError | None = None
        self._since = 0.0
        self._shown = ""
        self._last: float | None = None

    def trouble(self, error: PenaltyboxError, now: float) -> None:
        """It began, or goes on; `now` is monotonic, in seconds."""
        if self._error is None:
            self._since = now
        self._error = error
        self.tick(now)

    def over(self, now: float) -> None:
        """It is over."""
        self._error = None
        self.tick(now)

    def tick(self, now: float) -> None:
        """Says what there is to say, if it is time."""
        if self._last is not None and now - self._last < GAP_S:
            return
        if self._error is None:
            if self._shown:
                self._say(logging.WARNING, f"Kafka takes records again, after {now - self._since:.0f} s", now)
                self._shown = ""
            return
        yours = isinstance(self._error, ConfigurationError)
        if yours and self._shown == str(self._error):
            return  # told once; it is tried again without a word
        self._shown = str(self._error)
        self._say(logging.ERROR if yours else logging.WARNING, f"{self._error}. It is tried again", now)

    def _say(self, level: int, sentence: str, now: float) -> None:
        log.log(level, "%s. %s", sentence, self._figures())
        self._last = now


class Mistakes:
    """Tells single mishaps, at most one line in `GAP_S`, with the number of those that were not told."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._untold = 0

    def tell(self, sentence: str, now: float) -> None:
        """One more mishap; `now` is monotonic, in seconds."""
        if self._last is not None and now - self._last < GAP_S:
            self._untold += 1
            return
        more = f" ({self._untold} more since the last line)" if self._untold else ""
        log.warning("%s%s", sentence, more)
        self._last, self._untold = now, 0


class _NotFrom(logging.Filter):
    """Leaves out what one thread says."""

    def __init__(self, thread: int | None) -> None:
        super().__init__()
        self.thread = thread

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line stays."""
        return record.thread != self.thread or record.levelno <= logging.DEBUG


def silence_client(thread: int | None) -> None:
    """What aiokafka says of its connections on our thread, ten lines a second while a broker is away, we say ourselves.

    Other users of aiokafka in the program are heard as before.
    """
    for name in _LOUD:
        logger = logging.getLogger(name)
        for old in [one for one in logger.filters if isinstance(one, _NotFrom)]:
            logger.removeFilter(old)
        logger.addFilter(_NotFrom(thread))
