"""Waiting for a store or a broker that is away: retry with backoff, acknowledge nothing, give up only when told to."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, TypeVar

from penaltybox.contracts.errors import GenerationMismatch, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from penaltybox.sinks.subject_store import SubjectStore

log = logging.getLogger(__name__)
T = TypeVar("T")
FIRST_S = 0.05
LONGEST_S = 2.0
RESTORED = "restored-"
"""Generations that `penaltybox restore` begins start with this: where no control topic says better, a worker that knew
another one may follow."""


class GivenUpError(Exception):
    """The wait was called off: what it was for will be read again by whoever gets the partition."""


class Patience:
    """Retries calls to a store.

    Attributes:
        waiting: a call is being retried now; the watchdog exempts it.
        called_off: waits end with `GivenUpError` at their next failure.
    """

    def __init__(
        self,
        store: SubjectStore,
        recorded: Callable[[], Awaitable[str | None]] | None = None,
        first_s: float = FIRST_S,
    ) -> None:
        """`recorded` tells the generation that the control topic names, if it names one."""
        self._store = store
        self._recorded = recorded
        self._first_s = first_s
        self._waiting = 0
        self.called_off = False

    @property
    def waiting(self) -> bool:
        """Whether an outage is being waited out."""
        return self._waiting > 0

    async def call(self, operation: Callable[[], Awaitable[T]]) -> T:
        """The result of `operation`, retried while it raises `StoreUnavailable`.

        Raises:
            GivenUpError: called off.
        """
        try:
            return await operation()
        except StoreUnavailable as error:
            log.warning("Waiting for a store, nothing is acknowledged: %s", error)
            failure = error
        self._waiting += 1
        try:
            result = await self._retry(operation, failure)
        finally:
            self._waiting -= 1
        log.warning("The store answers again")
        return result

    async def _retry(self, operation: Callable[[], Awaitable[T]], failure: StoreUnavailable) -> T:
        delay_s = self._first_s
        while True:
            if self.called_off:
                raise GivenUpError from failure
            await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries, guards nothing
            delay_s = min(delay_s * 2, LONGEST_S)
            try:
                if isinstance(failure, GenerationMismatch):
                    await self._follow_restore()
                return await operation()
            except StoreUnavailable as error:
                failure = error

    async def _follow_restore(self) -> None:
        """Write under the generation that a restore has begun; a wiped or strange store is left alone."""
        recorded = await self._recorded() if self._recorded is not None else None
        generation = await self._store.generation()
        if generation is None:
            return
        if generation == recorded or (recorded is None and generation.startswith(RESTORED)):
            await self._store.join_generation(generation)
