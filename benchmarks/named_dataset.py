"""A dataset of a million names that takes seconds to make: one file is packed, the others are in
the snapshot alone.

They lie, as far as the snapshot says, in chunks of 36 files of 110 KB that no store has. So names
and attributes are as in a real dataset, one file can be read, `FIRST`, and the others give an
error.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks import mount_contenders as contenders
from benchmarks.bench_snapshot import FILE_BYTES, make_dataset
from benchmarks.harness import dlcmd, scratch, sync
from benchmarks.mount_contenders import Dataset, MountKind
from metadata.listing import DirectoryListing
from metadata.records import ENTRY, NO_CHUNK, ChunkRecord, DatasetState
from metadata.snapshot import Snapshot
from metadata.snapshot_builder import build_snapshot

FIRST = "a-first/0.jpg"
_FIRST_ID = 3_000_000_000
"""Chunk ids begin with seconds: later than the packed chunk's, so that this is the one that a mount
looks for in the store."""


@dataclass(frozen=True, slots=True)
class NamedDataset:
    """A dataset, and which snapshot of it is mounted: the newest unless it is given."""

    data: Dataset
    snapshot: Path | None = None
    paths: Sequence[str] = ()

    def mounted(self, kind: MountKind, checked: bool = True) -> AbstractContextManager[Path]:
        chosen = [] if self.snapshot is None else ["--snapshot", str(self.snapshot)]
        return contenders.mounted(self.data, kind, *chosen, checked=checked)


@contextmanager
def named_dataset(files: int, folders: int) -> Iterator[NamedDataset]:
    """`files` files in `folders` folders, `FIRST` and its folder among them."""
    with scratch("names") as folder:
        contenders.say(f"making a snapshot of {files} names")
        source = folder / "one"
        (source / FIRST).parent.mkdir(parents=True)
        (source / FIRST).write_bytes(bytes(range(256)) * 16)
        dlcmd("put", "-q", f"{source}/", "dl://bench", folder=folder)
        dlcmd("snapshot", "create", "-q", "bench", folder=folder)
        [packed] = (folder / "data").rglob("*.snapshot")
        made = folder / "made"
        with Snapshot.open(packed) as snapshot:
            path, paths = _with_made_names(snapshot, files - 1, folders - 1, made)
        shutil.rmtree(source)
        data = Dataset(folder, len(paths), FILE_BYTES, 1, len(paths) * FILE_BYTES)
        try:
            yield NamedDataset(data, path, paths)
        finally:
            contenders.remove_logs(folder)


def make_names(paths: Sequence[str], source: Path) -> None:
    """The same tree with sparse files."""
    for folder in {os.path.dirname(path) for path in paths}:
        (source / folder).mkdir(parents=True)
    half = len(paths) // 2
    other = get_context("fork").Process(target=_make_files, args=(paths[:half], source))
    other.start()
    _make_files(paths[half:], source)
    other.join()
    sync(source)


def _make_files(paths: Sequence[str], source: Path) -> None:
    for path in paths:
        fd = os.open(f"{source}/{path}", os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644)
        os.ftruncate(fd, 4096 if path == FIRST else FILE_BYTES)
        os.close(fd)


def _with_made_names(
    packed: Snapshot, files: int, folders: int, folder: Path
) -> tuple[Path, list[str]]:
    made = make_dataset(files, folders, _FIRST_ID)
    root, *listings = made.listings
    chunk = packed.chunk(0)
    [name, file] = FIRST.split("/")
    entries, directories = np.zeros(1, ENTRY), np.zeros(1 + len(root.directories), ENTRY)
    columns = packed.columns
    entries["version"], entries["placed"], entries["record_version"] = 4, 2, 1
    entries["chunk"], entries["offset"] = np.void(chunk.id.value), columns.offset[0]
    entries["length"], entries["hash"] = columns.length[0], columns.hash[0]
    entries["mode"], entries["mtime_ns"] = 0o100644, columns.mtime_ns[0]
    directories["mode"], directories["chunk"], directories["record_version"] = 0o40755, NO_CHUNK, 1
    listings = [
        DirectoryListing(b"", [], root.files, [name.encode(), *root.directory_names], directories),
        DirectoryListing(name.encode(), [file.encode()], entries, [], root.files),
        *listings,
    ]
    record = ChunkRecord(2, 0, chunk.head_bytes, chunk.payload_bytes, 1, 1, 0, 0, bytes(1))
    chunks = {chunk.id.value: record, **made.chunks}
    state = DatasetState(
        packed.generation + 1,
        1_600_000_000_000_000_000,
        made.state.files + 1,
        made.state.files * FILE_BYTES + 4096,
        folders + 1,
        len(chunks),
    )
    path = build_snapshot(packed.dataset, state, None, iter(listings), chunks, folder)
    return path, [FIRST, *made.paths]
