"""Chunks that a killed put has stored and never committed, committed by the put that follows it.

The lease of the killed put names the ids that it drew (`chunkstore.put_leases`). A chunk of such an
id is committed as it is if this put would store exactly the same: the head is sound and of this
dataset, the object has its whole length, and each of its files lies in the sources of this put with
the same size, mode and mtime and is not in the dataset with these. A put skips a file that is there
already by the same test, so the payload is not read again. The target of a link that is kept is
compared too. The store has acknowledged the object as durable before the put was killed, and a
store never shows half of an object. With `--checksum` the put compares the contents afterwards, as
for other files.

All other chunks stay for gc. The same holds for chunks near the age at which gc may delete them,
and for chunks of a put that is under way.
"""

from __future__ import annotations

import os
import stat
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import xxhash

from chunkstore.chunk_format import (
    KIND_DIRECTORY,
    KIND_FILE,
    ChunkHead,
    decode_head,
    decode_preamble,
)
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_listing import chunk_sizes
from chunkstore.chunk_reader import HEAD_GUESS_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import BadSource, Corrupt, InvalidPath, NotFound
from chunkstore.link_targets import target_problem
from chunkstore.object_keys import chunk_key
from chunkstore.paths import split
from chunkstore.put_leases import PutLease
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.parent_directories import ParentDirectories
from dieselfs.packing.put_request import FileList
from dieselfs.packing.source_tree import SourceTree
from metadata import keys
from metadata.errors import PathConflict
from metadata.kv.key_value_store import MapFields

MAX_AGE_S: Final = 6 * 24 * 3600
"""The age of the oldest chunks that are reused: a day less than gc's grace period."""


@dataclass(frozen=True, slots=True)
class ReusableChunk:
    """A stored chunk that this put may commit instead of storing the same again."""

    ref: ChunkRef
    head: bytes
    file_count: int


def reusable_chunks(
    dataset: Dataset, leases: Sequence[PutLease], sources: Sequence[SourceTree | FileList]
) -> Iterator[ReusableChunk]:
    """Yield the chunks of these dead puts that hold what this put would store, by id.

    Costs a listing of the chunks, a read of each candidate's head, a stat of each of its files on
    disk and a look-up of each of its directories in the index.
    """
    store, name = dataset.store, dataset.ref.name
    oldest = time.time() - MAX_AGE_S
    sizes = chunk_sizes(store, name)
    ids = sorted(
        chunk_id
        for chunk_id in sizes
        if chunk_id.seconds > oldest and any(lease.drew(chunk_id) for lease in leases)
    )
    if not ids:
        return
    named = [MapFields(keys.chunks_of(dataset.ref.id), [chunk_id.value for chunk_id in ids])]
    committed = dataset.index.get_many(named)[0]
    wanted = _Wanted(dataset, sources)
    for chunk_id, record in zip(ids, committed, strict=True):
        if record is not None:
            continue
        with suppress(Corrupt, NotFound):
            data, head = _head(dataset, chunk_id)
            whole = sizes[chunk_id] == head.head_bytes + head.payload_bytes
            if whole and head.dataset == dataset.ref and wanted.are_all_in(head):
                ref = ChunkRef(chunk_id, head.head_bytes, head.payload_bytes)
                files = int((head.entries.kind == KIND_FILE).sum())
                yield ReusableChunk(ref, data, files)


def _head(dataset: Dataset, chunk_id: ChunkId) -> tuple[bytes, ChunkHead]:
    """Return the head of a chunk as bytes, and decoded. Raises `Corrupt` and `NotFound`."""
    key = chunk_key(dataset.ref.name, chunk_id)
    data = bytes(dataset.store.get_range(key, 0, HEAD_GUESS_BYTES))
    wanted = decode_preamble(data).head_bytes
    if len(data) < wanted:
        data += bytes(dataset.store.get_range(key, len(data), wanted - len(data)))
    data = data[:wanted]
    return data, decode_head(data, chunk_id)


@dataclass(frozen=True, slots=True)
class _Source:
    """The entry that a put would store at one path."""

    disk_path: bytes
    status: os.stat_result
    depth: int
    """The number of directories between the top of the source and it."""

    def is_link_to(self, content: int) -> bool:
        """Return True if the put keeps this link, and the hash of its target is `content`."""
        try:
            target = os.readlink(self.disk_path)
        except OSError:
            return False
        is_kept = target_problem(target, self.depth) is None
        return is_kept and xxhash.xxh3_64_intdigest(target) == content


