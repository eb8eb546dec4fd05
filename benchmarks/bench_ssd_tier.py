"""Does an SSD tier cost little where it helps, help much where the store is slow, and cost nothing
where it can't help?

hit      through TieredStore and ChunkReader, as readers read, over plain reads (open, pread, close)
         of the same bytes in files of the same disk, random order; cold (page cache dropped before
         each round) and warm. Bars: 0.8 for 4 MiB, 0.5 for 110 KiB. Expected: cold the disk
         decides; warm a memcpy of 4 MiB takes 0.5 ms and two checksums over it 0.3 ms each, so 0.5;
         110 KiB: a thread's hand-over, an index look-up and an open beside 30 µs.
epoch    110 KiB files in random order, one by one, from a disk of 8.3 ms a seek and 150 MB/s (9.0
         ms a file): the SSD warm, over no tier. Bar: 5. Expected: 0.2 ms a file, 40.
failing  the SSD gives EIO (a loop device whose file was cut), or ENOSPC: reads of 110 KiB by a
         store in the page cache after the first 5 s, over no tier. Bar: 0.97. Expected: a
         comparison, 1.0.
restart  100,000 segments: until the first hit, page cache dropped, with the index kept and lost.
         Bar: 1 s. Expected: some ms; 400 reads and 4 µs a segment.
churn    two processes' stores write, evict, shrink and grow one tier: bytes of the SSD above the
         budget after any step. Bar: none.

As root:

    python -m benchmarks.bench_ssd_tier [--only hit,epoch,failing,restart,churn] [--quick]
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import REPOSITORY, report, run_rounds, scratch, spread, sync
from benchmarks.slow_store import SlowStore
from chunkstore.chunk_format import KIND_FILE, DatasetRef, decode_head
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.chunk_writer import ChunkWriter, SealedChunk
from chunkstore.object_keys import chunk_key
from chunkstore.ssd.segment_store import SegmentStore
from chunkstore.ssd.tier import SsdTier
from chunkstore.ssd.tiered_store import TieredStore
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.resilient import ResilientStore

MIB = 1 << 20
FILE_BYTES = 110 << 10
DATASET = DatasetRef("bench", b"benchmark of ssd")
PATIENCE_S = 60.0
FAILING_SKIPPED_S = 5.0


@dataclass(frozen=True)
class Dataset:
    store: LocalDirectory
    paths: dict[str, Path]
    """Of the objects' files, by the chunks' ids."""
    chunks: list[ChunkRef]
    files: list[FileExtent]

    def path(self, chunk: ChunkRef) -> Path:
        return self.paths[str(chunk.id)]


def make_dataset(folder: Path, chunks: int) -> Dataset:
    store = LocalDirectory(folder)
    refs: list[ChunkRef] = []
    files: list[FileExtent] = []

    def keep(chunk: SealedChunk) -> None:
        store.create(chunk_key(DATASET.name, chunk.ref.id), [chunk.head, *chunk.payload])
        refs.append(chunk.ref)
        entries = decode_head(chunk.head, chunk.ref.id).entries
        for at in range(len(entries.paths)):
            if entries.kind[at] == KIND_FILE:
                numbers = int(entries.offset[at]), int(entries.length[at]), int(entries.hash[at])
                files.append(FileExtent(chunk.ref, *numbers))

    writer = ChunkWriter(DATASET, ChunkIdGenerator(), keep)
    content = random.Random(1)
    for number in range(chunks * (4 * MIB // FILE_BYTES)):
        writer.add_file(b"%07d.jpg" % number, content.randbytes(FILE_BYTES), 0o644, 0)
    writer.flush()
    sync(folder)
    paths = {path.name: path for path in folder.rglob("*") if path.is_file()}
    return Dataset(store, paths, refs, files)


@contextmanager
def open_tier(
    folder: Path, budget: int = 4096 * MIB, segment_bytes: int = 256 << 10
) -> Iterator[SsdTier]:
    """With its index in a tmpfs."""
    index = Path(tempfile.mkdtemp(prefix="dieselfs-bench-", dir="/dev/shm"))
    tier = SsdTier(
        lambda: SegmentStore(folder, index / "index", budget, segment_bytes=segment_bytes), folder
    )
    try:
        if not tier.wait_until_open(PATIENCE_S):
            raise RuntimeError(f"the tier can't be opened: {tier.statistics().reason}")
        yield tier
    finally:
        tier.close()
        shutil.rmtree(index, ignore_errors=True)


def warm(store: TieredStore, tier: SsdTier, chunks: Sequence[ChunkRef]) -> None:
    for chunk in chunks:
        store.get(chunk_key(DATASET.name, chunk.id))
        tier.wait_until_written(PATIENCE_S)
    written = tier.statistics().written_bytes
    if written < sum(chunk.payload_bytes for chunk in chunks):
        raise RuntimeError("not all chunks are on the SSD")


def drop_caches(folder: Path) -> None:
    sync(folder)
    Path("/proc/sys/vm/drop_caches").write_text("1")


def hit(folder: Path, *, quick: bool) -> None:
    dataset = make_dataset(folder / "store", 16 if quick else 100)
    with open_tier(folder / "ssd") as tier:
        slow = SlowStore(
            dataset.store
        )  # else the tier goes out of service where it is the slower one
        tiered = TieredStore(slow, DATASET, tier)
        warm(tiered, tier, dataset.chunks)
        sync(folder)
        reader = ChunkReader(tiered, DATASET)
        chosen = random.Random(1)
        chunks = chosen.sample(dataset.chunks, len(dataset.chunks))
        files = chosen.sample(dataset.files, min(len(dataset.files), 200 if quick else 2000))

        def plainly(path: Path, offset: int, length: int) -> None:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if len(os.pread(fd, length, offset)) != length:
                    raise RuntimeError(f"{path} is too short")
            finally:
                os.close(fd)

        def chunks_plainly() -> None:
            for chunk in chunks:
                plainly(dataset.path(chunk), 0, chunk.head_bytes + chunk.payload_bytes)

        def files_plainly() -> None:
            for file in files:
                plainly(dataset.path(file.chunk), file.chunk.head_bytes + file.offset, file.length)

        def chunks_by_tier() -> None:
            for chunk in chunks:
                reader.payload(chunk)

        def files_by_tier() -> None:
            for file in files:
                reader.read(file, 0, file.length)

        for size, tier_read, plain_read in (
            ("4 MiB", chunks_by_tier, chunks_plainly),
            ("110 KiB", files_by_tier, files_plainly),
        ):
            for state in ("cold", "warm"):
                before = tier.statistics()

                def timed(read: Callable[[], None], cold: bool = state == "cold") -> float:
                    if cold:
                        drop_caches(folder)
                    began = time.perf_counter()
                    read()
                    return time.perf_counter() - began

                rounds = run_rounds(
                    {
                        "tier": lambda read=tier_read: timed(read),  # type: ignore[misc]
                        "plain": lambda read=plain_read: timed(read),  # type: ignore[misc]
                    },
                    rounds=2 if quick else 5,
                )
                after = tier.statistics()
                if after.misses > before.misses or after.bypassed > before.bypassed:
                    raise RuntimeError(f"not all were hits: {after}")
                count = len(chunks) if size == "4 MiB" else len(files)
                report(
                    f"a hit over plain reads, {size}, {state}",
                    ratio=spread(rounds.ratios("tier", "plain")),
                    tier_ms=1e3 * rounds.median("tier") / count,
                    plain_ms=1e3 * rounds.median("plain") / count,
                    bar=0.8 if size == "4 MiB" else 0.5,
                )


def epoch(folder: Path, *, quick: bool) -> None:
    dataset = make_dataset(folder / "store", 8 if quick else 60)
    slow = ResilientStore(SlowStore(dataset.store))
    chosen = random.Random(2)
    files = chosen.sample(dataset.files, len(dataset.files))
    sample = files[: 60 if quick else 600]
    with open_tier(folder / "ssd") as tier:
        warm(TieredStore(dataset.store, DATASET, tier), tier, dataset.chunks)
        drop_caches(folder)
        by_tier = ChunkReader(TieredStore(slow, DATASET, tier), DATASET)
        without = ChunkReader(slow, DATASET)
        tier_s, hits = _seconds_a_file(by_tier, files), tier.statistics().hits
        if hits < len(files):
            raise RuntimeError(f"{len(files) - hits} files were not on the SSD")
        without_s = _seconds_a_file(without, sample)
        report(
            "an epoch of 110 KiB files in random order, slow store: SSD warm over no tier",
            ratio=without_s / tier_s,
            tier_ms=1e3 * tier_s,
            without_ms=1e3 * without_s,
            bar=5,
        )


def _seconds_a_file(reader: ChunkReader, files: Sequence[FileExtent]) -> float:
    began = time.perf_counter()
    for file in files:
        reader.read(file, 0, file.length)
    return (time.perf_counter() - began) / len(files)


@contextmanager
def small_disk(folder: Path) -> Iterator[tuple[Path, Path]]:
    """An ext4 of 256 MiB in a file: its mountpoint, and the file."""
    image, mountpoint = folder / "disk.img", folder / "disk"
    mountpoint.mkdir()
    with image.open("wb") as file:
        file.truncate(256 * MIB)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, mountpoint], check=True)
    try:
        yield mountpoint, image
    finally:
        subprocess.run(["umount", "-l", mountpoint], check=True)
        mountpoint.rmdir()
        image.unlink()


def failing(folder: Path, *, quick: bool) -> None:
    dataset = make_dataset(folder / "store", 8 if quick else 40)
    for fault in ("EIO", "ENOSPC"):
        with small_disk(folder) as (disk, image):
            full = fault == "ENOSPC"
            with open_tier(disk / "ssd", 200 * MIB) as tier:
                store = ResilientStore(dataset.store)
                if full:
                    _fill(disk / "others")
                else:
                    warm(TieredStore(store, DATASET, tier), tier, dataset.chunks[:30])
                    sync(disk)
                    os.truncate(image, 4096)
                    Path("/proc/sys/vm/drop_caches").write_text("1")
                _failing(fault, dataset, store, tier, quick=quick)


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as others:
        for size in (MIB, 4096):
            try:
                while True:
                    others.write(bytes(size))
            except OSError:
                continue


def _failing(
    fault: str, dataset: Dataset, store: ResilientStore, tier: SsdTier, *, quick: bool
) -> None:
    readers = {
        "tier": ChunkReader(TieredStore(store, DATASET, tier), DATASET),
        "without": ChunkReader(store, DATASET),
    }
    chosen = random.Random(3)
    files = itertools.cycle(chosen.sample(dataset.files, len(dataset.files)))
    slice_s, slices = (0.05, 20) if quick else (0.05, 300)
    end = time.monotonic() + (1.0 if quick else FAILING_SKIPPED_S)
    while time.monotonic() < end:
        file = next(files)
        readers["tier"].read(file, 0, file.length)
    rates: dict[str, list[float]] = {name: [] for name in readers}
    for _ in range(slices):
        for name, reader in readers.items():
            began, count = time.monotonic(), 0
            while (took := time.monotonic() - began) < slice_s:
                file = next(files)
                reader.read(file, 0, file.length)
                count += 1
            rates[name].append(count / took)
    statistics_ = tier.statistics()
    if not statistics_.failures:
        raise RuntimeError("the SSD did not fail")
    report(
        f"a tier on an SSD that gives {fault}, over no tier",
        ratio=sum(rates["tier"]) / sum(rates["without"]),
        ratio_of_slices=statistics.median(
            a / b for a, b in zip(rates["tier"], rates["without"], strict=True)
        ),
        files_per_s=statistics.median(rates["tier"]),
        failures=statistics_.failures,
        reason=statistics_.reason,
        bar=0.97,
    )


def restart(folder: Path, *, quick: bool) -> None:
    segments = 5_000 if quick else 100_000
    size = 32 << 10
    per_chunk = 4 * MIB // size + 1  # the last one says where the object ends
    chunks = -(-segments // per_chunk)
    budget = int(chunks * 4 * MIB * 1.15) + 64 * MIB
    index = Path(tempfile.mkdtemp(prefix="dieselfs-bench-", dir="/dev/shm"))
    ssd = folder / "ssd"
    data = memoryview(random.Random(4).randbytes(4 * MIB))

    def opened() -> SegmentStore:
        return SegmentStore(ssd, index / "index", budget, segment_bytes=size)

    try:
        store = opened()
        for number in range(chunks):
            store.append(DATASET.id, number.to_bytes(16, "big"), 0, data, True)
        store.close()
        for state in ("kept", "lost"):
            took = []
            for _ in range(1 if quick else 3):
                if state == "lost":
                    shutil.rmtree(index / "index")
                drop_caches(folder)
                began = time.perf_counter()
                tier = SsdTier(opened, ssd)
                tier.wait_until_open(PATIENCE_S)
                found = tier.read((0).to_bytes(16, "big"), 1000, FILE_BYTES, dataset=DATASET.id)
                took.append(time.perf_counter() - began)
                if found != data[1000 : 1000 + FILE_BYTES]:
                    raise RuntimeError("what was written is not there")
                tier.close()
            report(
                f"restart with {chunks * per_chunk} segments, index {state}: seconds to the first hit",
                seconds=spread(took),
                bar=1.0,
            )
    finally:
        shutil.rmtree(index, ignore_errors=True)


_OTHER = """
import random, sys
from pathlib import Path
from chunkstore.ssd.segment_store import SegmentStore
store = SegmentStore(Path(sys.argv[1]), Path(sys.argv[2]), None)
chosen = random.Random(7)
for line in sys.stdin:
    number = int(line)
    data = memoryview(bytes(chosen.randint(1, 5 << 20)))
    store.append(b"another dataset!", number.to_bytes(16, "big"), 0, data, True)
    store.tend()
    print(number, flush=True)
