"""The tier over a store that counts, on folders that work, fail, hang, fill up, vanish and die."""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import pickle
import random
import shutil
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Unavailable
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.admission import RejectFirst
from chunkstore.ssd.eviction import DatasetLimits
from chunkstore.ssd.insert_queue import CacheInsert
from chunkstore.ssd.policies.job_specifications import JobSpecification
from chunkstore.ssd.policies.segment_buckets import Bucket
from chunkstore.ssd.policy_choice import PolicyChoice
from chunkstore.ssd.policy_counts import CountedRow, PolicyCounts, total_of
from chunkstore.ssd.reader_tags import ReaderTags
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import TieredStore, blocks_of
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from tests.eventually import PATIENCE_S, eventually

MIB = 1 << 20
LOOP_SET_CAPACITY = 0x4C07
DATASET = DatasetRef("pictures", b"i" * 16)


class CountingStore(ReadWrapper):
    """In memory; counts the bytes that leave it, by key."""

    def __init__(self) -> None:
        super().__init__(MemoryObjectStore())
        self.bytes: Counter[str] = Counter()
        self.reads: Counter[str] = Counter()

    def _read(self, read: Read) -> Buffer:
        data = read.of(self._wrapped)
        self.bytes[read.key] += len(data)
        self.reads[read.key] += 1
        return data


def key(number: int) -> str:
    return chunk_key(DATASET.name, ChunkId(number.to_bytes(16, "big")))


def content(number: int, size: int = 3 * MIB) -> bytes:
    return random.Random(number).randbytes(size)


@pytest.fixture(autouse=True)
def _policies_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read waits for policies while the tier's thread asks them, however late that is: a missed
    chunk is refused otherwise."""
    monkeypatch.setattr("chunkstore.ssd.policy_runner.WAIT_S", PATIENCE_S)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "ssd"


@pytest.fixture
def tier(folder: Path, tmp_path: Path) -> Iterator[SsdTier]:
    made = SsdTier(lambda: SegmentStore(folder, tmp_path / "index", 60 * MIB), folder)
    assert made.wait_until_open(PATIENCE_S)
    yield made
    made.close()


@pytest.fixture
def store() -> CountingStore:
    store = CountingStore()
    for number in range(8):
        store.create(key(number), [content(number)])
    return store


def test_what_was_read_once_comes_from_the_ssd(tier: SsdTier, store: CountingStore) -> None:
    tiered = TieredStore(store, DATASET, tier)
    for turn in range(3):
        for number in range(8):
            assert bytes(tiered.get(key(number))) == content(number)
        assert tier.wait_until_written(PATIENCE_S)
        assert set(store.reads.values()) == {1}, turn
    assert bytes(tiered.get_range(key(3), 700_000, 90_000)) == content(3)[700_000:790_000]
    assert tier.statistics().hits == 17
    assert tier.statistics().written_bytes == 8 * 3 * MIB
    segments = tier.segments
    assert segments is not None
    segments.touch()
    # The tier's own thread may have taken some of the counts, and publish them only now.
    eventually(lambda: sum(of.hits + of.misses for of in segments.occupancy()) == 25)
    [of] = segments.occupancy()
    assert (of.dataset, of.hits, of.misses) == (DATASET.id, 17, 8)
    assert of.hit_bytes == 16 * 3 * MIB + 90_000


def test_a_part_is_read_as_a_part_and_warms_its_chunk_once(
    tier: SsdTier, store: CountingStore
) -> None:
    tiered = TieredStore(store, DATASET, tier)
    data = content(2)
    assert bytes(tiered.get_range(key(2), 1_000_000, 110_000)) == data[1_000_000:1_110_000]
    eventually(lambda: tier.statistics().written_bytes == len(data))
    assert store.bytes[key(2)] == 110_000 + len(data)
    for start in range(0, len(data) - 110_000, 110_000):
        assert bytes(tiered.get_range(key(2), start, 110_000)) == data[start : start + 110_000]
    assert store.bytes[key(2)] == 110_000 + len(data)


@pytest.mark.parametrize("late", range(1, 5))
def test_an_answer_that_comes_late_leaves_no_claim(
    late: int, tier: SsdTier, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The access still takes place. A claim that nobody ends would keep a warm-up for ever."""
    tiered, calls, call = TieredStore(store, DATASET, tier), itertools.count(1), SsdTier.call
    [block] = blocks_of(ChunkId((3).to_bytes(16, "big")), 3 * MIB)

    def called(*arguments: Any) -> Any:
        answer = call(*arguments)
        return None if next(calls) == late else answer

    monkeypatch.setattr(SsdTier, "call", called)
    tiered.load(block)
    monkeypatch.undo()
    assert tiered.load(block) in ("loaded", "cached")


