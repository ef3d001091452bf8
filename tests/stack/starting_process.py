"""A role as `penaltybox run` starts it, held back in the middle of its start: `ROLE SETTINGS_JSON FOLDER`.

When the consumer's thread is about to connect, it makes FOLDER/ready, and goes on when FOLDER/go is there.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from importlib import import_module
from pathlib import Path

import msgspec

from penaltybox.contracts.settings import Settings
from penaltybox.processors.transport import ConsumerThread
from tests.waiting import wait_until


def hold_back(folder: Path) -> None:
    """Have the consumer's thread ask before it connects."""
    on_start = ConsumerThread.on_start

    async def held(self: ConsumerThread) -> None:
        await asyncio.to_thread((folder / "ready").touch)
        await wait_until((folder / "go").exists, 120)
        await on_start(self)

    ConsumerThread.on_start = held  # type: ignore[method-assign]


def main() -> None:
    role, settings, folder = sys.argv[1], msgspec.json.decode(sys.argv[2], type=Settings), Path(sys.argv[3])
    logging.basicConfig(level=logging.INFO)
    hold_back(folder)
    import_module(f"penaltybox.processors.{role}").main(settings)


if __name__ == "__main__":
    main()
