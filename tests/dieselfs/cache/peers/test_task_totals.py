"""Sums and shares over what a task's members have said of themselves."""

import pytest

from dieselfs.cache.peers.task_totals import ReadSources, task_totals
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.task_statistics import (
    FillingStatistics,
    MemberState,
    MemberStatistics,
    TaskStatistics,
)


def member(id: str, state: MemberState, **status: int) -> MemberStatistics:
    return MemberStatistics(id, f"{id}:1", 64, "host", state, None, NodeStatus(**status))


TASK = TaskStatistics(
    "run1",
    "oneshot",
    (
        member("a", "me", from_store_bytes=100, from_peers_bytes=300, share_bytes=200),
        member("b", "up", from_store_bytes=50, served_bytes=400, share_bytes=300, cached_bytes=70),
        member("c", "silent", from_store_bytes=50, served_bytes=200, share_cached_bytes=10),
        member("d", "open", budget_bytes=1000),
    ),
    FillingStatistics(blocks=10, blocks_cached=4),
    (
        ("read.files_from_peers", 5),
        ("read.chunks_from_peers", 7),
        ("read.second_hits", 2),
        ("read.files_from_store", 3),
        ("read.chunks_from_store", 4),
        ("connections", 3),
    ),
)


def test_a_task() -> None:
    found = task_totals(TASK)
    assert (found.members, found.members_up, found.members_open) == (4, 2, 1)
    assert (found.share_bytes, found.share_cached_bytes) == (500, 10)
    assert (found.cached_bytes, found.budget_bytes) == (70, 1000)
    assert (found.from_store_bytes, found.served_bytes) == (200, 600)
    assert found.task_store_bytes_per_byte == pytest.approx(200 / 800)
    assert found.node_store_bytes_per_byte == pytest.approx(100 / 400)
    assert found.sources == ReadSources(from_peers=10, from_second=2, from_store=7)
    assert found.connections == 3
    assert found.filling == FillingStatistics(blocks=10, blocks_cached=4)


def test_a_node_that_takes_no_part_has_figures_too() -> None:
    found = task_totals(TaskStatistics("run1", "on-demand", trouble="the port is taken"))
    assert (found.members, found.members_up, found.trouble) == (0, 0, "the port is taken")
    assert found.task_store_bytes_per_byte is None
    assert found.node_store_bytes_per_byte is None
