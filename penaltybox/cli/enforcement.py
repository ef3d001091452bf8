"""Keeps a program's list of addresses as the feed says: the loop around a mirror, and the target that is a file."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from penaltybox.cli.address_export import replace
from penaltybox.cli.address_formats import FORMATS, LINES, KeptLines
from penaltybox.cli.address_lists import AddressList, LiveList
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.producers.feed.follower import Follower, kept, restore
from penaltybox.producers.feed.mirror import Mirror

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from penaltybox.cli.address_lists import Difference
    from penaltybox.producers.feed.follower import Source
    from penaltybox.producers.feed.lines import InForce, Name

_log = logging.getLogger("penaltybox.enforce")
SOON_S: Final = 0.1
"""Changes that come together are one."""
_REST: Final = 4
"""Writing may take one part in this of the time."""
LOOK_S: Final = 0.5
"""How often a target looks whether its program still has the list, and what has run out."""
_RUN_S: Final = 30.0
_KEEP_S: Final = 30.0
WHOLE_S: Final = 600.0
"""How often the list is made from the beginning, and the target given all of it, whatever it is thought to have."""
_MANY: Final = 2_000
"""Changes that are worked out aside, so that the feed is heard meanwhile."""


class Target(Protocol):
    """What enforces a list."""

    async def apply(self, live: LiveList, difference: Difference | None, at_ms: int) -> Counter[str]:
        """Brings it up to date.

        Args:
            live: the list.
            difference: to the list of the last call, whether or not that succeeded; None: take it from the beginning.
            at_ms: the time now.

        Returns:
            What it cannot hold, by why.

        Raises:
            PenaltyboxError: it is not up to date. It is called again.
            OSError: the same.
        """

    async def lost(self) -> bool:
        """Whether the program has to be given everything again, since it was started anew."""


class ListFile:
    """A file that a program reads, and the command that makes it read it again.

    Args:
        file: replaced in one step.
        form: one of `FORMATS`.
        command: run after a change, without a shell; empty for none.
    """

    def __init__(self, file: Path, form: str, command: Sequence[str] = ()) -> None:
        self._file = file
        self._form = FORMATS[form]
        self._lines = KeptLines(LINES[form]) if form in LINES else None
        self._command = command
        self._owed = False

    async def apply(self, live: LiveList, difference: Difference | None, at_ms: int) -> Counter[str]:
        """See `Target.apply`; a file that is as it should be is not touched."""
        text, left_out = await asyncio.to_thread(self._written, live, difference, at_ms)
        if self._text() != text:
            await asyncio.to_thread(replace, self._file, text)
            self._owed = True
        if self._owed and self._command:
            await run(self._command)
        self._owed = False
        return left_out

    def _written(self, live: LiveList, difference: Difference | None, at_ms: int) -> tuple[str, Counter[str]]:
        if self._lines is None:
            written = self._form(AddressList(live.bans(), live.left_out), at_ms)
            return written.text, written.left_out
        if difference is None:
            self._lines.put(live.bans())
        else:
            self._lines.change(difference)
        return self._lines.text(), self._lines.left_out(live.left_out)

    async def lost(self) -> bool:
        """See `Target.lost`: somebody took the file away."""
        return not self._file.exists()

    def _text(self) -> str | None:
        try:
            return self._file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None


async def run(command: Sequence[str]) -> None:
    """Runs a command to its end.

    Raises:
        ConfigurationError: there is none, it failed, or it does not end.
    """
    said = " ".join(command)
    try:
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise ConfigurationError(f"--run: {said!r} cannot be run: {error}") from error
    try:
        async with asyncio.timeout(_RUN_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise ConfigurationError(f"--run: {said!r} did not end within {_RUN_S:g} s") from None
    if process.returncode:
        text = output.decode("utf-8", "replace").strip()[-500:]
        raise ConfigurationError(f"--run: {said!r} failed with code {process.returncode}: {text}")


class Enforcement:
    """See the module. Nothing is applied before the whole list was here once, or was kept from before.

    Args:
        source: of the feed's lines.
        target: what enforces.
        memory: a file that keeps what is known over a restart.
    """

    def __init__(self, source: Source, target: Target, memory: Path) -> None:
        self._mirror = Mirror()
        self._changed = asyncio.Event()
        self._follower = Follower(source, self._mirror, self._changed.set)
        self._target = target
        self._memory = memory
        self._live = LiveList()
        self._kept_s = self._whole_s = float("-inf")
        self._left_out: Counter[str] | None = None
        self._failure = ""

    async def run(self) -> None:
        """Enforces until it is cancelled; then what is known is kept."""
        self._recall()
        following = asyncio.create_task(self._follower.run())
        try:
            while not following.done():
                await self._step()
            await following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
            self._keep(self._mirror.names, self._mirror.cursor)

    async def _step(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._changed.wait()
        loop = asyncio.get_running_loop()
        ended, whole = self._mirror.expire(now_ms()), loop.time() - self._whole_s > WHOLE_S
        if not self._mirror.cursor or not (self._changed.is_set() or ended or whole or await self._target.lost()):
            return
        await asyncio.sleep(SOON_S)
        self._changed.clear()
        started = loop.time()
        try:
            at_ms = now_ms()
            difference = await self._taken(at_ms, whole=whole)
            self._whole_s = started if whole else self._whole_s
            self._tell(await self._target.apply(self._live, difference, at_ms))
            if self._failure:
                self._failure = ""
                _log.info("enforced again")
        except (PenaltyboxError, OSError, TimeoutError) as error:
            failure = str(error) or "no answer in time"
            if failure != self._failure:
                self._failure = failure
                _log.error("not enforced, and tried again every second: %s", failure)
            self._changed.set()
            await asyncio.sleep(1)
        if loop.time() - self._kept_s > _KEEP_S:
            await asyncio.to_thread(self._keep, dict(self._mirror.names), self._mirror.cursor)
            self._kept_s = loop.time()
        await asyncio.sleep((loop.time() - started) * _REST)

    async def _taken(self, at_ms: int, *, whole: bool) -> Difference | None:
        """Takes up what has changed; None: the list was made from the beginning."""
        changes: Mapping[Name, Sequence[InForce]] = self._mirror.changes()
        if whole:
            self._live, changes = LiveList(), dict(self._mirror.names)
        if len(changes) > _MANY:
            difference = await asyncio.to_thread(self._live.take, changes, at_ms)
        else:
            difference = self._live.take(changes, at_ms)
        return None if whole else difference

    def _tell(self, left_out: Counter[str]) -> None:
        """What cannot be enforced here, once per kind of it."""
        if left_out.keys() != (self._left_out or {}).keys():
            self._left_out = left_out
            if left_out:
                said = ", ".join(f"{count:,} {why}" for why, count in left_out.most_common())
                _log.warning("blocked, and not enforced here, which knows addresses only: %s", said)

    def _recall(self) -> None:
        try:
            with self._memory.open("rb") as lines:
                whole = restore(self._mirror, lines)
        except OSError:
            return
        if whole:
            self._mirror.expire(now_ms())
            self._changed.set()

    def _keep(self, names: Mapping[Name, tuple[InForce, ...]], cursor: str) -> None:
        if cursor:
            try:
                replace(self._memory, b"".join(kept(names, cursor)).decode())
            except PenaltyboxError as error:
                _log.warning("what is known cannot be kept for the next start: %s", error)
