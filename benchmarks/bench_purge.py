"""What does a purge leave, how fast is it, and do readers notice?

Of a dataset 15 % of the files are deleted and 15 % replaced, at random. Then:
- space: all objects of the dataset after a purge with `--grace 0` (chunks with heads, commits),
  over the bytes of the live files, and over these
  with their heads: a purge can free holes, but a file's name, hash, version and attributes stay,
  about 100 bytes. The bar is 2 %.
- rate: live bytes moved a second (read, verified, packed, stored, synced, committed, indexed),
  against `cp` of the same chunks and a sync.
  Expectation: what `cp` does and a hash of every byte, in Python for every file: a half for large
  files, less for small ones.
- readers: a mount of a snapshot from before reads files at random, past the page cache and with
  memory for a few chunks, before and while `dlcmd
  purge --grace 0` runs; afterwards it reads every file, byte for byte. It holds a lease, so nothing
  may be deleted under it.
  Expectation: no error; two processes share two cores and a disk, so a rate between a half and all.

    python -m benchmarks.bench_purge              # 320 MB: 2,000 files of 110 KiB, 25,000 of 4 KiB
    python -m benchmarks.bench_purge --quick
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import DLCMD, dlcmd, report, scratch, sync
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from metadata.kv.lmdb_file import LmdbFileStore

NAME = "bench"
FOLDERS = 100
MEMORY = "16MiB"
MEASURED_S = 3.0


@dataclass(frozen=True, slots=True)
class Contents:
    """Every file's content is a part of one random run of bytes."""

    size_bytes: int
    pool: bytes
    at: dict[bytes, int] = field(default_factory=dict)

    def draw(self, path: bytes, draw: random.Random) -> bytes:
        self.at[path] = draw.randrange(len(self.pool) - self.size_bytes)
        return self.of(path)

    def of(self, path: bytes) -> bytes:
        return self.pool[self.at[path] : self.at[path] + self.size_bytes]


@contextmanager
def opened(folder: Path) -> Iterator[Dataset]:
    (folder / "store").mkdir(parents=True, exist_ok=True)
    index = LmdbFileStore(folder / "index")
    try:
        yield open_dataset(LocalDirectory(folder / "store"), index, NAME, create=True)
    finally:
        index.close()


def make(folder: Path, files: int, size_bytes: int) -> Contents:
    """A dataset with holes; what its live files hold."""
    draw = random.Random(1)
    contents = Contents(size_bytes, draw.randbytes(size_bytes + (1 << 20)))
    paths = [b"class%02d/image%07d.jpg" % (number % FOLDERS, number) for number in range(files)]
    changed = draw.sample(paths, files * 30 // 100)
    deleted, replaced = changed[::2], changed[1::2]
    with opened(folder) as dataset:
        for batch in (paths, replaced):
            with DatasetWriter(dataset) as writer:
                for path in batch:
                    writer.put(path, contents.draw(path, draw))
        with DatasetWriter(dataset) as writer:
            for path in deleted:
                writer.delete(dataset.namespace.stat(path))
                del contents.at[path]
    return contents


def objects_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file())


def measure_rate(folder: Path, copy: Path) -> dict[str, float]:
    """Of a purge in this process, on a copy of the dataset, and of `cp`. Both read from the page
    cache and end with a sync."""
    begin = time.perf_counter()
    shutil.copytree(folder / "index", copy / "index")
    subprocess.run(["cp", "-r", folder / "store", copy / "store"], check=True)
    sync(copy)
    copy_s = time.perf_counter() - begin
    copied = objects_bytes(copy)
    with opened(copy) as dataset:
        begin = time.perf_counter()
        done = purge(dataset, PurgeRequest())
        purge_s = time.perf_counter() - begin
    rate, copy_rate = done.bytes_moved / purge_s / 1e6, copied / copy_s / 1e6
    return {
        "ratio": rate / copy_rate,
        "purge_mb_per_s": rate,
        "purge_files_per_s": done.files_moved / purge_s,
        "cp_mb_per_s": copy_rate,
        "moved_mb": done.bytes_moved / 1e6,
    }


@contextmanager
def mounted(folder: Path) -> Iterator[Path]:
    root = folder / "mnt"
    root.mkdir()
    dlcmd(
        "snapshot", "create", "-q", "--no-publish", NAME, folder=folder
    )  # only the lease protects
    dlcmd("mount", "-q", "--memory", MEMORY, NAME, root, folder=folder)
    pid = json.loads((root / ".dieselfs/dataset.json").read_text())["pid"]
    try:
        yield root
    finally:
        subprocess.run([*DLCMD, "umount", "-q", root], check=False)
        while os.path.exists(f"/proc/{pid}"):  # it deletes its lease at the very end
            time.sleep(0.01)


