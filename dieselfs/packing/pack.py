"""Packing of sources into a dataset with several processes.

    this process: walk the sources → batches ─┬→ worker: read, pack, store ─┬→ commit → index
                                              └→ worker: read, pack, store ─┘

Before the first commit the preflight has examined every source: whatever can be known to fail (a
missing or unreadable file, a link to nowhere) fails before anything becomes visible. The commits
are group commits. All memory is bounded: batches wait in pipes, chunks in the workers' uploaders.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Final

from chunkstore.chunk_id import draw_process_field
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit, find_dataset
from chunkstore.errors import AlreadyExists, ChunkStoreError, NotFound
from chunkstore.group_commit import DurableChunk, GroupCommit
from chunkstore.object_keys import chunk_key
from chunkstore.packing_settings import PackingSettings
from chunkstore.put_leases import PutLease, covers, overlap
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.read_back import ReadBackStore
from dieselfs.dataset.dataset import Dataset, finish_removed, open_dataset
from dieselfs.dataset.packing_choice import packing_settings
from dieselfs.dataset.publisher import Publisher
from dieselfs.errors import DieselFSError
from dieselfs.housekeeping.purge.dead_chunks import retire_dead_chunks
from dieselfs.packing.background_thread import BackgroundThread
from dieselfs.packing.chunk_reuse import reusable_chunks
from dieselfs.packing.deletion import delete_entries, planned_deletions
from dieselfs.packing.preflight import check_named, preflight
from dieselfs.packing.processes import PackingProcesses
from dieselfs.packing.put_request import PackProgress, PackRequest, batches_of
from dieselfs.packing.put_turn import PutTurn, targets_of
from dieselfs.packing.snapshot_process import SnapshotProcess
from dieselfs.packing.source_tree import EntryBatch, SkippedEntries, mixed
from dieselfs.packing.worker import ChunkReport, FileReport, PackRules, WorkerFailure
from dieselfs.snapshots.put_snapshots import publish_put
from metadata.errors import DatasetNotFound, MetadataError
from metadata.kv.key_value_store import KeyValueStore
from metadata.records import DatasetState

log = logging.getLogger(__name__)

_INTERRUPTIBLE_S: Final = 0.1
_PREFLIGHT_PATIENCE_S: Final = 5.0
"""The longest time for which an interrupt waits for the preflight.

