"""`engine`: decisions/s through decoding and stepping alone, default policy; its peer is msgspec's decoding alone."""

from __future__ import annotations

import gc
import time
from typing import NamedTuple

import msgspec

from benchmarks.stack import report
from benchmarks.workload import encoded
from penaltybox.contracts.clock import now_ms
from penaltybox.contracts.events import Decision
from penaltybox.contracts.settings import Settings
from penaltybox.contracts.topics import TOPICS
from penaltybox.processors.cycle import Run
from penaltybox.processors.garbage import collect_seldom
from penaltybox.processors.huge_pages import advise
from penaltybox.processors.intake import decode_run, step_events
from penaltybox.processors.penalties import make_engine
from penaltybox.processors.residents import Resident, Residents
from penaltybox.processors.state import SubjectState

COUNT = 400_000
WARM = 200_000
SLICE = 1000
ROUNDS = 3


class Record(NamedTuple):
    """A record as fetched."""

    offset: int
    timestamp: int
    value: bytes


def stepping(records: list[Record]) -> float:
    """Decisions/s once all subjects are known, after the first `WARM` records."""
    engine = make_engine(Settings())
    residents = Residents(200_000, lambda: ())
    run = Run(TOPICS.decisions, 0, records, lambda: None)
    start = time.perf_counter()
    for first in range(0, len(records), SLICE):
        if first == WARM:
            advise()
            start = time.perf_counter()
        decoded, _ = decode_run(engine, TOPICS, run, records[first : first + SLICE], now_ms())
        for subject in residents.missing(engine, decoded):  # what a read of nothing would do
            residents.settle(subject, Resident(SubjectState.fresh(subject), time.monotonic()))
        stepped = step_events(engine, residents, decoded, time.monotonic())
        verified_s = time.monotonic()
        for resident in stepped.queued:  # what a write, or a look at the stored version, would do to it
            resident.verified_s = verified_s
            resident.kept = ()
            resident.queued = resident.dirty = resident.urgent = resident.renew = False
            resident.state.outbox = []
    return (len(records) - WARM) / (time.perf_counter() - start)


def decoding(records: list[Record]) -> float:
    """Decisions/s of msgspec alone: the raw limit."""
    decode = msgspec.json.Decoder(Decision).decode
    start = time.perf_counter()
    for record in records:
        decode(record.value)
    return len(records) / (time.perf_counter() - start)


def main() -> None:
    """Best of three rounds, both ways in turns."""
    for mix in ("uniform", "zipf"):
        at = now_ms()
        records = [Record(offset, at, value) for offset, (_, value) in enumerate(encoded(COUNT, at, mix=mix))]
        gc.collect()
        collect_seldom()  # as a worker does
        rates = [(stepping(records), decoding(records)) for _ in range(ROUNDS)]
        value, peer = max(rate[0] for rate in rates), max(rate[1] for rate in rates)
        report("engine" if mix == "uniform" else f"engine_{mix}", value, "decisions/s", "msgspec decode alone", peer)


if __name__ == "__main__":
    main()
