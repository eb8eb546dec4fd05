from collections.abc import Callable

import pytest

from dieselfs.allocation.allocator import capacity
from dieselfs.allocation.allocator.capacity import capacity_of
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.status import CacheNodeReport
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.peer_settings import StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.config import load_config
from dieselfs.errors import RegistryUnavailable, UsageError

MIB = 1 << 20


@pytest.mark.parametrize("cache_bytes", [0, 4 * MIB, 1 << 40])
def test_what_is_given_counts(cache_bytes: int) -> None:
    assert capacity_of(load_config(), cache_bytes, 1e6)() == (cache_bytes, 1e6)


def test_a_cache_below_a_region_is_refused_with_the_least_that_would_do() -> None:
    with pytest.raises(UsageError, match="is smaller than a region") as refused:
        capacity_of(load_config(), 3 * MIB, 1e6)
    assert "at least 4.0 MiB" in str(refused.value.hint)


def test_no_remote_io_and_no_cache_are_refused() -> None:
    with pytest.raises(UsageError, match="--remote-io of 0"):
        capacity_of(load_config(), 1 << 30, 0.0)
    with pytest.raises(UsageError, match="--cache is not given"):
        capacity_of(load_config(), None, 1e6)


class Nodes:
    """The nodes of a cache cluster, as they answer when they are asked; None: they do not."""

    def __init__(self, **budgets: int | None) -> None:
        self.budgets, self.now_s, self.is_away = budgets, 0.0, False

    def asked(self, cluster: CacheClusterSettings) -> list[CacheNodeReport]:
        if self.is_away:
            raise RegistryUnavailable("the Redis is away")
        return [
            CacheNodeReport(
                Member(name, PeerAddress(name, 1), 1),
                1.0,
                None if size is None else NodeStatus(budget_bytes=size),
            )
            for name, size in self.budgets.items()
        ]


def capacity_of_nodes(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    monkeypatch.setattr(capacity, "cluster_nodes", nodes.asked)
    cluster = CacheClusterSettings("images", TaskSecret(bytes(32)), StaticPeers(()))
    found = capacity.ClusterCapacity(cluster, 1e6, lambda: nodes.now_s)
    return lambda: found()[0]


def test_a_cluster_that_is_not_known_yet_is_not_one_without_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes(a=1 << 30)
    bytes_now = capacity_of_nodes(nodes, monkeypatch)
    nodes.is_away = True
    for nodes.now_s in (0.0, 1.0, 2.0):
        with pytest.raises(RegistryUnavailable):
            bytes_now()
    nodes.is_away = False
    assert bytes_now() == 1 << 30
    nodes.is_away, nodes.now_s = True, 8.0
    assert bytes_now() == 1 << 30


def test_a_node_that_pauses_keeps_its_part_and_one_that_is_gone_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes = Nodes(a=1 << 30, b=2 << 30)
    bytes_now = capacity_of_nodes(nodes, monkeypatch)
    assert bytes_now() == 3 << 30
    nodes.budgets["a"], nodes.now_s = None, 5.0
    assert bytes_now() == 3 << 30
    nodes.budgets["a"], nodes.now_s = 1 << 30, 10.0
    assert bytes_now() == 3 << 30
    nodes.budgets["a"], nodes.now_s = None, 15.0
    assert bytes_now() == 3 << 30
    nodes.now_s = 20.0
    assert bytes_now() == 2 << 30
    del nodes.budgets["b"]
    nodes.now_s = 25.0
    assert bytes_now() == 0