def read_past_cache(path: bytes) -> bytes:
    """The whole file, not from pages that an earlier read left."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        data = b""
        while part := os.read(fd, 1 << 20):
            data = data + part if data else part
        return data
    finally:
        os.close(fd)


class Reader:
    """Reads files of a mount at random and compares them."""

    def __init__(self, root: Path, contents: Contents) -> None:
        self._root = os.fsencode(root)
        self._contents = contents
        self._paths = sorted(contents.at)
        self._draw = random.Random(2)

    def read_for(self, seconds: float) -> float:
        """Bytes a second."""
        begin, size = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - begin) < seconds:
            size += self._read(self._draw.choice(self._paths))
        return size / elapsed

    def read_during(self, process: subprocess.Popen[str]) -> float:
        begin, size = time.perf_counter(), 0
        while process.poll() is None:
            size += self._read(self._draw.choice(self._paths))
        return size / (time.perf_counter() - begin)

    def read_all(self) -> int:
        return sum(self._read(path) for path in self._paths)

    def _read(self, path: bytes) -> int:
        data = read_past_cache(self._root + b"/" + path)
        if data != self._contents.of(path):
            raise AssertionError(f"{path!r} was read wrong")
        return len(data)


def measure_readers(folder: Path, contents: Contents, seconds: float) -> dict[str, object]:
    environment = {
        **os.environ,
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        "XDG_DATA_HOME": f"{folder}/data",
    }
    with mounted(folder) as root:
        reader = Reader(root, contents)
        reader.read_for(seconds / 3)
        before = reader.read_for(seconds)
        command = [*DLCMD, "purge", "-q", "--json", "--grace", "0", NAME]
        purging = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        during = reader.read_during(purging)
        found = json.loads(purging.communicate()[0])
        after = reader.read_for(seconds)
        read = reader.read_all()
    return {
        "rate_during_over_before": during / before,
        "rate_after_over_before": after / before,
        "before_mb_per_s": before / 1e6,
        "errors": 0,  # the first one ends the benchmark
        "read_afterwards_mb": read / 1e6,
        "deleted_under_the_lease": found["chunks_deleted"],
        "waiting_for_the_lease": found["waiting"]["pinned"]["chunks"],
    }


def measure_space(folder: Path, contents: Contents) -> dict[str, float]:
    before = objects_bytes(folder)
    with opened(folder) as dataset:
        waiting = purge(dataset, PurgeRequest(grace_s=0)).waiting
    assert not waiting, "something still reads the old chunks"
    after, live = objects_bytes(folder), len(contents.at) * contents.size_bytes
    with opened(folder) as dataset:
        records = dataset.namespace.chunks().values()
        heads = sum(record.head_bytes for record in records)
    return {
        "over_live_files": after / live,
        "over_live_files_and_heads": after / (live + heads),
        "before_over_live_files": before / live,
        "head_bytes_a_file": heads / len(contents.at),
    }


def compare(files: int, size_bytes: int, seconds: float, parts: Sequence[str]) -> None:
    what = f"{files} files of {size_bytes} bytes, 30 % deleted or replaced"
    with scratch("purge") as folder:
        data = folder / "data"
        contents = make(data, files, size_bytes)
        figures: dict[str, Mapping[str, object]] = {}
        if "rate" in parts:
            (folder / "copy").mkdir()
            figures["rate"] = measure_rate(data, folder / "copy")
        if "readers" in parts:
            figures["readers"] = measure_readers(data, contents, seconds)
        if "space" in parts:
            figures["space"] = measure_space(data, contents)
        for part, values in figures.items():
            report(f"purge, {part}: {what}", **values)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=25_000, help="of 4 KiB")
    parser.add_argument("--large-files", type=int, default=2_000, help="of 110 KiB")
    parser.add_argument("--seconds", type=float, default=MEASURED_S, help="of reading")
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    parser.add_argument("--no-readers", action="store_true", help="without a mount")
    options = parser.parse_args()
    files, large, seconds = options.files, options.large_files, options.seconds
    if options.quick:
        files, large, seconds = 3_000, 200, 0.2
    parts = ["space", "rate", "readers"]
    if options.no_readers or not os.path.exists("/dev/fuse"):
        print("readers are not measured", file=sys.stderr)
        parts.remove("readers")
    compare(large, 110 << 10, seconds, parts)
    compare(files, 4096, seconds, parts)


if __name__ == "__main__":
    main()