def test_a_policy_decides_and_counts_what_a_job_reads(
    folder: Path, tmp_path: Path, store: CountingStore
) -> None:
    """Of two buckets, the policy admits the one that two jobs will read."""
    tier = SsdTier(
        partial(SegmentStore, folder, tmp_path / "index", 60 * MIB),
        folder,
        choice=PolicyChoice("future"),
    )
    tier = pickle.loads(pickle.dumps(tier))
    assert tier.wait_until_open(PATIENCE_S)
    assert tier.runner is not None

    def bucket_of(chunk: bytes) -> Bucket:
        return Bucket("even" if chunk[-1] % 2 == 0 else "odd")

    for number, job in enumerate(("a", "b")):
        jobs = TieredStore(store, DATASET, tier, lambda chunk: 3 * MIB, ReaderTags(bucket_of, job))
        tier.policies.publish(JobSpecification(job, DATASET.name, (Bucket("even"),)))
        jobs.get_range(key(1 + 2 * number), 0, MIB)
    runner, chunk, reader = tier.runner, bytes(16), ReaderTags(bucket_of)
    runner.change(PolicyChoice("hybrid"))  # so that the tier's thread refreshes it at once
    eventually(lambda: runner.explain(DATASET.id, chunk, tags=reader).priority == 2)
    for number in range(8):
        jobs.get(key(number))
    jobs.get_range(key(7), 0, 1000)
    assert tier.wait_until_written(PATIENCE_S)
    for number in range(8):
        jobs.get(key(number))
    counts = tier.runner.counts.all()
    even, odd = (counts[CountedRow(DATASET.name, bucket, "b")] for bucket in ("even", "odd"))
    size = 4 * 3 * MIB
    assert even == PolicyCounts(hit_bytes=size, miss_bytes=size, admitted_bytes=size)
    assert (odd.hit_bytes, odd.admitted_bytes, odd.filled_bytes) == (0, 0, 0)
    assert counts[CountedRow(DATASET.name, "even")].written_bytes == size
    shown = tier.statistics().policy
    assert shown is not None
    assert (shown.acting.name, shown.acting.counts["absorbed_bytes"]) == ("hybrid", size)
    assert {(row.bucket, row.job) for row in shown.acting.rows} == {
        *(("odd", "a"), ("odd", "b"), ("even", "b"), ("even", "")),
    }
    json.dumps(asdict(tier.statistics()))
    tier.close(PATIENCE_S)  # which publishes the counts
    with closing(SegmentStore(folder, tmp_path / "index", None)) as other:
        decided = other.decisions()
    named = {
        by.row: of for by, of in decided.items() if (by.role, by.policy) == ("acting", "hybrid")
    }
    assert total_of(decided) == total_of(counts)
    assert named[CountedRow(DATASET.name, "even", "b")] == even


def test_a_forked_child_has_a_runner_of_its_own(
    folder: Path, tmp_path: Path, store: CountingStore
) -> None:
    tier = SsdTier(
        partial(SegmentStore, folder, tmp_path / "index", 60 * MIB),
        folder,
        choice=PolicyChoice("all"),
    )
    tiered = TieredStore(store, DATASET, tier)
    assert tier.wait_until_open(PATIENCE_S)
    assert tier.runner is not None
    tiered.get(key(1))
    assert tier.wait_until_written(PATIENCE_S)
    with tier.runner._lock:
        child = os.fork()
        if not child:
            with suppress(BaseException):
                opened = tier.wait_until_open(PATIENCE_S)
                data = bytes(tiered.get(key(1)))
                counts = tier.runner.counts.all()
                wanted = {CountedRow(DATASET.name, DATASET.name): PolicyCounts(hit_bytes=3 * MIB)}
                os._exit(0 if (opened, data, counts) == (True, content(1), wanted) else 1)
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    tier.close()


