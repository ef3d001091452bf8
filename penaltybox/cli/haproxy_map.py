"""A map of HAProxy, kept through its runtime socket: a change needs no reload; a new HAProxy gets everything."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Final

from penaltybox.cli.address_export import replace
from penaltybox.cli.address_formats import LINES, KeptLines
from penaltybox.contracts.errors import ConfigurationError, StoreUnavailable

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from penaltybox.cli.address_lists import Ban, Difference, LiveList

_BATCH_BYTES: Final = 8_000
"""HAProxy reads a command into one buffer (16 KiB)."""
_PATIENCE_S: Final = 5.0
_VERSION: Final = re.compile(r"New version created: (\d+)")
_PID: Final = re.compile(r"^Pid: (\d+)$", re.MULTILINE)


class HaproxyMap:
    """See the module.

    Args:
        file: the map, by the path that HAProxy's configuration has; kept current too, for its next start.
        socket: of the runtime API, with level admin.
    """

    def __init__(self, file: Path, socket: Path) -> None:
        self._file = file
        self._socket = socket
        self._form = LINES["haproxy"]
        self._lines = KeptLines(self._form)
        self._there = False
        self._pid = ""

    async def apply(self, live: LiveList, difference: Difference | None, at_ms: int) -> Counter[str]:
        """See `Target.apply`: the difference, or everything if it is not known what HAProxy has."""
        del at_ms
        if difference is None:
            self._lines.put(await asyncio.to_thread(live.bans))
        else:
            self._lines.change(difference)
        there, self._there = self._there, False
        await asyncio.to_thread(replace, self._file, self._lines.text())
        pid = await self._running()
        if difference is None or not there or pid != self._pid:
            await self._put_all()
        else:
            await self._put_changes(difference)
        self._there, self._pid = True, pid
        return self._lines.left_out(live.left_out)

    async def lost(self) -> bool:
        """See `Target.lost`."""
        if not self._there:
            return True
        try:
            return await self._running() != self._pid
        except (OSError, TimeoutError, StoreUnavailable):
            self._there = False
            return False  # it is told when there is something to apply

    async def _put_all(self) -> None:
        """A new version of the map beside the old one, which then takes its place in one step."""
        found = _VERSION.search(await self._ask(f"prepare map {self._file}"))
        if found is None:
            raise self._refused("no map of this path is in its configuration")
        for payload in _batches(self._lines.text().splitlines(keepends=True)):
            self._expect_nothing(await self._ask(f"add map @{found[1]} {self._file} <<\n{payload}"))
        self._expect_nothing(await self._ask(f"commit map @{found[1]} {self._file}"))

    async def _put_changes(self, difference: Difference) -> None:
        before, wanted = self._entries(difference.gone), self._entries(difference.come)
        commands = [
            f"del map {self._file} {network};" for network, action in before.items() if action != wanted.get(network)
        ]
        commands += [
            f"add map {self._file} {network} {action};"
            for network, action in wanted.items()
            if before.get(network) != action
        ]
        for batch in _batches(commands):
            self._expect_nothing(await self._ask(batch.rstrip(";")))

    def _entries(self, bans: Iterable[Ban]) -> dict[str, str]:
        parts = (self._form.line(ban).split() for ban in bans)
        return {network: action for network, action in parts}  # noqa: C416 - mypy knows what the parts are

    async def _running(self) -> str:
        found = _PID.search(await self._ask("show info"))
        if found is None:
            raise self._refused("its answer to `show info` has no Pid; the socket needs level admin")
        return found[1]

    def _expect_nothing(self, answer: str) -> None:
        if answer.strip():
            raise self._refused(answer.strip()[:200])

    def _refused(self, says: str) -> ConfigurationError:
        return ConfigurationError(f"HAProxy at {self._socket}, map {self._file}: {says}")

    async def _ask(self, command: str) -> str:
        """One command line, or one command with its payload; all of the answer."""
        async with asyncio.timeout(_PATIENCE_S):
            try:
                reader, writer = await asyncio.open_unix_connection(str(self._socket))
            except OSError as error:
                raise StoreUnavailable(f"HAProxy does not answer at {self._socket}: {error}") from error
            try:
                writer.write(f"{command}\n".encode())
                await writer.drain()
                return (await reader.read()).decode("utf-8", "replace")
            finally:
                writer.close()


def _batches(parts: Iterable[str]) -> Iterator[str]:
    """The parts joined, in pieces that HAProxy can take."""
    batch = ""
    for part in parts:
        if batch and len(batch) + len(part) > _BATCH_BYTES:
            yield batch
            batch = ""
        batch += part
    if batch:
        yield batch
