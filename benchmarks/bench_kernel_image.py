"""The cost of a kernel image of ImageNet's names: seconds and bytes to build it, to find it again
and to lay out the blob.

1,280,000 names like `n01440764/n01440764_10026.JPEG` in 1,000 folders, made, not packed; besides, a
million folders of one file each. The baseline, in the same rounds, is a plain write of as many
bytes as the image has. Expectation: 96 bytes of inode and 12 + 21 of directory entry make 128 bytes
a file. Each file passes some 60 numpy operations of 2-5 ns: 0.3 µs; writing 164 MB to the page
cache takes 0.1 s, checking its hash 0.05 s. A folder of one file costs its inode and 80 bytes of
entries: 160 bytes.

    python -m benchmarks.bench_kernel_image [--files 1280000] [--rounds 5] [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.bench_snapshot import DATASET, build, make_dataset
from benchmarks.harness import report, run_rounds, scratch
from metadata.blob_layout import BlobLayout
from metadata.kernel_image import write_kernel_image
from metadata.kernel_image_file import kernel_image
from metadata.kernel_image_inodes import ImageOwner
from metadata.listing import DirectoryListing
from metadata.records import ENTRY, NO_CHUNK, ChunkRecord, DatasetState
from metadata.snapshot import Snapshot
from metadata.snapshot_builder import build_snapshot

OWNER = ImageOwner(1000, 1000)
LOOKUPS = 100_000


def single_file_folders(count: int, folder: Path) -> Path:
    """A snapshot of `count` folders of one file each."""
    chunk = bytes(16)
    names = [b"clip%07d" % number for number in range(count)]
    folders, file = np.zeros(count, ENTRY), np.zeros(1, ENTRY)
    folders["mode"], folders["chunk"] = 0o40755, NO_CHUNK
    file["mode"], file["chunk"], file["length"] = 0o100644, chunk, 10

    def listings() -> Iterator[DirectoryListing]:
        yield DirectoryListing(b"", [], folders[:0], names, folders)
        for number, name in enumerate(names):
            file["position"] = number
            yield DirectoryListing(name, [b"0.mp4"], file.copy(), [], folders[:0])

    record = ChunkRecord(1, 0, 4096, 4 << 20, count, count, 0, 0, b"")
    state = DatasetState(1, 1, count, count * 10, count, 1)
    return build_snapshot(DATASET, state, None, listings(), {chunk: record}, folder)


def write(snapshot: Snapshot, path: Path) -> float:
    begin = time.perf_counter()
    with open(path, "wb") as file:
        write_kernel_image(snapshot, file, OWNER)
    return time.perf_counter() - begin


def plain_write(size: int, path: Path) -> float:
    piece = random.Random(1).randbytes(1 << 20)
    begin = time.perf_counter()
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(piece)
    return time.perf_counter() - begin


def lookup_us(layout: BlobLayout) -> float:
    """The time to find the file at a random byte."""
    chosen = random.Random(1)
    offsets = [chosen.randrange(layout.device_bytes(0)) for _ in range(LOOKUPS)]
    begin = time.perf_counter()
    for offset in offsets:
        layout.file_at(0, offset)
    return (time.perf_counter() - begin) / LOOKUPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="20,000 files, one round")
    options = parser.parse_args()
    files, rounds = (20_000, 1) if options.quick else (options.files, options.rounds)
    folders = min(1_000_000, files)
    with scratch("kernel-image") as folder:
        many = single_file_folders(folders, folder / "folders")
        path = build(make_dataset(files, min(1000, files)), folder / "snapshots")
        with Snapshot.open(path) as snapshot, Snapshot.open(many) as snapshot_of_folders:
            image = kernel_image(snapshot, path.parent, OWNER)
            size = image.stat().st_size
            contenders = {
                "build": lambda: write(snapshot, folder / "image"),
                "plain write": lambda: plain_write(size, folder / "plain"),
                "find again": lambda: kernel_image(snapshot, path.parent, OWNER) and None,
                "layout": lambda: BlobLayout.of(snapshot) and None,
                "folders": lambda: write(snapshot_of_folders, folder / "folders.image"),
            }
            times = run_rounds(contenders, rounds)
            figures = {
                "build_to_plain_write": statistics.median(times.ratios("build", "plain write")),
                "build_s": times.median("build"),
                "image_mb": size / 1e6,
                "bytes_a_file": size / files,
                "find_again_s": times.median("find again"),
                "layout_ms": times.median("layout") * 1e3,
                "file_at_us": lookup_us(BlobLayout.of(snapshot)),
                "single_file_folders_build_s": times.median("folders"),
                "single_file_folders_mb": (folder / "folders.image").stat().st_size / 1e6,
            }
    bars = {
        "build_s": "<= 2.5",
        "image_mb": "<= 170",
        "layout_ms": "<= 60",
        "file_at_us": "< 2",
        "single_file_folders_build_s": "<= 20",
    }
    for name, value in figures.items():
        print(f"{name:32}{value:12,.3f}  {bars.get(name, '')}", file=sys.stderr)
    report("what does a kernel image cost", files=files, folders=folders, **figures)


if __name__ == "__main__":
    main()
