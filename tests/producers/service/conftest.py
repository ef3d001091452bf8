"""A desk on a limiter in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.subjects import parse_subject
from penaltybox.producers.http.requests import RequestReader
from penaltybox.producers.memory import MemoryLimiter
from penaltybox.producers.service.desk import Desk
from tests.producers.service.asgi import Client

if TYPE_CHECKING:
    from penaltybox.contracts.events import Decision, Outcome

POLICY = """
limits:
  login: {ip: [{name: soft, limit: 1, window: 1m, answer: challenge}]}
  coupon_claim: {user: [{name: daily, limit: 2, window: 1d}]}
  spin: {ip: [{name: few, limit: 1, window: 1m, answer: shadow}]}
  web: {ip: [{name: pages, limit: 3, window: 1m}]}
scenarios:
  login: {routes: [POST /login], messages: {challenge: {en: "Are you real?", de: "Prüfung, bitte"}}}
  spin: {routes: [/spin]}
  web: {routes: [/], failure: closed}
"""


class Published(list["Decision | Outcome"]):
    """A publisher that keeps what it is given."""

    def offer(self, record: Decision | Outcome) -> None:
        self.append(record)


@pytest.fixture
def published() -> Published:
    return Published()


@pytest.fixture
def desk(published: Published) -> Desk:
    policy = parse_policy(POLICY)
    settings = Settings(trusted_proxies=("127.0.0.1", "10.0.0.0/8"))
    return Desk(
        MemoryLimiter(policy, publisher=published),
        policy,
        RequestReader.of(settings, policy, header="X-Forwarded-For"),
        canonical=parse_subject,
        publisher=published,
    )


@pytest.fixture
def client(desk: Desk) -> Client:
    return Client(desk)
