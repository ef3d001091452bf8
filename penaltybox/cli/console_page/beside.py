"""The console as a process beside the demo: on its usual port if that is free, with a token of its own."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Final

import msgspec

from penaltybox.cli.fleet import environment_of
from penaltybox.contracts.errors import ConfigurationError
from penaltybox.embedded.ports import LOOPBACK, Reservation
from penaltybox.embedded.process import GuardedProcess

if TYPE_CHECKING:
    from pathlib import Path

    from penaltybox.contracts.settings import Settings

_PATIENCE_S: Final = 30.0
_POLL_S: Final = 0.1


class Beside:
    """A console that ends with this process.

    Args:
        values: where the servers are.
        log_dir: gets its log.
        matures: see ``console --matures``.
    """

    def __init__(self, values: Settings, log_dir: Path, matures: str) -> None:
        self.port = _free_port(values.console_port)
        token = values.console_token or secrets.token_urlsafe(24)
        self.address = f"http://{LOOPBACK}:{self.port}/#token={token}"
        here = msgspec.structs.replace(values, console_host=LOOPBACK, console_port=self.port, console_token=token)
        self.process = GuardedProcess(
            [sys.executable, "-m", "penaltybox", "console", "--matures", matures],
            log_path=log_dir / "console.log",
            environment=environment_of(here),
        )

    async def ready(self) -> None:
        """Returns when it listens.

        Raises:
            ConfigurationError: it does not, after half a minute; its log says why.
        """
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while self.process.running:
                    try:
                        _, writer = await asyncio.open_connection(LOOPBACK, self.port)
                    except OSError:
                        await asyncio.sleep(_POLL_S)
                        continue
                    writer.close()
                    return
        raise ConfigurationError(f"the console does not start; {self.process.log_path} says why")


def _free_port(wanted: int) -> int:
    """The wanted port, or another one when it is taken."""
    try:
        with closing(Reservation(wanted)) as found:
            return found.port
    except OSError:
        with closing(Reservation()) as found:
            return found.port
