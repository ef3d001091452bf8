"""What every hook does with a decision: told as it is, of nobody else, and never in the request's way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.errors import ConfigurationError
from penaltybox.producers.hooks.telling import Limit, Teller, by_prefix, of

if TYPE_CHECKING:
    from tests.producers.hooks.conftest import Published


def test_a_decision_about_several_limits(published: Published) -> None:
    """One record: all subjects, all limits that were over, the figures of the first of them."""
    teller = Teller(published, by_prefix("user", "ip"), scenario="web")
    teller.tell(
        [Limit("ip:192.0.2.1", 100, 60, over=False), Limit("user:10086", 3, 86_400, over=True)],
        limiter="x", route="POST /claim", retry_after_s=12,
    )  # fmt: skip
    (one,) = published
    assert (one.action, one.reason, one.violated) == ("deny", "over_limit", ("user:3_per_86400s",))
    assert one.subjects == {"ip": "192.0.2.1", "user": "10086"}
    assert (one.limit, one.window_s, one.remaining, one.retry_after_s, one.status) == (3, 86_400, 0, 12, 429)
    assert (one.scenario, one.route) == ("web", "POST /claim")
    assert one.source.startswith("x/")


def test_keys_of_nobody_are_not_told(published: Published) -> None:
    """A key without a prefix, of another dimension, or empty: no subject is guessed."""
    teller = Teller(published, by_prefix("user"))
    for key in ("10086", "ip:192.0.2.1", "user:", ""):
        teller.tell([Limit(key, 1, 1, over=True)], limiter="x")
    assert (list(published), teller.untold) == ([], 4)
    Teller(published, of("user")).tell([Limit("ip:192.0.2.1", 1, 1, over=True)], limiter="x")
    assert published[0].subjects == {"user": "ip:192.0.2.1"}


def test_a_hook_never_fails(published: Published, caplog: pytest.LogCaptureFixture) -> None:
    """A broken publisher and a broken mapping cost a count and few lines of log, never an exception."""
    teller = Teller(published, of("user"))
    published.broken = True
    for _ in range(100):
        teller.tell([Limit("u", 1, 1, over=True)], limiter="x")
    assert teller.untold == 100
    assert len(caplog.records) == 7

    def wrong(key: str) -> dict[str, str]:
        raise KeyError(key)

    Teller(published, wrong).tell([Limit("u", 1, 1, over=True)], limiter="x")


@pytest.mark.parametrize(("share", "most"), [(0.0, 0), (0.5, 99), (1.0, 100)])
def test_allows_can_be_sampled_and_denials_never(published: Published, share: float, most: int) -> None:
    """Of allowed requests the share is told, and says so; every denial is."""
    teller = Teller(published, of("user"), allows=share)
    for _ in range(100):
        teller.tell([Limit("u", 1, 1, over=False)], limiter="x")
        teller.tell([Limit("u", 1, 1, over=True)], limiter="x")
    allows = [one for one in published if one.action == "allow"]
    assert len(published) - len(allows) == 100
    assert len(allows) <= most
    assert {one.sample_rate for one in allows} <= ({None} if share == 1 else {share})


def test_mistakes_are_told_at_the_start(published: Published) -> None:
    """A share that is none, a dimension that has no name."""
    with pytest.raises(ConfigurationError, match="wanted a share"):
        Teller(published, of("user"), allows=2)
    with pytest.raises(ConfigurationError, match="dimension"):
        of("no dimension")


@pytest.mark.parametrize("user", ["x" * 129, "a\x00b", "\ud800", "\u202e", None, ""])
def test_a_key_that_cannot_be_hides_no_other_one(published: Published, user: str | None) -> None:
    """What a client types makes no dead letter of its address' denial; alone it is told of nobody."""
    teller = Teller(published, lambda key: {"user": user, "ip": key} if key else {"user": user})  # type: ignore[dict-item, return-value]
    teller.tell([Limit("192.0.2.1", 1, 60, over=True)], limiter="x", cost=1 << 40)
    assert published.told == [("deny", {"ip": "192.0.2.1"}, ("ip:1_per_60s",))]
    teller.tell([Limit("", 1, 60, over=True)], limiter="x")
    assert (len(published), teller.untold) == (1, 1)


def test_no_name_of_a_use_hides_a_key(published: Published) -> None:
    """A scenario or route that a program makes of what a client sent leaves a record that workers take."""
    for text in ("\u202e", "a\x1b[31m", "\udcff", "x" * 5000):
        Teller(published, of("user")).tell([Limit("u", 1, 1, over=True)], limiter="x", scenario=text, route=text)
    assert [(one.subjects, len(one.scenario), len(one.route)) for one in published] == [
        ({"user": "u"}, *lengths) for lengths in ((1, 1), (6, 6), (1, 1), (128, 256))
    ]


def test_a_number_is_a_key(published: Published) -> None:
    """Ids of users are often numbers."""
    Teller(published, lambda key: {"user": int(key)}).tell([Limit("10086", 1, 60, over=True)], limiter="x")  # type: ignore[dict-item]
    assert published[0].subjects == {"user": "10086"}
