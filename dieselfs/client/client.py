"""The calls of libDIESEL (DIESEL Table 3) on one dataset, as a context manager.

    with dieselfs.connect("images", create=True) as client:
        client.put(b"...", "cat/1.jpg")
        client.flush()
        client.get("cat/1.jpg")

Names are looked up in the index, or in a snapshot once `load_meta` has opened one. Bytes come
straight from the store, or from whole chunks in the node's shared memory once `open_memory` or
`shuffle` has opened it (docs/decisions/0006). Modules that not every call needs are imported by the
calls that do: a client that lists names loads no cache.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NoReturn
from weakref import WeakSet

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import FileExtent
from chunkstore.errors import Corrupt, NotFound
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.object_store import Buffer, ObjectStore
from dieselfs.assembly import (
    check_default_store,
    open_configured_index,
    open_configured_store,
    private_snapshot_folder,
    shared_config,
    with_patience,
)
from dieselfs.client.lookup import IndexLookup, Lookup, SnapshotLookup, extents_of
from dieselfs.client.path_arguments import DatasetPath, Inodes, as_path, decoded, encoded
from dieselfs.client.statistics import ClientStatistics
from dieselfs.config import Config, load_config
from dieselfs.dataset.address import parse_address
from dieselfs.dataset.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset.file_stat import FileStat
from dieselfs.errors import AddressError, NotYetSupported, UsageError
from dieselfs.shuffle.order import DEFAULT_GROUP_SIZE, shuffle_order
from dieselfs.snapshots.expected_files import ExpectedFiles
from metadata.errors import PathConflict, PathNotFound, SnapshotRefused
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    import io

    from chunkstore.keep_together import KeepTogether
    from dieselfs.cache.ports.peer_settings import PeerSettings
    from dieselfs.cache.ports.verified_source import VerifiedSource
    from dieselfs.cache.read_settings import ReadSettings
    from dieselfs.cache.ssd.settings import SsdChoice
    from dieselfs.cache.task.node_memory import NodeMemory
    from dieselfs.cache.task.sample_reader import SampleReader
    from dieselfs.cache.warmup.handle import WarmUpHandle
    from dieselfs.client.extraction.extraction import Extraction
    from dieselfs.client.memory_reading import MemoryReading
    from dieselfs.client.prefetching import Tier, Wanted
    from dieselfs.client.writing import Writing
    from dieselfs.dataset.path_filter import PathFilter
    from dieselfs.housekeeping.purge.purge_request import PurgeReport, PurgeRequest
    from metadata.kv.key_value_store import KeyValueStore

_STREAM_BYTES: Final = 4 << 20


class Client:
    """One dataset, for one thread at a time.

    Reading survives a fork; a child opens a client of its own to write. `path in client`,
    `len(client)` (files) and `client.glob` ask as `stat`, `ls` and `walk` do.
    """

    def __init__(
        self,
        dataset: Dataset,
        snapshot_folder: Path,
        *,
        ssd: SsdChoice = "configured",
        config: Config | None = None,
        **packing: Any,
    ) -> None:
        """`packing` has the fields of `dieselfs.client.writing.WriterOptions`."""
        self.dataset = dataset
        self.ssd = ssd
        self._owned = ExitStack()
        """Store and index, if `dieselfs.connect` opened them."""
        self._config = config
        """The settings for the dataset; None: those of the environment."""
        self._snapshot_folder = snapshot_folder
        self._packing = packing
        self._lookup: Lookup = IndexLookup(dataset)
        self._is_closed = False
        self._writing: Writing | None = None
        self._replaced: list[Snapshot] = []
        """Replaced snapshots, kept while node memory is open: their chunk metadata stays true."""
        self._expected = ExpectedFiles()
        self._reading: MemoryReading | None = None
        self._store_source: VerifiedSource | None = None
        self._read_path: Callable[[DatasetPath], bytes] | None = None
        """The function that answers `get` from node memory, if that and a snapshot are open."""
        self._prefetches: WeakSet[WarmUpHandle] = WeakSet()

    @classmethod
    def connect(
        cls,
        dataset: str,
        *,
        store: ObjectStore,
        index: KeyValueStore,
        snapshot_folder: Path,
        create: bool = False,
        target_bytes: int | None = None,
        open_chunks: int | None = None,
        keep_together: KeepTogether | None = None,
        seed: int = 0,
        ssd: SsdChoice = "configured",
        config: Config | None = None,
    ) -> Client:
        """DL_connect: open a dataset and update an index that is behind.

        Raises `DatasetNotFound` unless `create` is given. `target_bytes` is the size of chunks (4
        MiB), `open_chunks` how many are filled at a time (64, or another power of two; 1 keeps the
        order of the puts), and `keep_together` ("none", "sample", "directory") says which files,
        put one after the other, share a chunk. A new dataset remembers them, and they are by
        default what the dataset remembers; a put raises `Refused` if that cannot be used, and
        `UsageError` for what makes no chunk. `ssd` is the tier that caches chunks between store and
        memory; by default the configuration names it (DIESELFS_SSD). `config` has the settings of
        the reads; by default they are those of the environment. With `warmup` in its settings, the
        whole dataset is loaded there in the background as soon as a snapshot and node memory are
        open.
        """
        given: dict[str, Any] = {
            "target_bytes": target_bytes,
            "open_chunks": open_chunks,
            "keep_together": keep_together,
            "seed": seed,
        }
        packing = None
        if create:
            from chunkstore.packing_settings import PackingSettings
            from dieselfs.client.writing import WriterOptions

            packing = WriterOptions(**given).choice.over(PackingSettings())
        opened = open_dataset(store, index, dataset, create=create, packing=packing)
        return cls(opened, snapshot_folder, ssd=ssd, config=config, **given)

    @property
    def snapshot(self) -> Snapshot | None:
        """The snapshot that answers metadata; None while the index does. Belongs to the client."""
        lookup = self._lookup
        return lookup.snapshot if isinstance(lookup, SnapshotLookup) else None

    # Changes

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
        returns. Slashes at the ends of `path` do not count: "/a" and "a/" are the file "a". A
        buffer must not be changed after the call. A client that reads a snapshot puts
        into the dataset, and goes on reading the snapshot.
        """
        (self._writing or self._changes()).put(data, encoded(path), mode, mtime_ns)

    def put_link(
        self, target: DatasetPath, path: DatasetPath, *, mtime_ns: int | None = None
    ) -> None:
        """Pack a symbolic link to `target`, which is relative to the directory of `path`.

        `UsageError` for a target that may lead out of the dataset: one that is absolute, has `..`
        behind a name, or more of them than directories above the link.
        """
        self._changes().writer().put_link(encoded(path), os.fsencode(target), mtime_ns)

    def flush(self) -> int:
        """DL_flush: make all puts and deletes durable, committed and indexed.

        Returns the generation reached.
        """
        return self._changes().flush()

    def delete(self, path: DatasetPath) -> None:
        """DL_delete: delete one file or an empty directory.

        `flush` acknowledges it, as it does a put.
        """
        self._changes().delete(encoded(path))

    def delete_tree(self, path: DatasetPath) -> int:
        """Delete a file, or a directory with everything below it; return the number of files.

        A file that is put meanwhile survives.
        """
        return self._changes().delete_tree(encoded(path))

    def purge(
        self, request: PurgeRequest | None = None, progress: Progress = NO_PROGRESS
    ) -> PurgeReport:
        """DL_purge: merge chunks with holes, and delete the retired chunks that no reader may need.

        Earlier puts are flushed. Older snapshots stay readable for the grace period (7 days), and
        as long as they are published, tagged or mounted.
        """
        from dieselfs.housekeeping.purge.purge import purge
        from dieselfs.housekeeping.purge.purge_request import PurgeRequest

        self.flush()
        return purge(self.dataset, request or PurgeRequest(), progress)

    def delete_dataset(self, *, force: bool = False) -> None:
        """DL_delete_dataset: remove the dataset with everything in it; this cannot be undone.

        Raises `Refused` if a running mount or a tag needs it; `force` removes it nevertheless.
        """
        from dieselfs.housekeeping.dataset_users import lasting_users
        from dieselfs.snapshots.lifecycle import remove_local

        self._require_open()
        store, name = self.dataset.store, self.dataset.ref.name
        if not force:
            lasting_users(store, name).check_none()
        if self._writing is not None:
            self._writing.stop()
        remove_dataset(store, self.dataset.index, name, self.dataset.ref)
        remove_local(self._snapshot_folder, self.dataset.ref)

    # Contents

    def get(self, path: DatasetPath) -> bytes:
        """DL_get: return the whole file, verified; `PathNotFound`, `PathConflict` for a directory.

        A symbolic link is not followed: `PathIsLink`, and `readlink` says where it leads. The bytes
        come from node memory, if it is open and a snapshot is loaded: about 1.3 µs for 4 KiB.
        """
        if self._read_path is not None:
            return self._read_path(path)
        file = self._names().extent(encoded(path))
        return bytes(self._source().read(file, 0, file.length)) if file.length else b""

    def get_many(self, files: Sequence[DatasetPath] | Inodes) -> list[bytes]:
        """Return whole files, in the order given.

        They are given by their paths, or by their inodes in the loaded snapshot. Files that are not
        in memory are fetched together. Raises as `get` does; `IndexError` for an inode that is no
        file's.
        """
        lookup, reading = self._names(), self._reading
        if isinstance(files, str | bytes):
            raise UsageError(f"get_many takes several files, not {files!r}", "write get for one")
        if not len(files):
            return []
        if not isinstance(lookup, SnapshotLookup):
            extents = [lookup.extent(encoded(as_path(file))) for file in files]
            return [bytes(data) for data in self._source().read_many(extents)]
        inodes = lookup.file_inodes(files)
        if reading is None or reading.samples is None:
            return [bytes(data) for data in self._source().read_many(lookup.extents(inodes))]
        data = reading.samples.read_many(inodes)
        if reading.position is not None:
            for inode in inodes:
                reading.position.passed(int(inode))
        return data

    def read_files(self, files: Sequence[FileStat]) -> Sequence[bytes | memoryview]:
        """Return the contents of several files of one chunk, given by their attributes, in order.

        The content of a symbolic link is its target.

        Files that lie close together are read as one range, so a whole chunk costs one or two
        requests. The contents are those of the attributes, even if the paths have others now.
        Raises `Corrupt`, `Unavailable`, and `NotFound` if a purge has moved the files meanwhile.
        """
        names = self._names()
        return self._source().read_many(extents_of(names, files)) if files else []

    def stream_file(self, file: FileStat) -> Iterator[bytes | memoryview]:
        """Yield the content of one file of any size in verified blocks of 4 MiB.

        Raises as `read_files` does.
        """
        [extent] = extents_of(self._names(), [file])
        return self._blocks(extent)

    def open(self, path: DatasetPath) -> io.BufferedReader:
        """Return a seekable binary file; each read of up to 256 KiB is one verified range.

        Raises as `get` does. `io.TextIOWrapper` makes text of it.
        """
        from dieselfs.client.open_file import open_file

        return open_file(self._source(), self._names().extent(encoded(path)))

    def read_to(self, path: DatasetPath, target: BinaryIO) -> int:
        """Copy a file of any size to `target` in verified blocks; return the number of bytes."""
        file = self._names().extent(encoded(path))
        for block in self._blocks(file):
            target.write(block)
        return file.length

    def download(
        self,
        path: DatasetPath,
        local: os.PathLike[str] | str,
        *,
        filters: PathFilter | None = None,
        jobs: int | None = None,
        ignore_times: bool = False,
        on_failure: Callable[[FileStat, Exception], None] | None = None,
        progress: Progress = NO_PROGRESS,
    ) -> Extraction:
        """Copy a file to `local`, or a directory's contents into this folder, as `dlcmd get` does.

        The folder is made if its parent exists. Files with the same size and mtime are skipped, so
        the same call resumes an interrupted one. `filters` says what to take; see `dlcmd get` for
        `jobs` and symbolic links. Returns the numbers of `files`, `bytes`, `skipped`, `failed` and
        of links left `outside`. `on_failure` gets each file that is damaged and each link that is
        not made; without it they raise `PartialFailure` when all others are copied. Many files are
        written by processes that are forked, unless `jobs` is 1.
        """
        from dieselfs.client.downloading import download

        return download(
            self,
            decoded(encoded(path)),
            Path(local),
            filters=filters,
            jobs=jobs,
            ignore_times=ignore_times,
            on_failure=on_failure,
            progress=progress,
        )

    def readlink(self, path: DatasetPath) -> str:
        """Return the target of a symbolic link, verified; `PathConflict` for anything else.

        The target is relative to the directory of the link, as `os.readlink` returns it.
        """
        file = self._names().link_extent(encoded(path))
        return os.fsdecode(bytes(self._source().read(file, 0, file.length)))

    @property
    def samples(self) -> SampleReader:
        """The reader of files by inode, for a map-style dataset: 0.7 µs for 4 KiB.

        It needs `open_memory` and a snapshot.
        """
        self._require_open()
        if self._reading is None or self._reading.samples is None:
            raise UsageError(
                "samples need a snapshot and node memory", "call load_meta and open_memory"
            )
        return self._reading.samples

    # Names

    def inode(self, path: DatasetPath) -> int:
        """Return a file's number in the loaded snapshot, for `get_many` and `samples`.

        Raises `PathNotFound` and `PathConflict`.
        """
        lookup = self._names()
        if not isinstance(lookup, SnapshotLookup):
            raise UsageError("only a snapshot gives files numbers", "call load_meta first")
        return lookup.file_inode(encoded(path))

    def stat(self, path: DatasetPath) -> FileStat:
        """DL_stat: return the attributes of a path; raise `PathNotFound`."""
        return self._names().stat(encoded(path))

    def exists(self, path: DatasetPath) -> bool:
        """Return whether there is a file or directory of this path."""
        try:
            self.stat(path)
        except (PathNotFound, PathConflict):
            return False
        return True

    def ls(self, path: DatasetPath = b"") -> list[FileStat]:
        """DL_ls: return the children of a directory, directories first, each sorted by name.

        A file gives itself.
        """
        return self._names().ls(encoded(path))

    def walk(self, path: DatasetPath = b"") -> Iterator[FileStat]:
        """Yield everything below a directory, each directory before its content.

        The result is not collected first. A file gives itself.
        """
        top = self.stat(path)
        return self._names().walk(encoded(path)) if top.kind == "directory" else iter([top])

    def glob(self, pattern: str) -> Iterator[str]:
        """Yield the paths of files and directories that match, each directory before its content.

        `*`, `?` and `[…]` stop at slashes, `**` does not. Everything below the first directories,
        up to one with such a sign, is looked through.
        """
        from dieselfs.dataset.path_filter import Glob

        wanted = Glob(pattern)
        below = self.walk(wanted.top) if self.exists(wanted.top) else iter(())
        return (found.path for found in below if wanted.matches(found.path))

    def committed_ns(self, generation: int) -> int | None:
        """Return the time of a commit by its writer's clock: when its files were uploaded.

        None if the commit is lost or damaged. Costs one get from the store.
        """
        self._require_open()
        try:
            return self.dataset.log.read(generation).time_ns
        except (NotFound, Corrupt):
            return None

    def __contains__(self, path: object) -> bool:
        return isinstance(path, str | bytes) and self.exists(path)

    def __len__(self) -> int:
        return self._names().file_count()

    def __bool__(self) -> bool:
        return True

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a client cannot be pickled: it has connections and may have puts under way",
            "connect in the process that uses it, or pass a DieselDataset to spawned workers",
        )

    def __repr__(self) -> str:
        version = "" if self.snapshot is None else f"@{self.snapshot.id}"
        closed = ", closed" if self._is_closed else ""
        return f"<Client {self.dataset.ref.name}{version}{closed}>"

    # Snapshots and memory

    def save_meta(self, folder: os.PathLike[str] | str | None = None) -> Path:
        """DL_save_meta: write a snapshot of the dataset's present state; return its path."""
        from dieselfs.snapshots.lifecycle import build

        self.flush()
        return build(self.dataset, self._snapshot_folder if folder is None else Path(folder))

    def load_meta(self, which: os.PathLike[str] | str, *, check_fresh: bool | None = None) -> None:
        """DL_load_meta: answer metadata from a snapshot from now on.

        `which` is a file, or a string: a tag, a snapshot's id or its beginning, or a generation;
        such a snapshot is pulled from the store if it is not on this machine. Earlier puts are
        flushed; later ones are seen by another `load_meta`. Raises `SnapshotRefused` if the
        snapshot is of another dataset and `SnapshotStale` if the dataset has newer commits, which
        is checked for files only, unless `check_fresh` says otherwise; `SnapshotNotFound`.
        """
        self._require_open()
        if isinstance(which, str):
            if "/" in which:
                raise UsageError(
                    f"{which} is no tag, snapshot id or generation",
                    f"write pathlib.Path({which!r}) for a file",
                )
            from dieselfs.snapshots.snapshot_choice import find_snapshot

            check_fresh = bool(check_fresh)
            path = find_snapshot(
                which, self.dataset.ref.name, self._snapshot_folder, self.dataset.store
            )
        elif isinstance(which, os.PathLike):
            check_fresh, path = check_fresh is not False, Path(which)
        else:  # a number would be a descriptor of this process
            raise UsageError(
                f"{which!r} is neither a file nor a string", "write a generation as a string: '2'"
            )
        if self._writing is not None:
            self._writing.close()
        snapshot = Snapshot.open(path)
        try:
            if snapshot.dataset != self.dataset.ref:
                raise SnapshotRefused(
                    f"{path} is a snapshot of dataset {snapshot.dataset.name}, not of "
                    f"{self.dataset.ref.name}"
                )
            if check_fresh:
                from dieselfs.snapshots.lifecycle import check_fresh as check

                check(snapshot, self.dataset.index)
        except BaseException:
            snapshot.close()
            raise
        self._show(snapshot)

    def open_memory(
        self,
        budget_bytes: int | None = None,
        task: str | None = None,
        peers: PeerSettings | None = None,
    ) -> None:
        """Read through the node's shared memory from now on.

        If it is open, only the budget is asked for; another task's name raises `UsageError`.

        All clients that name the same task share its memory; by default these are all that read
        this dataset on the node. The budget is the task's, by default a share of the free memory;
        the greatest budget that a member asks for counts. `peers` is how the node takes part in its
        task's peer cache if this client creates the task's memory; by default the environment says
        it.

        The client that creates a task's memory fetches chunks for all members and verifies them
        against its own snapshots alone, so call `load_meta` before the first read.

        Raises `NotYetSupported` on another system than Linux.
        """
        self._require_open()
        if sys.platform != "linux":
            raise NotYetSupported(
                f"node memory needs Linux, and this is {sys.platform}", "`get` works here"
            )
        from dieselfs.client.memory_reading import MemoryReading, checked_budget

        budget_bytes = checked_budget(budget_bytes)
        if self._reading is None:
            settings = self.read_settings(budget_bytes, task, peers)
            self._reading = MemoryReading(self.dataset, settings, self._expected, self.snapshot)
            self._read_path = self._reading.read_path
        else:
            self._reading.ask(budget_bytes, task if peers is None else peers.task)

    def read_settings(
        self,
        memory_bytes: int | None = None,
        task: str | None = None,
        peers: PeerSettings | None = None,
    ) -> ReadSettings:
        """Return the settings with which this client reads through node memory; see `open_memory`.

        They come from the arguments, and from what the client was connected with.
        """
        self._require_open()
        from dieselfs.cache.read_stack import client_settings

        return client_settings(
            memory_bytes=memory_bytes, task=task, peers=peers, ssd=self.ssd, config=self._config
        )

    def prefetch(
        self,
        wanted: Wanted = (),
        into: Tier = "memory",
        wait: bool = False,
        *,
        chunks: Iterable[ChunkId | str] = (),
    ) -> WarmUpHandle:
        """Fetch the chunks of files into a tier, in the background, before they are read.

        `wanted` is a path, several, or the order of an epoch: a `ShuffledOrder`, or
        `ShuffleParameters`. A directory means all files below it, and `""` the dataset. `chunks`
        are fetched after them. Chunks are fetched whole, in this order, as far as there is room.

        The handle tells how much was there, was fetched, and was refused, for which reason; it can
        be waited for and cancelled. With `wait` the call returns at the end. `close` cancels.

        Opens node memory and creates a snapshot if necessary. Raises `PathNotFound`, `UsageError`
        for a chunk that is not in the snapshot, or a tier that is not configured, and
        `SsdUnavailable`.
        """
        from dieselfs.client.prefetching import Tiers, selected_chunks

        tiers = Tiers(self.dataset, lambda: self._with_memory()[0].memory, self.ssd, self._config)
        start = tiers.prefetch_into(into)
        snapshot = self._with_snapshot().snapshot
        handle = start(snapshot, selected_chunks(snapshot, wanted, chunks))
        self._prefetches.add(handle)
        if wait:
            handle.result()
        return handle

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

        Symbolic links have no place in an order: each file is in it once, under its own path.
        The order is the client's plan from now on: chunks are fetched into node memory
        (`open_memory`) ahead of a reader that follows it. Other reads are served too. Needs a
        snapshot, and creates one if none is loaded. `PlanTooLarge` says how much memory or which
        group size is needed.
        """
        reading, lookup = self._with_memory(memory_bytes, task, peers)
        snapshot = lookup.snapshot
        order = shuffle_order(
            snapshot.chunk_first_inode,
            seed,
            epoch,
            group_size,
            rank,
            world_size,
            files=snapshot.regular_files(),
        )
        reading.follow(order, snapshot)
        self._read_path = reading.read_path
        text = snapshot.paths_text(order.inodes, b"\0")
        return [os.fsdecode(path) for path in text.split(b"\0")[:-1]]

    def statistics(self) -> ClientStatistics:
        """Return the counters; send a message to the master of the node memory, if that is open."""
        self._require_open()
        reading = self._reading
        if reading is None:
            return ClientStatistics()
        position = reading.position
        return ClientStatistics(
            0 if position is None else position.on_plan,
            0 if position is None else position.off_plan,
            reading.memory.statistics(),
        )

    def sibling(self) -> Client:
        """Open a client of the same dataset and snapshot for another thread, which closes it."""
        self._require_open()
        options: dict[str, Any] = {"ssd": self.ssd, "config": self._config, **self._packing}
        sibling = Client(self.dataset, self._snapshot_folder, **options)
        if self.snapshot is not None:
            sibling.load_meta(self.snapshot.path, check_fresh=False)
        return sibling

    def close(self) -> None:
        """DL_close: flush, and release the snapshot and node memory.

        Store and index are the caller's, unless `dieselfs.connect` opened them. A closed client
        refuses all other calls with `UsageError`.
        """
        with self._owned:
            self._close()

    def _close(self) -> None:
        try:
            if self._writing is not None:
                self._writing.close()
        finally:
            self._is_closed, self._writing, self._read_path = True, None, None
            for handle in list(self._prefetches):
                handle.cancel()
            reading, self._reading = self._reading, None
            if reading is not None:
                reading.close()
            if self.snapshot is not None:
                self._replaced.append(self.snapshot)
                self._lookup = IndexLookup(self.dataset)
            self._close_replaced()

    def __enter__(self) -> Client:
        self._require_open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and self._writing is not None:
            self._writing.stop()
        self.close()

    def _blocks(self, file: FileExtent) -> Iterator[bytes | memoryview]:
        source = self._source()
        for start in range(0, file.length, _STREAM_BYTES):
            yield source.read(file, start, min(_STREAM_BYTES, file.length - start))

    def _require_open(self) -> None:
        if self._is_closed:
            raise UsageError(
                f"the client of {self.dataset.ref.name} is closed", "connect again for more calls"
            )

    def _names(self) -> Lookup:
        self._require_open()
        return self._lookup

    def _changes(self) -> Writing:
        self._require_open()
        if self._writing is None:
            from dieselfs.client.writing import WriterOptions, Writing

            self._writing = Writing(self.dataset, WriterOptions(**self._packing))
        return self._writing

    def _source(self) -> VerifiedSource | NodeMemory:
        """Return node memory, or the store through the SSD tier if there is one."""
        self._require_open()
        if self._reading is not None:
            return self._reading.memory
        if self._store_source is None:
            from dieselfs.client.store_source import store_source

            self._store_source, close = store_source(self.dataset, self.ssd, self._config)
            self._owned.callback(close)
        return self._store_source

    def _with_memory(
        self,
        memory_bytes: int | None = None,
        task: str | None = None,
        peers: PeerSettings | None = None,
    ) -> tuple[MemoryReading, SnapshotLookup]:
        """Open node memory and a snapshot, if missing."""
        lookup = self._with_snapshot()
        self.open_memory(memory_bytes, task, peers)
        assert self._reading is not None
        return self._reading, lookup

    def _with_snapshot(self) -> SnapshotLookup:
        """Create and open a snapshot, if none is loaded."""
        if self.snapshot is None:
            self.load_meta(self.save_meta(), check_fresh=False)  # another writer may be at work
        assert isinstance(self._lookup, SnapshotLookup)
        return self._lookup

    def _show(self, snapshot: Snapshot) -> None:
        """Answer from a snapshot from now on; it becomes the client's."""
        if self.snapshot is not None:
            self._replaced.append(self.snapshot)
        reading = self._reading
        if reading is None:
            self._close_replaced()
        self._lookup = SnapshotLookup(snapshot)
        self._expected.add(snapshot)
        if reading is not None:
            reading.show(snapshot)
            self._read_path = reading.read_path

    def _close_replaced(self) -> None:
        self._expected = ExpectedFiles()
        while self._replaced:
            self._replaced.pop().close()


