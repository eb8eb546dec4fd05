"""Three nodes of a task, each a process that leads a memory of its own: what leaves the store, and
how often."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dieselfs.cache.ports.peer_settings import CachePolicy, PeerSettings, RedisLeases, StaticPeers
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ports.task_statistics import TaskStatistics
from tests.dieselfs.cache.peers.peer_nodes import (
    PeerNode,
    SmallDataset,
    ending,
    free_addresses,
    make_dataset,
)
from tests.eventually import eventually

SECRET = TaskSecret(b"a secret of the three nodes")
Settings = Callable[[int], PeerSettings]


@pytest.fixture
def dataset(tmp_path: Path) -> SmallDataset:
    return make_dataset(tmp_path)


@pytest.fixture
def roots(node_memory_of_the_tests: Path) -> list[Path]:
    made = [node_memory_of_the_tests / f"{uuid.uuid4().hex[:6]}-{number}" for number in range(3)]
    for root in made:
        root.mkdir(mode=0o700)
    return made


def by_a_list(policy: CachePolicy) -> Settings:
    addresses = free_addresses(3)
    task = f"task-{uuid.uuid4().hex[:6]}"
    return lambda number: PeerSettings(
        task, SECRET, StaticPeers(addresses), addresses[number], nodes=3, cache_policy=policy
    )


def by_redis(url: str, policy: CachePolicy) -> Settings:
    addresses = free_addresses(3)
    task = f"task-{uuid.uuid4().hex[:6]}"
    return lambda number: PeerSettings(
        task,
        SECRET,
        RedisLeases(url),
        addresses[number],
        member=f"node-{number}",
        nodes=3,
        cache_policy=policy,
    )


def see_each_other(nodes: Sequence[PeerNode]) -> bool:
    return all(node.sees(len(nodes)) for node in nodes)


def cached_shares(nodes: Sequence[PeerNode]) -> int:
    """Chunks of all shares that are where they belong."""
    found = [node.statistics().filling for node in nodes]
    return sum(filling.blocks_cached for filling in found if filling is not None)


def read_by_all(nodes: Sequence[PeerNode]) -> list[int]:
    for node in nodes:
        node.tell("read")
    return [node.told() for node in nodes]


def count(statistics: TaskStatistics, name: str) -> int:
    return dict(statistics.counts)[name]


def test_each_chunk_leaves_the_store_once_and_a_lost_share_once_more(
    dataset: SmallDataset, roots: list[Path]
) -> None:
    settings = by_a_list("oneshot")
    nodes = [PeerNode(roots[number], dataset, settings(number)) for number in range(3)]
    with ending(nodes):
        eventually(lambda: cached_shares(nodes) == dataset.chunks, "three shares that are held")
        assert sorted(dataset.reads().values()) == [1] * dataset.chunks
        shares = [node.statistics().filling for node in nodes]
        assert all(share is not None and share.blocks for share in shares)
        lost = shares[2].blocks if shares[2] is not None else 0

        nodes[2].kill()
        left = nodes[:2]
        eventually(lambda: cached_shares(left) == dataset.chunks, "two shares that are held")
        assert Counter(dataset.reads().values()) == {1: dataset.chunks - lost, 2: lost}

        nodes[2] = PeerNode(roots[2], dataset, settings(2))  # adopts what it had
        eventually(lambda: see_each_other(nodes), "a third node again")
        eventually(lambda: cached_shares(nodes) == dataset.chunks, "its share where it was")
        assert read_by_all(nodes) == [0, 0, 0]
        assert sum(dataset.reads().values()) == dataset.chunks + lost, "nothing more was read"
        assert count(nodes[2].statistics(), "served.requests") > 0, "it is used again"
        for node in nodes:
            assert count(node.statistics(), "read.bytes_from_peers") > 0


def test_on_first_use_each_chunk_leaves_the_store_once(
    dataset: SmallDataset, roots: list[Path], redis_url: str
) -> None:
    settings = by_redis(redis_url, "on-demand")
    nodes = [PeerNode(roots[number], dataset, settings(number)) for number in range(3)]
    with ending(nodes):
        eventually(lambda: see_each_other(nodes), "three nodes that see each other")
        assert read_by_all(nodes) == [0, 0, 0]
        # On a busy machine an owner may be silent for too long: then its chunk is read again.
        silent = sum(count(node.statistics(), "read.fallbacks.silent") for node in nodes)
        reads = dataset.reads()
        assert len(reads) == dataset.chunks
        assert sum(reads.values()) <= dataset.chunks + silent

        nodes[1].kill()
        assert read_by_all([nodes[0], nodes[2]]) == [0, 0]
        assert dataset.reads() == reads, "all is local by now"
