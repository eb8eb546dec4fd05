from __future__ import annotations

import os
import random
import re
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import cache
from pathlib import Path

import pytest

from chunkstore.ssd.eviction import DatasetLimits
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.segments import Segment
from tests.forked_programs import start_forked

DATASET, OTHER = b"d" * 16, b"o" * 16
MIB = 1 << 20
Open = Callable[..., SegmentStore]


def chunk_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


@cache
def noise() -> bytes:
    return random.Random(0).randbytes(8 * MIB)


def content(number: int, size: int) -> bytes:
    """Up to 5 MiB of the noise, which begin elsewhere for each number."""
    start = number * 1_000_003 % (3 * MIB)
    return noise()[start : start + size]


@pytest.fixture
def open_store(tmp_path: Path) -> Open:
    def opened(budget: int = 40 * MIB, **options: object) -> SegmentStore:
        return SegmentStore(tmp_path / "ssd", tmp_path / "index", budget, **options)  # type: ignore[arg-type]

    return opened


def put(store: SegmentStore, number: int, size: int, dataset: bytes = DATASET) -> bytes:
    data = content(number, size)
    assert store.append(dataset, chunk_id(number), 0, memoryview(data), is_end=True)
    return data


@pytest.mark.parametrize(
    "size", [1, 4096, 262_143, 262_144, 262_145, 3 * 262_144, 4 * MIB + 70_001]
)
def test_an_object_is_read_back_whole_and_in_parts(open_store: Open, size: int) -> None:
    store = open_store()
    data = put(store, 1, size)
    assert store.read_whole(chunk_id(1)) == data
    chosen = random.Random(size)
    for _ in range(200):
        start = chosen.randrange(size)
        length = chosen.randint(0, min(size - start, 600_000))
        assert store.read(chunk_id(1), start, length) == data[start : start + length]
    assert store.read_whole(chunk_id(2)) is None
    assert store.read(chunk_id(2), 0, 1) is None
    store.close()


def test_a_part_that_is_not_held_is_a_miss(open_store: Open) -> None:
    store = open_store()
    data = content(1, 2 * MIB)
    assert store.append(DATASET, chunk_id(1), 2, memoryview(data)[: 4 << 18], is_end=False)
    assert store.read(chunk_id(1), 2 << 18, 4 << 18) == data[: 4 << 18]
    assert store.read(chunk_id(1), (2 << 18) - 1, 2) is None
    assert store.read(chunk_id(1), (6 << 18) - 1, 2) is None
    assert store.read_whole(chunk_id(1)) is None
    store.close()


def du(folder: Path) -> int:
    return sum(
        entry.stat().st_blocks * 512
        for entry in [folder, *folder.rglob("*")]
        if not entry.is_symlink()
    )


@pytest.mark.parametrize("order", ["lru", "fifo"])
def test_the_budget_is_kept_whatever_comes(open_store: Open, tmp_path: Path, order: str) -> None:
    budget = 40 * MIB
    store = open_store(budget, order=order)
    chosen = random.Random(order)
    wrong = cached = 0
    for number in range(120):
        put(store, number, chosen.randint(1, 5 * MIB))
        assert du(tmp_path / "ssd") <= budget
    for number in range(120):
        data = store.read_whole(chunk_id(number))
        cached += data is not None
        wrong += data is not None and data != content_of(order, number)
    assert wrong == 0
    assert cached >= 5
    store.close()


def content_of(order: str, number: int) -> bytes:
    chosen = random.Random(order)
    sizes = [chosen.randint(1, 5 * MIB) for _ in range(number + 1)]
    return content(number, sizes[number])


def test_what_was_read_of_late_stays(open_store: Open) -> None:
    clock = iter(range(10**6))
    store = open_store(order="lru", now=lambda: float(next(clock)))
    kept = put(store, 0, 3 * MIB)
    for number in range(1, 60):
        put(store, number, 3 * MIB)
        assert store.read_whole(chunk_id(0)) == kept
        store.touch()
    store.close()


