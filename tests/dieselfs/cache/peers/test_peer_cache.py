"""A node's part in its task's peer cache, with real masters, sockets and snapshots in this
process."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.membership import membership, view_file
from dieselfs.cache.membership.owners import Shares
from dieselfs.cache.membership.view_file import ViewFile
from dieselfs.cache.node.master import Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers import node_share, peer_cache
from dieselfs.cache.peers.peer_cache import PeerCache
from dieselfs.cache.peers.peer_source import PeerSource
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.peer_settings import PeerSettings, RedisLeases, StaticPeers
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ports.task_statistics import TaskStatistics
from dieselfs.cache.task.leader import Leader, MemorySettings
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.peers.peer_nodes import (
    DEADLINE_S,
    SmallDataset,
    free_addresses,
    make_dataset,
)
from tests.eventually import eventually

SECRET = TaskSecret(b"0123456789abcdef")


class GatedStore(ReadWrapper):
    """Gives out nothing while the gate is shut."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalDirectory(folder))
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0

    def _read(self, read: Read) -> bytes:
        self.waiting += 1
        assert self.gate.wait(DEADLINE_S)
        self.waiting -= 1
        return read.of(self._wrapped)


@dataclass(slots=True, eq=False)
class Node:
    folder: TaskFolder
    store: GatedStore
    source: PeerSource
    master: Master
    peers: PeerCache
    snapshot: Snapshot

    def statistics(self) -> TaskStatistics:
        return self.peers.statistics()

    def states(self) -> list[str]:
        return [member.state for member in self.statistics().members]


@dataclass(slots=True)
class Nodes:
    """Makes them, each with a task folder of its own."""

    root: Path
    dataset: SmallDataset
    made: list[Node] = field(default_factory=list)

    def __call__(self, settings: PeerSettings, name: str = "") -> Node:
        path = self.root / (name or f"node-{len(self.made)}")
        path.mkdir(mode=0o700)
        folder, shares = TaskFolder.at(settings.task, path), Shares()
        store = GatedStore(self.dataset.store)
        snapshot = Snapshot.open(self.dataset.snapshot)
        reader = ChunkReader(store, snapshot.dataset, ExpectedFiles(snapshot))
        source = PeerSource(reader, folder)
        master = Master(folder, source, 64 << 20, owns=shares.owns)
        peers = PeerCache.begin(settings, folder, master, source, shares)
        node = Node(folder, store, source, master, peers, snapshot)
        self.made.append(node)
        return node

    def end(self) -> None:
        for node in self.made:
            node.store.gate.set()
            node.peers.end(DEADLINE_S)
            node.master.close()
            node.snapshot.close()


@pytest.fixture
def dataset(tmp_path: Path) -> SmallDataset:
    return make_dataset(tmp_path)


@pytest.fixture
def nodes(
    tmp_path: Path, dataset: SmallDataset, patience: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Nodes]:
    """No thread is left."""
    monkeypatch.setattr(membership, "PING_EVERY_S", 0.1)
    monkeypatch.setattr(node_share, "COUNTED_EVERY_S", 0.1)
    monkeypatch.setattr(view_file, "OLDEST_S", 10 * DEADLINE_S)
    threads = set(threading.enumerate())
    made = Nodes(tmp_path, dataset)
    yield made
    made.end()
    eventually(lambda: set(threading.enumerate()) <= threads, "an end of all threads")


@pytest.fixture
def pair() -> Callable[[int], PeerSettings]:
    addresses = free_addresses(2)
    alike = PeerSettings("task", SECRET, StaticPeers(addresses), nodes=2)
    return lambda number: replace(alike, listen=addresses[number])


def blocks_of(node: Node) -> list[CacheBlock]:
    return [CacheBlock(node.snapshot.chunk(number)) for number in range(node.snapshot.chunk_count)]


