"""States that this release cannot read."""

from __future__ import annotations

import pytest

from penaltybox.contracts.errors import PenaltyboxError
from penaltybox.processors.state import decode_state
from tests.processors.worker_driver import Rig, denials


@pytest.mark.parametrize(
    "blob", [b"", b"junk", b"\x02" + b"x" * 30, b"\x01", b"\x01\xff\xff", b"\x01" + b"\x91" * 5000]
)
def test_what_cannot_be_read_is_a_sentence_that_names_the_subject(blob: bytes) -> None:
    """Whoever finds a worker that will not start needs to know which key it is."""
    with pytest.raises(PenaltyboxError, match="user:1"):
        decode_state(blob, "user:1")


async def test_a_worker_that_meets_one_says_whose_it_is() -> None:
    """It ends, and overwrites nothing: a newer release may have written it."""
    rig = Rig()

    async def read(subjects: list[str]) -> list[bytes | None]:
        return [b"junk" for _ in subjects]

    rig.worker._store.read = read  # type: ignore[method-assign]
    with pytest.raises(PenaltyboxError, match="user:u1"):
        await rig.take(*denials(1))
