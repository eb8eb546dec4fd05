"""The builder of a snapshot file from the listings of a dataset's directories.

Listings stream through in batches and leave only columns behind, about 150 bytes a file; no Python
object outlives its batch. Files come in rank order (directory by directory, sorted by name). They
get inodes at the end, by sorting (chunk, position), and every column is then written once, in inode
order. The content of the index is checked on the way: names, sort order, positions in chunks,
totals.
"""

from __future__ import annotations

import operator
import stat
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import DatasetRef, are_links
from chunkstore.errors import InvalidPath
from chunkstore.object_keys import check_dataset_name
from chunkstore.paths import MAX_PATH_BYTES, check_names
from metadata import path_index
from metadata.errors import RecordCorrupt
from metadata.listing import DirectoryListing
from metadata.records import ChunkRecord, DatasetState
from metadata.snapshot_folder import file_name, publish
from metadata.snapshot_format import (
    ALIGNMENT,
    MAX_FILES,
    SECTIONS,
    TAIL_BYTES,
    SnapshotHeader,
    blank_hashes,
    encode_header,
    header_bytes,
)

Progress = Callable[[int], None]
"""A function that is called from time to time with the number of files seen so far."""

_FILES_A_BATCH: Final = 1 << 16
_DIRECTORY_MODE: Final = stat.S_IFDIR | 0o755
"""The mode of a directory that no entry describes."""


def build_snapshot(
    dataset: DatasetRef,
    state: DatasetState,
    root: np.void | None,
    listings: Iterable[DirectoryListing],
    chunks: Mapping[bytes, ChunkRecord],
    folder: Path,
    progress: Progress | None = None,
) -> Path:
    """Write the snapshot of `state` into `folder` and return its path.

    `root` is the `ENTRY` record of the root directory, None if nothing describes it. `listings`
    come parents before children, the root's first; a directory without a listing is empty. `chunks`
    has at least every chunk that a file lies in. Raises `RecordCorrupt` if the index contradicts
    itself (its totals included).
    """
    check_dataset_name(dataset.name)
    tree = _Tree(root, state.updated_ns, chunks)
    for listing in listings:
        tree.add(listing)
        if tree.pending_files >= _FILES_A_BATCH:
            tree.flush()
            if progress is not None:
                progress(tree.files)
    tree.flush()
    if progress is not None:
        progress(tree.files)
    found = (
        tree.files + tree.hidden_files,
        tree.total_bytes + tree.hidden_bytes,
        tree.directories - 1,
    )
    if found != (state.files, state.bytes, state.directories):
        raise RecordCorrupt(
            f"the index of {dataset.name} lists {found[0]:,} files, {found[1]:,} bytes and "
            f"{found[2]:,} directories, but its totals say {state.files:,}, {state.bytes:,} and "
            f"{state.directories:,}: run `dlcmd recover {dataset.name}`"
        )
    sections = tree.directory_sections() | tree.file_sections()
    sections["file_index"], file_reach = path_index.build(*tree.file_keys(sections["by_name"]))
    sections["directory_index"], directory_reach = path_index.build(*tree.directory_keys())
    header = _plan(dataset, state, tree, sections, (file_reach, directory_reach))
    return _write(header, sections, folder)


_FILE_COLUMNS: Final = {
    "offset": "u8",
    "length": "u8",
    "hash": "u8",
    "mtime_ns": "i8",
    "mode": "u2",
}
_Sections = dict[str, npt.NDArray[Any]]


