"""Where the embedded servers keep their data, and that no two of a kind ever share a directory."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from penaltybox.contracts.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

LOCK_DEADLINE_S = 10.0
POLL_S = 0.01


def default_data_dir(environment: Mapping[str, str]) -> Path:
    """The user's own state directory: ``$XDG_STATE_HOME/penaltybox``, else ``~/.local/state/penaltybox``."""
    state = environment.get("XDG_STATE_HOME", "")
    home = Path(state) if state else Path(environment.get("HOME", "~")).expanduser() / ".local" / "state"
    return home / "penaltybox"


class DirectoryLock:
    """A lock on a file, held by everyone who inherited its descriptor.

    The server and its guard inherit it: so it is held exactly as long as the server lives, also after the death of the
    owner, and a new owner waits for the old server's end.

    Raises:
        ConfigurationError: somebody holds it for longer than `LOCK_DEADLINE_S`.
    """

    def __init__(self, path: Path, deadline_s: float = LOCK_DEADLINE_S) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self.descriptor = -1

    def __enter__(self) -> Self:
        self.descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        end = time.monotonic() + self._deadline_s
        while True:
            try:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > end:
                    os.close(self.descriptor)
                    raise ConfigurationError(
                        f"The data directory {self._path.parent} is in use by another server ({self._path.name} is "
                        "held). Stop the other one, or choose another directory with PENALTYBOX_DATA_DIR."
                    ) from None
                time.sleep(POLL_S)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        os.close(self.descriptor)
