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
    "aiokafka",
    *(f"aiokafka.{name}" for name in ("cluster", "conn", "producer.producer", "producer.sender")),
)


class Diary:
    """Tells one thing that lasts: that it began, that it goes on, that it is over; never two lines within `GAP_S`.

    Args:
        meanwhile: how the first line ends: what becomes of the records now.
        figures: how later lines end: what became of them.
    """

    def __init__(self, meanwhile: str, figures: Callable[[], str]) -> None:
        self._meanwhile = meanwhile
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
                self._say(
                    logging.WARNING,
                    f"Kafka takes records again, after {now - self._since:.0f} s. {self._figures()}",
                    now,
                )
                self._shown = ""
            return
        yours = isinstance(self._error, ConfigurationError)
        if yours and self._shown == str(self._error):
            return  # told once; it is tried again without a word
        end = self._figures() if self._shown else self._meanwhile
        self._shown = str(self._error)
        self._say(logging.ERROR if yours else logging.WARNING, f"{self._error}. It is tried again. {end}", now)

    def _say(self, level: int, sentence: str, now: float) -> None:
        log.log(level, "%s.", sentence)
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


class Silence(logging.Filter):
    """Leaves out what one thread says, and keeps the last error of it."""

    def __init__(self, thread: int | None) -> None:
        super().__init__()
        self.thread = thread
        self.error: BaseException | None = None

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line stays."""
        if record.thread != self.thread or record.levelno <= logging.DEBUG:
            return True
        if isinstance(record.args, tuple) and record.args and isinstance(record.args[-1], BaseException):
            self.error = record.args[-1]
        return False


def silence_client(thread: int | None) -> Silence:
    """What aiokafka says of its connections on our thread, ten lines a second while a broker is away, we say ourselves.

    Other users of aiokafka in the program are heard as before.
    """
    loggers = [logging.getLogger(name) for name in _LOUD]
    found = [one for one in loggers[0].filters if isinstance(one, Silence)]
    if found and found[0].thread == thread:
        return found[0]
    silence = Silence(thread)
    for logger in loggers:
        for old in found:
            logger.removeFilter(old)
        logger.addFilter(silence)
    return silence