class _Tree:
    """The content of the listings: columns of files by rank, of directories by number."""

    def __init__(
        self, root: np.void | None, updated_ns: int, chunks: Mapping[bytes, ChunkRecord]
    ) -> None:
        self.files = 0
        self.directories = 0
        self.total_bytes = 0
        self.has_links = False
        self.hidden_files = self.hidden_bytes = 0
        self.pending_files = 0
        self._pending: list[DirectoryListing] = []
        self._pending_numbers: list[int] = []
        self._names = bytearray()
        self._paths = bytearray()
        # One array a batch; they are joined at the end.
        self._columns: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in _FILE_COLUMNS}
        self._place: list[npt.NDArray[np.uint64]] = []
        self._parent: list[npt.NDArray[np.uint32]] = []
        self._name_bytes: list[npt.NDArray[np.uint8]] = []
        self._hashes: list[npt.NDArray[np.uint64]] = []
        # Directories, by number.
        self._directory_parent = array("I")
        self._directory_path_at = array("Q", [0])
        self._directory_mode = array("H")
        self._directory_mtime_ns = array("q")
        self._directory_hashes = array("Q")
        self._first_file = array("I")
        self._file_count = array("I")
        self._first_directory = array("I")
        self._directory_count = array("I")
        self._numbers: dict[bytes, int] = {}
        """The directories whose listing has not come yet."""
        self._chunk_ids = sorted(chunks)
        self._chunk_numbers = {chunk_id: at for at, chunk_id in enumerate(self._chunk_ids)}
        records = [chunks[chunk_id] for chunk_id in self._chunk_ids]
        self._head_bytes = np.array([record.head_bytes for record in records], np.uint32)
        self._payload_bytes = np.array([record.payload_bytes for record in records], np.uint64)
        described = root is not None and stat.S_ISDIR(int(root["mode"]))
        mode = int(root["mode"]) if root is not None and described else _DIRECTORY_MODE
        mtime_ns = int(root["mtime_ns"]) if root is not None and described else updated_ns
        self._add_directory(b"", 0, mode, mtime_ns)

    def _add_directory(self, path: bytes, parent: int, mode: int, mtime_ns: int) -> None:
        if len(path) > MAX_PATH_BYTES:
            raise RecordCorrupt(f"the index has a path of {len(path)} bytes: {path[:80]!r}…")
        self._numbers[path] = self.directories
        self.directories += 1
        if path:
            self._paths += path
            self._paths += b"/"
        self._directory_path_at.append(len(self._paths))
        self._directory_hashes.append(xxhash.xxh3_64_intdigest(path))
        self._directory_parent.append(parent)
        self._directory_mode.append(mode)
        self._directory_mtime_ns.append(mtime_ns)
        for column in (self._first_file, self._file_count):
            column.append(0)
        for column in (self._first_directory, self._directory_count):
            column.append(0)

    def add(self, listing: DirectoryListing) -> None:
        """Number the listing's sub-directories and put its files into the batch."""
        path, names = listing.path, listing.file_names
        number = self._numbers.pop(path, None)
        if number is None:
            raise RecordCorrupt(f"the index lists {path!r} twice, or before the directory above it")
        self.hidden_files += listing.hidden_files
        self.hidden_bytes += listing.hidden_bytes
        self._first_file[number] = self.files
        self._file_count[number] = len(names)
        self._first_directory[number] = self.directories
        self._directory_count[number] = len(listing.directory_names)
        if listing.directory_names:
            self._add_directories(listing, number)
        if names:
            self.files += len(names)
            self.pending_files += len(names)
            self._pending.append(listing)
            self._pending_numbers.append(number)
        if self.files > MAX_FILES or self.directories > MAX_FILES:
            raise ValueError(f"a snapshot holds at most {MAX_FILES} files and as many directories")

    def _add_directories(self, listing: DirectoryListing, number: int) -> None:
        names = listing.directory_names
        _check_names(listing.path, names)
        _check_sorted(listing.path, names)
        both = set(names).intersection(listing.file_names)
        if both:
            raise RecordCorrupt(f"{min(both)!r} in {listing.path!r} is a file and a directory")
        prefix = listing.path + b"/" if listing.path else b""
        records = listing.directories
        modes, times = records["mode"].tolist(), records["mtime_ns"].tolist()
        for name, mode, mtime_ns in zip(names, modes, times, strict=True):
            mode = mode if stat.S_ISDIR(mode) else _DIRECTORY_MODE
            self._add_directory(prefix + name, number, mode, mtime_ns)

    def flush(self) -> None:
        """Turn the batch of files into columns.

        Several directories go together, since numpy costs 1 µs a call, whatever the size.
        """
        if not self._pending:
            return
        batch, self._pending = self._pending, []
        counts = [len(listing.file_names) for listing in batch]
        names = list(chain.from_iterable(listing.file_names for listing in batch))
        _check_names(batch[0].path, names)
        paths: list[bytes] = []
        for listing in batch:
            _check_sorted(listing.path, listing.file_names)
            if listing.path:
                paths += map((listing.path + b"/").__add__, listing.file_names)
            else:
                paths += listing.file_names
        if max(map(len, paths)) > MAX_PATH_BYTES:
            raise RecordCorrupt(f"the index has a path of more than {MAX_PATH_BYTES} bytes")
        self._hashes.append(
            np.fromiter(map(xxhash.xxh3_64_intdigest, paths), np.uint64, len(paths))
        )
        self._name_bytes.append(np.fromiter(map(len, names), np.uint8, len(names)))
        self._names += b"\0".join(names)
        self._names += b"\0"
        self._parent.append(np.repeat(np.array(self._pending_numbers, np.uint32), counts))
        entries = np.concatenate([listing.files for listing in batch])
        if len(entries) != len(names):
            raise RecordCorrupt("the numbers of names and records of a listing differ")
        self._add_entries(entries, paths)
        self._pending_numbers = []
        self.pending_files = 0

    def _add_entries(self, entries: npt.NDArray[np.void], paths: Sequence[bytes]) -> None:
        try:
            numbers = map(self._chunk_numbers.__getitem__, entries["chunk"].tolist())
            chunk = np.fromiter(numbers, np.uint64, len(entries))
        except KeyError as error:
            lost = entries["chunk"].tolist().index(error.args[0])
            raise RecordCorrupt(
                f"{paths[lost]!r} lies in a chunk that is not in the index"
            ) from None
        columns = {name: entries[name].astype(kind) for name, kind in _FILE_COLUMNS.items()}
        payload = self._payload_bytes[chunk]
        outside = (columns["length"] > payload) | (columns["offset"] > payload - columns["length"])
        not_file = (columns["mode"] & 0o170000) != stat.S_IFREG
        if not_file.any():
            links = are_links(columns["mode"])
            self.has_links = self.has_links or bool(links.any())
            not_file &= ~links
        if outside.any():
            raise RecordCorrupt(f"{paths[int(outside.argmax())]!r} reaches beyond its chunk")
        if not_file.any():
            raise RecordCorrupt(
                f"{paths[int(not_file.argmax())]!r} is listed as a file, "
                "but its mode is not a file's"
            )
        for name, column in columns.items():
            self._columns[name].append(column)
        self.total_bytes += int(columns["length"].sum(dtype=np.uint64))
        self._place.append(chunk << np.uint64(32) | entries["position"].astype(np.uint64))

    def file_sections(self) -> _Sections:
        """Return the columns of files and chunks.

        The tree has no files afterwards, so that memory holds them once.
        """
        place = _join(self._place, "u8")
        order = np.argsort(place)  # by (chunk, position): inode -> rank
        place = place[order]
        if (place[1:] == place[:-1]).any():
            raise RecordCorrupt("the index has two files at one position of a chunk")
        by_name = np.empty(self.files, np.uint32)
        by_name[order] = np.arange(self.files, dtype=np.uint32)
        sections: _Sections = {"by_name": by_name}
        for name, kind in _FILE_COLUMNS.items():
            sections[name] = _join(self._columns.pop(name), kind)[order]
        sections["offset"] = _narrow(sections["offset"])
        name_bytes = _join(self._name_bytes, "u1")
        name_end = np.cumsum(name_bytes.astype(np.uint64) + np.uint64(1), dtype=np.uint64)
        name_at = name_end - name_bytes - np.uint64(1)
        sections["name_at"] = _narrow(name_at)[order]
        sections["name_bytes"] = name_bytes[order]
        sections["names"] = np.frombuffer(self._names, np.uint8)
        sections["parent"] = _join(self._parent, "u4")[order]
        # Chunks without a live file are left out.
        chunk = (place >> np.uint64(32)).astype(np.int64)
        counts = np.bincount(chunk, minlength=len(self._chunk_ids))
        kept = np.flatnonzero(counts)
        sections["chunk"] = (np.cumsum(counts > 0) - 1)[chunk].astype(np.uint32)
        ids = b"".join(self._chunk_ids[number] for number in kept.tolist())
        sections["chunk_id"] = np.frombuffer(ids, "V16")
        sections["chunk_head_bytes"] = self._head_bytes[kept]
        sections["chunk_payload_bytes"] = self._payload_bytes[kept]
        sections["chunk_first_inode"] = np.concatenate([[0], np.cumsum(counts[kept])]).astype("u4")
        return sections

    def file_keys(
        self, by_name: npt.NDArray[np.uint32]
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return (hash of the path, inode) of every file."""
        return _join(self._hashes, "u8"), by_name

    def directory_keys(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """Return (hash of the path, number) of every directory."""
        hashes = np.frombuffer(self._directory_hashes, np.uint64)
        return hashes, np.arange(self.directories, dtype=np.uint32)

    def directory_sections(self) -> _Sections:
        return {
            "directory_parent": np.frombuffer(self._directory_parent, np.uint32),
            "directory_path_at": np.frombuffer(self._directory_path_at, np.uint64),
            "directory_mode": np.frombuffer(self._directory_mode, np.uint16),
            "directory_mtime_ns": np.frombuffer(self._directory_mtime_ns, np.int64),
            "directory_first_file": np.frombuffer(self._first_file, np.uint32),
            "directory_file_count": np.frombuffer(self._file_count, np.uint32),
            "directory_first_directory": np.frombuffer(self._first_directory, np.uint32),
            "directory_directory_count": np.frombuffer(self._directory_count, np.uint32),
            "directory_paths": np.frombuffer(self._paths, np.uint8),
        }


def _join(arrays: Sequence[npt.NDArray[Any]], kind: str) -> npt.NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, kind)


def _narrow(column: npt.NDArray[np.uint64]) -> npt.NDArray[np.unsignedinteger]:
    """Return the column in 32 bits if every value fits: the format allows either width."""
    return column.astype(np.uint32) if int(column.max(initial=0)) < 1 << 32 else column


def _check_names(directory: bytes, names: Sequence[bytes]) -> None:
    try:
        check_names(names)
    except InvalidPath as error:
        raise RecordCorrupt(
            f"the index has a wrong name in or near {directory!r}: {error}"
        ) from error


def _check_sorted(directory: bytes, names: Sequence[bytes]) -> None:
    """Raise unless names ascend without repetition: the snapshot lists them in this order."""
    if not all(map(operator.lt, names, islice(names, 1, None))):
        raise RecordCorrupt(f"the index lists names of {directory!r} twice or out of order")


def _plan(
    dataset: DatasetRef,
    state: DatasetState,
    tree: _Tree,
    sections: _Sections,
    reaches: tuple[int, int],
) -> SnapshotHeader:
    """Return the header without the hash: the position of every section."""
    at = header_bytes(dataset.name)
    extents = {}
    for section in SECTIONS:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        extents[section.name] = (at, sections[section.name].nbytes)
        at += sections[section.name].nbytes
    return SnapshotHeader(
        dataset=dataset,
        generation=state.generation,
        updated_ns=state.updated_ns,
        files=tree.files,
        total_bytes=tree.total_bytes,
        directories=tree.directories,
        chunks=len(sections["chunk_head_bytes"]),
        file_bytes=at + TAIL_BYTES,
        file_hash=bytes(16),
        file_index_reach=reaches[0],
        directory_index_reach=reaches[1],
        sections=extents,
        has_links=tree.has_links,
    )


def _write(header: SnapshotHeader, sections: _Sections, folder: Path) -> Path:
    digest = xxhash.xxh3_128()
    with publish(folder) as (file, finish):

        def append(data: bytes | memoryview) -> None:
            digest.update(data)
            file.write(data)

        append(blank_hashes(encode_header(header)))
        for section in SECTIONS:
            append(bytes(header.sections[section.name][0] - file.tell()))
            append(np.ascontiguousarray(sections[section.name]).view(np.uint8).data)
        append(bytes(TAIL_BYTES))
        header = replace(header, file_hash=digest.digest())
        file.seek(0)
        file.write(encode_header(header))
        return finish(file_name(header.dataset.name, header.id))