def test_first_in_first_out(open_store: Open) -> None:
    store = open_store(order="fifo")
    for number in range(60):
        put(store, number, 3 * MIB)
        store.read_whole(chunk_id(0))
        store.touch()
    cached = [number for number in range(60) if store.read_whole(chunk_id(number)) is not None]
    assert cached == list(range(cached[0], 60))
    assert cached[0] > 40
    store.close()


def test_a_pinned_dataset_stays_and_a_quota_is_kept(open_store: Open) -> None:
    limits = {DATASET: DatasetLimits(pinned=True), OTHER: DatasetLimits(quota_bytes=13 * MIB)}
    store = open_store(limits_of=lambda dataset: limits.get(dataset, DatasetLimits()))
    pinned = [put(store, number, 3 * MIB) for number in range(4)]
    for number in range(100, 140):
        put(store, number, 3 * MIB, OTHER)
        of = {found.dataset: found.bytes for found in store.occupancy()}
        assert of[OTHER] <= 13 * MIB
    for number in range(200, 240):
        put(store, number, 3 * MIB, b"third".ljust(16))
    assert [store.read_whole(chunk_id(number)) for number in range(4)] == pinned
    limits[OTHER] = DatasetLimits(quota_bytes=1 * MIB)
    assert (
        not store.append(OTHER, chunk_id(300), 0, memoryview(b"x"), is_end=True)
        or store.occupancy()
    )
    assert store.evict(DATASET) > 0
    assert store.read_whole(chunk_id(0)) is None
    store.close()


def test_what_time_is_over_leaves_first(open_store: Open) -> None:
    time = 0.0
    limits = {OTHER: DatasetLimits(ttl_s=60)}
    store = open_store(
        now=lambda: time, limits_of=lambda dataset: limits.get(dataset, DatasetLimits())
    )
    put(store, 0, 3 * MIB)
    time = 10.0
    put(store, 1, 3 * MIB, OTHER)
    time = 100.0
    for number in range(2, 30):
        put(store, number, 3 * MIB)
        if OTHER not in {found.dataset for found in store.occupancy()}:
            break
    assert number < 20
    assert store.read_whole(chunk_id(0)) is not None, "it was used before that, but has no end"
    store.close()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_what_nobody_uses_for_its_ttl_goes_though_there_is_room(open_store: Open) -> None:
    clock = Clock()
    limits = {OTHER: DatasetLimits(ttl_s=60)}
    store = open_store(now=clock, limits_of=lambda dataset: limits.get(dataset, DatasetLimits()))
    for number in range(4):
        put(store, number, 3 * MIB, OTHER)
    put(store, 9, 3 * MIB)
    clock.now += 59
    store.tend()
    assert len(store.cached(OTHER)) == 4
    assert store.read_whole(chunk_id(0)) is not None
    clock.now += 30
    store.tend()
    assert chunk_id(0) in store.cached(OTHER), "it was read"
    assert chunk_id(2) not in store.cached(OTHER)
    limits[OTHER] = DatasetLimits(ttl_s=60, pinned=True)
    clock.now += 3600
    store.tend()
    assert chunk_id(0) in store.cached(OTHER)
    limits[OTHER] = DatasetLimits(ttl_s=60)
    store.tend()
    assert not store.cached(OTHER)
    assert chunk_id(9) in store.cached(DATASET)
    store.close()


def test_what_another_process_fills_outlives_its_ttl(open_store: Open) -> None:
    clock = Clock()
    store = open_store(now=clock, limits_of=lambda dataset: DatasetLimits(ttl_s=60))
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        try:
            own = open_store(now=clock)
            put(own, 1, MIB)
            os.write(to_parent[1], b".")
            os.read(to_child[0], 1)
        finally:
            os._exit(0)
    os.read(to_parent[0], 1)
    clock.now += 3600
    store.tend()
    assert store.read_whole(chunk_id(1)) is not None
    os.write(to_child[1], b".")
    os.waitpid(child, 0)
    clock.now += 3600
    store.touch()
    clock.now += 3600
    store.tend()
    assert store.read_whole(chunk_id(1)) is None
    store.close()
    for end in (*to_child, *to_parent):
        os.close(end)


