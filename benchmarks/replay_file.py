"""`replay_file`: decisions/s of a replay from JSON lines, one policy, one process; its peer is reading and decoding.

`memory` instead gives `replay_rss_mb`: the memory after ten million decisions of 200,000 subjects.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from benchmarks.stack import report
from benchmarks.workload import decisions
from penaltybox.cli.replay_job import Job, run_job
from penaltybox.contracts.events import Decision, encode
from penaltybox.contracts.policy_file import default_policy_path, load_policy
from penaltybox.contracts.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penaltybox.processors.replay.loop import Progress

NOW = 1_766_400_000_000
COUNT, WARM = 1_000_000, 300_000
ROUNDS = 3
MANY = 10_000_000
USERS, DEVICES, ADDRESSES = 80_000, 80_000, 40_000


def write(path: Path, mix: str) -> None:
    """The usual mix as a file."""
    with path.open("wb") as file:
        for decision in decisions(COUNT, NOW, mix=mix):
            file.write(encode(decision) + b"\n")


def replaying(path: Path) -> float:
    """Decisions/s once all subjects are known."""
    times: list[tuple[float, int]] = []

    def note(far: Progress) -> None:
        times.append((time.perf_counter(), far.decisions))

    job = Job(Settings(), load_policy(default_policy_path()), source=str(path))
    asyncio.run(run_job(job, report=note))
    begin = next(one for one in times if one[1] >= WARM)
    return (times[-1][1] - begin[1]) / (times[-1][0] - begin[0])


def decoding(path: Path) -> float:
    """Decisions/s of reading lines and msgspec's decoding, and nothing else."""
    decode, number = msgspec.json.Decoder(Decision).decode, 0
    start = time.perf_counter()
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):  # noqa: B007 - how many there were
            decode(line)
    return number / (time.perf_counter() - start)


def rates(folder: Path) -> None:
    """Best of three rounds of each mix, both ways in turns."""
    for mix in ("uniform", "zipf"):
        path = folder / f"{mix}.jsonl"
        write(path, mix)
        found = [(replaying(path), decoding(path)) for _ in range(ROUNDS)]
        value, peer = max(one[0] for one in found), max(one[1] for one in found)
        name = "replay_file" if mix == "uniform" else f"replay_file_{mix}"
        report(name, value, "decisions/s", "reading lines + msgspec decode alone", peer)
        path.unlink()


def lines(count: int) -> Iterator[bytes]:
    """Lines as our publishers write them, of 200,000 subjects, over ten hours."""
    chance = random.Random(7)
    for number in range(count):
        user = chance.randrange(USERS)
        denied = chance.random() < 0.2
        answer = '"deny","reason":"over_limit","violated":["user:daily"]' if denied else '"allow"'
        yield (
            f'{{"v":1,"id":"01K3ZB5Q0V{number:016d}","ts":{NOW + number * 36_000_000 // count},'
            f'"source":"checkout/edge-1","scenario":"coupon_claim","action":{answer},'
            f'"subjects":{{"user":"u{user}","device":"d{user % DEVICES}","ip":"10.0.{user % ADDRESSES >> 8}.'
            f'{user % ADDRESSES & 255}"}},"route":"POST /coupons/{{id}}/claim"}}\n'
        ).encode()


def memory(folder: Path, count: int) -> None:
    """The process's memory at its highest, and how much of that it has without a replay."""
    path = folder / "many.jsonl"
    with path.open("wb") as file:
        for line in lines(count):
            file.write(line)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    marks: list[float] = []

    def note(far: Progress) -> None:
        if far.decisions >= (len(marks) + 1) * count // 10:
            marks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)

    job = Job(Settings(), load_policy(default_policy_path()), source=str(path))
    result = asyncio.run(run_job(job, report=note))
    report("replay_rss_mb", marks[-1], "MB", "after a tenth of it", marks[0])
    report("replay_rss_before_mb", before, "MB")
    report("replay_rss_rate", result.decisions / result.seconds, "decisions/s")


def main(arguments: list[str]) -> None:
    """Rates, or the memory."""
    with tempfile.TemporaryDirectory(prefix="pbx-bench-") as folder:
        if arguments[:1] == ["memory"]:
            memory(Path(folder), int(arguments[1]) if len(arguments) > 1 else MANY)
        else:
            rates(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
