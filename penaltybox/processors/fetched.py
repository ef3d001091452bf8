"""Records of Kafka as they were parsed, without aiokafka's wrapping: several hundred thousand a second."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from aiokafka.consumer.fetcher import FetchResult


class FetchedRecords(OrderedDict[Any, Any]):
    """aiokafka's store of fetch results, in which those of run topics yield bare records.

    A bare record is what the parser made; aiokafka would put an 11-field frozen dataclass around each, which costs
    more than parsing it.
    """

    def __init__(self, run_topics: frozenset[str]) -> None:
        super().__init__()
        self._run_topics = run_topics

    def __setitem__(self, partition: Any, result: Any) -> None:
        if type(result) is FetchResult and partition.topic in self._run_topics:
            result._partition_records._consumer_record = bare_record  # noqa: SLF001 - no public way, tested
        super().__setitem__(partition, result)


def bare_record(_partition: object, record: Any) -> Any:
    """Stand-in for aiokafka's wrapping: the record as it was parsed."""
    return record