def test_after_a_reboot_a_ttl_counts_anew(open_store: Open, tmp_path: Path) -> None:
    clock = Clock()
    store = open_store(now=clock)
    put(store, 1, MIB)
    store.close()
    for file in (tmp_path / "index").iterdir():
        file.unlink()
    clock.now += 3600
    again = open_store(now=clock, limits_of=lambda dataset: DatasetLimits(ttl_s=60))
    again.tend()
    assert again.read_whole(chunk_id(1)) is not None
    again.close()


def test_a_clock_that_is_set_back_keeps_nothing_for_ever(open_store: Open) -> None:
    clock = Clock()
    clock.now = 1e9
    store = open_store(now=clock)
    for number in range(30):
        put(store, number, 3 * MIB)
    clock.now = 5e8
    store.tend()
    for number in range(100, 140):
        clock.now += 1
        put(store, number, 3 * MIB)
    cached = set(store.cached(DATASET))
    assert cached <= {chunk_id(number) for number in range(100, 140)}
    assert len(cached) >= 5
    store.close()


def test_damage_is_a_miss_and_is_forgotten(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    data = put(store, 1, 2 * MIB)
    put(store, 2, 2 * MIB)
    wanted = data[700_000:700_064]
    [path] = [path for path in (tmp_path / "ssd/regions").iterdir() if wanted in path.read_bytes()]
    raw = bytearray(path.read_bytes())
    at = raw.index(wanted)
    raw[at] ^= 1
    path.write_bytes(raw)
    assert store.read(chunk_id(1), 0, 1000) == data[:1000]
    assert store.read(chunk_id(1), 700_000, 10) is None
    assert store.read(chunk_id(1), 600_000, 10) is None, "the segment is forgotten as a whole"
    assert store.read_whole(chunk_id(2)) is not None
    store.close()


@pytest.mark.parametrize("index", ["kept", "lost"])
def test_it_is_there_after_a_restart(open_store: Open, tmp_path: Path, index: str) -> None:
    store = open_store()
    data = {number: put(store, number, 3 * MIB) for number in range(6)}
    store.close()
    if index == "lost":
        for file in (tmp_path / "index").iterdir():
            file.unlink()
    again = open_store()
    assert {number: again.read_whole(chunk_id(number)) for number in data} == data
    put(again, 10, 3 * MIB)
    again.close()


def test_a_smaller_budget_lets_go(open_store: Open, tmp_path: Path) -> None:
    store = open_store(60 * MIB)
    for number in range(30):
        put(store, number, 3 * MIB)
    store.close()
    smaller = open_store(20 * MIB)
    assert du(tmp_path / "ssd") <= 20 * MIB
    for number in range(30, 60):
        put(smaller, number, 3 * MIB)
        assert du(tmp_path / "ssd") <= 20 * MIB
    smaller.close()


class KeepAll:
    def stays(self, dataset: bytes, segments: Sequence[Segment]) -> Sequence[Segment]:
        return [segment for segment in segments if segment.chunk == chunk_id(0)]


def test_what_is_reinserted_stays(open_store: Open) -> None:
    store = open_store(order="fifo", reinsertion=KeepAll())
    kept = put(store, 0, 1 * MIB)
    for number in range(1, 80):
        put(store, number, 3 * MIB)
        assert store.read_whole(chunk_id(0)) == kept
    store.close()


_WRITER = """
import sys, random
from pathlib import Path
from chunkstore.ssd.segment_store import SegmentStore
folder, seed = Path(sys.argv[1]), int(sys.argv[2])
store = SegmentStore(folder / "ssd", folder / "index", 40 << 20)
print("open", flush=True)
number = seed * 1000
noise = random.Random(0).randbytes(8 << 20)
while True:
    start = number * 1_000_003 % (3 << 20)
    data = noise[start : start + (3 << 20)]
    store.append(b"d" * 16, number.to_bytes(16, "big"), 0, memoryview(data), True)
    print(number, flush=True)
    number += 1
"""


def test_killed_writers_leave_nothing_wrong(open_store: Open, tmp_path: Path) -> None:
    """Two at a time fill one tier, are killed in the middle, and are followed by others."""
    written: list[int] = []
    for turn in range(4):
        writers = [
            start_forked(
                [sys.executable, "-c", _WRITER, str(tmp_path), str(10 * turn + n)], env=os.environ
            )
            for n in range(2)
        ]
        for writer in writers:
            for _ in range(5):
                line = writer.stdout.readline()
                if line.strip().isdigit():
                    written.append(int(line))
        for writer in writers:
            writer.kill()
            rest, _ = writer.communicate()  # what it wrote meanwhile has evicted some of the others
            written += map(int, re.findall(rb"^(\d+)\n", rest, re.MULTILINE))
        store = open_store()
        cached = 0
        for number in written:
            data = store.read_whole(chunk_id(number))
            cached += data is not None
            assert data is None or data == content(number, 3 * MIB)
        assert cached >= 3
        put(store, 90_000 + turn, 3 * MIB)
        assert du(tmp_path / "ssd") <= 40 * MIB
        store.close()


def test_what_one_process_left_half_filled_is_filled_on(open_store: Open, tmp_path: Path) -> None:
    for number in range(12):
        store = open_store()
        put(store, number, 200_000)
        store.close()
    store = open_store()
    assert len(list((tmp_path / "ssd/regions").iterdir())) == 1
    assert all(store.read_whole(chunk_id(n)) == content(n, 200_000) for n in range(12))
    store.close()


def test_what_is_missing_of_a_chunk_comes_though_its_beginning_is_there(open_store: Open) -> None:
    store = open_store()
    data = content(1, MIB)
    assert store.append(DATASET, chunk_id(1), 0, memoryview(data)[: MIB // 2], is_end=False)
    assert store.read_whole(chunk_id(1)) is None
    assert store.append(DATASET, chunk_id(1), 0, memoryview(data), is_end=True)
    assert store.read_whole(chunk_id(1)) == data
    assert store.cached(DATASET)[chunk_id(1)].is_whole
    store.close()


def test_a_budget_made_smaller_by_one_is_obeyed_by_the_other(
    open_store: Open, tmp_path: Path
) -> None:
    running = open_store(60 * MIB)
    for number in range(30):
        put(running, number, 3 * MIB)
    smaller = open_store(20 * MIB)
    put(running, 40, 3 * MIB)
    running.tend()
    assert du(tmp_path / "ssd") <= 20 * MIB
    smaller.close()
    running.close()


def test_a_forked_child_opens_its_own_and_leaves_its_parents_alone(
    open_store: Open, tmp_path: Path
) -> None:
    store = open_store()
    data = put(store, 1, 3 * MIB)
    child = os.fork()
    if not child:
        code = 1
        try:
            own = open_store()
            found = own.read_whole(chunk_id(1)) == data
            put(own, 2, MIB)
            own.close()
            code = 0 if found else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.read_whole(chunk_id(1)) == data
    assert store.read_whole(chunk_id(2)) == content(2, MIB)
    store.close()


def test_an_index_that_is_damaged_is_made_again(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    data = put(store, 1, MIB)
    store.close()
    (tmp_path / "index/data.mdb").write_bytes(b"no database" * 1000)
    again = open_store()
    assert again.read_whole(chunk_id(1)) == data
    again.close()


def test_an_index_folder_of_others_is_not_used(open_store: Open, tmp_path: Path) -> None:
    (tmp_path / "index").mkdir(mode=0o755)
    (tmp_path / "index").chmod(0o755)
    with pytest.raises(PermissionError):
        open_store()


def test_a_claim_is_one_processs_and_ends_with_it(open_store: Open, tmp_path: Path) -> None:
    store = open_store()
    assert store.claim(b"x")
    assert not store.claim(b"x")
    child = os.fork()
    if not child:
        code = 1
        try:
            own = open_store()
            code = 0 if not own.claim(b"x") and own.claim(b"y") else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.claim(b"y"), "who had it has ended"
    store.disclaim(b"x")
    assert store.claim(b"x")
    store.close()


def test_reads_of_all_processes_are_counted_by_dataset(open_store: Open) -> None:
    mine = open_store()
    put(mine, 1, MIB)
    mine.counts.hit(DATASET, 1000)
    mine.counts.miss(OTHER)
    mine.touch()
    child = os.fork()
    if not child:
        try:
            own = open_store()
            own.counts.hit(DATASET, 500)
            own.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    mine.counts.hit(DATASET, 1)
    mine.tend()
    found = {of.dataset: of for of in mine.occupancy()}
    assert (found[DATASET].hits, found[DATASET].hit_bytes, found[DATASET].misses) == (3, 1501, 0)
    assert (found[OTHER].regions, found[OTHER].hits, found[OTHER].misses) == (0, 0, 1)
    mine.close()


def test_what_is_read_while_it_is_filled_outlives_its_ttl(open_store: Open) -> None:
    clock = Clock()
    store = open_store(now=clock, limits_of=lambda dataset: DatasetLimits(ttl_s=90))
    data = put(store, 1, MIB)
    for _ in range(20):
        clock.now += 50
        assert store.read_whole(chunk_id(1)) == data
        store.tend()
    store.close()


@pytest.mark.parametrize("verified", [True, False])
def test_beyond_an_objects_end_there_is_nothing(open_store: Open, verified: bool) -> None:
    store = open_store()
    data = put(store, 1, 1000)
    assert store.read(chunk_id(1), 900, 500, verified=verified) == data[900:]
    assert store.read(chunk_id(1), 100_000, 500, verified=verified) == b""
    store.close()


def test_after_it_was_opened_again_no_region_stays_locked(open_store: Open) -> None:
    store = open_store()
    put(store, 1, MIB)
    store.reopen(rebuild=True)
    assert store.read_whole(chunk_id(1)) == content(1, MIB)
    assert store.evict(DATASET) == store.region_bytes
    store.close()


def test_a_region_of_which_the_index_knows_too_little_is_not_filled_on_for_ever(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it is left by who is killed between its table and the index."""
    store = open_store()
    put(store, 1, 2 * MIB)

    def refused(*_: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(store._index, "add", refused)
        with pytest.raises(OSError, match="killed"):
            put(store, 2, 1900 << 10)
    done = threading.Thread(target=put, args=(store, 3, MIB), daemon=True)
    done.start()
    done.join(60)
    assert not done.is_alive()
    assert store.read_whole(chunk_id(1)) == content(1, 2 * MIB)
    assert store.read_whole(chunk_id(3)) == content(3, MIB)
    store.close()


def test_who_opens_it_again_does_not_say_how_large_it_may_be(open_store: Open) -> None:
    running = open_store(60 * MIB)
    open_store(20 * MIB).close()
    running.tend()
    running.reopen(rebuild=True)
    assert running.budget_bytes == 20 * MIB
    shutil.rmtree(running._files.folder)
    running.reopen()
    assert running.budget_bytes == 20 * MIB
    running.close()


@pytest.mark.parametrize(
    "failing",
    [
        "chunkstore.ssd.region_files.RegionFiles.table",
        "chunkstore.ssd.segment_index.SegmentIndex._put_region",
    ],
)
def test_a_fault_while_a_region_is_begun_leaves_it_to_others(
    open_store: Open, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Its lock is on no list then: nothing but the end of this process would end it."""
    with closing(open_store()) as earlier:
        put(earlier, 1, 200_000)  # half filled, to be resumed
    store = open_store()
    dataset = DATASET if failing.endswith("table") else OTHER

    def refused(*_: object) -> None:
        raise OSError("the SSD is away")

    with monkeypatch.context() as patched:
        patched.setattr(failing, refused)
        with pytest.raises(OSError, match="is away"):
            put(store, 2, 200_000, dataset)
    assert all(store._files.locks.take(number) for number in range(store.budget_regions))
    for number in range(store.budget_regions):
        store._files.locks.release(number)
    put(store, 2, 200_000, dataset)
    store.close()
