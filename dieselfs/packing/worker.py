"""One packing process: it receives batches of names, packs the files, and reports durable chunks.

Each file costs open, two fstat, read and close, relative to a directory that is opened once for a
batch. The content is hashed and gathered into the chunk without a copy.
"""

from __future__ import annotations

import gc
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import NamedTuple

import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.chunk_writer import ChunkWriter, SealedChunk, hash_stream
from chunkstore.errors import BadSource
from chunkstore.keep_together import KeepTogether
from chunkstore.link_targets import target_problem
from chunkstore.stores.adaptive_limit import CallLimit
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.read_back import ReadBackStore
from chunkstore.stores.resilient import ResilientStore
from chunkstore.uploader import Uploader
from dieselfs.dataset.dataset_writer import MAX_MTIME_NS, MIN_MTIME_NS
from dieselfs.dataset.parent_directories import ParentDirectories
from dieselfs.dataset.unchanged_reads import (
    READS,
    SourceChanged,
    check_unchanged,
    kept_changing,
    settle,
    surely_settled_ns,
)
from dieselfs.packing.comparison import Present, present_files
from dieselfs.packing.large_file import PART_BYTES, LargeFile, file_parts
from dieselfs.packing.source_tree import EntryBatch, outside_link
from dieselfs.packing.stored_copies import StoredCopies
from metadata.errors import PathNotFound
from metadata.kv.key_value_store import KeyValueStore
from metadata.namespace import Namespace

_READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
"""Without O_NONBLOCK the open of a pipe waits for its writer."""
_LARGE_BYTES = 64 << 20
"""The size from which files are read twice, to hash and to store.

Smaller files are held in memory.
"""


@dataclass(frozen=True, slots=True)
class PackRules:
    """The rules of packing; the same for all processes of one put."""

    dataset: DatasetRef
    target_bytes: int
    open_chunks: int
    keep_together: KeepTogether
    seed: int
    compare_with_index: bool
    """The dataset has content: skip unchanged files, and refuse a file where a directory is."""
    checksum: bool
    """Compare content instead of size and mtime, and pack files whose stored content is damaged."""
    paranoid: bool
    """Read each stored chunk back, and compare it."""
    writers: Sequence[bytes]
    """The process fields of the chunk ids, one for each process; the put's lease names them."""


class ChunkReport(NamedTuple):
    """A chunk is durable in the store."""

    ref: ChunkRef
    head: bytes
    file_count: int


class FileReport(NamedTuple):
    """The results of files, apart from the chunks that they are in."""

    unchanged: int
    failed: list[str]
    """Reasons, each with a path."""
    repaired: int = 0
    """Packed files that the dataset had, but whose stored content was damaged."""


class WorkerFailure(NamedTuple):
    """The process has failed."""

    error: BaseException


