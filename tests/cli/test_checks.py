"""What `doctor` finds in a Redis Cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penaltybox.cli.checks import check_redis
from penaltybox.contracts.settings import Settings

if TYPE_CHECKING:
    from penaltybox.cli.checks import Finding


async def test_a_cluster_that_stops_as_a_whole_is_warned_of(redis_by_kind: dict[str, Any]) -> None:
    """Redis' default: with one node gone, all refuse. Each node that is set so is named, with what to set."""
    cluster = redis_by_kind["cluster"]

    async def warnings() -> list[Finding]:
        return [one for one in await check_redis(Settings(redis_url=cluster.url)) if "refuses all work" in one.says]

    found = await warnings()
    assert len(found) == 3
    assert str(cluster.servers[0].port) in "".join(one.says for one in found)
    assert "cluster-require-full-coverage no" in str(found[0].advice)
    for server in cluster.servers:
        server.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
    try:
        assert await warnings() == []
    finally:
        for server in cluster.servers:
            server.call("CONFIG", "SET", "cluster-require-full-coverage", "yes")
