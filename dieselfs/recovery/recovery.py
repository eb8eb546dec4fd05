"""Recovery as one call: the index rebuilt, verified, or made for an earlier time.

It uses the store alone (docs/recovery.md).
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

from chunkstore.chunk_format import ChunkHead, DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_listing import chunk_sizes
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit, CommitLog
from chunkstore.counted import agreed, counted
from chunkstore.errors import Corrupt
from chunkstore.object_keys import snapshot_key
from chunkstore.progress import NO_PROGRESS, Progress
from chunkstore.stores.object_store import ObjectStore
from dieselfs.errors import Conflict, HistoryDamaged, Refused, UsageError
from dieselfs.recovery.history import History, empty_head, read_history
from dieselfs.recovery.log_plan import carry_out, store_plan, stored_plan
from dieselfs.recovery.log_rebuild import LogRebuild, plan_log
from dieselfs.recovery.orphan_recovery import commit_orphans, orphans
from dieselfs.recovery.points_in_time import AtTime, PointInTime, generation_at
from dieselfs.recovery.present_index import (
    CountedChanges,
    applied_generation,
    check_kept,
    claim_name,
    is_empty,
    known_dataset,
    remove_wrong_types,
    unpin_generation,
)
from dieselfs.recovery.recovery_options import RecoveryOptions
from dieselfs.recovery.recovery_report import RecoveryReport
from dieselfs.snapshots.lifecycle import publish_snapshot
from metadata.errors import MapOfWrongType
from metadata.kv.key_value_store import KeyValueStore
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.namespace import Namespace
from metadata.reapplication import reapply_later
from metadata.rebuild import rebuild
from metadata.rebuild.chunk_table import chunks_to_read
from metadata.rebuild.compared_index import ComparedIndex
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.map_sink import MapSink
from metadata.rebuild.repaired_index import RepairedIndex
from metadata.records import DatasetState
from metadata.snapshot_builder import build_snapshot


def recover(
    store: ObjectStore,
    index: KeyValueStore | None,
    name: str,
    options: RecoveryOptions = RecoveryOptions(),  # noqa: B008  # frozen
    progress: Progress = NO_PROGRESS,
) -> RecoveryReport:
    """Make the index match the store, in the way that `options` asks for; return what was done.

    Readers of snapshots do not notice. Commits of writers meanwhile are read again at the end; for
    `without_commits` and `adopt` all writers must have stopped. After an interruption the call can
    be repeated.

    Raises `HistoryDamaged` for lost commits or chunks without the option to continue,
    `DirectoryNotFound`, `Refused` for a point in time that is not reachable any more, `Conflict` if
    a writer came in between, and the errors of store and index.
    """
    _check(options, index)
    return _Recovery(store, index, name, options, progress).run()


def _check(options: RecoveryOptions, index: KeyValueStore | None) -> None:
    if options.since is not None and options.until is not None:
        raise UsageError("--since and --until cannot be combined", "give one of them")
    if (options.check or options.since is not None) and index is None:
        raise UsageError("--check and --since need an index", "name one")
    if options.until is not None and (options.check or options.adopt):
        raise UsageError(
            "--until cannot be combined with --check or --adopt", "leave out --check and --adopt"
        )
    if options.check and (options.adopt or options.since is not None):
        raise UsageError(
            "--check changes nothing, so it cannot be combined with --adopt or --since",
            "leave out --adopt and --since, or use -n",
        )
    if options.until is not None and index is None and options.snapshot_folder is None:
        raise UsageError("a recovery to a snapshot needs a snapshot folder", "name one")


_WITHOUT_CHUNKS: Final = "continue without their files with --without-chunks"


@dataclass(slots=True)
class _Recovery:
    """One run of a recovery."""

    _store: ObjectStore
    _index: KeyValueStore | None
    _name: str
    _options: RecoveryOptions
    _progress: Progress
    _log: LogRebuild | None = None
    _moved: int = 0
    _adopted: Sequence[ChunkRef] = ()
    _entries: int = 0
    _unreadable: dict[ChunkId, ChunkRef] = field(default_factory=dict)
    """Chunks whose header is damaged, and without which the recovery goes on."""

    def run(self) -> RecoveryReport:
        history = self._read()
        history.check_exists()
        history = self._with_log(history)
        if self._options.reads_only and self._log is not None:
            return self._report(history)
        dataset = history.check_complete()
        lost = self._lost_chunks(history)
        if self._options.adopt:
            history = self._with_adopted(history)
            lost = self._lost_chunks(history)  # gc may have deleted chunks that were adopted
            if self._options.dry_run:
                return self._report(history)
        if self._options.until is not None:
            report = self._until(history, dataset, self._options.until)
        elif self._options.reads_only:
            report = self._compare(history, dataset)
        elif self._options.since is not None:
            report = self._since(history, dataset, self._options.since)
        else:
            report = self._whole(history, dataset)
        return replace(report, lost_chunks=[*lost, *self._unreadable.values()])

    # -- the history -------------------------------------------------------------------------------

    def _read(self) -> History:
        """Return the history, after an interrupted plan has been carried out.

        It includes the generations that the index knows and the store has lost.
        """
        plan = stored_plan(self._store, self._name)
        if plan is not None and self._options.reads_only:
            raise Conflict(
                f"a rebuild of lost commits of {self._name} was interrupted",
                f"finish it with `dlcmd recover {self._name}`",
            )
        if plan is not None:
            self._moved += carry_out(self._store, plan)
        history = read_history(self._store, self._name, dataset_id=self._options.dataset_id)
        if history.dataset is None and self._options.without_commits:
            dataset = plan_log(self._store, history).dataset
            history = read_history(self._store, self._name, dataset_id=dataset.id)
        if history.dataset is not None and self._index is not None and not history.is_removed:
            reached = applied_generation(self._index, history.dataset)
            if reached > history.newest:  # lost, or committed since the log was read
                history = read_history(self._store, self._name, dataset_id=history.dataset.id)
            history = history.known_to_reach(reached)
        return history

    def _with_log(self, history: History) -> History:
        """Return the history with lost commits rebuilt, if that is wanted and needed."""
        if not (self._options.without_commits and history.lost):
            return history
        self._log = plan_log(self._store, history)
        if self._options.reads_only:
            return history
        store_plan(self._store, self._log.plan)
        self._moved += carry_out(self._store, self._log.plan)
        return read_history(self._store, self._name, dataset_id=self._log.dataset.id)

    def _with_adopted(self, history: History) -> History:
        assert history.dataset is not None
        self._adopted = orphans(self._store, history)
        if self._options.reads_only or not self._adopted:
            return history
        commit_orphans(self._store, history.dataset, history.newest, self._adopted)
        return read_history(self._store, self._name, dataset_id=self._options.dataset_id)

    def _lost_chunks(self, history: History) -> list[ChunkRef]:
        """Return the lost chunks; raise `HistoryDamaged` unless the options go on without them."""
        lost = history.lost_chunks()
        if lost and not self._options.without_chunks:
            raise HistoryDamaged(
                f"{counted(len(lost), 'chunk')} of {self._name} {agreed(len(lost), 'are')} not in "
                f"the store, the first is {lost[0].id}",
                f"restore them from a copy of the store, or {_WITHOUT_CHUNKS}",
            )
        return lost

    # -- the index ---------------------------------------------------------------------------------

    def _whole(self, history: History, dataset: DatasetRef) -> RecoveryReport:
        assert self._index is not None
        index = self._index
        log, reader = CommitLog(self._store, dataset), ChunkReader(self._store, dataset)
        foreign = remove_wrong_types(index, dataset)
        if was_empty := is_empty(index, dataset):
            try:
                state = self._rebuild(history, dataset, history.commits, EmptyIndex(index))
                changed, removed = self._entries, 0
            except MapOfWrongType:  # deeper than `is_empty` looks
                was_empty = False
        was_pinned = unpin_generation(index, dataset)
        if not was_empty or applied_generation(index, dataset) != state.generation:
            repaired = RepairedIndex(index, partial(reapply_later, index, dataset, log, reader))
            state = self._rebuild(history, dataset, history.commits, repaired)
            changed, removed = repaired.changed, repaired.removed + foreign
        changed += claim_name(index, dataset, history.commits[0].time_ns) + was_pinned
        state = Namespace(index, dataset).catch_up(log, reader)
        check_kept(index, dataset, state)
        return self._report(history, state, was_empty=was_empty, changed=changed, removed=removed)

    def _since(self, history: History, dataset: DatasetRef, point: PointInTime) -> RecoveryReport:
        assert self._index is not None
        after = generation_at(history.commits, point)
        if not 0 <= after <= len(history.commits):
            history.at(after)  # raises
        counted = CountedChanges(self._index)
        claimed = claim_name(counted, dataset, history.commits[0].time_ns)
        counted.changed = int(claimed)
        log, reader = CommitLog(self._store, dataset), ChunkReader(self._store, dataset)
        state = Namespace(counted, dataset).reapply(log, reader, after)
        check_kept(self._index, dataset, state)
        return self._report(history, state, changed=counted.changed)

    def _compare(self, history: History, dataset: DatasetRef) -> RecoveryReport:
        assert self._index is not None
        sink = ComparedIndex(self._index)
        state = self._rebuild(history, dataset, history.commits, sink)
        unnamed = known_dataset(self._index, dataset.name) != dataset
        return self._report(
            history,
            state,
            was_empty=is_empty(self._index, dataset),
            differences=sink.differences,
            difference_count=sum(sink.counts.values()) + unnamed,
        )

    def _until(self, history: History, dataset: DatasetRef, point: PointInTime) -> RecoveryReport:
        generation = generation_at(history.commits, point)
        if generation < BIRTH_GENERATION and isinstance(point, AtTime):
            raise Refused(
                f"{self._name} did not exist then: it was created at "
                f"{_printed(history.commits[0].time_ns)}",
                f"choose a later time, or {history.choice(BIRTH_GENERATION)}",
            )
        commits = history.at(generation)
        if self._options.reads_only:
            return self._report(history)
        if self._index is None:
            return self._snapshot(history, dataset, commits)
        was_empty = is_empty(self._index, dataset)
        unpin_generation(self._index, dataset)
        # This comes first, so that no process that opens the index meanwhile applies more commits.
        Namespace(self._index, dataset).hold(generation)
        sink = EmptyIndex(self._index) if was_empty else RepairedIndex(self._index)
        state = self._rebuild(history, dataset, commits, sink)
        claim_name(self._index, dataset, commits[0].time_ns)
        return self._report(history, state, was_empty=was_empty)

    def _snapshot(
        self, history: History, dataset: DatasetRef, commits: Sequence[Commit]
    ) -> RecoveryReport:
        """Publish a snapshot built through a temporary index.

        The index lies beside the snapshots and may be as large as all of them together.
        """
        folder = self._options.snapshot_folder
        assert folder is not None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".recover-", dir=folder) as temporary:
            index = LmdbFileStore(temporary)
            try:
                state = self._rebuild(history, dataset, commits, EmptyIndex(index))
                namespace = Namespace(index, dataset)
                path = build_snapshot(
                    dataset, state, namespace.root(), namespace.walk(), namespace.chunks(), folder
                )
            finally:
                index.close()
        snapshot_id = publish_snapshot(self._store, path)
        if not self._is_stored(history, commits):  # the snapshot protects what still exists
            self._store.delete(snapshot_key(self._name, snapshot_id))
            path.unlink()
            raise Refused(
                f"a purge or gc deleted chunks of generation {commits[-1].generation} of "
                f"{self._name} during the recovery",
                "run the same command again: it names what is missing",
            )
        return self._report(history, state, snapshot_id=snapshot_id, snapshot=path)

    def _is_stored(self, history: History, commits: Sequence[Commit]) -> bool:
        """Return whether the store still has the chunks of the last of `commits`.

        Chunks known to be lost do not count.
        """
        wanted = {chunk.ref for chunk in chunks_to_read(commits)}.difference(history.lost_chunks())
        return {ref.id for ref in wanted} <= chunk_sizes(self._store, self._name).keys()

    def _rebuild(
        self, history: History, dataset: DatasetRef, commits: Sequence[Commit], sink: MapSink
    ) -> DatasetState:
        reader = ChunkReader(self._store, dataset)
        lost = {ref.id for ref in history.lost_chunks()}

        heads = [ref.head_bytes for commit in commits for ref in commit.added]
        self._progress.expect(0, sum(heads))

        def read_head(ref: ChunkRef) -> ChunkHead:
            self._progress.advance(0, ref.head_bytes)
            if ref.id in lost:
                return empty_head(dataset, ref)
            try:
                return reader.head(ref.id, ref.head_bytes)
            except Corrupt as error:
                if not self._options.without_chunks:
                    raise HistoryDamaged(
                        str(error), f"restore it from a copy of the store, or {_WITHOUT_CHUNKS}"
                    ) from error
                self._unreadable[ref.id] = ref
                return empty_head(dataset, ref)

        self._entries = 0
        return rebuild(
            dataset,
            commits,
            read_head,
            sink,
            spill_folder=self._options.spill_folder,
            progress=self._put,
        )

    def _put(self, entries: int) -> None:
        self._progress.advance(entries - self._entries, 0)
        self._entries = entries

    def _report(
        self, history: History, state: DatasetState | None = None, **found: object
    ) -> RecoveryReport:
        return RecoveryReport(
            history,
            state,
            log=self._log,
            moved_aside=self._moved,
            adopted=self._adopted,
            **found,  # type: ignore[arg-type]
        )


def _printed(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}Z"
