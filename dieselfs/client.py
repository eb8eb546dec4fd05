"""The client library: libDIESEL's calls (DIESEL Table 3) as a context manager.

    with Client.connect("images", store=store, index=index, snapshot_folder=folder) as client:
        client.put(b"...", "cat/1.jpg")
        client.flush()
        client.get("cat/1.jpg")

Names are looked up in the index, or in a snapshot once `load_meta` has opened one. Bytes come
straight from the store, or from whole chunks in the node's shared memory once `open_memory` or
`shuffle` has opened it (docs/decisions/0006).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, ChunkSource, FileExtent
from chunkstore.chunk_writer import DEFAULT_OPEN_CHUNKS, DEFAULT_TARGET_BYTES
from chunkstore.errors import Corrupt, NotFound
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.object_store import Buffer, ObjectStore
from dieselfs.assembly import open_places, private_snapshot_folder
from dieselfs.cache.ports.peer_settings import PeerSettings
from dieselfs.cache.ports.verified_source import VerifiedSource
from dieselfs.cache.read_settings import ReadSettings
from dieselfs.cache.ssd.settings import SsdChoice, chosen_tier, shared_tier
from dieselfs.cache.task.node_memory import NodeMemory, NodeMemoryStatistics
from dieselfs.cache.task.sample_reader import SampleReader
from dieselfs.config import load_config
from dieselfs.dataset.address import parse_address
from dieselfs.dataset.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.dataset.file_stat import (
    FileStat,
    joined,
    stat_in,
    stat_of_row,
    stats_of_listing,
    walk_snapshot,
)
from dieselfs.errors import AddressError, UsageError
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeReport, PurgeRequest
from dieselfs.prefetch.plan_file import ReadingPlan, write_plan
from dieselfs.prefetch.reading_position import ReadingPosition
from dieselfs.read_stack import ReadStack, client_settings
from dieselfs.shuffle.order import DEFAULT_GROUP_SIZE, ShuffledOrder, shuffle_order
from dieselfs.snapshots import lifecycle
from dieselfs.snapshots.expected_files import ExpectedFiles
from dieselfs.snapshots.snapshot_choice import find_snapshot
from metadata.errors import PathConflict, PathNotFound, RecordCorrupt, SnapshotRefused
from metadata.kv.key_value_store import KeyValueStore
from metadata.namespace import PathEntry
from metadata.snapshot import Snapshot

_STREAM_BYTES = 4 << 20
_SSD_OPENS_S = 0.5
"""The wait for the SSD tier at the first read; a tier that works needs some milliseconds."""
_NAMES_ARE_UTF8 = sys.getfilesystemencoding() == "utf-8"
_ENCODING, _ENCODING_ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()

DatasetPath = str | bytes
"""A path in the dataset; a str is encoded by `os.fsencode`, so that it can spell any file name."""

Inodes = Sequence[int] | npt.NDArray[np.integer]
"""Numbers of files in the loaded snapshot."""


@dataclass(frozen=True, slots=True)
class ClientStatistics:
    """Counters of one client in one process since its plan was created.

    They include those of its node memory, which other processes share.
    """

    files_on_plan: int = 0
    """Files read at the place that the plan of the last `shuffle` gives them."""
    files_off_plan: int = 0
    memory: NodeMemoryStatistics | None = None
    """None: not opened."""


class Client:
    """One dataset, for one thread at a time.

    Reading survives a fork; a child opens a client of its own to write.
    """

    def __init__(
        self,
        dataset: Dataset,
        snapshot_folder: Path,
        *,
        ssd: SsdChoice = "configured",
        **packing: int,
    ) -> None:
        self.dataset = dataset
        self.ssd = ssd
        self._owned = ExitStack()
        """Store and index, if `dieselfs.connect` opened them."""
        self._store_reader: VerifiedSource | None = None
        self._stack: ReadStack | None = None
        """What node memory reads through, while that is open."""
        self._snapshot_folder = snapshot_folder
        self._packing = packing
        self._writer: DatasetWriter | None = None
        self._snapshot: Snapshot | None = None
        self._replaced: list[Snapshot] = []
        """Replaced snapshots, kept while node memory is open: their chunk metadata stays true."""
        self._expected = ExpectedFiles()
        self._memory: NodeMemory | None = None
        self._reader: SampleReader | None = None
        self._position: ReadingPosition | None = None
        self._position_owner = os.getpid()
        self._read_path: Callable[[DatasetPath], bytes] | None = None
        """The reader's own method, where `get` has nothing to add to it."""

    @classmethod
    def connect(
        cls,
        dataset: str,
        *,
        store: ObjectStore,
        index: KeyValueStore,
        snapshot_folder: Path,
        create: bool = False,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        open_chunks: int = DEFAULT_OPEN_CHUNKS,
        seed: int = 0,
        ssd: SsdChoice = "configured",
    ) -> Client:
        """DL_connect: open a dataset and update an index that is behind.

        Raises `DatasetNotFound` unless `create` is given. `ssd` is the tier that caches chunks
        between store and memory; by default the configuration names it (DIESELFS_SSD). With
        `warmup` in its settings, the whole dataset is loaded there in the background as soon as a
        snapshot and node memory are open.
        """
        opened = open_dataset(store, index, dataset, create=create)
        return cls(
            opened,
            snapshot_folder,
            ssd=ssd,
            target_bytes=target_bytes,
            open_chunks=open_chunks,
            seed=seed,
        )

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that answers metadata; None while the index does. Belongs to the client."""
        return self._snapshot

    def put(
        self,
        data: Buffer | BinaryIO | os.PathLike[str],
        path: DatasetPath,
        *,
        mode: int | None = None,
        mtime_ns: int | None = None,
    ) -> None:
        """DL_put: pack one file, given as bytes, an open binary file or a local path.

        A local path keeps its mode and mtime. The file is acknowledged when `flush` or `close`
        returns. A buffer must not be changed after the call.
        """
        if not isinstance(data, bytes):
            if isinstance(data, os.PathLike):
                with open(data, "rb") as file:
                    status = os.fstat(file.fileno())
                    data = file.read()
                mode = status.st_mode & 0o7777 if mode is None else mode
                mtime_ns = status.st_mtime_ns if mtime_ns is None else mtime_ns
            else:
                data = _bytes_of(data)
        writer = self._writer or self._open_writer()
        writer.put(_encoded(path), data, 0o644 if mode is None else mode, mtime_ns)

    def flush(self) -> int:
        """DL_flush: make all puts and deletes durable, committed and indexed.

        Returns the generation reached.
        """
        if self._writer is None:
            return self.dataset.namespace.state().generation
        return self._writer.flush()

    def get(self, path: DatasetPath) -> bytes:
        """DL_get: return the whole file, verified; `PathNotFound`, `PathConflict` for a directory.

        The bytes come from node memory, if it is open and a snapshot is loaded: about 1.3 µs for 4
        KiB.
        """
        if self._read_path is not None:
            return self._read_path(path)
        reader, position = self._reader, self._position
        if reader is None:
            return self._read_all(self._extent(_encoded(path)))
        if position is None:
            return reader.read_path(_encoded(path))
        if isinstance(path, str):
            path = path.encode(_ENCODING, _ENCODING_ERRORS)
        inode = position.expected
        if not reader.is_path_of(inode, path):
            inode = reader.inode_of(path)
        data = reader.read(inode)
        position.passed(inode)
        return data

    def get_many(self, files: Sequence[DatasetPath] | Inodes) -> list[bytes]:
        """Return whole files, in the order given.

        They are given by their paths, or by their inodes in the loaded snapshot. Files that are not
        in memory are fetched together. Raises as `get` does; `IndexError` for an inode that is no
        file's.
        """
        if not len(files):
            return []
        if self._snapshot is None:
            return self._read_extents([self._extent(_encoded(_as_path(file))) for file in files])
        inodes = self._inodes(files)
        reader = self._reader
        if reader is None:
            return self._read_extents([self._snapshot.extent(int(inode)) for inode in inodes])
        data = reader.read_many(inodes)
        if self._position is not None:
            for inode in inodes:
                self._position.passed(int(inode))
        return data

    def inode(self, path: DatasetPath) -> int:
        """Return a file's number in the loaded snapshot, for `get_many` and `samples`.

        Raises `PathNotFound` and `PathConflict`.
        """
        if self._snapshot is None:
            raise UsageError("only a snapshot gives files numbers", "call load_meta first")
        return self._file_inode(_encoded(path))

    @property
    def samples(self) -> SampleReader:
        """The reader of files by inode, for a map-style dataset: 0.7 µs for 4 KiB.

        It needs `open_memory` and a snapshot.
        """
        if self._reader is None:
            raise UsageError(
                "samples need a snapshot and node memory", "call load_meta and open_memory"
            )
        return self._reader

    def prefetch(
        self, paths: Iterable[DatasetPath] = (), *, chunks: Iterable[ChunkId | str] = ()
    ) -> None:
        """Fetch the chunks of these files, then these chunks, into node memory in the background.

        They are fetched in order. Opens node memory and creates a snapshot if necessary. Raises
        `PathNotFound`, `PathConflict`, and `UsageError` for a chunk that is not in the snapshot.
        """
        reader, snapshot = self._with_reader()
        numbers = [snapshot.chunk_number(int(inode)) for inode in self._inodes(list(paths))]
        wanted = [ChunkId.parse(chunk) if isinstance(chunk, str) else chunk for chunk in chunks]
        if wanted:
            known = {id_.tobytes(): number for number, id_ in enumerate(snapshot.columns.chunk_id)}
            for chunk in wanted:
                if chunk.value not in known:
                    raise UsageError(f"snapshot {snapshot.id} has no chunk {chunk}")
                numbers.append(known[chunk.value])
        reader.prefetch(list(dict.fromkeys(numbers)))

    def open_memory(
        self,
        budget_bytes: int | None = None,
        task: str | None = None,
        peers: PeerSettings | None = None,
    ) -> None:
        """Read through the node's shared memory from now on; do nothing if it is open.

        All clients that name the same task share its memory; by default these are all that read
        this dataset on the node. The budget is the task's, by default a share of the free memory;
        the greatest budget that a member asks for counts. `peers` is how the node takes part in its
        task's peer cache if this client creates the task's memory; by default the environment says
        it.

        The client that creates a task's memory fetches chunks for all members and verifies them
        against its own snapshots alone, so call `load_meta` before the first read.
        """
        if self._memory is not None:
            return
        settings = client_settings(memory_bytes=budget_bytes, task=task, peers=peers, ssd=self.ssd)
        self._stack = ReadStack(self.dataset.ref, self.dataset.store, settings, self._expected)
        self._memory = self._stack.open_memory(join=self._snapshot is not None)
        self._make_reader()

    def read_to(self, path: DatasetPath, target: BinaryIO) -> int:
        """Copy a file of any size to `target` in verified blocks; return the number of bytes."""
        extent = self._extent(_encoded(path))
        for start in range(0, extent.length, _STREAM_BYTES):
            target.write(
                self._source().read(extent, start, min(_STREAM_BYTES, extent.length - start))
            )
        return extent.length

    def stat(self, path: DatasetPath) -> FileStat:
        """DL_stat: return the attributes of a path; raise `PathNotFound`."""
        encoded = _encoded(path)
        if self._snapshot is not None:
            return stat_in(self._snapshot, self._inode(encoded))
        entry = self.dataset.namespace.stat(encoded)
        return stat_of_row(entry.path, entry.row)

    def committed_ns(self, generation: int) -> int | None:
        """Return the time of a commit by its writer's clock: when its files were uploaded.

        None if the commit is lost or damaged. Costs one get from the store.
        """
        try:
            return self.dataset.log.read(generation).time_ns
        except (NotFound, Corrupt):
            return None

    def ls(self, path: DatasetPath = b"") -> list[FileStat]:
        """DL_ls: return the children of a directory, directories first, each sorted by name.

        A file gives itself.
        """
        encoded = _encoded(path)
        if self._snapshot is not None:
            inode = self._inode(encoded)
            if not self._snapshot.is_directory(inode):
                return [stat_in(self._snapshot, inode)]
            return [stat_in(self._snapshot, child) for _, child in self._snapshot.children(inode)]
        found = self.stat(encoded)
        if found.kind == "file":
            return [found]
        return list(stats_of_listing(self.dataset.namespace.list(encoded)))

    def walk(self, path: DatasetPath = b"") -> Iterator[FileStat]:
        """Yield everything below a directory, each directory before its content.

        The result is not collected first. A file gives itself.
        """
        encoded = _encoded(path)
        if self.stat(encoded).kind == "file":
            yield self.stat(encoded)
        elif self._snapshot is not None:
            yield from walk_snapshot(self._snapshot, self._inode(encoded))
        else:
            for listing in self.dataset.namespace.walk(encoded):
                yield from stats_of_listing(listing)

    def delete(self, path: DatasetPath) -> None:
        """DL_delete: delete one file or an empty directory.

        `flush` acknowledges it, as it does a put.
        """
        encoded = _encoded(path)
        writer = self._open_writer()
        writer.flush()
        applied = self.dataset.namespace.state().generation
        entry = self.dataset.namespace.stat(encoded)
        if not entry.is_directory:
            writer.delete(entry)
            return
        listing = self.dataset.namespace.list(encoded)
        if not encoded or listing.file_names or listing.directory_names:
            raise PathConflict(
                f"directory {_decoded(encoded) or '/'} is not empty: delete it with all below it"
            )
        writer.delete(entry, applied)

    def delete_tree(self, path: DatasetPath) -> int:
        """Delete a file, or a directory with everything below it; return the number of files.

        A file that is put meanwhile survives.
        """
        encoded = _encoded(path)
        writer = self._open_writer()
        writer.flush()
        applied = self.dataset.namespace.state().generation
        top = self.dataset.namespace.stat(encoded)
        if not top.is_directory:
            writer.delete(top)
            return 1
        count = 0
        for listing in self.dataset.namespace.walk(encoded):
            for name, row in zip(listing.file_names, listing.files, strict=True):
                writer.delete(PathEntry(joined(listing.path, name), row))
            for name, row in zip(listing.directory_names, listing.directories, strict=True):
                writer.delete(PathEntry(joined(listing.path, name), row), applied)
            count += len(listing.file_names)
        if encoded:
            writer.delete(top, applied)
        return count

    def save_meta(self, folder: Path | None = None) -> Path:
        """DL_save_meta: write a snapshot of the dataset's present state; return its path."""
        self.flush()
        return lifecycle.build(self.dataset, folder or self._snapshot_folder)

    def load_meta(self, which: Path | str, *, check_fresh: bool | None = None) -> None:
        """DL_load_meta: answer metadata from a snapshot from now on.

        `which` is a file, or a string: a tag, a snapshot's id or its beginning, or a generation;
        such a snapshot is pulled from the store if it is not on this machine. Earlier puts are
        flushed; later ones fail. Raises `SnapshotRefused` if the snapshot is of another dataset and
        `SnapshotStale` if the dataset has newer commits, which is checked for files only, unless
        `check_fresh` says otherwise; `SnapshotNotFound`.
        """
        if isinstance(which, str):
            check_fresh = bool(check_fresh)
            path = find_snapshot(
                which, self.dataset.ref.name, self._snapshot_folder, self.dataset.store
            )
        else:
            check_fresh = check_fresh is not False
            path = which
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        snapshot = Snapshot.open(path)
        try:
            if snapshot.dataset != self.dataset.ref:
                raise SnapshotRefused(
                    f"{path} is a snapshot of dataset {snapshot.dataset.name}, not of "
                    f"{self.dataset.ref.name}"
                )
            if check_fresh:
                lifecycle.check_fresh(snapshot, self.dataset.index)
        except BaseException:
            snapshot.close()
            raise
        self._end_plan()
        if self._snapshot is not None:
            self._replaced.append(self._snapshot)
        if self._memory is None:
            self._close_replaced()
        self._snapshot = self._expected.add(snapshot)
        if self._memory is not None:
            self._memory.join()
        self._make_reader()

    def shuffle(
        self,
        *,
        seed: int = 0,
        epoch: int = 0,
        group_size: int = DEFAULT_GROUP_SIZE,
        rank: int = 0,
        world_size: int = 1,
        memory_bytes: int | None = None,
        task: str | None = None,
        peers: PeerSettings | None = None,
    ) -> list[str]:
        """DL_shuffle: return this rank's paths in chunk-wise shuffled order (DIESEL §4.3).

        The order is the client's plan from now on: chunks are fetched into node memory
        (`open_memory`) ahead of a reader that follows it. Other reads are served too. Needs a
        snapshot, and creates one if none is loaded. `PlanTooLarge` says how much memory or which
        group size is needed.
        """
        _, snapshot = self._with_reader(memory_bytes, task, peers)
        order = shuffle_order(snapshot.chunk_first_inode, seed, epoch, group_size, rank, world_size)
        self._prefetch(order, snapshot)
        text = snapshot.paths_text(order.inodes, b"\0")
        return [os.fsdecode(path) for path in text.split(b"\0")[:-1]]

    def statistics(self) -> ClientStatistics:
        """Return the counters; send a message to the master of the node memory, if that is open."""
        position = self._position
        return ClientStatistics(
            0 if position is None else position.on_plan,
            0 if position is None else position.off_plan,
            None if self._memory is None else self._memory.statistics(),
        )

    def purge(
        self, request: PurgeRequest | None = None, progress: Progress = NO_PROGRESS
    ) -> PurgeReport:
        """DL_purge: merge chunks with holes, and delete the retired chunks that no reader may need.

        Earlier puts are flushed. Older snapshots stay readable for the grace period (7 days), and
        as long as they are published, tagged or mounted.
        """
        self.flush()
        return purge(self.dataset, request or PurgeRequest(), progress)

    def delete_dataset(self) -> None:
        """DL_delete_dataset: remove the dataset with everything in it; this cannot be undone."""
        self._stop_writer()
        remove_dataset(self.dataset.store, self.dataset.index, self.dataset.ref.name)

    def close(self) -> None:
        """DL_close: flush, and release the snapshot and node memory.

        Store and index are the caller's, unless `dieselfs.connect` opened them.
        """
        with self._owned:
            self._close()

    def _close(self) -> None:
        try:
            if self._writer is not None:
                self._writer.close()
        finally:
            self._writer = None
            self._reader = None
            self._end_plan()
            if self._memory is not None:
                self._memory.close()
                self._memory = None
            if self._stack is not None:
                self._stack.close()
                self._stack = None
            if self._snapshot is not None:
                self._replaced.append(self._snapshot)
                self._snapshot = None
            self._close_replaced()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._stop_writer()
        self.close()

    def _open_writer(self) -> DatasetWriter:
        if self._snapshot is not None:
            raise UsageError("this client reads from a snapshot: write with another one")
        if self._writer is None:
            self._writer = DatasetWriter(self.dataset, **self._packing)
        return self._writer

    def _stop_writer(self) -> None:
        """Stop without flushing."""
        if self._writer is not None:
            self._writer.__exit__(RuntimeError, RuntimeError(), None)
            self._writer = None

    def _source(self) -> ChunkSource:
        return self._memory or self._from_store()

    def _from_store(self) -> VerifiedSource:
        """Return the reader of the store, through the SSD tier if there is one.

        The call waits briefly until the tier is open, so that its cached chunks are found.
        """
        if self._store_reader is None:
            tier = chosen_tier(self.ssd)
            self._store_reader = ReadStack(
                self.dataset.ref, self.dataset.store, ReadSettings(ssd=tier), ExpectedFiles()
            ).source
            if tier is not None:
                shared_tier(tier).wait_until_open(_SSD_OPENS_S)
        return self._store_reader

    def _with_reader(
        self,
        memory_bytes: int | None = None,
        task: str | None = None,
        peers: PeerSettings | None = None,
    ) -> tuple[SampleReader, Snapshot]:
        """Open node memory and a snapshot, if missing."""
        if self._snapshot is None:
            self.load_meta(self.save_meta(), check_fresh=False)  # another writer may be at work
        self.open_memory(memory_bytes, task, peers)
        assert self._reader is not None
        assert self._snapshot is not None
        return self._reader, self._snapshot

    def _close_replaced(self) -> None:
        self._expected = ExpectedFiles()
        while self._replaced:
            self._replaced.pop().close()

    def _make_reader(self) -> None:
        if self._memory is not None and self._snapshot is not None:
            self._reader = SampleReader(self._snapshot, self._memory)
            self._choose_reading()
            assert self._stack is not None
            self._stack.warm_up(self._snapshot)

    def _choose_reading(self) -> None:
        self._read_path = None
        if self._reader is not None and self._position is None and _NAMES_ARE_UTF8:
            self._read_path = self._reader.read_path

    def _prefetch(self, order: ShuffledOrder, snapshot: Snapshot) -> None:
        """Make `order` the plan; the old plan stays if `order` is refused."""
        assert self._memory is not None
        if not len(order):
            self._end_plan()
            return
        plan = ReadingPlan(snapshot.id, order.inodes, order.group_start, str(snapshot.path))
        before = "" if self._position is None else self._position.plan.id
        file = write_plan(self._memory.folder.path, plan, after=before)
        try:
            self._memory.follow(file.path)
        except BaseException:
            file.remove()
            raise
        self._end_plan()
        self._position, self._position_owner = ReadingPosition(file), os.getpid()
        self._choose_reading()

    def _end_plan(self) -> None:
        """Remove the plan; a forked child leaves its parent's plan alone."""
        position, self._position = self._position, None
        if position is not None and self._position_owner == os.getpid():
            position.plan.remove()
        self._choose_reading()

    def _inodes(self, files: Sequence[DatasetPath] | Inodes) -> Inodes:
        """Return the inodes of files given by paths or inodes; `PathNotFound`, `PathConflict`."""
        assert self._snapshot is not None
        if not len(files) or not isinstance(files[0], str | bytes):
            return files  # type: ignore[return-value]
        paths = files if _NAMES_ARE_UTF8 else [_encoded(_as_path(file)) for file in files]
        try:
            found = self._snapshot.paths.files(paths)  # type: ignore[arg-type]
        except TypeError:
            for file in files:
                _as_path(file)  # raises with the reason
            raise
        if None not in found:
            return found  # type: ignore[return-value]
        return [
            self._file_inode(_encoded(_as_path(file))) if inode is None else inode
            for file, inode in zip(files, found, strict=True)
        ]

    def _file_inode(self, path: bytes) -> int:
        assert self._snapshot is not None
        inode = self._inode(path)
        if self._snapshot.is_directory(inode):
            raise PathConflict(f"is a directory: {_decoded(path)}")
        return inode

    def _read_all(self, file: FileExtent) -> bytes:
        return bytes(self._source().read(file, 0, file.length)) if file.length else b""

    def _read_extents(self, files: Sequence[FileExtent]) -> list[bytes]:
        if self._memory is not None:
            return self._memory.read_many(files)
        return [bytes(data) for data in self._from_store().read_many(files)]

    def _inode(self, path: bytes) -> int:
        assert self._snapshot is not None
        inode = self._snapshot.resolve(path)
        if inode is None:
            raise PathNotFound(
                f"no such file or directory in dataset {self.dataset.ref.name}: {_decoded(path)}"
            )
        return inode

    def _extent(self, path: bytes) -> FileExtent:
        if self._snapshot is not None:
            return self._snapshot.extent(self._file_inode(path))
        while True:
            entry = self.dataset.namespace.stat(path)
            if entry.is_directory:
                raise PathConflict(f"is a directory: {_decoded(path) or '/'}")
            try:
                return self._extent_of(entry)
            except RecordCorrupt:
                now = self.dataset.namespace.stat(path)
                if bytes(now.row["chunk"]) == bytes(entry.row["chunk"]):
                    raise
                # A purge has moved the file in between: look it up again.

    def _extent_of(self, entry: PathEntry) -> FileExtent:
        row = entry.row
        record = self.dataset.namespace.chunk(bytes(row["chunk"]))
        chunk = ChunkRef(ChunkId(bytes(row["chunk"])), record.head_bytes, record.payload_bytes)
        return FileExtent(chunk, int(row["offset"]), int(row["length"]), int(row["hash"]))


