"""What the hooks' tests share: a publisher whose decisions are read back as workers read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.decoding import decode_decision
from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.subjects import Canonicaliser

if TYPE_CHECKING:
    from collections.abc import Sequence


class Published(list[Decision]):
    """Keeps what a worker would understand; fails for what would be a dead letter."""

    broken = False

    def offer(self, record: Decision) -> None:
        if self.broken:
            raise RuntimeError("no publisher")
        self.append(decode_decision(encode(record), now_ms(), Canonicaliser()))

    @property
    def told(self) -> Sequence[tuple[str, dict[str, str], tuple[str, ...]]]:
        return [(one.action, dict(one.subjects), one.violated) for one in self]


@pytest.fixture
def published() -> Published:
    return Published()
