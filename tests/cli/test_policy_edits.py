"""Steps written into the text of a policy file."""

from __future__ import annotations

import pytest

from penaltybox.cli.policy_edits import candidate
from penaltybox.contracts.policy_file import default_policy_path, parse_policy
from penaltybox.processors.softening import Figure, propose

BLOCK = """\
# ours
limits:
  shop:
    user:
      - name: daily     # a promise
        limit: 3        # a day
        window: 1d
    "device": [{name: d, limit: 5, window: 1d, 'answer': "challenge"}]
rules:
  farm:
    on: device
    distinct: user
    n: 4    # four
    window: 10m
    then:   # ask
      level: 1h   # an hour

  abuse: {on: user, count: 20, window: 10m, then: step}
"""
WANTED = """\
# ours
limits:
  shop:
    user:
      - name: daily     # a promise
        answer: challenge
        limit: 3        # a day
        window: 1d
    "device": [{name: d, limit: 8, window: 1d, 'answer': "challenge"}]
rules:
  farm:
    on: device
    distinct: user
    n: 4    # four
    window: 10m
    then:   # ask
      challenge: 1h   # an hour

  abuse: {on: user, count: 30, window: 10m, then: step}
"""
ALIASED = """\
limits:
  a: {user: &same [{name: daily, limit: 3, window: 1d}]}
  b: {user: *same}
"""


def over(*names: str) -> list[Figure]:
    """Figures that are far over any target."""
    return [
        Figure(kind="limit" if "/" in name else "rule", name=name, episodes=200, immature=0, independent=200.0,
               labelled=200, legitimate=190.0)
        for name in names
    ]  # fmt: skip


def test_only_the_values_change() -> None:
    """Comments, order, quotes and blank lines stay, in block and in flow style."""
    policy = parse_policy(BLOCK)
    findings = propose(policy, over("shop/user:daily", "shop/device:d", "farm", "abuse"), needed={})
    made = candidate(policy, BLOCK, findings)
    assert made.text == WANTED
    assert made.kept
    assert parse_policy(made.text) == made.policy


def test_one_side_of_an_alias_is_written_anew() -> None:
    """A step that an alias would carry elsewhere too is not spliced: the file is written anew and says so."""
    policy = parse_policy(ALIASED)
    made = candidate(policy, ALIASED, propose(policy, over("b/user:daily"), needed={}))
    assert not made.kept
    assert made.text.startswith("# Written anew")
    found = parse_policy(made.text)
    assert found == made.policy
    assert (found.limits["a"]["user"][0].answer, found.limits["b"]["user"][0].answer) == ("deny", "challenge")


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_default_policy_keeps_its_comments(line_end: str) -> None:
    """Every step that the default policy allows is one line that changes, whatever ends its lines."""
    text = default_policy_path().read_text(encoding="utf-8").replace("\n", line_end)
    policy = parse_policy(text)
    names = ["coupon_claim/user:daily", "login/device:burst", "login/login_name:burst", "web/ip:pages"]
    findings = propose(policy, over(*names, *(rule.name for rule in policy.rules)), needed={})
    assert all(found.step for found in findings)
    made = candidate(policy, text, findings)
    assert made.kept
    pairs = list(zip(text.split("\n"), made.text.split("\n"), strict=True))
    assert sum(one != other for one, other in pairs) == len(findings)


def test_without_a_step_the_text_is_the_same() -> None:
    """Nothing proposed, nothing changed."""
    policy = parse_policy(BLOCK)
    assert candidate(policy, BLOCK, []) == (policy, BLOCK, True)
