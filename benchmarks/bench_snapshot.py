"""What does a snapshot of ImageNet's names cost: bytes a file, opening, look-ups, building?

1,280,000 names like `n01440764/n01440764_10026.JPEG` in 1,000 folders, made, not packed; beside it,
in the same rounds, the name tree as an LMDB file (parent and name -> inode), the other design.
Expectation: 21 bytes of name, 46 of columns and 8 of path index make 76 bytes a file. A look-up
from Python is a hash, four numbers and a comparison: 1-2 µs; in bulk some 40 numpy operations of
2-10 ns a path: 0.4 µs. Opening reads 4 KiB. Building hashes, sorts and writes columns: 1 µs a file,
and scanning an LMDB index 2 µs on top.

    python -m benchmarks.bench_snapshot [--files 1280000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import numpy.typing as npt

from benchmarks.harness import report, run_rounds, scratch
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from metadata import keys
from metadata.dataset_state import register_dataset
from metadata.kv.key_value_store import KeyValueStore, MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.listing import DirectoryListing
from metadata.namespace import Namespace
from metadata.records import ENTRY, NO_CHUNK, ChunkRecord, DatasetState, encode_entries
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_builder import build_snapshot

DATASET = DatasetRef("imagenet", bytes(range(16)))
FILE_BYTES = 110_000
FILES_A_CHUNK = 36
"""In 4 MiB."""
SINGLE_LOOKUPS = 200_000


@dataclass(frozen=True)
class MadeDataset:
    """What an index would say of it."""

    listings: list[DirectoryListing]
    chunks: dict[bytes, ChunkRecord]
    state: DatasetState

    @property
    def paths(self) -> list[str]:
        return [
            f"{listing.path.decode()}/{name.decode()}"
            for listing in self.listings
            for name in listing.file_names
        ]


def make_dataset(files: int, folders: int, first_id: int = 1_600_000_000) -> MadeDataset:
    """Files scattered over chunks, as `put` does by default. Chunk ids begin with numbers from
    `first_id` on."""
    generator = np.random.default_rng(1)
    each = files // folders
    files = each * folders
    chunk_count = -(-files // FILES_A_CHUNK)
    ids = [(first_id + number).to_bytes(4, "big") + bytes(12) for number in range(chunk_count)]
    id_column = np.frombuffer(b"".join(ids), "V16")
    place = generator.permutation(files)
    names = [b"n%08d" % (1_440_764 + 8_017 * folder) for folder in range(folders)]
    records = np.zeros(folders, ENTRY)
    records["mode"], records["chunk"], records["record_version"] = 0o40755, NO_CHUNK, 1
    listings = [DirectoryListing(b"", [], records[:0], names, records)]
    for folder, name in enumerate(names):
        entries = np.zeros(each, ENTRY)
        chunk, position = np.divmod(place[folder * each : (folder + 1) * each], FILES_A_CHUNK)
        entries["version"], entries["placed"], entries["record_version"] = 4, 2, 1
        entries["chunk"], entries["position"] = id_column[chunk], position
        entries["offset"], entries["length"], entries["mode"] = (
            position * FILE_BYTES,
            FILE_BYTES,
            0o100644,
        )
        entries["hash"] = generator.integers(0, 1 << 63, each)
        entries["mtime_ns"] = 1_600_000_000_000_000_000
        numbers = generator.choice(each * 8, each, replace=False).tolist()
        file_names = sorted(b"%s_%d.JPEG" % (name, number) for number in numbers)
        listings.append(DirectoryListing(name, file_names, entries, [], records[:0]))
    record = ChunkRecord(2, 0, 4096, 4 << 20, FILES_A_CHUNK, FILES_A_CHUNK, 0, 0, bytes(5))
    state = DatasetState(
        2, 1_600_000_000_000_000_000, files, files * FILE_BYTES, folders, chunk_count
    )
    return MadeDataset(listings, dict.fromkeys(ids, record), state)


def build(dataset: MadeDataset, folder: Path) -> Path:
    listings = iter(dataset.listings)
    return build_snapshot(DATASET, dataset.state, None, listings, dataset.chunks, folder)


def fill_index(index: KeyValueStore, dataset: MadeDataset) -> None:
    """The records of the dataset, written past the commits."""
    register_dataset(index, DATASET, 1)
    for listing in dataset.listings:
        updates = []
        for key, names, entries in (
            (keys.files_of(DATASET.id, listing.path), listing.file_names, listing.files),
            (
                keys.directories_of(DATASET.id, listing.path),
                listing.directory_names,
                listing.directories,
            ),
        ):
            if names:
                updates.append(MapUpdate(key, names, encode_entries(key, names, entries)))
        index.put([updates])
    key = keys.chunks_of(DATASET.id)
    record = next(iter(dataset.chunks.values()))
    values = [record.encode(key, ChunkId(chunk)) for chunk in dataset.chunks]
    index.put([[MapUpdate(key, list(dataset.chunks), values)]])
    key = keys.state_of(DATASET.id)
    index.put([[MapUpdate(key, [keys.APPLIED], [dataset.state.encode(key, keys.APPLIED)])]])


def build_from_index(index: KeyValueStore, folder: Path) -> Path:
    namespace = Namespace(index, DATASET)
    state, root = namespace.state(), namespace.root()
    return build_snapshot(DATASET, state, root, namespace.walk(), namespace.chunks(), folder)


def tree_keys(snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
    """The name tree of the other design, in key order: parent's inode and name -> inode."""
    pairs = []
    for name, inode in snapshot.children(ROOT):
        number = (inode - ROOT).to_bytes(4, "big")
        pairs.append((bytes(4) + name, number))
        pairs += [
            (number + child, file.to_bytes(4, "big")) for child, file in snapshot.children(inode)
        ]
    return iter(sorted(pairs))


