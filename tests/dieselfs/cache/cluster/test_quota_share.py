"""The parts of a quota that nodes keep never exceed it, whoever of them sees whom."""

from __future__ import annotations

import pytest

from dieselfs.allocation.directory.decisions import NO_ONES_ID
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.cache.cluster.quota_share import STEADY_S, SteadyShare, quota_share
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress


def member(name: str, weight: int) -> Member:
    return Member(name, PeerAddress(name, 1), weight)


def lease(number: int, cache_bytes: int) -> ReaderLease:
    return ReaderLease(
        reader=f"{number:016x}",
        job="cache cluster images",
        host="node",
        pid=1,
        dataset="-",
        dataset_id=NO_ONES_ID,
        dataset_bytes=0,
        cache_bytes=cache_bytes,
    )


NODES = [member("a", 2048), member("b", 1024), member("c", 1024)]
LEASES = [lease(1, 2 << 31), lease(2, 1 << 31), lease(3, 1 << 31)]


def share(name: str, number: int, members: list[Member], leases: list[ReaderLease]) -> float | None:
    return quota_share(name, f"{number:016x}", members, leases)


def test_shares_follow_the_sizes_of_the_ssds_and_sum_to_one() -> None:
    of = [share(name, at, NODES, LEASES) for at, name in enumerate("abc", 1)]
    assert of == [0.5, 0.25, 0.25]


def test_a_node_that_is_seen_in_one_place_alone_keeps_its_part() -> None:
    assert share("a", 1, NODES, LEASES[:1]) == 0.5
    assert share("a", 1, NODES[:1], LEASES) == 0.5
    assert share("a", 1, [], LEASES) == 0.5
    assert share("a", 1, NODES, []) == 0.5


def test_nothing_is_known_of_a_node_that_is_in_no_list() -> None:
    assert share("x", 9, NODES, LEASES) is None
    assert share("x", 9, [], []) is None


def test_readers_have_no_part() -> None:
    assert share("a", 1, [], [*LEASES, lease(4, 0)]) == 0.5


def test_less_counts_at_once_and_more_when_it_is_steady() -> None:
    steady = SteadyShare()
    steady.note(0.5, 0.0)
    assert steady.now is None
    steady.note(0.5, STEADY_S)
    assert steady.now == 0.5
    steady.note(0.25, STEADY_S + 1)  # a node has come
    assert steady.now == 0.25
    steady.note(0.5, 10.0)  # and gone
    steady.note(None, 11.0)  # the directory does not say
    steady.note(0.5, 10.0 + STEADY_S - 0.1)
    assert steady.now == 0.25
    steady.note(0.5, 10.0 + STEADY_S)
    assert steady.now == 0.5


@pytest.mark.parametrize("beats", [(0.5, 0.4, 0.5), (0.5, 0.6, 0.5)])
def test_a_share_that_changes_all_the_time_is_the_least(beats: tuple[float, ...]) -> None:
    steady = SteadyShare()
    for at, found in enumerate((0.5, 0.5, 0.5, 0.5, *beats * 5)):
        steady.note(found, float(at))
    assert steady.now == min(beats)
