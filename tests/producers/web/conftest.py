"""What the tests of the ways in share."""

from __future__ import annotations

import pytest

from tests.producers.web.shop import RefundingLimiter


@pytest.fixture
def limiter() -> RefundingLimiter:
    """A limiter in memory that remembers what was refunded."""
    return RefundingLimiter()
