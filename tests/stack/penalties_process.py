"""The role `penalties` as a process that can be told where to die: `SETTINGS_JSON SEAM:N SIGN [JOURNAL]`.

At the Nth time that it comes to the seam it kills itself with SIGKILL (`-`: never). It makes the file SIGN when it has
got partitions. With JOURNAL it notes each successful write, as `tests.stack.journal` reads it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from penaltybox.contracts.settings import Settings
from penaltybox.processors import penalties
from penaltybox.processors.writer import Writer
from penaltybox.sinks.subject_store import Written
from tests.stack.journal import Written as Line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penaltybox.processors.seams import SeamName
    from penaltybox.processors.writer import News, Sent
    from penaltybox.sinks.subject_store import WriteResult


class Death:
    """SIGKILL at the Nth call of one seam."""

    def __init__(self, place: str) -> None:
        self.seam, _, times = place.partition(":")
        self.left = int(times or 0)

    def __call__(self, name: SeamName) -> None:
        if name == self.seam:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def ids_of(sent: Sent) -> list[str]:
    return [event.id for _, event, *_ in sent.resident.sent]


def keep_journal(path: Path) -> None:
    """Have every successful write noted: one JSON line per subject, written before anything else happens."""
    journal = path.open("ab", buffering=0)
    absorb = Writer._absorb

    def noting(self: Writer, sent: list[Sent], results: Sequence[WriteResult], news: list[News], todo: Any) -> None:
        lines = [
            msgspec.json.encode(Line(one.write.subject, result.number, ids_of(one), self.engine.version))
            for one, result in zip(sent, results, strict=True)
            if type(result) is Written
        ]
        journal.write(b"".join(line + b"\n" for line in lines))
        absorb(self, sent, results, news, todo)

    Writer._absorb = noting  # type: ignore[method-assign]


def give_sign(path: Path) -> None:
    """Have the file made when the first partitions have come."""
    make_app = penalties.penalties_app

    def made(*args: Any, **options: Any) -> Any:
        app = make_app(*args, **options)

        async def assigned(_app: Any, assigned: set[Any], **_: Any) -> None:
            if assigned:
                await asyncio.to_thread(path.touch)

        app.on_partitions_assigned.connect(assigned, weak=False)
        return app

    penalties.penalties_app = made


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=Settings)
    death = Death(sys.argv[2])
    give_sign(Path(sys.argv[3]))
    if len(sys.argv) > 4:
        keep_journal(Path(sys.argv[4]))
    run = penalties.run_penalties
    penalties.run_penalties = lambda values, **given: run(values, seam=death, **given)  # type: ignore[assignment]
    penalties.main(settings)


if __name__ == "__main__":
    main()
