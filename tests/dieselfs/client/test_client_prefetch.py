"""Prefetch on request: into node memory, an SSD or a cache cluster, with a reason for each chunk
that did not come."""

from __future__ import annotations

import functools
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.errors import Unavailable
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers, open_tier
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.cache.warmup.handle import WarmUpHandle
from dieselfs.cache.warmup.memory_warmup import JOBS
from dieselfs.cache.warmup.report import WarmUpReport
from dieselfs.cache.warmup.ssd_warmup import warmth
from dieselfs.cache.warmup.wanted_chunks import chunks_of_paths, wanted_chunks
from dieselfs.client import Client
from dieselfs.errors import UsageError
from dieselfs.shuffle.order import ShuffleParameters
from metadata.errors import PathNotFound
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.contracts.key_value_store_contract import fork
from tests.dieselfs.cache.cluster.cluster_of_nodes import SECRET, ring_of
from tests.dieselfs.cache.patience import be_patient
from tests.eventually import eventually
from tests.peers.task_nodes import PeerDataset

MIB = 1 << 20
CHUNKS, FILES = 13, 26
LARGE = 20 * MIB + 11


class GatedStore(ReadWrapper):
    """Reads of chunks wait for the gate; `is_away` makes them fail."""

    def __init__(self, disk: Path) -> None:
        super().__init__(SharedSlowStore(disk))
        self.gate = threading.Event()
        self.gate.set()
        self.is_away = False
        self.waiting = threading.Semaphore(0)

    def __reduce__(self) -> str:
        raise TypeError("it stays in this process")

    def _read(self, read: Read) -> Buffer:
        if "/chunks/" in read.key and not self.gate.is_set():
            self.waiting.release()
            self.gate.wait(60)
        if "/chunks/" in read.key and self.is_away:
            raise Unavailable("the store is away")
        return read.of(self._wrapped)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PeerDataset:
    """13 chunks of two files of 0.5 MiB, packed by path, and one large file."""
    folder = tmp_path_factory.mktemp("prefetch")
    SharedSlowStore.make(folder / "disk")
    content = random.Random(7).randbytes(LARGE)
    with Client.connect(
        "d", store=SharedSlowStore(folder / "disk"), index=MemoryStore(), snapshot_folder=folder,
        create=True, target_bytes=MIB, open_chunks=1, ssd=None,
    ) as client:  # fmt: skip
        for number in range(FILES):
            client.put(content[number : number + MIB // 2], f"{number // 6}/{number:02}")
        client.put(content, "large/one")
        client.flush()
        path = client.save_meta()
    with Snapshot.open(path) as snapshot:
        assert snapshot.chunk_count == CHUNKS + 1
        return PeerDataset(folder / "disk", path, folder, FILES, snapshot.total_bytes, CHUNKS + 1)


Opened = Callable[..., tuple[Client, GatedStore]]


@pytest.fixture
def opened(
    dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Opened]:
    monkeypatch.setattr(NodeMemory, "open", functools.partial(NodeMemory.open, linger_s=0.1))
    clients: list[tuple[Client, GatedStore]] = []

    def open_client(
        memory_bytes: int | None = None, ssd: SsdSettings | None = None
    ) -> tuple[Client, GatedStore]:
        store = GatedStore(dataset.disk)
        client = Client.connect(
            "d", store=store, index=MemoryStore(), snapshot_folder=tmp_path, ssd=ssd
        )
        client.load_meta(dataset.snapshot, check_fresh=False)
        if memory_bytes is not None:
            client.open_memory(memory_bytes)
        clients.append((client, store))
        return client, store

    yield open_client
    for client, store in clients:
        store.gate.set()
        client.close()
    end_tiers()


def small(client: Client) -> list[str]:
    """All files but the large one."""
    return [file.path for file in client.walk() if file.kind == "file" and file.size < MIB]


def is_complete(report: WarmUpReport) -> bool:
    """Every wanted chunk is counted once."""
    counts = (report.cached_before, report.loaded, report.by_others, report.left)
    sizes = (
        *(report.cached_before_bytes, report.loaded_chunk_bytes),
        *(report.by_others_bytes, report.left_bytes),
    )
    return (
        sum(counts) + sum(of.chunks for of in report.refused) == report.chunks
        and sum(sizes) + sum(of.bytes for of in report.refused) == report.bytes
    )


def test_what_has_no_room_is_told_with_its_count(opened: Opened) -> None:
    """Formerly 2 of 13 chunks came, a second call brought none, and nothing said so."""
    client, _ = opened(memory_bytes=5 * MIB)
    first = client.prefetch(small(client), wait=True).result()
    assert (first.state, first.chunks, first.cached_before, is_complete(first)) == (
        *("done", CHUNKS, 0, True),
    )
    assert first.loaded in (4, 5)
    [refused] = first.refused
    assert (refused.reason, refused.chunks) == ("no room", CHUNKS - first.loaded)
    assert "open_memory" in refused.detail
    fetched = client.statistics().memory.node.fetches  # type: ignore[union-attr]
    second = client.prefetch(small(client), wait=True).result()
    assert (second.cached_before, second.loaded, second.no_room) == (
        *(first.loaded, 0, CHUNKS - first.loaded),
    )
    assert client.statistics().memory.node.fetches == fetched  # type: ignore[union-attr]
    client.get(small(client)[0])
    assert client.statistics().memory.misses == 0  # type: ignore[union-attr]


def test_parts_and_orders_are_exact(opened: Opened, dataset: PeerDataset) -> None:
    client, _ = opened(memory_bytes=64 * MIB)
    with Snapshot.open(dataset.snapshot) as snapshot:
        below = chunks_of_paths(snapshot, ["0"])
        assert below == chunks_of_paths(snapshot, [f"0/{n:02}" for n in range(6)])
        assert [len(below), len(chunks_of_paths(snapshot, [b"/0/00", b"0/01"]))] == [3, 1]
        assert len(chunks_of_paths(snapshot, ["4/25", "0/", "0/01"])) == 4
        assert chunks_of_paths(snapshot, ["4/25", "0"])[0] == snapshot.chunk(
            snapshot.chunk_number(client.inode("4/25"))
        )
        assert set(chunks_of_paths(snapshot, [""])) == set(wanted_chunks(snapshot))
        assert chunks_of_paths(snapshot, []) == []
        with pytest.raises(PathNotFound, match=r"nowhere \(and 1 other"):
            chunks_of_paths(snapshot, ["0", "nowhere", "0/nothing"])
    one = client.prefetch("0", wait=True).result()
    assert (one.chunks, one.loaded, one.is_all) == (3, 3, True)
    order = client.prefetch(ShuffleParameters(seed=3, epoch=1, group_size=4), wait=True).result()
    assert (order.chunks, order.cached_before, order.loaded) == (CHUNKS + 1, 3, CHUNKS - 2)
    empty = client.prefetch([], wait=True).result()
    assert (empty.chunks, empty.is_all, empty.state) == (0, True, "done")
    with pytest.raises(PathNotFound):
        client.prefetch(["0/00", "none"])


def test_a_large_file_comes_in_blocks(opened: Opened) -> None:
    client, _ = opened(memory_bytes=64 * MIB)
    report = client.prefetch("large", wait=True).result()
    assert (report.chunks, report.loaded, report.loaded_bytes) == (1, 1, LARGE)
    assert len(client.get("large/one")) == LARGE
    assert client.statistics().memory.misses == 0  # type: ignore[union-attr]


def test_a_cancelled_prefetch_says_what_is_left(opened: Opened) -> None:
    client, store = opened(memory_bytes=64 * MIB)
    store.gate.clear()
    handle = client.prefetch(small(client))
    assert store.waiting.acquire(timeout=60)
    now = handle.progress()
    assert (now.state, now.left, now.loaded, is_complete(now)) == ("running", CHUNKS, 0, True)
    assert not handle.wait(0)
    with pytest.raises(TimeoutError):
        handle.result(0)
    handle.cancel()
    store.gate.set()
    report = handle.result(60)
    assert (report.state, report.left, is_complete(report)) == ("cancelled", 0, True)
    assert report.refused_for("cancelled") == CHUNKS - report.loaded > 0
    assert client.prefetch(small(client), wait=True).result().is_all


def test_a_store_that_is_away_is_a_reason(opened: Opened) -> None:
    client, store = opened(memory_bytes=64 * MIB)
    store.is_away = True
    report = client.prefetch(small(client), wait=True).result()
    assert (report.state, report.loaded, is_complete(report)) == ("failed", 0, True)
    [refused] = report.refused
    assert (refused.reason, refused.chunks) == ("store unavailable", CHUNKS)
    assert "the store is away" in refused.detail
    store.is_away = False
    # A get that began before, and fails now, is that of whoever asks for its chunk meanwhile.
    eventually(lambda: client.prefetch(small(client), wait=True).result().is_all, "all of it")


def test_an_error_of_the_program_is_not_lost(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, _ = opened(memory_bytes=64 * MIB)

    def fails(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(NodeMemory, "fetch_blocks", fails)
    with pytest.raises(ZeroDivisionError):
        client.prefetch(small(client), wait=True)
    handle = client.prefetch(small(client))
    assert handle.wait(60)
    assert handle.progress().refused_for("error") == CHUNKS
    with pytest.raises(ZeroDivisionError):
        handle.result()


def test_a_forked_child_is_told_that_it_has_no_prefetch(opened: Opened) -> None:
    client, store = opened(memory_bytes=64 * MIB)
    store.gate.clear()
    handle = client.prefetch(small(client))

    def child() -> None:
        with pytest.raises(UsageError, match="parent process"):
            handle.wait()

    assert os.waitpid(fork(child), 0)[1] == 0


def test_what_a_reader_loads_first_is_not_fetched(opened: Opened) -> None:
    client, store = opened(memory_bytes=64 * MIB)
    store.gate.clear()
    handle = client.prefetch(small(client))
    for _ in range(JOBS):
        assert store.waiting.acquire(timeout=60)
    last = small(client)[-1]
    reading = threading.Thread(target=client.get, args=[last])
    reading.start()
    assert store.waiting.acquire(timeout=60), "the reader's chunk"
    store.gate.set()
    reading.join(60)
    report = handle.result(60)
    assert (report.is_all, is_complete(report)) == (True, True)
    assert client.statistics().memory.node.fetches == CHUNKS  # type: ignore[union-attr]


def test_closing_cancels(opened: Opened) -> None:
    client, store = opened(memory_bytes=64 * MIB)
    store.gate.clear()
    handle = client.prefetch(small(client))
    assert store.waiting.acquire(timeout=60)
    client.close()
    store.gate.set()
    assert handle.result(60).state in ("cancelled", "failed")


def test_into_the_ssd(opened: Opened, dataset: PeerDataset, tmp_path: Path) -> None:
    ssd = SsdSettings(tmp_path / "ssd", 64 * MIB)
    client, _ = opened(ssd=ssd)
    handle = client.prefetch(["0", "1/07"], into="ssd")
    report = handle.result(60)
    assert (report.chunks, report.loaded, report.state) == (4, 4, "done")
    again = client.prefetch("", into="ssd", wait=True).result()
    assert (again.chunks, again.cached_before, again.is_all) == (CHUNKS + 1, 4, True)
    assert is_complete(again)
    with Snapshot.open(dataset.snapshot) as snapshot:
        assert warmth(open_tier(ssd), snapshot.dataset, wanted_chunks(snapshot)).is_all


def test_a_lost_chunk_is_one_refusal(opened: Opened, dataset: PeerDataset, tmp_path: Path) -> None:
    ssd = SsdSettings(tmp_path / "ssd", 64 * MIB)
    client, _ = opened(memory_bytes=64 * MIB, ssd=ssd)
    disk = SharedSlowStore(dataset.disk)
    with Snapshot.open(dataset.snapshot) as snapshot:
        key = chunk_key("d", snapshot.chunk(2).id)
    content = bytes(disk.get(key))
    disk.delete(key)
    try:
        for into in ("memory", "ssd"):
            report = client.prefetch("", into, wait=True).result()
            assert (report.failed, report.state, is_complete(report)) == (1, "done", True)
            there = report.cached_before + report.loaded + report.by_others
            assert there == CHUNKS, "what memory read may be on the SSD"
    finally:
        disk.create(key, [content])


def test_into_a_cache_cluster(
    opened: Opened, dataset: PeerDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIESELFS_CACHE_CLUSTER_SECRET", SECRET)
    be_patient(monkeypatch.setattr)  # a node that is late is not away
    client, _ = opened()
    with ring_of(tmp_path / "nodes", dataset, 1) as nodes:
        monkeypatch.setenv("DIESELFS_CACHE_CLUSTER", f"r@{nodes[0].address}")
        report = client.prefetch("0", into="cluster", wait=True).result()
        assert (report.chunks, report.loaded, is_complete(report)) == (3, 3, True)
        nodes[0].end(signal.SIGKILL)
        monkeypatch.setattr("dieselfs.cache.warmup.cluster_warmup.PATIENCE_S", 0.0)
        gone = client.prefetch("1", into="cluster", wait=True).result()
        assert (gone.state, gone.refused_for("tier unavailable")) == ("failed", gone.chunks)


@pytest.mark.parametrize(
    ("into", "hint"),
    [("ssd", "DIESELFS_SSD"), ("cluster", "DIESELFS_CACHE_CLUSTER"), ("disk", "'memory'")],
)
def test_a_tier_that_is_not_configured_says_what_to_do(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, into: str, hint: str
) -> None:
    for name in ("DIESELFS_SSD", "DIESELFS_CACHE_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    client, _ = opened()
    with pytest.raises(UsageError, match=f"into='{into}'") as told:
        client.prefetch("0", into=into)  # type: ignore[arg-type]
    assert hint in str(told.value.hint)


_PREFETCHER = """
import sys
from pathlib import Path
from benchmarks.shared_slow_store import SharedSlowStore
from dieselfs.cache.ssd.settings import SsdSettings
from dieselfs.client import Client
from metadata.kv.memory import MemoryStore
disk, snapshot, ssd = map(Path, sys.argv[1:])
client = Client.connect("d", store=SharedSlowStore(disk), index=MemoryStore(),
                        snapshot_folder=ssd.parent, ssd=SsdSettings(ssd, 64 << 20))
client.load_meta(snapshot, check_fresh=False)
handle = client.prefetch("", into="ssd")
while not handle.progress().loaded:
    pass
print("loads", flush=True)
handle.wait()
"""


def test_after_a_killed_process_the_next_one_goes_on(
    opened: Opened, dataset: PeerDataset, tmp_path: Path
) -> None:
    dataset.set_speed(seek_s=0.3)
    ssd = tmp_path / "ssd"
    try:
        with subprocess.Popen(
            [sys.executable, "-c", _PREFETCHER, dataset.disk, dataset.snapshot, ssd],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        ) as killed:
            assert killed.stdout is not None
            assert killed.stdout.readline() == b"loads\n"
            killed.kill()
    finally:
        dataset.set_speed()
    client, _ = opened(ssd=SsdSettings(ssd, 64 * MIB))
    report = client.prefetch("", into="ssd", wait=True).result()
    assert report.is_all
    assert report.cached_before >= 1
    assert is_complete(report)


def test_a_handle_shows_itself(opened: Opened) -> None:
    client, _ = opened(memory_bytes=64 * MIB)
    handle: WarmUpHandle = client.prefetch("0", wait=True)
    assert "into node memory: done, 3 of 3 chunks" in repr(handle)