def connect(
    address: str,
    *,
    store: str | None = None,
    index: str | None = None,
    profile: str | None = None,
    create: bool = False,
    target_bytes: int | None = None,
    open_chunks: int | None = None,
    keep_together: KeepTogether | None = None,
    seed: int = 0,
    ssd: SsdChoice = "configured",
) -> Client:
    """Open a dataset with the settings that `dlcmd` finds.

    They come from arguments, variables, profile, the store (`dlcmd config`) and defaults.

    `address` is a dataset's name, or `NAME@SNAPSHOT` with a tag, a snapshot's id or a generation,
    to read that version; `create` makes no dataset for it. `store` and `index` are URLs; see
    `Client.connect` for the rest. The client closes store and index. Raises `AddressError`,
    `ConfigError`, `DatasetNotFound`, `SnapshotNotFound`, `Unavailable`, `IndexUnavailable`.
    """
    named = parse_address(address)
    if named.path:
        raise AddressError(
            f"{address}: this argument must be a dataset, without a path", f"write {named.dataset}"
        )
    create = create and not named.snapshot
    config = load_config(store, index, profile)
    if not create:
        check_default_store(config)
    opened_store = open_configured_store(config, None, create=create)
    config = shared_config(config, opened_store, named.dataset)
    with ExitStack() as opened:
        key_value_store = open_configured_index(config)
        opened.callback(key_value_store.close)
        client = Client.connect(
            named.dataset,
            store=with_patience(opened_store, config),
            index=key_value_store,
            snapshot_folder=private_snapshot_folder(config),
            create=create,
            target_bytes=target_bytes,
            open_chunks=open_chunks,
            keep_together=keep_together,
            seed=seed,
            ssd=ssd,
            config=config,
        )
        if named.snapshot:
            client.load_meta(named.snapshot)
        client._owned = opened.pop_all()
    return client
