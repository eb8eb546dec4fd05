"""Packs sources into a dataset with several processes.

    this process: walk the sources → runs ─┬→ worker: read, pack, store ─┬→ group commit → index
                                           └→ worker: read, pack, store ─┘

Before the first commit a walk of its own has seen every source: whatever can be known to fail (a missing or unreadable file, a link to
nowhere) fails before anything becomes visible. Everything is bounded: runs wait in pipes, chunks in the workers' uploaders.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from chunkstore.chunk_source import ChunkRef
from chunkstore.chunk_writer import DEFAULT_OPEN_CHUNKS, DEFAULT_TARGET_BYTES
from chunkstore.commit_log import BIRTH_GENERATION, Commit, newest_generation
from chunkstore.errors import BadSource, ChunkStoreError, InvalidPath, Unavailable
from chunkstore.group_commit import DurableChunk, GroupCommit
from chunkstore.object_keys import chunk_key
from chunkstore.paths import MAX_PATH_BYTES
from chunkstore.stores.object_store import ObjectStore
from dieselfs.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.packing.source_tree import Oddities, Run, SourceTree, check_source, listed_runs, mixed
from dieselfs.packing.worker import ChunkReport, FileReport, Packing, WorkerFailure, run_worker
from metadata.errors import MetadataError
from metadata.kv.key_value_store import KeyValueStore
from metadata.records import DatasetState

log = logging.getLogger(__name__)

_STOP_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class FileList:
    """Files named one by one, relative to `base`, for `--files-from`."""

    base: bytes
    target: bytes
    paths: Sequence[bytes]
    follow_links: bool = True


@dataclass(frozen=True, slots=True)
class PackRequest:
    """What to pack and how."""

    sources: Sequence[SourceTree | FileList]
    jobs: int = 1
    order: str = "scatter"
    """`scatter`, `path` or `given` (see `chunkstore.chunk_writer`)."""
    seed: int = 0
    target_bytes: int = DEFAULT_TARGET_BYTES
    open_chunks: int = DEFAULT_OPEN_CHUNKS
    checksum: bool = False


@dataclass(slots=True)
class PackProgress:
    """What has happened so far; read it from any thread."""

    files_found: int = 0
    """By the walk that looks first; the total, once `walked`."""
    walked: bool = False
    files_committed: int = 0
    """Acknowledged: durable and in the dataset."""
    bytes_committed: int = 0
    chunks_committed: int = 0
    files_unchanged: int = 0
    failed: list[str] = field(default_factory=list)
    """Files that could not be read after all; a reason each."""
    special: list[bytes] = field(default_factory=list)
    """Sockets, pipes and devices, left out."""
    on_change: Callable[[PackProgress], None] = lambda progress: None
    """Called from several threads after a change."""

    def changed(self) -> None:
        self.on_change(self)


def survey(sources: Sequence[SourceTree | FileList], progress: PackProgress) -> None:
    """Walk all sources without packing; raises `BadSource`, or `InvalidPath`, if any file can't be packed."""
    oddities = Oddities()
    readable = os.geteuid() == 0  # root may read everything; others find out file by file
    for source in sources:
        for run in _runs(source, oddities, 4096):
            if isinstance(source, FileList) or not readable:
                oddities.unreadable.extend(_unreadable(run, source.follow_links))
            _check_lengths(run)
            progress.files_found += len(run.names)
    progress.special = oddities.special
    if oddities.unreadable:
        more = f" (and {len(oddities.unreadable) - 1} more)" if len(oddities.unreadable) > 1 else ""
        raise BadSource(f"{oddities.unreadable[0]}{more}: nothing was put; fix it, or leave it out with --exclude")
    progress.walked = True
    progress.changed()


def pack(
    name: str,
    request: PackRequest,
    open_store: Callable[[], ObjectStore],
    open_index: Callable[[], KeyValueStore],
    progress: PackProgress,
) -> DatasetState:
    """Pack everything that `request` names into the dataset `name`, made if need be; the state when all is committed and indexed.

    Interrupted at any moment, it leaves whole what was committed and invisible what was not; the same request again does the rest.
    Raises `BadSource` before anything became visible, or what store and index raise.
    """
    for source in request.sources:
        check_source(source.disk_path if isinstance(source, SourceTree) else source.base)
    store, index = open_store(), open_index()
    try:
        dataset = open_dataset(store, index, name, create=True)
        try:
            _pack(dataset, request, open_store, open_index, progress)
        except BaseException:
            if dataset.born:
                _take_back(dataset)
            raise
        return dataset.namespace.state()
    finally:
        index.close()


