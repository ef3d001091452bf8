"""What the demo reads back from Redis and ClickHouse, set beside the campaign's hidden truth."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penaltybox.links.connections import endpoint_of, open_link
from penaltybox.producers.campaign_cast import OFFICE_IP
from penaltybox.sinks.blocklist import Block, Blocklist
from penaltybox.sinks.clickhouse import queries
from penaltybox.sinks.clickhouse.client import ClickHouse

if TYPE_CHECKING:
    from penaltybox.contracts.settings import Settings
    from penaltybox.producers.campaign import Campaign

_MATURES_S: Final = 60
"""The demo cannot wait a day for payments: an episode counts when its labels are a minute old."""


class Rates(msgspec.Struct, kw_only=True):
    """False positives of one dimension: ClickHouse's estimate from labels, and the truth it was not told."""

    dimension: str
    episodes: int
    labelled: int
    fdr_status: str
    fdr: float | None
    fdr_low: float | None
    fdr_high: float | None
    fdr_true: float | None
    fpr_status: str
    fpr: float | None
    fpr_low: float | None
    fpr_high: float | None
    fpr_true: float | None


class Facts(msgspec.Struct, kw_only=True):
    """Everything that the report shows."""

    penalties: list[dict[str, Any]]
    blocks: list[Block]
    office: dict[str, Any]
    office_block: Block | None
    rates: list[Rates]
    treatments: dict[str, dict[str, int]]
    dead_letters: int
    decisions: int


async def read_facts(settings: Settings, campaign: Campaign) -> Facts:
    """Reads Redis and ClickHouse."""
    link = open_link(endpoint_of(settings))
    try:
        blocklist = Blocklist(link, settings.redis_prefix)
        blocks = [block async for block in blocklist.blocks()]
        (office_block,) = await blocklist.lookup([f"ip:{OFFICE_IP}"])
    finally:
        await link.close()
    blocks.sort(key=lambda block: (block.kind != "deny", -(block.ttl_ms or 1 << 62), block.subject))
    clickhouse = ClickHouse.of(settings)
    try:
        return await asyncio.to_thread(_facts, clickhouse, campaign, blocks, office_block)
    finally:
        clickhouse.close()


def _facts(clickhouse: ClickHouse, campaign: Campaign, blocks: list[Block], office_block: Block | None) -> Facts:
    from_ms, to_ms = campaign.start_ms, campaign.end_ms + 1
    as_of_ms = campaign.end_ms + 2 * _MATURES_S * 1000
    episodes = queries.judged_episodes(clickhouse, from_ms, to_ms, as_of_ms, _MATURES_S)
    measured = queries.false_positives(clickhouse, from_ms, to_ms, as_of_ms, _MATURES_S)
    places = queries.nat(clickhouse, from_ms, to_ms)
    (decisions,) = clickhouse.rows("SELECT count() AS n FROM decisions FINAL")
    (letters,) = clickhouse.rows("SELECT count() AS n FROM dead_letters FINAL")
    return Facts(
        penalties=queries.penalties_by_rung(clickhouse, from_ms, to_ms),
        blocks=blocks,
        office=next((row for row in places if row["place"] == OFFICE_IP), {}),
        office_block=office_block,
        rates=[_rates(row, episodes, campaign) for row in measured],
        treatments={
            role: {
                "people": one.people,
                "requests": one.requests,
                "allowed": one.allowed,
                "limited": one.limited,
                "challenged": one.challenged,
                "blocked": one.blocked,
                "hurt": len(one.hurt),
            }
            for role, one in campaign.treatments.items()
        },
        dead_letters=letters["n"],
        decisions=decisions["n"],
    )


def _rates(row: dict[str, Any], episodes: list[dict[str, Any]], campaign: Campaign) -> Rates:
    dimension, truth = row["dimension"], campaign.truth
    mine = [one["subject"] for one in episodes if one["dimension"] == dimension and one["subject"] in truth]
    wrong = sum(truth[subject].legitimate for subject in mine)
    honest = {name for name, one in truth.items() if one.legitimate and name.startswith(f"{dimension}:")}
    return Rates(
        dimension=dimension,
        episodes=int(row["episodes"]),
        labelled=int(row["labelled"]),
        fdr_status=row["fdr_status"],
        fdr=row["fdr_lower_bound"],
        fdr_low=row["fdr_low"],
        fdr_high=row["fdr_high"],
        fdr_true=wrong / len(mine) if mine else None,
        fpr_status=row["fpr_status"],
        fpr=row["fpr"],
        fpr_low=row["fpr_low"],
        fpr_high=row["fpr_high"],
        fpr_true=len(honest.intersection(mine)) / len(honest) if honest else None,
    )
