"""docs/policy.md against the readers of the policy file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from penaltybox.contracts.policy_file import parse_policy
from penaltybox.contracts.policy_yaml import Node

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "policy.md").read_text(encoding="utf-8")
EXAMPLE = "\n".join(re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))


def test_the_page_shows_every_key_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's examples are one valid policy in which every key that a reader accepts stands somewhere."""
    accepted: dict[tuple[str, ...], set[str]] = {}
    plain = Node.mapping

    def noting(self: Node, allowed: Iterable[str]) -> Node:
        known = tuple(allowed)
        used = accepted.setdefault(known, set())
        if isinstance(self.value, dict):
            used.update(str(key) for key in self.value)
        return plain(self, known)

    monkeypatch.setattr(Node, "mapping", noting)
    policy = parse_policy(EXAMPLE, "docs/policy.md")
    assert {rule.name for rule in policy.rules} == {"device_farm", "user_abuse", "stuffing", "odd_hours"}
    unshown = {key for known, used in accepted.items() for key in known if key not in used}
    assert unshown <= {"step"}, "keys that the examples lack"
    assert len(accepted) >= 12, "the readers' mappings were seen"


def test_the_tables_name_every_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key stands in a table or a heading too, with what it means."""
    keys: set[str] = set()
    plain = Node.mapping
    monkeypatch.setattr(
        Node, "mapping", lambda self, allowed: (keys.update(known := tuple(allowed)), plain(self, known))[1]
    )
    parse_policy(EXAMPLE)
    told = re.sub(r"^```yaml\n.*?^```", "", PAGE, flags=re.MULTILINE | re.DOTALL)
    assert {key for key in keys if not re.search(rf"`[^`\n]*\b{key}\b[^`\n]*`", told)} == set()