def test_a_policy_goes_on_while_the_ssd_fails(
    folder: Path, tmp_path: Path, store: CountingStore
) -> None:
    tier = SsdTier(
        partial(SegmentStore, folder, tmp_path / "index", 60 * MIB),
        folder,
        choice=PolicyChoice("future"),
    )
    tiered = TieredStore(store, DATASET, tier)
    assert tier.wait_until_open(PATIENCE_S)
    (folder / "policy.json").write_bytes(b"damaged")
    tiered.get(key(1))
    shutil.rmtree(folder.rename(tmp_path / "removed"))  # at once: the tier may be writing there
    eventually(lambda: tier.statistics().failures)
    assert bytes(tiered.get(key(1))) == content(1)
    eventually(lambda: tier.statistics().in_service)
    tiered.get(key(2))
    shown = tier.statistics().policy
    assert shown is not None
    assert shown.acting.counts["miss_bytes"] > 0
    tier.close()


def test_what_is_fetched_for_the_ssd_alone_is_counted(
    folder: Path, tmp_path: Path, store: CountingStore
) -> None:
    tier = SsdTier(
        partial(SegmentStore, folder, tmp_path / "index", 60 * MIB),
        folder,
        choice=PolicyChoice("all"),
    )
    assert tier.wait_until_open(PATIENCE_S)
    assert tier.runner is not None
    tiered = TieredStore(store, DATASET, tier)
    tiered.get_range(key(2), 1000, 1000)
    eventually(lambda: tier.statistics().written_bytes == 3 * MIB and not tiered._warming._flights)
    tiered.get_range(key(2), 2000, 1000)
    total = total_of(tier.runner.counts.all())
    assert (total.miss_bytes, total.hit_bytes) == (1000, 1000)
    assert (total.filled_bytes, total.absorbed_bytes) == (3 * MIB, 1000 - 3 * MIB)
    tier.close()