def _take_back(dataset: Dataset) -> None:
    """Remove the dataset that a failed put made, unless something was committed to it, by this put or another one."""
    try:
        if newest_generation(dataset.store, dataset.ref.name) == BIRTH_GENERATION:
            remove_dataset(dataset.store, dataset.index, dataset.ref.name)
    except (ChunkStoreError, MetadataError) as error:
        log.warning("dataset %s stays behind, empty: %s", dataset.ref.name, error)


def _pack(
    dataset: Dataset,
    request: PackRequest,
    open_store: Callable[[], ObjectStore],
    open_index: Callable[[], KeyValueStore],
    progress: PackProgress,
) -> None:
    state = dataset.namespace.state()
    packing = Packing(
        dataset=dataset.ref,
        target_bytes=request.target_bytes,
        open_chunks=request.open_chunks if request.order == "scatter" else 1,
        seed=request.seed,
        compare_with_index=bool(state.files or state.directories),
        checksum=request.checksum,
        open_store=open_store,
        open_index=open_index,
    )
    workers = _Workers(packing, request.jobs)
    try:
        with _Commits(dataset, max(state.generation, BIRTH_GENERATION), progress) as commits:
            _run(request, workers, commits, progress)
    finally:
        workers.stop()


def _run(request: PackRequest, workers: _Workers, commits: _Commits, progress: PackProgress) -> None:
    surveyor = _Thread(lambda: _survey_first(request, progress, commits))
    workers.start_feeding(_ordered_runs(request))
    try:
        for report in workers.reports():
            surveyor.raise_failure()
            match report:
                case ChunkReport(ref, head, file_count):
                    commits.add(ref, head, file_count)
                case FileReport(unchanged, failed):
                    progress.files_unchanged += unchanged
                    progress.failed += failed
                    progress.changed()
                case WorkerFailure(error):
                    raise error
        surveyor.join()
        workers.finish_feeding()
        commits.finish()
    except BaseException:
        commits.abandon()
        raise


def _survey_first(request: PackRequest, progress: PackProgress, commits: _Commits) -> None:
    survey(request.sources, progress)
    commits.release()


def _ordered_runs(request: PackRequest) -> Iterator[Run]:
    runs = runs_of(request.sources)
    return mixed(runs, request.seed) if request.order == "scatter" else runs


def runs_of(sources: Sequence[SourceTree | FileList]) -> Iterator[Run]:
    """All files of the sources; what is odd about them the survey tells."""
    ignored = Oddities()
    return (run for source in sources for run in _runs(source, ignored))


def _runs(source: SourceTree | FileList, oddities: Oddities, run_files: int = 64) -> Iterator[Run]:
    if isinstance(source, FileList):
        return listed_runs(source.base, source.target, source.paths, run_files)
    return source.runs(oddities, run_files)


def _unreadable(run: Run, follow_links: bool) -> Iterator[str]:
    for name in run.names:
        path = os.path.join(run.disk_directory, name)
        if not follow_links and os.path.islink(path):
            yield f"{os.fsdecode(path)} is a symbolic link (refused by --no-follow)"
        elif not os.access(path, os.R_OK):
            reason = "cannot be read: check its owner and mode" if os.path.lexists(path) else "no such file"
            yield f"{os.fsdecode(path)}: {reason}"
        elif not os.path.isfile(path):
            yield f"{os.fsdecode(path)}: is a {'directory' if os.path.isdir(path) else 'special file'}, not a file"


def _check_lengths(run: Run) -> None:
    """Names from a disk are legal; below a long target the whole path may be too long."""
    names = [run.renamed] if run.renamed else run.names
    longest = max(names, key=len, default=b"")
    path = b"/".join(part for part in (run.directory, longest) if part)
    if len(path) > MAX_PATH_BYTES:
        raise InvalidPath(f"{os.fsdecode(path[:80])}… would have {len(path)} bytes, a path has at most {MAX_PATH_BYTES}")


