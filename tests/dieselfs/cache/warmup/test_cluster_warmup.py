"""A dataset on the SSDs of a cache cluster: filled by one who keeps nothing, and read from there by
nodes that warm SSDs of their own."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from dieselfs.cache.cluster.settings import CacheClusterSettings
from dieselfs.cache.cluster.store import CacheClusterStore
from dieselfs.cache.ports.peer_settings import StaticPeers
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers
from dieselfs.cache.warmup.cluster_warmup import ClusterTarget, warm_cluster
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up
from dieselfs.cache.warmup.wanted_chunks import wanted_chunks
from dieselfs.cache.warmup.warm_up import WarmUp
from dieselfs.client import Client
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, NodeProcess, ring_of
from tests.eventually import PATIENCE_S
from tests.peers.task_nodes import PeerDataset
from tests.services.redis_processes import free_port

MIB = 1 << 20
LARGE = 21 * MIB + 4321


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    """Ordinary chunks, and one large file in a chunk of its own."""
    folder = tmp_path_factory.mktemp("mixed")
    disk = folder / "disk"
    SharedSlowStore.make(disk)
    content = random.Random(5).randbytes(LARGE)
    with Client.connect(
        "mixed",
        store=SharedSlowStore(disk),
        index=MemoryStore(),
        create=True,
        snapshot_folder=folder,
        target_bytes=MIB,
        open_chunks=1,
        ssd=None,
    ) as client:
        for number in range(40):
            client.put(content[number : number + 110_000], f"{number}.jpg")
        client.put(content, "large.bin")
        client.flush()
        path = client.save_meta()
    with Snapshot.open(path) as snapshot:
        return PeerDataset(disk, path, folder, 41, snapshot.total_bytes, snapshot.chunk_count)


@pytest.fixture(scope="module")
def nodes(
    dataset: PeerDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[NodeProcess]]:
    with ring_of(tmp_path_factory.mktemp("cache_cluster") / "nodes", dataset, 2) as found:
        yield found


@pytest.fixture
def snapshot(dataset: PeerDataset) -> Iterator[Snapshot]:
    with Snapshot.open(dataset.snapshot) as found:
        yield found


def settings_of(*addresses: PeerAddress) -> CacheClusterSettings:
    return CacheClusterSettings("r", TaskSecret(SECRET.encode()), StaticPeers(addresses))


@pytest.mark.usefixtures("patience")
def test_each_byte_leaves_the_store_once_into_the_ring_and_onto_the_ssds_of_nodes(
    dataset: PeerDataset, nodes: list[NodeProcess], snapshot: Snapshot, tmp_path: Path
) -> None:
    cache_cluster = settings_of(*(node.address for node in nodes))
    chunks, disk = wanted_chunks(snapshot), SharedSlowStore(dataset.disk)
    size = sum(chunk.head_bytes + chunk.payload_bytes for chunk in chunks)
    expected = ExpectedFiles(snapshot)
    [file] = (
        expected.only_file(chunk.id) for chunk in chunks if chunk.payload_bytes > MAX_WHOLE_BYTES
    )
    assert file is not None
    assert file.length == LARGE
    told: list[int] = []
    before = dataset.from_store_bytes()
    target = ClusterTarget(disk, snapshot, chunks, cache_cluster, PATIENCE_S)
    report, from_nodes = warm_cluster(
        target, WarmUp(target, chunks), lambda n, size: told.append(size)
    )
    # Who asks for parts of the large file, and who gives them, reads its head, to verify them.
    heads = [at * file.chunk.head_bytes for at in range(4)]
    assert (report.loaded, report.loaded_bytes, sum(told)) == (len(chunks), size, size)
    assert dataset.from_store_bytes() - before - size in heads
    assert from_nodes.from_store_bytes >= size - file.chunk.head_bytes
    target = ClusterTarget(disk, snapshot, chunks, cache_cluster, PATIENCE_S)
    again, from_nodes = warm_cluster(target, WarmUp(target, chunks), lambda n, size: None)
    assert (again.loaded, from_nodes.from_store_bytes) == (len(chunks), 0)

    before = dataset.from_store_bytes()
    for name in "ab":
        with closing(CacheClusterStore(disk, snapshot.dataset, expected, cache_cluster)) as through:
            own = SsdSettings(tmp_path / name, 60 * MIB)
            warmed = ssd_warm_up(through, snapshot.dataset, own, chunks).run(lambda n, size: None)
        assert (warmed.loaded, warmed.loaded_bytes) == (len(chunks), size)
    assert dataset.from_store_bytes() - before in [2 * of for of in heads]
    end_tiers()


def test_without_a_node_that_answers_nothing_is_read_from_the_store(
    dataset: PeerDataset, snapshot: Snapshot
) -> None:
    cache_cluster = settings_of(PeerAddress("127.0.0.1", free_port()))
    chunks = [chunk for chunk in wanted_chunks(snapshot) if chunk.payload_bytes < 2 * MIB]
    before = dataset.from_store_bytes()
    target = ClusterTarget(
        SharedSlowStore(dataset.disk), snapshot, chunks, cache_cluster, patience_s=0.0
    )
    report, from_nodes = warm_cluster(target, WarmUp(target, chunks), lambda n, size: None)
    assert (report.chunks, report.loaded, from_nodes.from_store_bytes) == (len(chunks), 0, 0)
    assert report.refused_for("tier unavailable") == len(chunks)
    assert report.state == "failed"
    assert dataset.from_store_bytes() == before