def test_an_ssd_too_small_for_what_is_read_by_parts_costs_the_store_little(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part warms a chunk that has left again before its next part is read."""
    store, budget, length = CountingStore(), 20 * MIB, 20_000
    for number in range(40):
        store.create(key(number), [bytes([number]) * MIB])
    tier = SsdTier(lambda: SegmentStore(folder, tmp_path / "index", budget), folder)
    assert tier.wait_until_open(PATIENCE_S)
    # This store is the faster one: the tier would not be asked any more.
    monkeypatch.setattr(tier._service.health, "hit_took", lambda seconds, length: False)
    tiered = TieredStore(store, DATASET, tier)
    reads, draw = 600, random.Random(1)
    for _ in range(reads):
        number, start = draw.randrange(40), draw.randrange(MIB - length)
        assert bytes(tiered.get_range(key(number), start, length)) == bytes([number]) * length
        eventually(lambda: not tiered._warming._flights)
    assert tier.statistics().hits > reads // 10
    assert sum(store.bytes.values()) <= 2 * reads * length + budget
    tier.close()


def test_a_large_object_is_kept_by_the_pieces_that_are_read(tier: SsdTier) -> None:
    store = CountingStore()
    data = random.Random(9).randbytes(MIB) * 40
    store.create(key(0), [data])
    tiered = TieredStore(store, DATASET, tier)
    start, length = 9 * MIB + 12_345, 4 * MIB
    for _ in range(3):
        assert bytes(tiered.get_range(key(0), start, length)) == data[start : start + length]
        assert tier.wait_until_written(PATIENCE_S)
    assert store.reads[key(0)] == 1
    assert bytes(tiered.get_range(key(0), 30 * MIB + 1, 1000)) == data[30 * MIB + 1 :][:1000]
    eventually(lambda: store.reads[key(0)] == 3)
    assert store.bytes[key(0)] < 10 * MIB


def test_reject_first_writes_nothing_that_is_read_once(
    folder: Path, tmp_path: Path, store: CountingStore
) -> None:
    tier = SsdTier(
        lambda: SegmentStore(folder, tmp_path / "index", 60 * MIB), folder, RejectFirst()
    )
    assert tier.wait_until_open(PATIENCE_S)
    tiered = TieredStore(store, DATASET, tier)
    for number in range(8):
        tiered.get(key(number))
    assert tier.wait_until_written(PATIENCE_S)
    assert tier.statistics().written_bytes == 0
    assert tier.statistics().not_admitted == 8
    tiered.get(key(0))
    assert tier.wait_until_written(PATIENCE_S)
    assert tier.statistics().written_bytes == 3 * MIB
    tier.close()


class Tampered:
    """Segments whose accesses do what a test says first."""

    def __init__(self, segments: SegmentStore, first: Callable[[str], None]) -> None:
        self._segments = segments
        self._first = first

    def __getattr__(self, name: str) -> object:
        found = getattr(self._segments, name)
        if name not in ("read", "read_whole", "append"):
            return found

        def call(*arguments: object, **named: object) -> object:
            if not named.get("waits", True):
                raise BlockingIOError  # it is not in the page cache
            self._first(name)
            return found(*arguments, **named)

        return call


@pytest.mark.parametrize("fault", ["error", "hang"])
def test_a_failing_ssd_fails_no_read_and_comes_back(
    folder: Path,
    tmp_path: Path,
    store: CountingStore,
    fault: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    faulty, released = threading.Event(), threading.Event()

    def first(name: str) -> None:
        if faulty.is_set():
            if fault == "error":
                raise OSError(5, "Input/output error")
            released.wait(PATIENCE_S)

    tier = SsdTier(
        lambda: Tampered(SegmentStore(folder, tmp_path / "index", 60 * MIB), first),  # type: ignore[arg-type, return-value]
        folder,
    )
    assert tier.wait_until_open(PATIENCE_S)
    tiered = TieredStore(store, DATASET, tier)
    for number in range(8):
        tiered.get(key(number))
    assert tier.wait_until_written(PATIENCE_S)
    monkeypatch.setattr("chunkstore.ssd.ssd_service.DEADLINE_S", 0.25)
    faulty.set()
    slowest = 0.0
    for turn in range(5):
        for number in range(8):
            began = time.monotonic()
            assert bytes(tiered.get(key(number))) == content(number), turn
            slowest = max(slowest, time.monotonic() - began)
    statistics = tier.statistics()
    assert statistics.failures >= 1
    assert statistics.bypassed >= 30
    assert slowest < PATIENCE_S / 2
    monkeypatch.undo()  # a sound SSD has the tests' deadline
    faulty.clear()
    released.set()
    before = tier.statistics()

    def is_back() -> bool:
        assert bytes(tiered.get(key(0))) == content(0)
        return tier.statistics().hits > before.hits

    eventually(is_back)
    # It came from the SSD when that was asked for the first time.
    assert (tier.statistics().hits, tier.statistics().misses) == (before.hits + 1, before.misses)
    tier.close()


def test_a_folder_that_goes_is_made_anew(
    folder: Path, tmp_path: Path, tier: SsdTier, store: CountingStore
) -> None:
    tiered = TieredStore(store, DATASET, tier)
    for number in range(8):
        tiered.get(key(number))
    assert tier.wait_until_written(PATIENCE_S)
    shutil.rmtree(folder.rename(tmp_path / "removed"))  # at once: the tier may make it anew
    for number in range(8):
        assert bytes(tiered.get(key(number))) == content(number)

    def is_kept_again() -> bool:
        before = store.reads[key(0)]
        assert bytes(tiered.get(key(0))) == content(0)
        tier.wait_until_written(1)
        return store.reads[key(0)] == before

    eventually(is_kept_again)
    assert folder.is_dir()


def test_what_has_no_room_is_not_fetched_in_vain_each_time(
    folder: Path, tmp_path: Path, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chunkstore.ssd.tier._NO_ROOM_S", PATIENCE_S)
    others = DatasetRef("others", b"o" * 16)
    limits = {others.id: DatasetLimits(pinned=True)}
    tier = SsdTier(
        lambda: SegmentStore(
            folder,
            tmp_path / "index",
            14 * MIB,
            limits_of=lambda dataset: limits.get(dataset, DatasetLimits()),
        ),
        folder,
    )
    assert tier.wait_until_open(PATIENCE_S)
    filler = memoryview(content(99))
    while tier.keep(CacheInsert(others.id, os.urandom(16), 0, filler, True)):
        pass
    tiered = TieredStore(store, DATASET, tier)
    for number in range(8):
        tiered.get_range(key(number), 0, 1000)
        eventually(lambda: not tiered._warming._flights)
    assert sum(store.bytes.values()) == 8 * 1000 + 3 * MIB
    tier.close()


def test_errors_of_the_store_pass(tier: SsdTier) -> None:
    class Out(CountingStore):
        def get(self, key: str) -> bytes:
            raise Unavailable("out")

        get_range = get  # type: ignore[assignment]

    with pytest.raises(Unavailable):
        TieredStore(Out(), DATASET, tier).get(key(0))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An ext4 of 64 MiB in a file, through a loop device."""
    image, mountpoint = tmp_path / "disk.img", tmp_path / "disk"
    mountpoint.mkdir()
    with image.open("wb") as file:
        file.truncate(64 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mountpoint], check=True)
    try:
        yield mountpoint
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=True)


