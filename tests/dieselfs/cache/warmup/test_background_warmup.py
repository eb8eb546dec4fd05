"""A dataset comes onto the SSD behind its readers: by one process of a node at a time, again after
whatever stops it, and out of the readers' way."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.shared_slow_store import SharedSlowStore
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Unavailable
from chunkstore.object_keys import chunk_key
from chunkstore.progress import Advance
from chunkstore.ssd.tier import SsdTier
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cache.ssd.settings import SsdSettings, end_tiers
from dieselfs.cache.warmup.background_warmup import (
    JOBS,
    BackgroundWarmUp,
    OwnTier,
    _claimed,
    behind_readers,
)
from dieselfs.cache.warmup.report import WarmUpReport
from dieselfs.cache.warmup.ssd_warmup import Warmth, ssd_warm_up, warmth
from dieselfs.cache.warmup.wanted_chunks import wanted_chunks
from dieselfs.cache.warmup.warm_up import WarmUp
from dieselfs.client import Client
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.eventually import eventually
from tests.forked_programs import start_forked
from tests.peers.task_nodes import PeerDataset, make_dataset

BUDGET = 60 << 20

_OTHER = """
import sys
from pathlib import Path
from benchmarks.shared_slow_store import SharedSlowStore
from dieselfs.cache.ssd.settings import SsdSettings
from dieselfs.cache.warmup.wanted_chunks import wanted_chunks
from metadata.snapshot import Snapshot
from tests.dieselfs.cache.warmup.test_background_warmup import Halting, behind_mount
from tests.eventually import eventually
snapshot = Snapshot.open(sys.argv[2])
store = Halting(SharedSlowStore(Path(sys.argv[1])), 6)
work = behind_mount(store, snapshot.dataset, SsdSettings(Path(sys.argv[3])))
work.load(wanted_chunks(snapshot))
eventually(lambda: work.progress().loaded_bytes)
print("loads", flush=True)
sys.stdin.read()
"""


class Halting(ReadWrapper):
    """A store that answers so many reads, and the others when it goes on."""

    def __init__(self, store: SharedSlowStore, reads: int) -> None:
        super().__init__(store)
        self.goes_on = threading.Event()
        self._reads, self._numbers = reads, itertools.count()

    def _read(self, read: Read) -> Buffer:
        if next(self._numbers) >= self._reads:
            self.goes_on.wait()
        return read.of(self._wrapped)


def behind_mount(
    store: ObjectStore, dataset: DatasetRef, settings: SsdSettings
) -> BackgroundWarmUp:
    """The warm-up of a mount's SSD."""
    return BackgroundWarmUp(OwnTier(store, dataset, settings), dataset)


@pytest.fixture
def dataset(tmp_path: Path) -> Iterator[PeerDataset]:
    """24 chunks of 1 MiB."""
    yield make_dataset(tmp_path, 24, 1 << 20)
    end_tiers()


@pytest.fixture
def snapshot(dataset: PeerDataset) -> Iterator[Snapshot]:
    with Snapshot.open(dataset.snapshot) as found:
        yield found


