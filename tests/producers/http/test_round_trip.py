"""From an HTTP request to its answer, with a real limiter in between."""

from __future__ import annotations

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.producers.http.answers import AnswerOptions, Jitter, answer
from penaltybox.producers.http.requests import Facts, RequestReader
from penaltybox.producers.memory import MemoryLimiter

NOW = 1_766_400_000_000
POLICY = parse_policy("""
limits:
  claim:
    user: [{name: daily, limit: 2, window: 1d}, {name: tried, limit: 1, window: 1h, dry_run: true}]
    ip: [{name: soft, limit: 9, window: 1m, answer: challenge}]
  bonus: {user: [{name: a, limit: 1, window: 1h, answer: shadow}]}
  upload: {device: [{name: a, limit: 1, window: 1h}]}
scenarios:
  claim: {routes: [POST /claim]}
  bonus: {routes: [/bonus]}
  upload: {routes: [/upload], missing: {device: refuse}}
""")
PLAIN = AnswerOptions(jitter=Jitter(0, 0, 0))


async def test_a_user_is_told_his_quota_until_it_is_gone() -> None:
    """Two claims a day: one left, none left, refused with the day that is left; each is what the limiter counted."""
    limiter, reader = MemoryLimiter(POLICY), RequestReader(POLICY)
    told = []
    for second in range(3):
        request = reader.read(Facts("POST", "/claim", peer="192.0.2.1"), NOW + second * 1000, user="7").request
        told.append(answer(await limiter.decide(request), POLICY.scenario("claim"), PLAIN))
    assert [one.status for one in told] == [None, None, 429]
    states = [dict(one.headers)["RateLimit"].partition(",")[0] for one in told]
    assert states == ['"user:daily";r=1;t=86400', '"user:daily";r=0;t=86400', '"user:daily";r=0;t=86398']
    assert dict(told[2].headers)["Retry-After"] == "86398"
    assert "tried" not in str(told)


async def test_a_withheld_bonus_looks_like_a_granted_one() -> None:
    """The second bonus is a false success; status, fields and body are those of the first."""
    limiter, reader = MemoryLimiter(POLICY), RequestReader(POLICY)
    request = [reader.read(Facts("GET", "/bonus", peer="192.0.2.1"), NOW, user="7").request for _ in range(2)]
    first, second = [answer(await limiter.decide(one), POLICY.scenario("bonus")) for one in request]
    assert (first.withheld, second.withheld) == (False, True)
    assert first._replace(withheld=True) == second._replace(message="")


async def test_a_useless_device_id_is_a_missing_one() -> None:
    """The scenario refuses requests without a device; one of zeros is none."""
    limiter, reader = MemoryLimiter(POLICY), RequestReader(POLICY)
    asked = reader.read(Facts("POST", "/upload", [("X-Device-Id", "0" * 32)], "192.0.2.1"), NOW)
    told = answer(await limiter.decide(asked.request), POLICY.scenario("upload"))
    assert (told.status, asked.ignored) == (400, ("device:everybodys",))