def test_a_full_disk_fails_no_read(small_disk: Path, tmp_path: Path, store: CountingStore) -> None:
    folder = small_disk / "ssd"
    tier = SsdTier(lambda: SegmentStore(folder, tmp_path / "index", 1 << 30), folder)
    assert tier.wait_until_open(PATIENCE_S)
    with (small_disk / "others").open("wb", buffering=0) as others, suppress(OSError):
        while True:  # not a block is left
            others.write(bytes(1 << 16))
    tiered = TieredStore(store, DATASET, tier)
    for _ in range(3):
        for number in range(8):
            assert bytes(tiered.get(key(number))) == content(number)
            tier.wait_until_written(PATIENCE_S)
    assert "No space left" in tier.statistics().reason
    tier.close()


def test_on_a_disk_that_others_have_filled_regions_are_used_again(
    small_disk: Path, tmp_path: Path, store: CountingStore
) -> None:
    folder = small_disk / "ssd"
    tier = SsdTier(lambda: SegmentStore(folder, tmp_path / "index", 1 << 30), folder)
    assert tier.wait_until_open(PATIENCE_S)
    (small_disk / "others").write_bytes(bytes(40 * MIB))
    tiered = TieredStore(store, DATASET, tier)
    for _ in range(3):
        for number in range(8):
            assert bytes(tiered.get(key(number))) == content(number)
            assert tier.wait_until_written(PATIENCE_S)
    assert tier.statistics().failures == 0
    assert tier.statistics().written_bytes > 24 * MIB
    tiered.get(key(7))
    assert tier.statistics().hits >= 1
    tier.close()


def cut_off(image: Path, folder: Path) -> None:
    """End the disk that the folder lies on behind its first page, and drop the pages of files."""
    os.truncate(image, 4096)
    number = folder.stat().st_dev
    device = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name
    with open(f"/dev/{device}", "rb") as disk:
        fcntl.ioctl(disk.fileno(), LOOP_SET_CAPACITY, 0)
    for path in (folder / "regions").iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_a_disk_that_dies_fails_no_read(
    small_disk: Path, tmp_path: Path, store: CountingStore
) -> None:
    folder = small_disk / "ssd"
    tier = SsdTier(lambda: SegmentStore(folder, tmp_path / "index", 50 * MIB), folder)
    assert tier.wait_until_open(PATIENCE_S)
    tiered = TieredStore(store, DATASET, tier)
    for number in range(8):
        tiered.get(key(number))
    assert tier.wait_until_written(PATIENCE_S)
    # `os.sync` would wait for all file systems of this machine, also for one that hangs.
    subprocess.run(["sync", "--file-system", folder], check=True)
    cut_off(tmp_path / "disk.img", folder)
    for _ in range(3):
        for number in range(8):
            assert bytes(tiered.get(key(number))) == content(number)
    assert tier.statistics().failures >= 1
    tier.close()
