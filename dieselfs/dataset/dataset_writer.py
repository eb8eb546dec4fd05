"""Writes to a dataset from one process: pack, store, commit and index, each in its own threads.

`put` packs in the caller's thread. The uploader's threads store sealed chunks, a group commit names
them, and the committing thread indexes them. A file is acknowledged when `flush` returns.
"""

from __future__ import annotations

import os
import stat
import time

from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_writer import (
    DEFAULT_OPEN_CHUNKS,
    DEFAULT_TARGET_BYTES,
    ChunkWriter,
    SealedChunk,
    Version,
)
from chunkstore.commit_log import BIRTH_GENERATION
from chunkstore.group_commit import DurableChunk, GroupCommit
from chunkstore.keep_together import KeepTogether
from chunkstore.link_targets import target_problem
from chunkstore.stores.object_store import Buffer
from chunkstore.uploader import Uploader
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.parent_directories import ParentDirectories
from dieselfs.dataset.publisher import Publisher
from dieselfs.errors import Conflict, UsageError
from metadata.namespace import PathEntry

CHUNK_IDS = ChunkIdGenerator()
"""The generator of this process: ids are unique and increasing over all its writers."""
MIN_MTIME_NS, MAX_MTIME_NS = -(1 << 63), (1 << 63) - 1
"""The limits of mtime: the years 1677 to 2262."""


_forks = 0
"""The number of forks between the first process and this one.

Asking for the process id instead would cost one system call a file.
"""


def _count_fork() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


def _check_attributes(path: bytes, mode: int, mtime_ns: int) -> None:
    if not 0 <= mode <= 0xFFFF:
        raise UsageError(
            f"{os.fsdecode(path)}: mode {mode} is out of range: give permission bits, like 0o644"
        )
    if not MIN_MTIME_NS <= mtime_ns <= MAX_MTIME_NS:
        raise UsageError(
            f"{os.fsdecode(path)}: mtime_ns {mtime_ns} does not fit in 64 bits: give nanoseconds "
            "since 1970"
        )


class DatasetWriter:
    """One writer of one dataset, for one thread at a time. A forked child must not use it."""

    def __init__(
        self,
        dataset: Dataset,
        *,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        open_chunks: int = DEFAULT_OPEN_CHUNKS,
        seed: int = 0,
        keep_together: KeepTogether = "none",
    ) -> None:
        dataset.check_writable()
        self._dataset = dataset
        self._forks = _forks
        self._parents = ParentDirectories(dataset.namespace)
        after = max(dataset.namespace.state().generation, BIRTH_GENERATION)
        self._commits = GroupCommit(dataset.log, after, Publisher(dataset).publish)
        self._uploader = Uploader(dataset.store, dataset.ref.name, self._durable)
        self._packer = ChunkWriter(
            dataset.ref,
            CHUNK_IDS,
            self._uploader.submit,
            target_bytes=target_bytes,
            open_chunks=open_chunks,
            seed=seed,
            keep_together=keep_together,
        )
        self._dirty = False
        self._is_packing = False
        """True while the packer changes, and for good once an exception has ended that half-way."""

    def put(
        self, path: bytes, data: Buffer, mode: int = 0o644, mtime_ns: int | None = None
    ) -> None:
        """Pack one file. The buffer must not change afterwards.

        `UsageError`, `InvalidPath` and `PathConflict` leave everything as it was.
        """
        if self._forks != _forks or self._is_packing:
            self._check_usable()
        if mtime_ns is None:
            mtime_ns = time.time_ns()
        if mode != 0o644 or not MIN_MTIME_NS <= mtime_ns <= MAX_MTIME_NS:
            _check_attributes(path, mode, mtime_ns)
        self._parents.check_file(path)
        self._dirty = self._is_packing = True
        self._packer.add_file(path, data, mode, mtime_ns)
        self._is_packing = False

    def put_link(self, path: bytes, target: bytes, mtime_ns: int | None = None) -> None:
        """Pack one symbolic link.

        Raises `UsageError` for a target that may lead out of the dataset, and as `put` does.
        """
        self._check_usable()
        problem = target_problem(target, path.count(b"/"))
        if problem is not None:
            raise UsageError(
                f"{os.fsdecode(path)}: {problem}",
                "give a target relative to the link's directory, with `..` in front only",
            )
        if mtime_ns is None:
            mtime_ns = time.time_ns()
        _check_attributes(path, 0, mtime_ns)
        self._parents.check_file(path)
        self._dirty = self._is_packing = True
        self._packer.add_link(path, target, mtime_ns)
        self._is_packing = False

    def put_directory(self, path: bytes, mode: int, mtime_ns: int) -> None:
        """Set a directory's attributes and create it if necessary; b'' is the root.

        Directories above files need not be put.
        """
        self._check_usable()
        _check_attributes(path, mode, mtime_ns)
        if path:
            self._parents.check_directory(path)
        self._dirty = self._is_packing = True
        self._packer.add_directory(path, mode, mtime_ns)
        self._is_packing = False

    def delete(self, entry: PathEntry, seen_up_to: int | None = None) -> None:
        """Delete what the caller saw at a path.

        A version that another writer puts meanwhile survives. For a directory that was found empty,
        `seen_up_to` is the generation applied when the caller began to look: a directory that a
        commit just being applied has touched may hold files that were not visible yet.
        """
        self._check_usable()
        generation = entry.generation if seen_up_to is None else min(entry.generation, seen_up_to)
        seen = Version(generation, bytes(entry.row["chunk"]), int(entry.row["position"]))
        file_type = stat.S_IFDIR if entry.is_directory else stat.S_IFREG
        if entry.is_directory:
            self._parents.deleted(entry.path)
        self._dirty = self._is_packing = True
        self._packer.add_tombstone(entry.path, file_type, time.time_ns(), seen)
        self._is_packing = False

    def flush(self) -> int:
        """Make all earlier puts durable, committed and indexed; return the generation reached.

        Raises `Conflict` if an interrupt may have lost one of them.
        """
        if self._dirty:
            self._check_usable()
            self._is_packing = True
            self._packer.flush()
            self._is_packing = False
            self._uploader.wait()
            self._commits.flush()
            self._parents.flushed()
            self._dirty = False
        return self._commits.generation

    def close(self) -> None:
        """Flush and stop. In a forked child nothing happens: its puts belong to the parent."""
        if self._forks != _forks:
            return
        try:
            self.flush()
        finally:
            self._stop()

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()
        else:
            self._stop()

    def _check_usable(self) -> None:
        if self._forks != _forks:
            raise UsageError("a writer cannot be used after a fork: open one in the child")
        if self._is_packing:
            self._uploader.raise_failure()
            raise Conflict(
                f"a put or flush into dataset {self._dataset.ref.name} was interrupted: files that "
                "were put since the last flush may be lost",
                "close the client, and put these files again with another one",
            )

    def _stop(self) -> None:
        if self._forks != _forks:
            return  # the threads are the parent's
        self._uploader.close()
        self._commits.close()

    def _durable(self, chunk: SealedChunk) -> None:
        self._commits.add(DurableChunk(chunk.ref, chunk.head))