def test_the_next_process_takes_over_and_what_was_brought_is_not_read_again(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.background_warmup._AGAIN_S", 0.05)
    settings = SsdSettings(tmp_path / "ssd", BUDGET)
    command = [sys.executable, "-c", _OTHER]
    command += map(str, (dataset.disk, dataset.snapshot, settings.folder))
    with start_forked(command, env=os.environ) as other:
        work = behind_mount(SharedSlowStore(dataset.disk), snapshot.dataset, settings)
        try:
            SsdSettings(settings.folder, BUDGET).check()  # a budget, for both
            assert other.stdout.readline() == b"loads\n"
            work.load(wanted_chunks(snapshot))
            eventually(lambda: work.progress().state.startswith("waits: another process"))
        finally:
            other.send_signal(signal.SIGKILL)
        eventually(lambda: work.progress().state == "done")
        work.close()
    told = work.progress()
    size = sum(chunk.head_bytes + chunk.payload_bytes for chunk in wanted_chunks(snapshot))
    assert (told.cached_chunks, told.cached_bytes, told.failed) == (told.chunks, size, 0)
    assert 0 < told.loaded_bytes < size
    largest = max(chunk.head_bytes + chunk.payload_bytes for chunk in wanted_chunks(snapshot))
    assert size <= dataset.from_store_bytes() <= size + JOBS * largest, (
        "what was under way, at most"
    )


def test_it_ends_at_once_and_goes_on_another_time(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path
) -> None:
    settings = SsdSettings(tmp_path / "ssd", BUDGET)
    store = Halting(SharedSlowStore(dataset.disk), 6)
    work = behind_mount(store, snapshot.dataset, settings)
    work.load(wanted_chunks(snapshot))
    eventually(lambda: work.progress().loaded_bytes)
    work.close()
    store.goes_on.set()
    eventually(lambda: work.progress().state == "stopped")
    loaded = work.progress().cached_chunks
    assert 0 < loaded <= 6 + JOBS < work.progress().chunks
    again = behind_mount(SharedSlowStore(dataset.disk), snapshot.dataset, settings)
    again.load(wanted_chunks(snapshot))
    eventually(lambda: again.progress().state == "done")
    again.close()
    assert again.progress().loaded_bytes < again.progress().bytes


class _Away(ReadWrapper):
    """A store that does not answer, until it does."""

    def __init__(self, store: SharedSlowStore) -> None:
        super().__init__(store)
        self.is_away = True

    def _read(self, read: Read) -> Buffer:
        if self.is_away:
            raise Unavailable("the store is away")
        return read.of(self._wrapped)


def test_a_store_that_is_away_is_waited_for_and_a_lost_chunk_is_left_out(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.background_warmup._AGAIN_S", 0.05)
    settings = SsdSettings(tmp_path / "ssd", BUDGET)
    disk = SharedSlowStore(dataset.disk)
    lost = wanted_chunks(snapshot)[3]
    disk.delete(chunk_key(snapshot.dataset.name, lost.id))
    store = _Away(disk)
    work = behind_mount(store, snapshot.dataset, settings)
    work.load(wanted_chunks(snapshot))
    eventually(lambda: work.progress().state == "waits: the store is away")
    store.is_away = False
    eventually(lambda: work.progress().state == "done")
    work.close()
    told = work.progress()
    assert (told.failed, told.cached_chunks) == (1, told.chunks - 1)


def test_a_thread_that_a_failed_run_has_left_behind_counts_nothing(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dieselfs.cache.warmup.background_warmup._AGAIN_S", 0.05)
    left_behind: list[Advance] = []
    run = WarmUp.run

    def fails_once(work: WarmUp, advance: Advance, *others: Any) -> WarmUpReport:
        if not left_behind:
            left_behind.append(advance)
            raise Unavailable("the store is away")
        left_behind[0](1, 1000)
        return run(work, advance, *others)

    monkeypatch.setattr(WarmUp, "run", fails_once)
    settings = SsdSettings(tmp_path / "ssd", BUDGET)
    work = behind_mount(SharedSlowStore(dataset.disk), snapshot.dataset, settings)
    work.load(wanted_chunks(snapshot))
    eventually(lambda: work.progress().state == "done")
    work.close()
    told = work.progress()
    assert (told.cached_chunks, told.cached_bytes) == (told.chunks, told.bytes)


def test_chunks_that_others_load_as_it_begins_are_counted(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, settings = SharedSlowStore(dataset.disk), SsdSettings(tmp_path / "ssd", BUDGET)

    def before_others(tier: SsdTier, ref: DatasetRef, chunks: Sequence[ChunkRef]) -> Warmth:
        found = warmth(tier, ref, chunks)
        ssd_warm_up(disk, ref, settings, chunks[:3]).run(lambda chunks, size_bytes: None)
        return found

    monkeypatch.setattr("dieselfs.cache.warmup.background_warmup.warmth", before_others)
    work = behind_mount(disk, snapshot.dataset, settings)
    work.load(wanted_chunks(snapshot))
    eventually(lambda: work.progress().state == "done")
    work.close()
    told = work.progress()
    assert (told.cached_chunks, told.cached_bytes) == (told.chunks, told.bytes)


def test_a_client_warms_what_it_reads(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path
) -> None:
    with Client.connect(
        snapshot.dataset.name,
        store=SharedSlowStore(dataset.disk),
        index=MemoryStore(),
        snapshot_folder=tmp_path,
        ssd=SsdSettings(tmp_path / "ssd", BUDGET, warmup=True),
    ) as client:
        client.load_meta(dataset.snapshot, check_fresh=False)
        client.open_memory(8 << 20, task=tmp_path.name)
        assert client._reading is not None
        work = client._reading.stack._warm_up
        assert work is not None
        eventually(lambda: work.progress().state == "done")
    assert work.progress().cached_chunks == snapshot.chunk_count


@dataclass
class _Tier:
    """As much of a tier as turns look at."""

    misses: int = 0

    @property
    def segments(self) -> SimpleNamespace:
        return SimpleNamespace(occupancy=lambda: [SimpleNamespace(misses=self.misses)])

    def call(self, access: Callable[[], int], length: int) -> int:
        return access()


class _Rests(threading.Event):
    def __init__(self) -> None:
        super().__init__()
        self.rested: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.rested.append(timeout or 0.0)
        return True


def test_while_readers_miss_the_store_is_left_to_them_nine_tenths_of_the_time() -> None:
    tier, stopping, now = _Tier(), _Rests(), [0.0]
    turn = behind_readers(cast(SsdTier, tier), stopping, lambda: now[0])

    def load(seconds: float) -> list[float]:
        stopping.rested.clear()
        with turn():
            now[0] += seconds
        return [round(rest, 6) for rest in stopping.rested]

    assert load(2.0) == [], "nobody has missed"
    tier.misses = 5
    assert load(0.04) == [0.36]
    assert load(2.0) == [10.0], "never longer"
    tier.misses = 6
    assert load(0.04) == [0.36]
    now[0] += 4
    assert load(0.04) == [], "they miss no more"


def test_what_the_disk_has_no_room_for_is_not_fetched(
    dataset: PeerDataset, snapshot: Snapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others have filled it: before, all was read from the store, each time."""
    free = SimpleNamespace(f_bavail=9 << 20, f_frsize=1)
    monkeypatch.setattr("dieselfs.cache.warmup.ssd_warmup.os.statvfs", lambda path: free)
    before = dataset.from_store_bytes()
    settings = SsdSettings(tmp_path / "ssd", BUDGET)
    chunks = wanted_chunks(snapshot)
    work = ssd_warm_up(SharedSlowStore(dataset.disk), snapshot.dataset, settings, chunks)
    report = work.run(lambda chunks, size: None)
    assert [of.reason for of in report.refused if "the disk is full" in of.detail] == ["no room"]
    assert 0 < report.loaded < 9
    assert report.no_room == len(chunks) - report.loaded
    assert dataset.from_store_bytes() - before == report.loaded_bytes


def test_a_claim_is_given_back_though_the_ssd_answers_late() -> None:
    held: set[bytes] = set()

    def claim(name: bytes) -> bool:
        is_free = name not in held
        held.add(name)
        return is_free

    def late(access: Callable[[], object], length: int) -> None:
        access()

    segments = SimpleNamespace(claim=claim, disclaim=held.remove)
    tier = cast(SsdTier, SimpleNamespace(segments=segments, call=late))
    with _claimed(tier, b"warm-up") as is_ours:
        assert is_ours == bool(held)
    assert not held
