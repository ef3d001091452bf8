"""Figures from ClickHouse: the ladder funnel, false-positive rates, shared addresses. Kept for some seconds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from penaltybox.cli.console_page.answers import Funnel, FunnelRow, PlaceRow, Places, RateRow, Rates
from penaltybox.sinks.clickhouse import queries

if TYPE_CHECKING:
    from collections.abc import Callable

    from penaltybox.sinks.clickhouse.client import ClickHouse

    Row = dict[str, Any]

Answer = TypeVar("Answer")
_KEPT_S: Final = 5.0
_LONGEST_KEPT: Final = 64
PLACES: Final = 50
"""Rows of places that are answered; how many there are is told."""


class Figures:
    """Asks ClickHouse, never twice at the same time for the same.

    Args:
        clickhouse: closed by whoever opened it.
        now_ms: wall clock.
        rungs: names of the ladder's rungs, in order.
        matures_s: when an episode is mature, instead of each label's own time; None: that.
    """

    def __init__(
        self, clickhouse: ClickHouse, now_ms: Callable[[], int], rungs: Callable[[], list[str]], matures_s: int | None
    ) -> None:
        self._clickhouse = clickhouse
        self._now_ms = now_ms
        self._rungs = rungs
        self._matures_s = matures_s
        self._kept: dict[tuple[object, ...], tuple[float, asyncio.Future[Any]]] = {}
        self.failure: str | None = None
        """Why ClickHouse did not answer the last question; empty when it did, None before the first."""

    async def funnel(self, period_ms: int) -> Funnel:
        """Penalties by rule and rung of the last `period_ms`.

        Raises:
            StoreUnavailable: ClickHouse does not answer, or has no tables.
        """
        return await self._asked(("funnel", period_ms), self._funnel, period_ms)

    async def rates(self, period_ms: int) -> Rates:
        """False-positive rates of the last `period_ms`, per dimension; raises as `funnel` does."""
        return await self._asked(("rates", period_ms), self._rates, period_ms)

    async def places(self, period_ms: int, by: Literal["ip", "prefix"]) -> Places:
        """Shared addresses of the last `period_ms`, most denied innocents first; raises as `funnel` does."""
        return await self._asked(("places", period_ms, by), self._places, period_ms, by)

    async def look(self) -> None:
        """Whether ClickHouse answers; `failure` says."""
        await self._asked(("version",), self._clickhouse.version)

    async def _asked(self, key: tuple[object, ...], question: Callable[..., Answer], *given: Any) -> Answer:
        loop = asyncio.get_running_loop()
        kept = self._kept.get(key)
        if kept is None or (kept[1].done() and (loop.time() - kept[0] > _KEPT_S or kept[1].exception())):
            if len(self._kept) > _LONGEST_KEPT:
                self._kept.clear()
            kept = self._kept[key] = (loop.time(), asyncio.ensure_future(asyncio.to_thread(question, *given)))
        try:
            # The one who asked first may leave; others wait for the same answer.
            found: Answer = await asyncio.shield(kept[1])
        except Exception as error:
            self.failure = str(error)
            raise
        self.failure = ""
        return found

    def _funnel(self, period_ms: int) -> Funnel:
        to_ms = self._now_ms()
        rows = queries.penalties_by_rung(self._clickhouse, to_ms - period_ms, to_ms)
        return Funnel(
            from_=to_ms - period_ms,
            to=to_ms,
            rungs=self._rungs(),
            rows=[
                FunnelRow(
                    row["rule"], row["rung"], row["dimension"], row["action"], bool(row["shadow"]),
                    row["penalties"], row["subjects"],
                )
                for row in rows
            ],
        )  # fmt: skip

    def _rates(self, period_ms: int) -> Rates:
        to_ms = self._now_ms()
        matures_s = queries.BY_LABEL if self._matures_s is None else self._matures_s
        rows = queries.probed_rates(self._clickhouse, to_ms - period_ms, to_ms, to_ms, matures_s)
        return Rates(from_=to_ms - period_ms, to=to_ms, matures_s=self._matures_s, rows=[_rate(row) for row in rows])

    def _places(self, period_ms: int, by: Literal["ip", "prefix"]) -> Places:
        to_ms = self._now_ms()
        rows = queries.worst_places(self._clickhouse, to_ms - period_ms, to_ms, by, PLACES)
        total = int(rows[0]["total"]) if rows else 0
        return Places(from_=to_ms - period_ms, to=to_ms, by=by, total=total, rows=[_place(row) for row in rows])


def _rate(row: Row) -> RateRow:
    return RateRow(
        dimension=row["dimension"],
        episodes=int(row["episodes"]),
        immature=int(row["immature"]),
        labelled=int(row["labelled"]),
        fdr_status=row["fdr_status"],
        fdr=row["fdr_lower_bound"],
        fdr_low=row["fdr_low"],
        fdr_high=row["fdr_high"],
        fpr_status=row["fpr_status"],
        fpr=row["fpr"],
        fpr_low=row["fpr_low"],
        fpr_high=row["fpr_high"],
        drawn=int(row["drawn"]),
        probe_status=row["probe_status"],
        fdr_probe=row["fdr_probe"],
        fdr_probe_low=row["fdr_probe_low"],
        fdr_probe_high=row["fdr_probe_high"],
    )


def _place(row: Row) -> PlaceRow:
    return PlaceRow(
        place=row["place"],
        users=row["users"],
        n_eff=round(row["n_eff"], 1),
        attributable=bool(row["nat_attributable"]),
        episodes=row["ip_episodes"],
        denied_users=row["denied_users"],
        within_limit=row["denied_within_limit"],
        status=row["status"],
        collateral=row["collateral"],
        collateral_low=row["collateral_low"],
        collateral_high=row["collateral_high"],
    )
