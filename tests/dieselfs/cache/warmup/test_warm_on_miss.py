"""A cache node warms a dataset by itself: its own share, behind its clients, once."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Unavailable
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.cluster.cache_node import CacheNode
from dieselfs.cache.cluster.node_settings import CacheNodeSettings
from dieselfs.cache.cluster.status import cluster_nodes
from dieselfs.cache.ports.members import Member
from dieselfs.cache.ports.runtime import PeerAddress
from dieselfs.cache.ports.secret import TaskSecret
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers, open_tier
from dieselfs.cache.ssd.usage import TierAccess
from dieselfs.cache.ssd.warmup_notes import WarmUpProgress
from dieselfs.cache.warmup.background_warmup import JOBS
from dieselfs.cache.warmup.ssd_warmup import warmth
from dieselfs.cache.warmup.warm_on_miss import WarmOnMiss
from dieselfs.client import Client
from dieselfs.snapshots.lifecycle import publish_snapshot
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, NodeProcess, RingClient, ring_of
from tests.eventually import eventually
from tests.peers.task_nodes import PeerDataset
from tests.services.redis_processes import free_port

pytestmark = pytest.mark.usefixtures("patience")

MIB = 1 << 20
FILES, FILE_BYTES, LARGE = 48, 700_000, 18 * MIB + 77
LOGGER = "dieselfs.cache.warmup.warm_on_miss"


class Writer:
    """The client that makes the dataset, and may put more into it."""

    def __init__(self, folder: Path) -> None:
        SharedSlowStore.make(folder / "disk")
        self.disk, self.folder = folder / "disk", folder
        self.content = random.Random(3).randbytes(LARGE)
        self.index = MemoryStore()

    def put(self, names: list[str], length: int, *, publish: bool = True) -> PeerDataset:
        with Client.connect(
            "w", store=SharedSlowStore(self.disk), index=self.index, snapshot_folder=self.folder,
            create=True, target_bytes=MIB // 2, open_chunks=1, ssd=None,
        ) as client:  # fmt: skip
            for at, name in enumerate(names):
                client.put(self.content[at : at + length], name)
            client.flush()
            path = client.save_meta()
        if publish:
            publish_snapshot(SharedSlowStore(self.disk), path)
        with Snapshot.open(path) as snapshot:
            counts = snapshot.file_count, snapshot.total_bytes, snapshot.chunk_count
            return PeerDataset(self.disk, path, self.folder, *counts)


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    (tmp_path / "data").mkdir()
    yield Writer(tmp_path / "data")
    end_tiers()


@pytest.fixture
def dataset(writer: Writer) -> PeerDataset:
    """48 chunks of 700 KB, published."""
    return writer.put([f"{number:02}" for number in range(FILES)], FILE_BYTES)


def size(chunks: list[ChunkRef]) -> int:
    return sum(chunk.head_bytes + chunk.payload_bytes for chunk in chunks)


def shares(client: RingClient) -> list[tuple[int, int, int]]:
    """Of each node that answers: the bytes of its share, those cached, those from the store."""
    found = [node.status for node in cluster_nodes(client.settings)]
    return [(of.share_bytes, of.share_cached_bytes, of.from_store_bytes) for of in found if of]


def are_warm(client: RingClient, nodes: int) -> Callable[[], bool]:
    def done() -> bool:
        found = shares(client)
        return len(found) == nodes and all(share and share == cached for share, cached, _ in found)

    return done


def test_each_node_loads_its_own_share_once(
    writer: Writer, dataset: PeerDataset, tmp_path: Path
) -> None:
    dataset = writer.put(["large"], LARGE)
    nodes = [NodeProcess(tmp_path / str(at), dataset.disk, "r") for at in range(2)]
    listed = ",".join(str(node.address) for node in nodes)
    client = RingClient(dataset, [node.address for node in nodes])
    try:
        for node in nodes:
            node.cache_cluster, node.flags = f"r@{listed}", ["--warm-on-miss"]
            node.start()
        for node in nodes:
            node.wait_until_ready()
        assert shares(client) == [(0, 0, 0)] * 2, "nothing is loaded before a miss"
        for chunk in [chunk for chunk in client.chunks if chunk.payload_bytes < MIB][:12]:
            client.source.whole(chunk)
        eventually(are_warm(client, 2), "both shares are warm")
        found = shares(client)
        assert sum(share for share, _, _ in found) == client.object_bytes
        assert sum(read for _, _, read in found) == client.object_bytes, "each chunk once"
        before = dataset.from_store_bytes()
        for chunk in client.chunks:
            if chunk.payload_bytes <= MAX_WHOLE_BYTES:
                client.source.whole(chunk)
        assert dataset.from_store_bytes() == before
        assert client.source.statistics().bytes_from_store == 0
        for node in nodes:
            assert node.end() == 0, node.log
    finally:
        client.close()
        for node in nodes:
            if node.process is not None and node.process.poll() is None:
                node.end(signal.SIGKILL)


def test_nodes_in_redis_know_each_other(
    dataset: PeerDataset, tmp_path: Path, redis_url: str
) -> None:
    name = f"warming-{os.getpid()}"
    options: dict[str, Any] = {"index": redis_url, "flags": ["--warm-on-miss"]}
    with ring_of(tmp_path / "nodes", dataset, 2, name, **options) as nodes:
        client = RingClient(dataset, [], name=name, redis=redis_url)

        def weights() -> list[bool]:
            peers = client.source._current()
            return [] if peers is None else [of.weight > 0 for of in peers.placement.members]

        try:
            eventually(lambda: weights().count(True) == 2, "both nodes answer")
            for chunk in client.chunks[:16]:
                client.source.whole(chunk)
            eventually(are_warm(client, 2), "both shares are warm")
            assert sum(share for share, _, _ in shares(client)) == client.object_bytes
            assert sum(read for _, _, read in shares(client)) == client.object_bytes
            assert len(nodes) == 2
        finally:
            client.close()


def test_a_killed_node_goes_on_with_its_next_miss(dataset: PeerDataset, tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", dataset.disk, "")
    node.cache_cluster, node.flags = f"r@{node.address}", ["--warm-on-miss"]
    client = RingClient(dataset, [node.address])
    dataset.set_speed(seek_s=0.5)
    try:
        node.start()
        node.wait_until_ready()
        client.source.whole(client.chunks[0])
        settings = SsdSettings(tmp_path / "node/ssd", only_looks=True)
        access = TierAccess(settings)

        def progress() -> WarmUpProgress:
            notes = access.warmups()
            return notes[client.snapshot.dataset.id].progress if notes else WarmUpProgress()

        eventually(lambda: progress().state == "runs" and progress().loaded_bytes, "it runs")
        assert progress().chunks == FILES
        node.end(signal.SIGKILL)
        assert progress().state == "interrupted"
        kept = warmth(open_tier(settings), client.snapshot.dataset, client.chunks)
        assert 0 < kept.cached_chunks < FILES
        dataset.set_speed()
        node.start()
        node.wait_until_ready()
        missing = RingClient(dataset, [node.address])
        for chunk in client.chunks:
            missing.source.whole(chunk)
        eventually(are_warm(missing, 1), "it is warm")
        missing.close()
        eventually(lambda: progress().state == "done", "the note of it")
        [(_, _, read)] = shares(client)
        assert read <= client.object_bytes - kept.cached_bytes + JOBS * MIB
    finally:
        client.close()
        if node.process is not None and node.process.poll() is None:
            node.end(signal.SIGKILL)


class GatedStore(ReadWrapper):
    """Reads of chunks wait for the gate; `is_away` makes them fail."""

    def __init__(self, disk: Path) -> None:
        super().__init__(SharedSlowStore(disk))
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.is_away = False

    def _read(self, read: Read) -> Buffer:
        if "/chunks/" in read.key:
            if not self.gate.is_set():
                self.waiting.release()
                self.gate.wait(60)
            if self.is_away:
                raise Unavailable("the store is away")
        return read.of(self._wrapped)


@contextmanager
def warming(
    dataset: PeerDataset, folder: Path, store: GatedStore, ssd_bytes: int = 128 * MIB
) -> Iterator[tuple[CacheNode, WarmOnMiss, RingClient]]:
    """A node in this process, whose store a test decides on."""
    settings = CacheNodeSettings(
        "r",
        TaskSecret(SECRET.encode()),
        SsdSettings(folder / "ssd", ssd_bytes),
        PeerAddress("127.0.0.1", free_port()),
    )
    with CacheNode(settings, store) as node:
        warm = WarmOnMiss(node, store, settings.ssd, folder / "snapshots")
        client = RingClient(dataset, [settings.address])
        try:
            yield node, warm, client
        finally:
            store.gate.set()
            warm.close()
            client.close()


def state(warm: WarmOnMiss) -> str:
    return next((of.state for of in warm.progress().values()), "")


def looks(warm: WarmOnMiss) -> bool:
    """Return whether a look for a snapshot is under way: it lets further misses go."""
    return any(of.look_again_at == math.inf for of in warm._warmed.values())


def test_nothing_is_loaded_while_a_request_waits(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.warm_on_miss.PATIENCE_S", 1000.0)
    store = GatedStore(dataset.disk)
    with warming(dataset, tmp_path, store) as (node, warm, client):
        store.gate.clear()
        asking = threading.Thread(target=client.source.whole, args=[client.chunks[0]])
        asking.start()
        assert store.waiting.acquire(timeout=60), "the client's read"
        eventually(lambda: state(warm) == "runs", "the warm-up has begun")
        assert not node.wait_until_idle(0)
        assert not store.waiting.acquire(timeout=0.5), "it reads while a client waits"
        store.gate.set()
        asking.join(60)
        eventually(lambda: state(warm) == "done", "it is warm")
        assert node.statistics().from_store_bytes == client.object_bytes
        [shown] = node.statistics().warmups.values()
        assert (shown.cached_chunks, shown.failed) == (FILES, 0)


def test_a_store_that_fails_is_waited_for(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.background_warmup._AGAIN_S", 0.05)
    store = GatedStore(dataset.disk)
    with warming(dataset, tmp_path, store) as (node, warm, client):
        store.is_away = True
        client.source.whole(client.chunks[0])
        eventually(lambda: state(warm) == "waits: the store is away")
        store.is_away = False
        eventually(lambda: state(warm) == "done")
        assert node.statistics().from_store_bytes == client.object_bytes


def test_what_does_not_fit_is_said_once_and_not_thrashed(
    dataset: PeerDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.warm_on_miss.LOOK_AGAIN_S", 0.0)
    caplog.set_level(logging.WARNING, LOGGER)
    with warming(dataset, tmp_path, GatedStore(dataset.disk), 20 * MIB) as (node, warm, client):
        client.source.whole(client.chunks[0])
        eventually(lambda: state(warm) == "no room")
        assert node.tier.wait_until_written(60)
        [progress] = warm.progress().values()
        assert 0 < progress.cached_chunks < FILES
        loaded = progress.loaded_bytes
        for chunk in client.chunks:
            client.source.whole(chunk)
        assert [of.loaded_bytes for of in warm.progress().values()] == [loaded]
        assert state(warm) == "no room"
    said = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert len(said) == 1, said
    assert "dataset w does not fit" in said[0]
    assert "raise --ssd-size" in said[0]


def test_chunks_of_a_newer_snapshot_are_loaded_too(
    writer: Writer, dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.warm_on_miss.LOOK_AGAIN_S", 0.0)
    with warming(dataset, tmp_path, GatedStore(dataset.disk)) as (node, warm, client):
        client.source.whole(client.chunks[0])
        eventually(lambda: state(warm) == "done" and not looks(warm))
        newer = writer.put([f"new/{number}" for number in range(5)], FILE_BYTES)
        reader = RingClient(newer, [node.member.address])
        try:
            new = [chunk for chunk in reader.chunks if chunk not in client.chunks]
            assert len(new) == 5
            reader.source.whole(new[0])
            eventually(lambda: [of.cached_chunks for of in warm.progress().values()] == [FILES + 5])
            assert node.statistics().from_store_bytes == client.object_bytes + size(new)
        finally:
            reader.close()


def test_a_node_that_joins_takes_its_share(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.warm_on_miss.LOOK_AGAIN_S", 0.0)
    with warming(dataset, tmp_path, GatedStore(dataset.disk)) as (node, warm, client):
        client.source.whole(client.chunks[0])
        eventually(lambda: state(warm) == "done")
        joined = Member("10.0.0.2:7700", PeerAddress("10.0.0.2", 7700), node.member.weight)
        monkeypatch.setattr(node, "members", lambda: [node.member, joined])
        eventually(lambda: 0 < sum(of.chunks for of in warm.progress().values()) < FILES)
        eventually(lambda: state(warm) == "done")


def test_without_a_published_snapshot_clients_are_served(
    writer: Writer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.warm_on_miss.LOOK_AGAIN_S", 0.0)
    caplog.set_level(logging.DEBUG, LOGGER)
    dataset = writer.put(["one", "two"], FILE_BYTES, publish=False)
    with warming(dataset, tmp_path, GatedStore(dataset.disk)) as (_, warm, client):
        client.source.whole(client.chunks[0])
        eventually(lambda: "there is no snapshot of w" in caplog.text and not looks(warm))
        assert not warm.progress()
        client.source.whole(client.chunks[1])
        assert client.source.statistics().bytes_from_store == 0
        eventually(lambda: caplog.text.count("there is no snapshot of w") == 2)
        assert [record.levelno for record in caplog.records if "no snapshot" in record.message] == [
            logging.WARNING,
            logging.DEBUG,
        ], "it is said once"


def test_notes_that_cannot_be_read_are_left_out(dataset: PeerDataset, tmp_path: Path) -> None:
    with warming(dataset, tmp_path, GatedStore(dataset.disk)) as (_, _, client):
        client.source.whole(client.chunks[0])
        access = TierAccess(SsdSettings(tmp_path / "ssd"))

        def is_noted() -> bool:
            return [note.progress.state for note in access.warmups().values()] == ["done"]

        eventually(is_noted, "the note of its end")
        [(id_, note)] = access.warmups().items()
        assert note.dataset == "w"
        notes = tmp_path / "ssd/warmup"
        (notes / f"{bytes(16).hex()}.json").write_text("{")
        (notes / "else").mkdir()
        assert list(access.warmups()) == [id_]
        shutil.rmtree(notes)
        assert access.warmups() == {}