class _Wanted:
    """The files that a put would store: those of its sources that the dataset does not have."""

    def __init__(self, dataset: Dataset, sources: Sequence[SourceTree | FileList]) -> None:
        self._namespace = dataset.namespace
        self._parents = ParentDirectories(dataset.namespace)
        self._sources = sources
        self._real: dict[bytes, bool] = {}
        self._listed = {
            id(source): frozenset(source.paths)
            for source in sources
            if isinstance(source, FileList)
        }

    def are_all_in(self, head: ChunkHead) -> bool:
        """Return True if the put would store all entries of the chunk, with these attributes."""
        entries = head.entries
        if entries.versions is not None and bool((entries.versions["generation"] > 0).any()):
            return False  # it deletes or moves something
        by_directory: defaultdict[bytes, dict[bytes, tuple[int, int, int]]] = defaultdict(dict)
        for path, kind, length, mode, mtime_ns, content in zip(
            entries.paths,
            entries.kind.tolist(),
            entries.length.tolist(),
            entries.mode.tolist(),
            entries.mtime_ns.tolist(),
            entries.hash.tolist(),
            strict=True,
        ):
            if kind == KIND_DIRECTORY:
                if self._source_of(path, directory=True) is None:
                    return False
                continue
            if kind != KIND_FILE or not self._is_on_disk(path, (length, mode, mtime_ns), content):
                return False
            directory, name = split(path)
            by_directory[directory][name] = (length, mode, mtime_ns)
        return all(self._are_absent(*found) for found in by_directory.items())

    def _is_on_disk(self, path: bytes, attributes: tuple[int, int, int], content: int) -> bool:
        """Return True if the put would store this file, or a link with the target of this hash."""
        try:
            self._parents.check_file(path)
        except (BadSource, InvalidPath, PathConflict):
            return False
        found = self._source_of(path, directory=False)
        if found is None:
            return False
        status = found.status
        if (status.st_size, status.st_mode, status.st_mtime_ns) != attributes:
            return False
        return not stat.S_ISLNK(status.st_mode) or found.is_link_to(content)

    def _are_absent(self, directory: bytes, files: dict[bytes, tuple[int, int, int]]) -> bool:
        """Return True if the dataset has none of these files of one directory with these values."""
        rows = self._namespace.stat_files(directory, list(files))
        return not any(
            row is not None
            and (int(row["length"]), int(row["mode"]), int(row["mtime_ns"])) == attributes
            for row, attributes in zip(rows, files.values(), strict=True)
        )

    def _source_of(self, path: bytes, *, directory: bool) -> _Source | None:
        """Return the one file, link or directory that the put would store at `path`.

        None if there is none, or more than one, or if links need a closer look than this.
        """
        found: _Source | None = None
        for source in self._sources:
            disk_path = self._disk_path(source, path, directory)
            if disk_path is None:
                continue
            keeps_links = source.links == "keep"
            try:
                status = os.stat(disk_path, follow_symlinks=not keeps_links)
            except OSError:
                continue
            is_wanted = stat.S_ISDIR if directory else stat.S_ISREG
            is_kept = keeps_links and not directory and stat.S_ISLNK(status.st_mode)
            if found is not None or not (is_wanted(status.st_mode) or is_kept):
                return None
            if (
                keeps_links
                and isinstance(source, SourceTree)
                and self._is_below_link(source, disk_path)
            ):
                return None
            below = _below(path, source.target) or b""
            found = _Source(disk_path, status, below.count(b"/"))
        return found

    def _is_below_link(self, source: SourceTree, disk_path: bytes) -> bool:
        """Return True if a directory between the source and the path is a link now."""
        top, folder = source.disk_path, os.path.dirname(disk_path)
        if disk_path == top:
            return False
        if folder not in self._real:
            inside = os.path.relpath(folder, top)
            expected = os.path.normpath(os.path.join(os.path.realpath(top), inside))
            self._real[folder] = os.path.realpath(folder) == expected
        return not self._real[folder]

    def _disk_path(
        self, source: SourceTree | FileList, path: bytes, directory: bool
    ) -> bytes | None:
        below = _below(path, source.target)
        if below is None or source.links not in ("follow", "keep"):
            return None
        if isinstance(source, FileList):
            is_listed = not directory and below in self._listed[id(source)]
            return os.path.join(source.base, below) if is_listed else None
        if below and source.filters and not directory:
            text = os.fsdecode(below)
            parts = text.split("/")
            above = ("/".join(parts[:count]) for count in range(1, len(parts)))
            if not source.filters.takes(text) or any(map(source.filters.prunes, above)):
                return None
        return os.path.join(source.disk_path, below) if below else source.disk_path


def _below(path: bytes, top: bytes) -> bytes | None:
    """Return the part of `path` below `top`, None if it is not there."""
    if not top:
        return path
    if path == top:
        return b""
    return path[len(top) + 1 :] if path.startswith(top + b"/") else None