def build_tree(snapshot: Snapshot, path: Path) -> None:
    with lmdb.open(
        str(path), subdir=False, map_size=1 << 34, sync=False, lock=False
    ) as environment:
        with environment.begin(write=True) as transaction:
            transaction.cursor().putmulti(tree_keys(snapshot), append=True)


def queries(paths: list[str], count: int) -> list[str]:
    """In random order, one in ten absent."""
    generator = random.Random(1)
    asked = generator.sample(paths, min(count, len(paths)))
    return [path.replace("_", "-") if at % 10 == 0 else path for at, path in enumerate(asked)]


def single_lookups(snapshot: Snapshot, asked: list[str]) -> Callable[[], None]:
    def look_up() -> None:
        resolve = snapshot.resolve
        for path in asked:
            resolve(path)

    return look_up


def mount_lookups(snapshot: Snapshot, asked: list[str]) -> Callable[[], None]:
    pairs = [path.encode().split(b"/") for path in asked]
    known = [(snapshot.resolve(directory) or ROOT, name) for directory, name in pairs]

    def look_up() -> None:
        lookup = snapshot.lookup
        for parent, name in known:
            lookup(parent, name)

    return look_up


def tree_lookups(path: Path, asked: list[str]) -> Callable[[], None]:
    """One transaction, two gets a path: the directory's inode, then the file's."""
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False, max_dbs=0) as check:
        entries = check.stat()["entries"]
    assert entries > len(asked)
    environment = lmdb.open(str(path), subdir=False, readonly=True, lock=False)

    def look_up() -> None:
        with environment.begin() as transaction:
            get = transaction.get
            for path in asked:
                directory, _, name = path.encode().partition(b"/")
                parent = get(b"\0\0\0\0" + directory)
                get(parent + name)

    return look_up