def run_worker(
    open_store: Callable[[], ObjectStore],
    open_index: Callable[[], KeyValueStore],
    number: int,
    connection: Connection,
    stopped: Callable[[], bool],
    uploads: CallLimit,
) -> None:
    """Pack batches from `connection`, which first sends the rules, until None comes.

    `uploads` is the limit that all packing processes share. At the end open chunks are stored and
    the connection is closed. Once `stopped` returns True, the
    worker drops open chunks, waits for those that are being stored, and ends.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent receives it, and hangs up
    # The parent's objects stay: no collection need examine them and write to their pages.
    gc.freeze()
    send_lock = threading.Lock()

    def send(report: ChunkReport | FileReport | WorkerFailure) -> None:
        with send_lock:
            connection.send(report)

    try:
        store = open_store()
        packing: PackRules = connection.recv()
        if isinstance(store, ResilientStore):
            store.share_uploads(uploads)  # the parent has opened the dataset in the store
        if packing.paranoid:
            store = ReadBackStore(store)
        index = open_index() if packing.compare_with_index else None
        _Worker(packing, store, index, number, send, stopped).serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone; uncommitted chunks stay invisible
    except BaseException as error:
        with suppress(OSError):  # the parent may have failed itself
            send(WorkerFailure(error))
    finally:
        connection.close()


class _Stopped(Exception):
    """The put has been interrupted: this process packs no more."""


class _Worker:
    def __init__(
        self,
        packing: PackRules,
        store: ObjectStore,
        index: KeyValueStore | None,
        number: int,
        send: Callable[[ChunkReport | FileReport | WorkerFailure], None],
        stopped: Callable[[], bool],
    ) -> None:
        self._packing = packing
        self._stopped = stopped
        self._seed = packing.seed * 1000 + number
        self._ids = ChunkIdGenerator(process=packing.writers[number])
        self._send = send
        self._store = store
        self._surely_settled_ns = 0
        self._namespace = None if index is None else Namespace(index, packing.dataset)
        self._parents = ParentDirectories(self._namespace) if self._namespace else None
        self._copies = None
        if self._namespace is not None and packing.checksum:
            reader = ChunkReader(store, packing.dataset)
            self._copies = StoredCopies(self._namespace, reader)

    def serve(self, connection: Connection) -> None:
        packing = self._packing
        with Uploader(
            self._store,
            packing.dataset.name,
            self._durable,
            on_bad_source=self._not_stored,
        ) as uploader:

            def submit(chunk: SealedChunk) -> None:
                self._check_stopped()
                uploader.submit(chunk)

            self._writer = ChunkWriter(
                packing.dataset,
                self._ids,
                submit,
                target_bytes=packing.target_bytes,
                open_chunks=packing.open_chunks,
                seed=self._seed,
                keep_together=packing.keep_together,
            )
            try:
                while (batch := connection.recv()) is not None:
                    report = self._pack(batch)
                    if any(report):
                        self._send(report)
                self._writer.flush()
            except (_Stopped, EOFError, OSError):  # the last two: the pipe was shut down
                if not self._stopped():
                    raise
            uploader.wait()

    def _check_stopped(self) -> None:
        if self._stopped():
            raise _Stopped

    def _durable(self, chunk: SealedChunk) -> None:
        self._send(ChunkReport(chunk.ref, chunk.head, chunk.file_count))

    def _not_stored(self, chunk: SealedChunk, error: BadSource) -> None:
        """Report a large file, alone in its chunk, that changed between its hash and its upload."""
        self._send(FileReport(0, [str(error)]))

    def _pack(self, batch: EntryBatch) -> FileReport:
        failed: list[str] = []
        if batch.attributes is not None:
            try:
                _check_mtime(batch.disk_directory, batch.attributes[1])
                self._pack_directory(batch.directory, batch.attributes)
            except BadSource as error:
                failed.append(str(error))
        if not batch.names:
            return FileReport(0, failed)
        present = {} if self._namespace is None else present_files(self._namespace, batch)
        damaged = self._copies.damaged(present) if self._copies is not None else set()
        prefix = batch.directory + b"/" if batch.directory else b""
        unchanged = repaired = 0
        self._surely_settled_ns = surely_settled_ns()
        try:
            folder = os.open(batch.disk_directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            return FileReport(
                0, [*failed, f"{os.fsdecode(batch.disk_directory)}: {error.strerror}"]
            )
        stopped = self._stopped  # asked for each file
        try:
            for name in batch.names:
                if stopped():
                    raise _Stopped
                try:
                    target = prefix + (batch.renamed or name)
                    if self._parents is not None:
                        self._parents.check_file(target)
                    known = None if name in damaged else present.get(name)
                    pack = self._pack_link if name in batch.links else self._pack_file
                    is_packed = pack(folder, name, target, known, batch)
                    unchanged += not is_packed
                    repaired += name in damaged
                except OSError as error:
                    failed.append(
                        f"{os.fsdecode(os.path.join(batch.disk_directory, name))}: {error.strerror}"
                    )
                except BadSource as error:
                    failed.append(str(error))
        finally:
            os.close(folder)
        return FileReport(unchanged, failed, repaired)

    def _pack_file(
        self, folder: int, name: bytes, target: bytes, present: Present | None, batch: EntryBatch
    ) -> bool:
        """Read and pack one file; False if the dataset has it unchanged.

        A file that changes is read three times before it is left out.
        """
        fd, reads_left = os.open(name, _READ_FLAGS, dir_fd=folder), READS
        try:
            while reads_left:
                try:
                    return self._pack_open(fd, name, target, present, batch)
                except SourceChanged:
                    reads_left -= 1
                    self._check_stopped()
        finally:
            os.close(fd)
        raise kept_changing(os.path.join(batch.disk_directory, name))

    def _pack_open(
        self, fd: int, name: bytes, target: bytes, present: Present | None, batch: EntryBatch
    ) -> bool:
        by_content = self._packing.checksum
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            path = os.path.join(batch.disk_directory, name)
            raise BadSource(f"{os.fsdecode(path)} is no longer a file")
        if not MIN_MTIME_NS <= status.st_mtime_ns <= MAX_MTIME_NS:
            raise _bad_mtime(os.path.join(batch.disk_directory, name))
        size, mode = status.st_size, status.st_mode & 0o7777
        same = present if present and present.may_equal(status, checksum=by_content) else None
        if same and not by_content:
            return False
        if status.st_ctime_ns >= self._surely_settled_ns:
            settle(fd, status, self._check_stopped)
        if _is_large(size):
            path = os.path.join(batch.disk_directory, name)
            return self._pack_large(fd, target, same, path, status)
        data = os.pread(fd, size + 1, 0)
        if len(data) != size:
            data = _read_unsized(fd, data, size)
        check_unchanged(fd, status)
        if same and xxhash.xxh3_64_intdigest(data) == same.hash:
            return False
        self._writer.add_file(target, data, mode, status.st_mtime_ns)
        return True

    def _pack_large(
        self,
        fd: int,
        target: bytes,
        same: Present | None,
        disk_path: bytes,
        status: os.stat_result,
    ) -> bool:
        """Hash a large file and submit it; its content is read again when it is stored."""
        size, mode = status.st_size, status.st_mode & 0o7777
        hashes = hash_stream(self._until_stopped(file_parts(fd, size)), size)
        check_unchanged(fd, status)
        if same and hashes.whole == same.hash:
            return False
        payload = LargeFile(disk_path, size, hashes.whole, self._stopped)
        self._writer.add_stream(target, size, hashes, payload, mode, status.st_mtime_ns)
        return True

    def _pack_link(
        self, folder: int, name: bytes, target: bytes, present: Present | None, batch: EntryBatch
    ) -> bool:
        """Read and pack one symbolic link; False if the dataset has it unchanged."""
        disk_path = os.path.join(batch.disk_directory, name)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(status.st_mode):
            raise BadSource(f"{os.fsdecode(disk_path)} is no longer a symbolic link")
        _check_mtime(disk_path, status.st_mtime_ns)
        leads_to = os.readlink(name, dir_fd=folder)
        if (problem := target_problem(leads_to, batch.depth)) is not None:
            raise BadSource(outside_link(disk_path, problem))
        by_content = self._packing.checksum
        same = present if present and present.may_equal(status, checksum=by_content) else None
        if same and (not by_content or xxhash.xxh3_64_intdigest(leads_to) == same.hash):
            return False
        self._writer.add_link(target, leads_to, status.st_mtime_ns)
        return True

    def _until_stopped(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        for part in parts:
            self._check_stopped()
            yield part

    def _pack_directory(self, path: bytes, attributes: tuple[int, int]) -> None:
        if self._namespace is not None and self._parents is not None:
            if path:
                self._parents.check_directory(path)
            try:
                row = self._namespace.stat(path).row
            except PathNotFound:
                pass
            else:
                if (int(row["mode"]) & 0o7777, int(row["mtime_ns"])) == attributes:
                    return
        self._writer.add_directory(path, *attributes)


def _check_mtime(disk_path: bytes, mtime_ns: int) -> None:
    if not MIN_MTIME_NS <= mtime_ns <= MAX_MTIME_NS:
        raise _bad_mtime(disk_path)


def _bad_mtime(disk_path: bytes) -> BadSource:
    return BadSource(
        f"{os.fsdecode(disk_path)} has a modification time before 1677 or after 2262: touch it"
    )


def _is_large(size: int) -> bool:
    """Return whether a file of this size is packed in parts."""
    return size >= _LARGE_BYTES


def _read_unsized(fd: int, data: bytes, size: int) -> bytes:
    """Return the content of a file of which a read of `size` + 1 bytes gave `data`.

    Files of procfs-like file systems have the size 0 and content. Raises `SourceChanged` for any
    other file, whose size has changed.
    """
    parts, length = [data], len(data)
    while part := os.pread(fd, PART_BYTES, length):
        parts.append(part)
        length += len(part)
        if size or length >= _LARGE_BYTES:
            raise SourceChanged
    if size:
        raise SourceChanged
    return b"".join(parts)