"""


def churn(folder: Path, *, quick: bool) -> None:
    budget, ssd = 80 * MIB, folder / "ssd"
    index = Path(tempfile.mkdtemp(prefix="dieselfs-bench-", dir="/dev/shm"))
    chosen = random.Random(5)
    content = memoryview(chosen.randbytes(5 * MIB))
    store = SegmentStore(ssd, index / "index", budget)
    violations, steps, most = 0, 60 if quick else 1500, 0.0
    other = subprocess.Popen(
        [sys.executable, "-c", _OTHER, str(ssd), str(index / "index")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert other.stdin is not None
    assert other.stdout is not None
    try:
        for step in range(steps):
            action = chosen.random()
            if action < 0.02:
                store.evict(DATASET.id)
            elif action < 0.05:
                budget = chosen.choice([60, 80, 120]) * MIB
                store.close()
                store = SegmentStore(ssd, index / "index", budget)
            else:
                length = chosen.randint(1, 5 * MIB)
                store.append(DATASET.id, step.to_bytes(16, "big"), 0, content[:length], True)
            other.stdin.write(f"{step + steps}\n")
            other.stdin.flush()
            other.stdout.readline()
            store.tend()
            taken = _bytes_on_disk(ssd)
            violations += taken > budget
            most = max(most, taken / budget)
    finally:
        other.stdin.close()
        other.wait()
        other.stdout.close()
        store.close()
        shutil.rmtree(index, ignore_errors=True)
    report(
        "bytes on the SSD above the budget",
        violations=violations,
        steps=steps,
        most_share=most,
        bar=0,
    )


def _bytes_on_disk(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in [folder, *folder.rglob("*")])


PARTS: dict[str, Callable[..., None]] = {
    "hit": hit,
    "epoch": epoch,
    "failing": failing,
    "restart": restart,
    "churn": churn,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    for name in options.only.split(","):
        with scratch("ssd-tier") as folder:
            PARTS[name](folder, quick=options.quick)


if __name__ == "__main__":
    main()
