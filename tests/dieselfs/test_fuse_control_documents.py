"""What `stats.json` says, with a fast path and without."""

import json
from typing import Any

from dieselfs.fuse.control_documents import statistics_document
from dieselfs.fuse.file_reader import ReaderStatistics
from dieselfs.fuse.statistics import FastPathStatistics, StoredAhead
from dieselfs.node_memory.master_port import MemoryStatistics
from dieselfs.node_memory.node_memory import NodeMemoryStatistics

CACHE = NodeMemoryStatistics(7, 2, 1, 3, 12288, 1, MemoryStatistics(fetched_bytes=4096))


def document(*more: FastPathStatistics) -> dict[str, Any]:
    text = statistics_document(
        {"read": 9, "lookup": 1}, ReaderStatistics(900, 2, 1, 0.25), CACHE, 1.23456, *more
    )
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_without_a_fast_path_python_has_answered_everything() -> None:
    shown = document()
    assert shown["requests"] == shown["requests_in_python"] == {"lookup": 1, "read": 9}
    assert (shown["bytes_read"], shown["hits"]) == (900, {"node_memory": 7, "store": 2})
    assert shown["other_reads"] == {"control": 0, "past_end": 0, "refused": 0}
    assert (shown["waits_over_1_ms"], shown["waited_s"]) == (1, 0.25)
    assert shown["fast_path"]["active"] is False
    assert isinstance(shown["fast_path"]["reason"], str)
    assert set(shown["stored_ahead"].values()) == {0}
    assert (shown["uptime_s"], shown["reads_through_threads"]) == (1.235, 2)
    assert shown["cache"]["node"]["fetched_bytes"] == 4096
    assert (shown["plan"], shown["store"]) == (None, {})


def test_what_the_fast_path_answered_is_added() -> None:
    shown = document(
        FastPathStatistics(
            active=True,
            reason=None,
            threads=4,
            requests={"read": 100, "getattr": 5},
            node_memory_hits=100,
            bytes_read=10_000,
            stored_ahead=StoredAhead(files=63, bytes=64_000, chunks=1, read_without_request=60),
        )
    )
    assert shown["fast_path"] == {"active": True, "reason": None, "threads": 4}
    assert shown["requests"] == {"getattr": 5, "lookup": 1, "read": 109}
    assert shown["requests_in_python"] == {"lookup": 1, "read": 9}
    assert (shown["bytes_read"], shown["hits"]["node_memory"]) == (10_900, 107)
    assert shown["stored_ahead"]["files"] == 63
    assert shown["stored_ahead"]["read_without_request"] == 60


def test_each_read_is_accounted_for_once() -> None:
    text = statistics_document(
        {"read": 19},
        ReaderStatistics(thread_reads=4, past_end=5, refused=2),
        CACHE,
        1.0,
        FastPathStatistics(active=True, requests={"read": 103}, node_memory_hits=100),
        control_reads=3,
    )
    shown = json.loads(text)
    assert shown["hits"] == {"node_memory": 107, "store": 2}
    assert shown["other_reads"] == {"control": 3, "past_end": 8, "refused": 2}
    accounted = sum(shown["hits"].values()) + sum(shown["other_reads"].values())
    assert accounted == shown["requests"]["read"] == 122


def test_a_kind_that_was_counted_at_zero_or_an_odd_cache_is_no_trouble() -> None:
    shown = json.loads(statistics_document({"read": 0}, ReaderStatistics(), object(), 0.0))
    assert (shown["cache"], shown["hits"]["node_memory"]) == ({}, 0)