class _Workers:
    """The packing processes and the pipes to them. Forked before this process starts any thread."""

    def __init__(self, packing: Packing, count: int) -> None:
        context = multiprocessing.get_context("fork")
        self._feeder: _Thread | None = None
        self._connections: list[Connection] = []
        self._processes: list[BaseProcess] = []
        for number in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(packing, number, theirs, [*self._connections, ours]))
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def start_feeding(self, runs: Iterator[Run]) -> None:
        self._feeder = _Thread(lambda: self._feed(runs))

    def finish_feeding(self) -> None:
        if self._feeder is not None:
            self._feeder.join()

    def _feed(self, runs: Iterator[Run]) -> None:
        """Deal the runs out in turn (so that the same seed and jobs pack the same chunks); then tell that there are no more."""
        count = len(self._connections)
        try:
            for number, run in enumerate(runs):
                self._connections[number % count].send(run)
            for connection in self._connections:
                connection.send(None)
        except (BrokenPipeError, OSError):
            pass  # a worker is gone: `reports` says so

    def reports(self) -> Iterator[ChunkReport | FileReport | WorkerFailure]:
        """What the workers report, until all have finished."""
        open_connections = list(self._connections)
        while open_connections:
            for connection in wait(open_connections):
                assert isinstance(connection, Connection)
                try:
                    yield connection.recv()
                except (EOFError, ConnectionResetError):
                    open_connections.remove(connection)
                    self._check_exit(self._processes[self._connections.index(connection)])

    def stop(self) -> None:
        """Hang up and wait; a worker that does not end in time is killed."""
        for connection in self._connections:
            with socket.socket(fileno=os.dup(connection.fileno())) as pipe, suppress(OSError):
                pipe.shutdown(socket.SHUT_RDWR)
        if self._feeder is not None:  # only then: it may be writing, and the number of a closed descriptor is used again
            self._feeder.wait()
        for connection in self._connections:
            connection.close()
        for process in self._processes:
            process.join(_STOP_TIMEOUT_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _check_exit(self, process: BaseProcess) -> None:
        process.join(_STOP_TIMEOUT_S)
        if process.exitcode:
            raise Unavailable(
                f"a packing process ended early (exit code {process.exitcode}): run the same command again for the rest"
            )


def _serve(packing: Packing, number: int, connection: Connection, inherited: Sequence[Connection]) -> None:
    for other in inherited:  # or a worker would hold the others' pipes open after their parent's end
        other.close()
    run_worker(packing, number, connection)


class _Commits:
    """Group commit of what the workers report, held back until the survey is done, and counted."""

    def __init__(self, dataset: Dataset, after: int, progress: PackProgress) -> None:
        self._dataset = dataset
        self._progress = progress
        self._file_counts: dict[bytes, int] = {}
        self._uncommitted: set[str] = set()
        self._released = False
        self._group = GroupCommit(dataset.log, after, self._publish, hold=True)

    def __enter__(self) -> _Commits:
        return self

    def __exit__(self, *_: object) -> None:
        self._group.close()

    def add(self, ref: ChunkRef, head: bytes, file_count: int) -> None:
        self._file_counts[ref.id.value] = file_count
        self._uncommitted.add(chunk_key(self._dataset.ref.name, ref.id))
        self._group.add(DurableChunk(ref, head))

    def release(self) -> None:
        self._released = True
        self._group.release()

    def finish(self) -> None:
        self._group.flush()

    def abandon(self) -> None:
        """After a failure before anything was committed: take back the chunks that nobody will ever see.

        Not after a failed commit: its object may be in the store all the same, and name them."""
        self._group.close()
        if not self._released:
            for key in self._uncommitted:
                self._dataset.store.delete(key)

    def _publish(self, commit: Commit, heads: Sequence[bytes]) -> None:
        self._progress.chunks_committed += len(commit.added)
        for ref in commit.added:
            self._uncommitted.discard(chunk_key(self._dataset.ref.name, ref.id))
            self._progress.files_committed += self._file_counts.pop(ref.id.value)
            self._progress.bytes_committed += ref.payload_bytes
        self._dataset.publish(commit, heads)
        self._progress.changed()


class _Thread(threading.Thread):
    """A thread whose exception is raised by `join`."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._failure = error

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        super().join()

    def join(self, timeout: float | None = None) -> None:
        super().join(timeout)
        self.raise_failure()
