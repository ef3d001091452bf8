"""Who is listed: subjects, ranges, and the combinations that they are part of."""

from __future__ import annotations

import pytest
from msgspec import structs

from penaltybox.contracts.allowlist import Allowlist
from penaltybox.contracts.policy_file import parse_policy
from tests.oracle.sight import allowlisted
from tests.processors.worker_driver import T0, Rig, denial

ALLOW = "allow: ['user:ceo', 'device+user:d9+u9', {cidr: 203.0.113.0/24}, {cidr: '2001:db8::/48'}]"


@pytest.mark.parametrize(
    ("subject", "listed"),
    [
        ("user:ceo", True),
        ("device+user:d1+ceo", True),
        ("device+user:d9+u9", True),
        ("device+user:d9+u8", False),
        ("user:u9", False),
        ("device+user:ceo+u1", False),
        ("ip+route:203.0.113.7+%2Fa", True),
        ("ip+route:198.51.100.7+%2Fa", False),
        ("ip+user:2001:db8::/64+u1", True),
        ("ip+user:2001:db9::/64+u1", False),
        ("device+scenario:203.0.113.7+login", False),
    ],
)
def test_a_combination_with_a_listed_part_is_listed(subject: str, listed: bool) -> None:
    """Nothing happens to a listed subject, also not by way of a rule on a combination; the oracle agrees."""
    policy = parse_policy(ALLOW)
    assert Allowlist(policy.allow).covers(subject, T0) is listed
    assert allowlisted(policy, subject, T0) is listed


async def test_a_rule_on_a_combination_spares_whom_the_list_names() -> None:
    """The same denials block somebody else."""
    rig = Rig(policy=f"rules: {{r: {{on: device+user, count: 3, window: 10m, then: {{level: 5m}}}}}}\n{ALLOW}")
    async with rig.running():
        for user in ("ceo", "u1"):
            await rig.take(
                *(
                    structs.replace(
                        denial(number, subjects={"user": user, "device": "d1"}), violated=("device+user:x",)
                    )
                    for number in range(1, 5)
                )
            )
        await rig.settled()
    assert {penalty.subject for penalty in rig.sender.penalties()} == {"device+user:d1+u1"}