def test_two_nodes_find_each_other_and_share_the_dataset(
    nodes: Nodes, pair: Callable[[int], PeerSettings], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_cache, "FIRST_LOOK_S", DEADLINE_S)
    one = nodes(pair(0))
    assert sorted(one.states()) == ["me", "silent"], "it has asked once"
    other = nodes(pair(1))
    assert sorted(other.states()) == ["me", "up"], "it knows whom it may ask"
    eventually(lambda: sorted(one.states()) == ["me", "up"], "a peer")
    whole = sum(block.length for block in blocks_of(one))

    def shares() -> list[int]:
        return [member.status.share_bytes for member in one.statistics().members]

    eventually(lambda: sum(shares()) == whole and all(shares()), "two parts of the dataset")
    for block in blocks_of(one):
        one.master.fetch(block)

    def cached() -> int:
        return sum(member.status.share_cached_bytes for member in one.statistics().members)

    eventually(lambda: cached() == whole, "word of the other's share")
    statistics = one.statistics()
    me = next(member for member in statistics.members if member.state == "me")
    peer = next(member for member in statistics.members if member.state == "up")
    assert me.status.share_bytes == me.status.share_cached_bytes
    assert me.status.from_peers_bytes > 0
    assert me.status.from_store_bytes > 0
    assert peer.status.served_bytes > 0
    assert peer.answered_s is not None
    assert me.answered_s is None
    counts = dict(statistics.counts)
    assert counts["read.chunks_from_peers"] > 0
    assert counts["connections"] == 1
    assert (statistics.task, statistics.policy, statistics.trouble) == ("task", "on-demand", "")
    assert statistics.filling is None

    other.peers.end(DEADLINE_S)
    # The thread that publishes the view has half a second for it, and may be later.
    view = ViewFile(other.folder.path)
    eventually(lambda: view.current() is None, "an end of the view")
    eventually(lambda: one.states().count("up") == 0, "a peer less")
    eventually(lambda: shares_of_me(one) == whole, "everything for the one that is left")


def shares_of_me(node: Node) -> int:
    return next(m.status.share_bytes for m in node.statistics().members if m.state == "me")