The preflight allows the first commit.
"""


def pack(
    name: str,
    request: PackRequest,
    open_store: Callable[[], ObjectStore],
    open_index: Callable[[], KeyValueStore],
    progress: PackProgress,
) -> DatasetState:
    """Pack the sources of `request` into the dataset `name`, which is created if necessary.

    Returns the state when all is committed and indexed, and the snapshot is published that the
    request asks for. If it cannot be published, `progress` has the reason, and the put stands.

    An interrupt at any moment leaves committed files complete and the others invisible; the same
    request again packs the rest. The first `KeyboardInterrupt` commits what is stored already
    before it is raised, the second one does not wait for that. Raises `BadSources` before anything
    became visible, `Conflict` if another put is under way and the request refuses that, or the
    errors of store and index.
    """
    check_named(request.sources)
    store = open_store()  # imports its library once, before the workers would each do so
    if request.paranoid:
        store = ReadBackStore(store)
    jobs = request.jobs if request.order in (None, "scatter") else 1
    workers = PackingProcesses(open_store, open_index, jobs)
    with ExitStack() as stack:
        stack.callback(workers.stop)
        index = open_index()
        stack.callback(index.close)
        writers = [draw_process_field() for _ in range(workers.count)]
        dataset, turn, dead = _in_turn(store, index, name, request, writers, progress)
        began_at = dataset.namespace.state().generation
        ahead = SnapshotProcess(dataset.ref, request.snapshot_folder)
        stack.callback(ahead.close)
        try:
            progress.packing = packing_settings(dataset, request.choice)
            request = request.arranged(progress.packing)
            _reuse_chunks(dataset, request, dead, progress)
            if request.delete:
                _pack_and_delete(dataset, request, workers, writers, ahead, progress)
            else:
                _pack(dataset, request, workers, writers, ahead, progress)
        except BaseException:
            turn.fail()
            if dataset.born:
                _remove_created(dataset)
            raise
        turn.finish([lease for lease in dead if covers(turn.targets, lease.targets)])
        _retire_replaced(dataset, began_at, progress)
        if request.snapshot_folder is not None:
            _publish(dataset, request.snapshot_folder, ahead, progress)
        return dataset.namespace.state()


def _in_turn(
    store: ObjectStore,
    index: KeyValueStore,
    name: str,
    request: PackRequest,
    writers: Sequence[bytes],
    progress: PackProgress,
) -> tuple[Dataset, PutTurn, list[PutLease]]:
    """Open the dataset and wait for the turn; return also the leases of puts that were killed."""
    targets = targets_of(request.sources, delete=request.delete)
    while True:
        packing = request.choice.over(PackingSettings())
        dataset = open_dataset(store, index, name, create=True, packing=packing)
        dataset.check_writable()
        turn = PutTurn(store, dataset.ref, targets, writers)
        try:
            dead = turn.take(request.beside, progress.on_note)
            dataset.catch_up()  # another put may have committed meanwhile
        except (NotFound, DatasetNotFound):  # the put that was waited for has failed and removed it
            turn.finish(())
            if find_dataset(store, name) == dataset.ref:
                raise
        except BaseException:
            turn.finish(())
            raise
        else:
            return dataset, turn, dead


def _reuse_chunks(
    dataset: Dataset, request: PackRequest, dead: Sequence[PutLease], progress: PackProgress
) -> None:
    """Commit what killed puts have stored of the same files; the put then skips these files."""
    dead = [
        lease
        for lease in dead
        if overlap(lease.targets, targets_of(request.sources, delete=request.delete))
    ]
    if not dead:
        return
    preflight(request.sources, PackProgress())  # before anything becomes visible
    found = list(reusable_chunks(dataset, dead, request.sources))
    if not found:
        return
    refs = [chunk.ref for chunk in found]
    dataset.log.check_late(refs)
    commit = dataset.log.append(dataset.namespace.state().generation, refs)
    Publisher(dataset).publish(commit, [chunk.head for chunk in found])
    progress.chunks_reused = len(found)
    progress.files_reused = sum(chunk.file_count for chunk in found)


def _retire_replaced(dataset: Dataset, after: int, progress: PackProgress) -> None:
    """Retire the chunks that this put and others beside it have replaced for each other.

    There can be some only if another writer has committed meanwhile. A failure leaves them to
    purge.
    """
    own = progress.commits
    if dataset.namespace.state().generation - after <= own:
        return
    try:
        progress.chunks_retired = retire_dead_chunks(dataset, after)
    except (ChunkStoreError, MetadataError, DieselFSError) as error:
        log.info("chunks that were put twice are left to purge: %s", error)


def _publish(
    dataset: Dataset, folder: Path, ahead: SnapshotProcess, progress: PackProgress
) -> None:
    """Publish a snapshot of what has been put; a failure is noted and does not undo the put."""
    try:
        progress.snapshot = publish_put(dataset, folder, progress.on_snapshot, ahead.snapshot_of)
    except (ChunkStoreError, MetadataError, DieselFSError, OSError) as error:
        log.debug("no snapshot is published", exc_info=True)
        progress.unpublished = str(error) or type(error).__name__


def _remove_created(dataset: Dataset) -> None:
    """Remove the dataset that a failed put created, unless something was committed to it.

    The commit may be of this put or another one.
    """
    try:
        dataset.log.append_exactly(BIRTH_GENERATION + 1, removed=True)
        finish_removed(dataset.store, dataset.index, dataset.ref)
    except AlreadyExists:
        return
    except (ChunkStoreError, MetadataError) as error:
        log.warning("cannot remove the new, empty dataset %s: %s", dataset.ref.name, error)


def _pack_and_delete(
    dataset: Dataset,
    request: PackRequest,
    workers: PackingProcesses,
    writers: Sequence[bytes],
    ahead: SnapshotProcess,
    progress: PackProgress,
) -> None:
    """Pack the sources, and delete what they do not have unless a file could not be packed."""
    preflight(request.sources, PackProgress())  # before the first deletion
    found = planned_deletions(dataset.namespace, request)
    delete_entries(dataset, found.in_the_way, found.generation)
    _pack(dataset, request, workers, writers, ahead, progress)
    if progress.failed:
        return
    delete_entries(dataset, found.gone, found.generation)
    progress.files_deleted = found.files


def _pack(
    dataset: Dataset,
    request: PackRequest,
    workers: PackingProcesses,
    writers: Sequence[bytes],
    ahead: SnapshotProcess,
    progress: PackProgress,
) -> None:
    state, settings = dataset.namespace.state(), progress.packing
    rules = PackRules(
        dataset=dataset.ref,
        target_bytes=settings.target_bytes,
        open_chunks=request.open_chunks if settings.order == "scatter" else 1,
        keep_together=settings.keep_together,
        seed=request.seed,
        compare_with_index=bool(state.files or state.directories),
        checksum=request.checksum,
        paranoid=request.paranoid,
        writers=writers,
    )
    progress.changed()
    try:
        after = max(state.generation, BIRTH_GENERATION)
        with _Commits(dataset, after, ahead, progress) as commits:
            _Put(request, rules, workers, commits, progress).run()
    finally:
        workers.stop()  # before anything is deleted
        progress.uploads = workers.uploads.statistics()


@dataclass(frozen=True, slots=True)
class _Put:
    """One put under way."""

    request: PackRequest
    rules: PackRules
    workers: PackingProcesses
    commits: _Commits
    progress: PackProgress

    def run(self) -> None:
        """Run the put in a thread in which no signal raises `KeyboardInterrupt`.

        Between two instructions of `threading.Condition` that exception leaves the lock held, and
        all threads that need it wait forever. The calling thread only waits.
        """
        work = BackgroundThread(self._pack_sources)
        try:
            work.join()
        except KeyboardInterrupt:
            self._stop_early(work)
            raise

    def _stop_early(self, work: BackgroundThread) -> None:
        """Wait until what the workers have stored is committed, or for a second interrupt."""
        try:
            self.workers.stop_early()
            self.progress.stopping = True
            self.progress.changed()
            work.wait()
        except KeyboardInterrupt:
            self.workers.hang_up()
            self.commits.interrupt()
            work.wait()
            raise

    def _pack_sources(self) -> None:
        workers, commits, progress = self.workers, self.commits, self.progress
        preflight_thread = BackgroundThread(self._preflight)
        skipped = SkippedEntries()
        scatters = progress.packing.order == "scatter"
        batches = self._until_stopped(batches_of(self.request.sources, skipped))
        if scatters:
            batches = mixed(batches, self.request.seed)
        workers.start_feeding(self.rules, batches, one=not scatters)
        try:
            for report in workers.reports():
                preflight_thread.raise_failure()
                match report:
                    case ChunkReport(ref, head, file_count):
                        commits.add(ref, head, file_count)
                    case FileReport(unchanged, failed, repaired):
                        progress.files_unchanged += unchanged
                        progress.files_repaired += repaired
                        progress.failed += failed
                        progress.changed()
                    case WorkerFailure(error):
                        raise error
            self._wait_for(preflight_thread)
            commits.check_interrupted()  # else the workers have finished
            workers.finish_feeding()
            progress.failed += skipped.unreadable  # since the preflight, which found none
            commits.finish()
        except BaseException:
            commits.abandon()
            raise

    def _wait_for(self, preflight_thread: BackgroundThread) -> None:
        """Wait for the end of the preflight; after an interrupt for some seconds only."""
        patience_s = _PREFLIGHT_PATIENCE_S
        while preflight_thread.is_alive():
            self.commits.check_interrupted()
            if self.workers.stopped_early():
                patience_s -= _INTERRUPTIBLE_S
                if patience_s < 0:
                    raise _Interrupted
            preflight_thread.join(_INTERRUPTIBLE_S)
        preflight_thread.join()

    def _until_stopped(self, batches: Iterator[EntryBatch]) -> Iterator[EntryBatch]:
        return takewhile(lambda _: not self.workers.stopped_early(), batches)

    def _preflight(self) -> None:
        preflight(self.request.sources, self.progress)
        self.commits.release()


class _Interrupted(Exception):
    """The user has interrupted the put."""


class _Commits:
    """Group commit of the chunks that the workers report, counted.

    Commits are held back until the preflight ends.
    """

    def __init__(
        self, dataset: Dataset, after: int, ahead: SnapshotProcess, progress: PackProgress
    ) -> None:
        self._dataset = dataset
        self._ahead = ahead
        self._finishing = False
        self._publisher = Publisher(dataset)
        self._progress = progress
        self._file_counts: dict[bytes, int] = {}
        self._uncommitted: set[str] = set()
        self._released = False
        self._interrupted = False
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
        self._finishing = True
        self._group.flush()

    def interrupt(self) -> None:
        """Commit no more.

        Call it in a thread other than the one that adds and finishes; the latter gets an exception.
        """
        self._interrupted = True
        self._group.close()

    def check_interrupted(self) -> None:
        if self._interrupted:
            raise _Interrupted

    def abandon(self) -> None:
        """Delete the stored chunks after a failure before the first commit.

        Nothing is deleted after a failed commit, whose object may be in the store all the same and
        name them. Chunks that another process has committed by orphan recovery stay.
        """
        self._group.close()
        if self._released or not self._uncommitted:
            return
        adopted = {
            chunk_key(self._dataset.ref.name, ref.id)
            for commit in self._dataset.log.since(self._group.generation)
            for ref in commit.added
        }
        for key in self._uncommitted - adopted:
            self._dataset.store.delete(key)

    def _publish(self, commit: Commit, heads: Sequence[bytes]) -> None:
        self._progress.commits += 1
        self._progress.chunks_committed += len(commit.added)
        for ref in commit.added:
            self._uncommitted.discard(chunk_key(self._dataset.ref.name, ref.id))
            inside = self._file_counts.pop(ref.id.value)
            self._progress.files_committed += inside
            self._progress.chunks_of_directories += not inside
            self._progress.bytes_committed += ref.payload_bytes
        found = self._progress.files_found  # all of them: commits wait for the preflight
        self._ahead.add(commit, heads, found, is_last=self._finishing and not self._uncommitted)
        self._publisher.publish(commit, heads)
        self._progress.changed()
