"""A cache node's part of quotas, while its directory comes, goes and loses what it had."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from msgspec import structs

from dieselfs.allocation.directory.decisions import CacheDecision, Decisions
from dieselfs.allocation.directory.port import SETTLED_S, Renewal
from dieselfs.allocation.directory.reader_lease import ReaderLease
from dieselfs.cache.cluster.node_allocation import NodeAllocation

DATASET = bytes(15) + b"1"


class Quotas(dict[bytes, int]):
    """The quotas of a node, which holds nothing."""

    def obey(self, quotas: Mapping[bytes, int]) -> None:
        self.clear()
        self.update(quotas)

    def held_bytes(self, dataset: bytes) -> int:
        return 0


@dataclass
class Directory:
    """A directory of one life at a time, which has one node and a quota of 1,000 bytes."""

    life: int = 1
    quota_bytes: int | None = 1000
    awake_s: float = 100.0
    others: list[ReaderLease] = field(default_factory=list)

    def beat(self, lease: ReaderLease, lease_s: float) -> Renewal:
        version = 0 if self.quota_bytes is None else self.life
        peers = [lease, *self.others]
        return Renewal(None, peers, version, True, self.life, self.life, self.awake_s)

    def decisions(self) -> Decisions:
        if self.quota_bytes is None:
            return Decisions(life=self.life)
        decision = CacheDecision(
            dataset="d", dataset_id=DATASET.hex(), size_bytes=self.quota_bytes, origin="hand"
        )
        return Decisions([decision], version=self.life, life=self.life)


class Node:
    def __init__(self) -> None:
        self.quotas, self.directory, self.now = Quotas(), Directory(), 0.0
        node = SimpleNamespace(
            quotas=self.quotas,
            member=SimpleNamespace(id="me", weight=1.0),
            members=lambda: [SimpleNamespace(id="me", weight=1.0)],
            announces=True,
            cache_cluster="c",
            budget_bytes=5000,
            status=lambda: SimpleNamespace(cached_bytes=0),
        )
        self.allocation = NodeAllocation(node, lambda: self.now)  # type: ignore[arg-type]

    def beats(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            self.allocation.beat(self.directory)  # type: ignore[arg-type]


@pytest.fixture
def node() -> Node:
    made = Node()
    made.beats(6)
    assert made.quotas == {DATASET: 1000}
    return made


def test_quotas_outlast_a_directory_that_has_lost_all(node: Node) -> None:
    node.directory = Directory(life=2, quota_bytes=None, awake_s=0.0)
    node.beats(3)
    assert node.quotas == {DATASET: 1000}
    node.directory.awake_s = SETTLED_S + 1
    node.beats(6)
    assert node.quotas == {DATASET: 1000}
    node.directory.quota_bytes = 700
    node.beats(1)
    assert node.quotas == {DATASET: 700}


def test_shares_are_computed_once_all_nodes_can_be_back(node: Node) -> None:
    [own] = node.directory.beat(node.allocation._lease(0.0), 1.0).peers
    node.directory.others = [structs.replace(own, reader="f" * 16)]
    node.beats(1)
    assert node.quotas == {DATASET: 500}
    others, node.directory.others = node.directory.others, []
    node.directory.awake_s = 0.0
    node.beats(int(SETTLED_S))
    assert node.quotas == {DATASET: 500}
    node.directory.others, node.directory.awake_s = others, SETTLED_S
    node.beats(6)
    assert node.quotas == {DATASET: 500}