def test_a_port_in_use_keeps_a_node_from_its_peers_until_it_is_free(
    nodes: Nodes,
    pair: Callable[[int], PeerSettings],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(peer_cache, "AGAIN_S", 0.05)
    settings = pair(0)
    with socket.create_server((settings.listen.host, settings.listen.port)):
        node = nodes(settings)
        assert "Address already in use" in node.statistics().trouble
        assert node.statistics().members == ()
        node.master.fetch(blocks_of(node)[0])
        eventually(lambda: "works without the peers of task task" in caplog.text, "a warning")
    eventually(lambda: "me" in node.states(), "its part in the task")
    eventually(lambda: not node.statistics().trouble, "an end of the trouble")
    assert [record.levelno for record in caplog.records].count(logging.WARNING) == 1


def test_what_is_wrong_with_the_settings_is_said(nodes: Nodes) -> None:
    [listen, other] = free_addresses(2)
    node = nodes(PeerSettings("task", SECRET, StaticPeers((other,)), listen))
    assert f"{listen} is not in the list of peers" in node.statistics().trouble
    assert "write the same list on all nodes" in node.statistics().trouble
    node.master.fetch(blocks_of(node)[0])


def test_who_has_another_secret_is_said_to(
    nodes: Nodes, pair: Callable[[int], PeerSettings]
) -> None:
    other = TaskSecret(b"another secret that is no good")
    both = [nodes(pair(0)), nodes(replace(pair(1), secret=other))]
    eventually(lambda: all(sorted(node.states()) == ["me", "refused"] for node in both), "refusals")


def test_a_node_whose_redis_is_down_works_alone_and_ends_in_time(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer_cache, "SETTLED_S", 10 * DEADLINE_S)
    [nobody] = free_addresses(1)
    settings = PeerSettings("task", SECRET, RedisLeases(f"redis://{nobody}/0"))
    node = nodes(replace(settings, cache_policy="oneshot"))
    for block in blocks_of(node):
        node.master.fetch(block)
    assert node.states() == ["me"]
    eventually(lambda: str(nobody) in node.statistics().trouble, "why it is alone")
    filling = node.statistics().filling
    assert filling is not None
    assert not filling.done
    began = time.monotonic()
    node.peers.end(1.0)
    assert time.monotonic() - began < DEADLINE_S / 2


def test_an_end_does_not_wait_for_a_store_that_hangs(
    nodes: Nodes, pair: Callable[[int], PeerSettings]
) -> None:
    one, other = nodes(pair(0)), nodes(pair(1))
    for node in (one, other):
        eventually(lambda node=node: sorted(node.states()) == ["me", "up"], "a peer")
    other.store.gate.clear()
    eventually(lambda: owned_elsewhere(one), "a share of the other's")
    owned = owned_elsewhere(one)[0]
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(one.master.fetch, owned)
        eventually(lambda: other.store.waiting, "a question to the store")
        began = time.monotonic()
        other.peers.end(0.5)
        other.master.close(0.5)
        assert time.monotonic() - began < DEADLINE_S / 2
        read.result(DEADLINE_S)  # from the store itself
        other.store.gate.set()
    assert one.master.blocks.is_cached(owned)


def owned_elsewhere(node: Node) -> list[CacheBlock]:
    """As its readers see it."""
    return [block for block in blocks_of(node) if node.source.owner_is_elsewhere(block.chunk.id)]


def test_a_share_is_fetched_at_once_where_nobody_else_is_expected(nodes: Nodes) -> None:
    [listen] = free_addresses(1)
    settings = PeerSettings("task", SECRET, StaticPeers((listen,)), listen, nodes=1)
    node = nodes(replace(settings, cache_policy="oneshot"))

    def is_done() -> bool:
        filling = node.statistics().filling
        return filling is not None and filling.done

    eventually(is_done, "a share that is held")
    assert all(node.master.blocks.is_cached(block) for block in blocks_of(node))


# By the leader, and in a helper


def settings_of_one() -> PeerSettings:
    [listen] = free_addresses(1)
    return PeerSettings("task", SECRET, StaticPeers((listen,)), listen, nodes=1)


@pytest.mark.usefixtures("patient_members")
@pytest.mark.parametrize("lead", [True, False], ids=["leader", "helper"])
def test_a_tasks_processes_are_told_of_its_peers(
    node_memory_of_the_tests: Path, dataset: SmallDataset, lead: bool
) -> None:
    settings = settings_of_one()
    folder = TaskFolder.at(f"peers-{settings.listen.port}")
    with Snapshot.open(dataset.snapshot) as snapshot:
        reader = ChunkReader(
            LocalDirectory(dataset.store), snapshot.dataset, ExpectedFiles(snapshot)
        )
        source = PeerSource(reader, folder)
        with NodeMemory.open(
            folder, source, budget_bytes=8 << 20, lead=lead, linger_s=0.1, peers=settings
        ) as memory:
            told = memory.task_statistics()
            assert told is not None
            assert [(member.id, member.state) for member in told.members] == [
                (str(settings.listen), "me")
            ]
            memory.payload(snapshot.chunk(0))
            assert os.listdir(folder.heads) == os.listdir(folder.chunks)
            alone = NodeMemory.open(folder, source)
            assert alone.task_statistics() is not None
            alone.close()
    eventually(lambda: not folder.path.exists(), "the end of who led")


def test_who_leads_without_peers_leaves_none_of_their_files(
    tmp_path: Path, dataset: SmallDataset, caplog: pytest.LogCaptureFixture
) -> None:
    folder = TaskFolder.at("task", tmp_path)
    for left in (folder.heads, folder.peers):
        left.mkdir()
        (left / "left").touch()
    with Snapshot.open(dataset.snapshot) as snapshot:
        reader = ChunkReader(LocalDirectory(dataset.store), snapshot.dataset)
        settings = MemorySettings(folder, 8 << 20, "uniform", 0.1, settings_of_one())
        leader = Leader.begin(settings, reader)
        assert leader is not None
        assert leader.peers is None
        assert "this task has no peers" in caplog.text
        assert not folder.heads.exists()
        assert not folder.peers.exists()
        leader.end()