class ProcessorTime:
    """Contenders that also note their processor seconds, which on a machine shared with others say
    more than the clock."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}

    def noting(self, contenders: dict[str, Callable[[], object]]) -> dict[str, Callable[[], None]]:
        def noted(name: str, contender: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                begin = time.process_time()
                contender()
                self.seconds.setdefault(name, []).append(time.process_time() - begin)

            return run

        return {name: noted(name, contender) for name, contender in contenders.items()}

    def median(self, contender: str) -> float:
        return statistics.median(self.seconds[contender])


def opening_ms(path: Path) -> float:
    seconds = []
    for _ in range(101):
        begin = time.perf_counter()
        snapshot = Snapshot.open(path)
        seconds.append(time.perf_counter() - begin)
        snapshot.close()
    return statistics.median(seconds) * 1e3


def check(snapshot: Snapshot, asked: list[str]) -> None:
    inodes: npt.NDArray[np.int64] = snapshot.resolve_many(asked)
    assert np.count_nonzero(inodes < 0) == -(-len(asked) // 10)
    for path, inode in zip(asked[:1000], inodes.tolist(), strict=False):
        assert snapshot.resolve(path) == (None if inode < 0 else inode)
        assert inode < 0 or snapshot.path_of(inode) == path.encode()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    dataset = make_dataset(options.files, min(1000, options.files))
    files, paths = dataset.state.files, dataset.paths
    with scratch("snapshot") as folder:
        path = build(dataset, folder / "snapshots")
        tree = folder / "tree.lmdb"
        with Snapshot.open(path) as snapshot:
            Snapshot.verify(path)
            build_tree(snapshot, tree)
            asked = queries(paths, files)
            check(snapshot, asked)
            single = asked[:SINGLE_LOOKUPS]
            with_index = LmdbFileStore(folder / "index")
            fill_index(with_index, dataset)
            processor = ProcessorTime()
            contenders = processor.noting(
                {
                    "single": single_lookups(snapshot, single),
                    "mount": mount_lookups(snapshot, single),
                    "lmdb tree": tree_lookups(tree, single),
                    "batch": lambda: snapshot.resolve_many(asked),
                    "verify": lambda: Snapshot.verify(path),
                    "build": lambda: build(dataset, folder / "snapshots"),
                    "build from index": lambda: build_from_index(with_index, folder / "other"),
                }
            )
            times = run_rounds(contenders, options.rounds)
            with_index.close()
        figures = {
            "bytes_a_file": path.stat().st_size / files,
            "open_ms": opening_ms(path),
            "single_lookups_per_s": len(single) / times.median("single"),
            "mount_lookups_per_s": len(single) / times.median("mount"),
            "batch_lookups_per_s": len(asked) / times.median("batch"),
            "verified_files_per_s": files / times.median("verify"),
            "built_files_per_s": files / times.median("build"),
            "built_from_index_files_per_s": files / times.median("build from index"),
            "lmdb_tree_bytes_a_name": tree.stat().st_size / files,
            "lmdb_tree_lookups_per_s": len(single) / times.median("lmdb tree"),
            "single_to_lmdb_tree": statistics.median(times.ratios("single", "lmdb tree")),
        }
    of_one_processor = {
        "single_lookups": len(single) / processor.median("single"),
        "mount_lookups": len(single) / processor.median("mount"),
        "batch_lookups": len(asked) / processor.median("batch"),
        "lmdb_tree_lookups": len(single) / processor.median("lmdb tree"),
        "verified_files": files / processor.median("verify"),
        "built_files": files / processor.median("build"),
        "built_from_index_files": files / processor.median("build from index"),
    }
    bars = {
        "bytes_a_file": "<= 120",
        "open_ms": "<= 5",
        "single_lookups_per_s": ">= 300,000",
        "batch_lookups_per_s": ">= 1,500,000",
        "built_from_index_files_per_s": ">= 150,000",
    }
    for name, value in figures.items():
        print(f"{name:32}{value:16,.2f}  {bars.get(name, '')}", file=sys.stderr)
    for name, value in of_one_processor.items():
        print(f"{name + ' a processor second':40}{value:12,.0f}", file=sys.stderr)
    report(
        "what does a snapshot cost", files=files, **figures, per_processor_second=of_one_processor
    )


if __name__ == "__main__":
    main()
