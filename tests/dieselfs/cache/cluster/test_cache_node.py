"""One node in this process, whose store and SSD a test decides on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.ssd.limits_folder import LimitsFolder
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.node_settings import CacheNodeSettings
from dieselfs.cache.cluster.status import cluster_nodes
from dieselfs.cache.cluster.store import CacheClusterStore
from dieselfs.cache.cluster.store_reads import STORE_READS
from dieselfs.cache.ports.cached_chunks import PolicyStatus
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ssd.settings import SsdSettings, shared_tier
from dieselfs.cache.warmup.cluster_warmup import ClusterTarget, warm_cluster
from dieselfs.cache.warmup.ssd_warmup import ssd_warm_up, warmth
from dieselfs.cache.warmup.warm_up import WarmUp
from dieselfs.cache.wire.handshake import ServerHandshake
from dieselfs.snapshots.expected_files import ExpectedFiles
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, RingClient
from tests.eventually import eventually
from tests.peers.task_nodes import NAME, PeerDataset, make_dataset
from tests.services.redis_processes import free_port

pytestmark = pytest.mark.usefixtures("patience")


class HangingStore(ReadWrapper):
    """Reads wait until it answers."""

    def __init__(self, disk: Path) -> None:
        super().__init__(SharedSlowStore(disk))
        self.answers = threading.Event()
        self.answers.set()
        self.waiting = threading.Semaphore(0)
        """One for each read that waits."""

    def _read(self, read: Read) -> bytes:
        if not self.answers.is_set():
            self.waiting.release()
            self.answers.wait(60)
        return read.of(self._wrapped)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    """80 chunks of 100 KB and more."""
    return make_dataset(tmp_path_factory.mktemp("dataset"), 160, 100_000, 200_000)


@contextmanager
def served(
    dataset: PeerDataset, folder: Path, store: HangingStore
) -> Iterator[tuple[CacheNode, RingClient]]:
    settings = CacheNodeSettings(
        "r",
        TaskSecret(SECRET.encode()),
        SsdSettings(folder, 128 << 20),
        PeerAddress("127.0.0.1", free_port()),
    )
    with CacheNode(settings, store) as node:
        client = RingClient(dataset, [settings.address])
        try:
            yield node, client
        finally:
            store.answers.set()
            client.close()


def forget_what_was_read(node: CacheNode) -> None:
    node._parts.memory.__init__(64 << 20)  # type: ignore[misc]


def test_while_the_store_hangs_the_ssd_is_read(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = STORE_READS + 16
    monkeypatch.setattr("dieselfs.cache.cluster.cache_node.WORKERS", workers)
    monkeypatch.setattr("dieselfs.cache.cluster.store_reads.WAIT_S", 1000.0)
    store = HangingStore(dataset.disk)
    with served(dataset, tmp_path / "ssd", store) as (node, client):
        warm, *cold = client.chunks
        client.source.whole(warm)
        assert node._tier.wait_until_written(30)
        forget_what_was_read(node)
        store.answers.clear()
        others = [RingClient(dataset, [node.member.address]) for _ in range(2)]
        assert len(cold) > workers, "more than the node has threads"
        with ThreadPoolExecutor(len(cold)) as threads:
            wanted = [
                threads.submit(others[at % 2].source.whole, chunk) for at, chunk in enumerate(cold)
            ]
            for _ in range(STORE_READS):
                assert store.waiting.acquire(timeout=60)
            head, payload = client.source.whole(warm)
            assert len(head) + len(payload) == warm.head_bytes + warm.payload_bytes
            assert node.statistics().from_ssd_bytes == warm.head_bytes + warm.payload_bytes
            assert client.source.statistics().bytes_from_store == 0
            store.answers.set()
            for one in wanted:
                one.result(60)
        for other in others:
            other.close()


def test_a_warm_up_that_is_faster_than_the_ssd_has_all_written(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = SegmentStore.append

    def slowly(store: SegmentStore, *insert: Any) -> bool:
        time.sleep(0.01)  # 20 MB/s
        return append(store, *insert)

    monkeypatch.setattr(SegmentStore, "append", slowly)
    monkeypatch.setattr("chunkstore.ssd.insert_queue.QUEUE_BYTES", 6 << 20)
    monkeypatch.setattr("dieselfs.cache.peers.peer_requests.NOT_CACHED_S", 0.05)
    with served(dataset, tmp_path / "ssd", HangingStore(dataset.disk)) as (node, client):
        target = ClusterTarget(
            SharedSlowStore(dataset.disk), client.snapshot, client.chunks, client.settings, 60.0
        )
        work = WarmUp(target, client.chunks)
        report, nodes = warm_cluster(target, work, lambda n, size: None, jobs=24)
        assert node._tier.wait_until_written(60)
        assert node._tier.segments is not None
        cached = node._tier.segments.cached(client.snapshot.dataset.id)
        assert report.loaded == len(cached) == len(client.chunks)
        assert nodes.ssd_bytes == 128 << 20


def test_a_warm_up_that_a_node_refuses_says_so(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.cluster.cache_node.OPEN_S", 0.1)
    (tmp_path / "ssd").write_text("this is no folder")
    with served(dataset, tmp_path / "ssd", HangingStore(dataset.disk)) as (_, client):
        target = ClusterTarget(
            SharedSlowStore(dataset.disk), client.snapshot, client.chunks, client.settings, 0.0
        )
        report, nodes = warm_cluster(target, WarmUp(target, client.chunks), lambda n, size: None)
        assert (report.state, nodes.ssd_bytes) == ("failed", 0)
        assert report.refused_for("not admitted") == report.chunks - report.loaded > 0


def test_a_node_whose_ssd_folder_is_a_file_serves_chunks_from_the_store(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.cluster.cache_node.OPEN_S", 0.1)
    (tmp_path / "ssd").write_text("this is no folder")
    with served(dataset, tmp_path / "ssd", HangingStore(dataset.disk)) as (node, client):
        assert not node.statistics().tier.in_service
        [shown] = cluster_nodes(client.settings)
        assert shown.status is not None
        assert (shown.status.budget_bytes, shown.status.cached_bytes) == (0, 0)
        assert node.member.weight == 128, "its share is what it was"
        for chunk in client.chunks:
            client.source.whole(chunk)
        assert client.source.statistics().bytes_from_store == 0
        forget_what_was_read(node)
        for file in client.files[:5]:
            read = client.source.read(file, 0, file.length)
            assert read == client.reader.read(file, 0, file.length)
        assert client.source.statistics().fallbacks["failed"] == 0


def test_what_a_node_sends_wrong_is_read_from_the_store(
    dataset: PeerDataset, tmp_path: Path
) -> None:
    with served(dataset, tmp_path / "ssd", HangingStore(dataset.disk)) as (node, client):
        first, second = client.chunks[:2]
        client.source.whole(first)
        whole = node._parts.memory.whole(first.id.value)
        assert whole is not None
        wrong = bytearray(whole.payload)
        wrong[1000] ^= 1
        object.__setattr__(whole, "payload", memoryview(wrong))
        head, payload = client.source.whole(first)
        assert (head, payload) == client.reader.whole(first)
        read = client.source.statistics()
        assert read.fallbacks["corrupt"] == 1
        assert read.bytes_from_store == first.head_bytes + first.payload_bytes
        client.source.whole(second)  # its breaker is open, or a ping has closed it again


def test_nodes_that_warm_their_ssds_through_a_ring_read_the_store_once(
    dataset: PeerDataset, tmp_path: Path
) -> None:
    store = HangingStore(dataset.disk)
    with served(dataset, tmp_path / "ssd", store) as (_, client):
        snapshot, before = client.snapshot, dataset.from_store_bytes()
        warmed = []
        for name in ("one", "two"):
            through = CacheClusterStore(
                store, snapshot.dataset, ExpectedFiles(snapshot), client.settings
            )
            settings = SsdSettings(tmp_path / name, 128 << 20)
            work = ssd_warm_up(through, snapshot.dataset, settings, client.chunks)
            warmed.append((work, settings, through))
        with ThreadPoolExecutor(2) as threads:
            for run in [threads.submit(work.run, lambda *_: None) for work, _, _ in warmed]:
                assert run.result(60).loaded == len(client.chunks)
        for _, settings, through in warmed:
            assert warmth(shared_tier(settings), snapshot.dataset, client.chunks).is_all
            shared_tier(settings).close()
            through.close()
        assert dataset.from_store_bytes() - before == client.object_bytes


def test_the_policies_of_nodes_can_be_compared(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(dataset, tmp_path / "ssd", HangingStore(dataset.disk)) as (node, client):
        first = client.chunks[0]
        size = first.head_bytes + first.payload_bytes
        for _ in range(3):
            client.source.whole(first)
        assert node.tier.wait_until_written(60)
        forget_what_was_read(node)
        client.source.whole(first)
        [shown] = cluster_nodes(client.settings)
        assert shown.policy == PolicyStatus(
            "lru", hit_bytes=size, miss_bytes=size, written_bytes=size, absorbed_bytes=3 * size
        )
        assert shown.policy.hit_rate == 0.5
        monkeypatch.setattr(ServerHandshake, "newest", 1)
        [shown] = cluster_nodes(client.settings)
        assert (shown.policy, shown.status is not None) == (None, True)


def test_a_dataset_is_named_on_the_ssd(dataset: PeerDataset, tmp_path: Path) -> None:
    with served(dataset, tmp_path / "ssd", HangingStore(dataset.disk)) as (node, client):
        client.source.whole(client.chunks[0])
        limits = LimitsFolder(tmp_path / "ssd")
        eventually(lambda: [named.name for named in limits.read().values()] == [NAME], "its name")
        assert node.statistics().datasets == 1