def connect(
    address: str,
    *,
    store: str | None = None,
    index: str | None = None,
    profile: str | None = None,
    create: bool = False,
    target_bytes: int = DEFAULT_TARGET_BYTES,
    open_chunks: int = DEFAULT_OPEN_CHUNKS,
    seed: int = 0,
    ssd: SsdChoice = "configured",
) -> Client:
    """Open a dataset with the settings that `dlcmd` finds: arguments, variables, profile, defaults.

    `address` is a dataset's name, or `NAME@SNAPSHOT` with a tag, a snapshot's id or a generation,
    to read that version. `store` and `index` are URLs; see `Client.connect` for the rest. The
    client closes store and index. Raises `AddressError`, `ConfigError`, `DatasetNotFound`,
    `SnapshotNotFound`, `Unavailable`, `IndexUnavailable`.
    """
    named = parse_address(address)
    if named.path:
        raise AddressError(
            f"{address}: this argument must be a dataset, without a path", f"write {named.dataset}"
        )
    config = load_config(store, index, profile)
    with ExitStack() as opened:
        object_store, key_value_store = open_places(config)
        opened.callback(key_value_store.close)
        client = Client.connect(
            named.dataset,
            store=object_store,
            index=key_value_store,
            snapshot_folder=private_snapshot_folder(config),
            create=create,
            target_bytes=target_bytes,
            open_chunks=open_chunks,
            seed=seed,
            ssd=ssd,
        )
        if named.snapshot:
            client.load_meta(named.snapshot)
        client._owned = opened.pop_all()
    return client


def _as_path(file: DatasetPath | int) -> DatasetPath:
    if not isinstance(file, str | bytes):
        raise UsageError(
            "only a snapshot can be read by inodes",
            "call load_meta first, or give paths alone",
        )
    return file


def _encoded(path: DatasetPath) -> bytes:
    # This is os.fsencode, but faster.
    encoded = path if isinstance(path, bytes) else path.encode(_ENCODING, _ENCODING_ERRORS)
    return encoded.strip(b"/")


def _bytes_of(data: Buffer | BinaryIO) -> Buffer:
    """Return the data that `put` was given as one contiguous buffer of bytes."""
    if not isinstance(data, bytes | bytearray | memoryview):
        data = data.read()
        if not isinstance(data, bytes):
            raise UsageError("a file object that is put must be open in binary mode")
    elif isinstance(data, memoryview) and (
        data.itemsize != 1 or data.ndim != 1 or not data.contiguous
    ):
        return data.tobytes()
    return data


def _decoded(path: bytes) -> str:
    return os.fsdecode(path)
