"""Redis cut off, hanging, forgetful, full: what a request gets, how long it waits for it, and what was counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from penaltybox.contracts.errors import ConfigurationError, PenaltyboxError
from penaltybox.contracts.settings import Settings
from penaltybox.producers.inline import InlineLimiter
from tests.producers.limiters import KINDS, Rig, policy, request, rig_on
from tests.redis_servers import BINARIES, CLUSTERING, SentinelTrio, single
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from penaltybox.producers.verdict import Verdict
    from tests.redis_servers import Server

USER = "user: [{name: a, limit: 10, window: 1h}]"


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    started = single(next(iter(BINARIES.values())), tmp_path)
    yield started
    started.kill()


@pytest.fixture
async def rig(server: Server) -> AsyncIterator[Rig]:
    async with rig_on(server) as rig:
        yield rig


def scenario(failure: str, deadline: str = "20ms") -> str:
    return f"scenarios: {{s: {{failure: {failure}, deadline: {deadline}}}}}"


async def back(limiter: InlineLimiter, cost: int = 0) -> Verdict:
    """The first verdict that Redis had a part in."""

    async def counted() -> Verdict | None:
        verdict = await limiter.decide(request(cost=cost))
        return verdict if verdict.reason in {None, "over_limit"} else None

    return await wait_until(counted, what="a verdict from Redis")


@pytest.mark.parametrize("how", ["killed", "frozen"])
@pytest.mark.parametrize("failure", ["open", "closed", "local"])
async def test_each_scenario_fails_as_it_says(server: Server, rig: Rig, failure: str, how: str) -> None:
    """Cut off or hanging: let through, refused, or judged in memory with half the quota; marked and counted."""
    async with rig.open(policy(USER, scenario(failure))) as limiter:
        await back(limiter)
        limiter.counts.decisions.clear()
        server.kill() if how == "killed" else server.freeze()
        verdicts = [await limiter.decide(request()) for _ in range(7)]
    wanted: dict[str, tuple[list[str], str]] = {
        "open": (["allow"] * 7, "fail_open"),
        "closed": (["deny"] * 7, "fail_closed"),
        "local": (["allow"] * 5 + ["deny"] * 2, "local_fallback"),
    }
    actions, reason = wanted[failure]
    assert [verdict.action for verdict in verdicts] == actions
    assert {verdict.reason for verdict in verdicts} == {reason}
    assert [one.reason for one in rig.published[-7:]] == [reason] * 7
    assert [one.action for one in rig.published[-7:]] == actions
    assert limiter.counts.decisions == {("s", reason): 7}
    if failure == "closed":
        assert verdicts[0].retry_after_ms is not None
        assert verdicts[0].retry_after_ms >= 1_000
        assert rig.published[-1].status == 503
    if failure == "local":
        assert verdicts[-1].violated == ("user:a",)


async def test_a_hanging_redis_costs_a_deadline_per_probe(server: Server, rig: Rig) -> None:
    """Of five hundred decisions few ask a Redis that hangs; when it goes on, so do they, over the same connection."""
    async with rig.open(policy(USER, scenario("open", "30ms"))) as limiter:
        await back(limiter)
        asked = 0
        ask = limiter._counters.ask

        async def counted(*arguments: Any) -> Any:
            nonlocal asked
            asked += 1
            return await ask(*arguments)

        limiter._counters.ask = counted  # type: ignore[method-assign]
        server.freeze()
        begun = asyncio.get_running_loop().time()
        for _ in range(500):
            await limiter.decide(request())
        lasted = asyncio.get_running_loop().time() - begun
        assert asked <= 2 + lasted / 0.04, "a probe takes 30 ms, and the next one comes after a pause"
        assert asked < 50
        server.thaw()
        verdict = await back(limiter)
        assert not limiter.breaker.open
    # What was asked while it hung was executed when it went on, once: nothing is sent again.
    assert 10 - asked <= verdict.limits[0].remaining <= 9


async def test_a_forgotten_script_is_loaded_again(server: Server, rig: Rig) -> None:
    """SCRIPT FLUSH, as after a failover: two hundred decisions at once go on and count exactly."""
    async with rig.open(policy("user: [{name: a, limit: 100, window: 1h}]", scenario("closed", "5s"))) as limiter:
        for _ in range(2):
            server.call("SCRIPT", "FLUSH")
            await asyncio.gather(*(limiter.decide(request()) for _ in range(40)))
        verdict = await limiter.decide(request(idempotency_key="k"))
        server.call("SCRIPT", "FLUSH")
        assert await limiter.refund("k") is True
        assert not limiter.counts.decisions
    assert verdict.limits[0].remaining == 19


async def test_a_redis_without_memory(server: Server, rig: Rig) -> None:
    """OOM is a failure like others; nothing is half taken, and with memory it goes on."""
    limits = f"{USER}\n    ip: [{{name: a, limit: 10, window: 1h, algorithm: gcra}}]"
    async with rig.open(policy(limits, scenario("closed", "5s"))) as limiter:
        await limiter.decide(request())
        server.call("CONFIG", "SET", "maxmemory", "1")
        verdict = await limiter.decide(request())
        assert verdict.reason == "fail_closed"
        assert "OOM" in limiter.counts.last_error
        server.call("CONFIG", "SET", "maxmemory", "0")
        verdict = await back(limiter)
    assert [state.remaining for state in verdict.limits] == [9, 9]


async def test_a_request_whose_result_is_unknown_can_be_refunded(server: Server, rig: Rig) -> None:
    """Let through without an answer it counted all the same, as its retry did: its key gives one back, once."""
    async with rig.open(policy(USER, scenario("open"))) as limiter:
        await back(limiter)
        server.freeze()
        assert (await limiter.decide(request(idempotency_key="k"))).reason == "fail_open"
        server.thaw()
        assert (await back(limiter)).limits[0].remaining == 9
        assert (await limiter.decide(request(idempotency_key="k"))).limits[0].remaining == 8, "a retry pays"
        assert await limiter.refund("k") is True
        assert await limiter.refund("k") is False
        assert (await back(limiter)).limits[0].remaining == 9


async def test_a_redis_that_is_away_at_the_start(server: Server, rig: Rig) -> None:
    """The program starts all the same, and Redis counts as soon as it is there."""
    server.kill()
    async with rig.open(policy(USER)) as limiter:
        assert (await limiter.decide(request())).reason == "fail_open"
        server.start()
        assert (await back(limiter, cost=1)).limits[0].remaining == 9


async def test_a_refused_login_is_an_error_at_the_start_and_a_failure_later(server: Server, rig: Rig) -> None:
    """A wrong password is told when the limiter opens; one that changes later is handled as an outage."""
    async with rig.open(policy(USER)) as limiter:
        await limiter.decide(request())
        change = ("CONFIG", "SET", "requirepass", "changed")
        await rig.link.exchange([change, ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")])

        async def refused() -> bool:
            verdict = await limiter.decide(request())
            return verdict.reason == "fail_open" and "redis_password" in limiter.counts.last_error

        await wait_until(refused)
        with pytest.raises(ConfigurationError, match="redis_password"):
            async with rig.open(policy(USER)):
                pass
    settings = Settings(redis_url=f"redis://:changed@127.0.0.1:{server.port}")
    async with InlineLimiter.open(settings, policy(USER)) as again:
        assert (await again.decide(request())).allowed


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind == "sentinel"])
async def test_a_failover_costs_some_decisions_and_then_goes_on(tmp_path: Path, kind: str) -> None:
    """The master dies; its replica knows no script; the limiter finds it through Sentinel."""
    assert kind == "sentinel"
    trio = SentinelTrio(str(CLUSTERING), tmp_path)
    try:
        async with rig_on(trio) as rig, rig.open(policy(USER, scenario("open", "200ms"))) as limiter:
            await back(limiter, cost=1)
            trio.master.kill()
            assert (await limiter.decide(request())).reason == "fail_open"

            async def counted() -> bool:
                return (await limiter.decide(request())).reason is None

            await wait_until(counted, 30, "a decision on the replica")
    finally:
        trio.kill()


async def test_an_error_that_only_one_request_has_is_nobody_elses(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """A call that Redis answers with an unexpected error fails alone, and a flood of them fills no log."""
    async with rig.open(policy(USER, scenario("closed", "5s"))) as limiter:
        ask = limiter._counters.ask

        async def poisoned(*arguments: Any) -> Any:
            if arguments[1].id == "poison":
                raise PenaltyboxError("Redis answered with an unexpected error: ERR bad.")
            return await ask(*arguments)

        limiter._counters.ask = poisoned  # type: ignore[method-assign]
        for _ in range(20):
            assert (await limiter.decide(request(id="poison"))).reason == "fail_closed"
            assert (await limiter.decide(request(cost=0))).allowed
        assert limiter.counts.errors == {"PenaltyboxError": 20}
        assert not limiter.breaker.openings
    assert len([one for one in caplog.records if "ERR bad" in one.message]) < 5


async def test_no_request_waits_for_a_script(server: Server, rig: Rig) -> None:
    """Whatever dimensions requests have, and after another policy came: all scripts they need are there."""
    limits = f"{USER}\n    device: [{{name: a, limit: 9, window: 1h, algorithm: gcra}}]"
    asked = ({"user": "u"}, {"device": "d"}, {"user": "u", "device": "d"}, {"ip": "192.0.2.1"})
    async with rig.open(policy(limits, scenario("closed", "5s"))) as limiter:
        for subjects in asked:
            await limiter.decide(request(subjects=subjects))
        limiter.replace_policy(policy(limits.replace("gcra", "token_bucket"), scenario("closed", "5s")))
        assert limiter._loading is not None
        await limiter._loading
        for subjects in asked:
            await limiter.decide(request(subjects=subjects))
    assert b"NOSCRIPT" not in server.call("INFO", "errorstats")


async def test_what_several_processes_grant_without_redis() -> None:
    """Four that each grant a quarter grant together what Redis would; with the default half of it, twice as much."""
    granted = {}
    for percent in (25, 50):
        settings = Settings(redis_url="redis://127.0.0.1:1/0", local_percent=percent)
        limits = policy("user: [{name: a, limit: 20, window: 1h}]", scenario("local"))
        processes = [InlineLimiter.open(settings, limits) for _ in range(4)]
        verdicts = [await one.decide(request()) for one in processes for _ in range(20)]
        granted[percent] = sum(verdict.allowed for verdict in verdicts)
        assert {verdict.reason for verdict in verdicts} == {"local_fallback"}
        for one in processes:
            await one.close()
    assert granted == {25: 20, 50: 40}
