"""Breakers: one probe at a time, and each node for itself."""

from __future__ import annotations

import pytest

from penaltybox.producers.breakers import Breaker, Breakers


def test_the_breaker_lets_one_probe_through_at_a_time() -> None:
    """Open after a failure; then one request per pause, which doubles up to a second; closed by an answer."""
    breaker = Breaker(first_pause_s=0.1, longest_pause_s=0.3)
    assert breaker.admits(10.0, 0.02)
    breaker.failed(10.02, asked_at_s=10.0)
    assert [breaker.admits(10.0 + t / 100, 0.02) for t in (3, 11, 12, 13, 20)] == [False, False, True, False, False]
    breaker.failed(10.14, asked_at_s=10.01)
    assert not breaker.admits(10.16, 0.02), "one who had asked before it opened is no news"
    breaker.failed(10.15, asked_at_s=10.12)
    assert [breaker.admits(at, 0.02) for at in (10.34, 10.36)] == [False, True]
    breaker.failed(10.38, asked_at_s=10.36)
    assert breaker.wait_s(10.38) == pytest.approx(0.3)
    assert breaker.admits(10.69, 0.02)
    breaker.succeeded()
    assert breaker.admits(10.7, 0.02)
    assert breaker.wait_s(10.7) == 0
    assert breaker.openings == 1


def test_a_probe_that_is_never_heard_of_again_blocks_nobody() -> None:
    """Its caller gave up: when its deadline and a pause have passed, another one goes."""
    breaker = Breaker(first_pause_s=0.1)
    breaker.failed(1.0, asked_at_s=0.9)
    assert breaker.admits(1.2, 0.5)
    assert not breaker.admits(1.6, 0.5)
    assert breaker.admits(1.75, 0.5)


def test_a_node_that_fails_is_no_news_of_the_others() -> None:
    """Who needs only other nodes asks on; who needs it as well does not, and spends no probe of another one."""
    breakers = Breakers()
    breakers.failed("a", 1.0, asked_at_s=0.9)
    assert breakers.admits(["b", "c"], 1.0, 0.02)
    assert not breakers.admits(["a", "b"], 1.0, 0.02)
    breakers.failed("b", 1.05, asked_at_s=1.0)
    assert not breakers.admits(["a", "b"], 1.06, 0.02), "a is due, b is not"
    assert breakers.admits(["a"], 1.06, 0.02), "its probe was not spent"
    assert not breakers.admits(["a"], 1.07, 0.02)
    assert breakers.wait_s(["a", "c"], 1.07) == pytest.approx(0.01)
    breakers.succeeded("a")
    assert list(breakers.nodes) == ["b"]
    assert breakers.openings == 2
    breakers.keep({"a", "c"})
    assert not breakers.open
