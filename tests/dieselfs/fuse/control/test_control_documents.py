"""What `stats.json` and `dataset.json` say."""

import json
from typing import Any

from dieselfs.cache.ports.master_port import MemoryStatistics
from dieselfs.cache.task.node_memory_statistics import NodeMemoryStatistics
from dieselfs.fuse.control.control_documents import ServerStatistics, statistics_document
from dieselfs.fuse.mounts.front_choice import Front, FrontChoice
from dieselfs.fuse.pages.page_statistics import (
    FillStatistics,
    MissPrefillStatistics,
    PageCacheStatistics,
)
from dieselfs.fuse.requests.file_reader import ReaderStatistics

CACHE = NodeMemoryStatistics(7, 2, 1, 3, 12288, 1, MemoryStatistics(fetched_bytes=4096))


FRONT = FrontChoice(Front.LOOP, False, "on Linux 5.16", "a newer one")


def document(**changed: Any) -> dict[str, Any]:
    server = ServerStatistics(
        changed.pop("uptime_s", 1.23456),
        FRONT,
        changed.pop("requests", {"read": 9, "lookup": 1}),
        changed.pop("control_reads", 0),
        changed.pop("reader", ReaderStatistics(900, 2, 1, 0.25)),
    )
    tiers: dict[str, Any] = {"cache": CACHE, "page_cache": PageCacheStatistics()}
    tiers |= dict.fromkeys(["plan", "store", "peers", "ssd", "cache_cluster"])
    parsed: dict[str, Any] = json.loads(statistics_document(server, tiers | changed))
    return parsed


def test_what_was_answered_is_counted() -> None:
    shown = document()
    assert shown["requests"] == {"lookup": 1, "read": 9}
    assert (shown["bytes_read"], shown["hits"]) == (
        900,
        {"node_memory": 7, "misses": 2, "store": 2},
    )
    assert shown["other_reads"] == {"control": 0, "past_end": 0, "refused": 0}
    assert (shown["waits_over_1_ms"], shown["waited_s"]) == (1, 0.25)
    assert (shown["uptime_s"], shown["reads_through_threads"]) == (1.235, 2)
    assert shown["cache"]["node"]["fetched_bytes"] == 4096
    assert (shown["plan"], shown["store"], shown["peers"]) == (None, {}, None)
    for part in shown["page_cache"].values():
        assert set(part.values()) <= {0, 1}, "nothing was filled, every miss would be"


def test_failed_reads_are_counted_by_kind() -> None:
    assert document()["failed_reads"] == {"total": 0, "kinds": {}}
    failed = ReaderStatistics(failed={"Corrupt": 3, "Unavailable": 1})
    shown = document(reader=failed)["failed_reads"]
    assert shown == {"total": 4, "kinds": {"Corrupt": 3, "Unavailable": 1}}


def test_the_page_cache_and_the_front_are_shown() -> None:
    pages = PageCacheStatistics(
        FillStatistics(fills=1, filled_files=63), prefill=MissPrefillStatistics(7)
    )
    shown = document(page_cache=pages)
    assert shown["page_cache"]["filled"]["filled_files"] == 63
    assert shown["page_cache"]["prefill"]["budget_bytes"] == 7
    assert shown["front"] == {
        "kind": "erofs-loop",
        "via_service": False,
        "reason": "on Linux 5.16",
        "more": "a newer one",
    }


def test_each_kind_of_read_is_counted_apart() -> None:
    shown = document(
        requests={"read": 19},
        reader=ReaderStatistics(thread_reads=4, past_end=5, refused=2),
        control_reads=3,
    )
    assert shown["hits"] == {"node_memory": 7, "misses": 2, "store": 2}
    assert shown["other_reads"] == {"control": 3, "past_end": 5, "refused": 2}
    hits = shown["hits"]
    accounted = hits["node_memory"] + hits["misses"] + sum(shown["other_reads"].values())
    assert accounted == shown["requests"]["read"] == 19
