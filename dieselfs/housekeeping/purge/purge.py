"""DL_purge: delete retired chunks, move live files out of chunks with holes, then delete again.

The files are moved in rounds. Each round is a commit of its own (`retiring`), so a purge may be
ended anywhere. Before a commit there are chunks that no commit names, which gc
deletes. After it the dataset is consistent, and the old chunks wait for the next purge
(docs/decisions/0009).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from chunkstore.chunk_format import MAX_ENTRIES
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_listing import chunk_sizes
from chunkstore.chunk_writer import MAX_CHUNK_BYTES, MIN_CHUNK_BYTES, SealedChunk
from chunkstore.commit_log import BIRTH_GENERATION, Commit
from chunkstore.complete_listings import check_commits_listed, check_listed
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import chunk_key, dataset_prefix
from chunkstore.progress import NO_PROGRESS, Progress
from dieselfs.dataset.dataset import Dataset
from dieselfs.dataset.packing_choice import PackingChoice, remembered_packing
from dieselfs.errors import UsageError
from dieselfs.housekeeping.purge.chunk_merging import LoadedChunk, Mover, SourceChunk
from dieselfs.housekeeping.purge.chunk_metadata import (
    ChunkMetadata,
    Tombstone,
    chunk_metadata_of,
    current_tombstones,
    unknown_chunk_metadata,
)
from dieselfs.housekeeping.purge.hole_check import check_holes
from dieselfs.housekeeping.purge.purge_request import (
    DamagedChunk,
    PurgePlan,
    PurgeReport,
    PurgeRequest,
)
from dieselfs.housekeeping.purge.retiring import discard, retire
from dieselfs.housekeeping.purge.selection import ChunkFill, choose, rounds, target_of
from dieselfs.housekeeping.purge.tombstone_collection import TombstoneCollection, concerns
from dieselfs.housekeeping.retention import (
    Pins,
    RetiredChunk,
    may_be_deleted,
    pins,
    stored_retired_chunks,
)
from dieselfs.snapshots.put_snapshots import replace_put_snapshots, replaceable
from metadata.records import ChunkRecord

_CYCLES: Final = 4
"""The cycles of deletion and rewriting.

Deleted chunks make tombstones droppable in the next cycle. This retires small chunks, which are
deleted in the third.
"""
_REQUESTS_AT_ONCE: Final = 16
_DELETED_AT_ONCE: Final = 1000
"""The chunks that are deleted before tags, snapshots and leases are read again."""


def purge(
    dataset: Dataset,
    request: PurgeRequest = PurgeRequest(),  # noqa: B008  # frozen
    progress: Progress = NO_PROGRESS,
) -> PurgeReport:
    """Purge an opened dataset. May be repeated after a crash; writers and readers may continue.

    Raises `Conflict` if another purge is running, and `RecordsLost` if the index has lost records.
    A chunk with a file that cannot be read stays as it is and is reported.
    """
    dataset.check_writable()
    return _Purge(dataset, _settled(dataset, request), progress).run()


def plan(dataset: Dataset, request: PurgeRequest = PurgeRequest()) -> PurgePlan:  # noqa: B008
    """Return what `purge` would do now. Changes nothing.

    Costs a scan of the chunk records and a get for each commit.
    """
    request = _settled(dataset, request)
    chosen = _chosen(dataset.namespace.chunks(), request)
    deletable, waiting, _ = _retired_after_replacement(
        dataset, _commits(dataset, []), request.grace_s
    )
    return PurgePlan(
        chosen,
        tuple(deletable),
        tuple(waiting),
        _dataset_bytes(dataset),
        dataset.namespace.state().bytes,
    )


@dataclass(slots=True)
class _Purge:
    """One purge and its results so far."""

    dataset: Dataset
    request: PurgeRequest
    progress: Progress
    commits: list[Commit] = field(default_factory=list)
    damaged: dict[ChunkId, str] = field(default_factory=dict)
    rounds: int = 0
    chunks_retired: int = 0
    chunks_dead: int = 0
    chunks_added: int = 0
    files_moved: int = 0
    bytes_moved: int = 0
    deletions_dropped: int = 0
    chunks_deleted: int = 0
    bytes_deleted: int = 0

    def run(self) -> PurgeReport:
        check_commits_listed(self.dataset.store, self.dataset.ref.name)
        before = _dataset_bytes(self.dataset)
        for _ in range(_CYCLES):
            self._delete()
            if not self._rewrite() | self._collect_tombstones():
                break
        else:
            self._delete()
        _, waiting, pinned = _retired_after_replacement(
            self.dataset, self.commits, self.request.grace_s
        )
        return PurgeReport(
            bytes_before=before,
            bytes_after=_dataset_bytes(self.dataset),
            live_bytes=self.dataset.namespace.state().bytes,
            rounds=self.rounds,
            chunks_retired=self.chunks_retired,
            chunks_dead=self.chunks_dead,
            chunks_added=self.chunks_added,
            files_moved=self.files_moved,
            bytes_moved=self.bytes_moved,
            deletions_dropped=self.deletions_dropped,
            chunks_deleted=self.chunks_deleted,
            bytes_deleted=self.bytes_deleted,
            waiting=tuple(waiting),
            pinned=frozenset(
                chunk.ref.id for chunk in waiting if pinned.protects(chunk.added, chunk.retired)
            ),
            unreadable=pinned.unreadable,
            damaged=tuple(DamagedChunk(*found) for found in sorted(self.damaged.items())),
        )

    def _delete(self) -> None:
        """Delete the retired chunks that no reader may need any more."""
        self.commits = _commits(self.dataset, self.commits)
        grace_s = self.request.grace_s
        deletable, _, _ = _retired_after_replacement(self.dataset, self.commits, grace_s)
        if not deletable:
            return
        now, _, _ = _retired(self.dataset, self.commits, grace_s)
        if len(now) < len(deletable):  # snapshots of earlier puts keep the others
            with TemporaryDirectory(prefix="dieselfs-purge-") as folder:
                replace_put_snapshots(self.dataset, Path(folder))
            now, _, _ = _retired(self.dataset, self.commits, grace_s)
        self._delete_chunks(now)

    def _delete_chunks(self, deletable: Sequence[RetiredChunk]) -> None:
        """Delete retired chunks; the pins are read again for each of many parts."""
        for at in range(0, len(deletable), _DELETED_AT_ONCE):
            part = deletable[at : at + _DELETED_AT_ONCE]
            self._delete_part(self._still_deletable(part) if at else part)

    def _still_deletable(self, chunks: Sequence[RetiredChunk]) -> list[RetiredChunk]:
        now_ns = time.time_ns()
        pinned = pins(self.dataset.store, self.dataset.ref.name, now_ns)
        grace_s = self.request.grace_s
        return [chunk for chunk in chunks if may_be_deleted(chunk, pinned, grace_s, now_ns)]

    def _delete_part(self, chunks: Sequence[RetiredChunk]) -> None:
        store, name = self.dataset.store, self.dataset.ref.name
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "purge-delete") as pool:
            for _ in pool.map(lambda chunk: store.delete(chunk_key(name, chunk.ref.id)), chunks):
                pass
        self.chunks_deleted += len(chunks)
        self.bytes_deleted += sum(chunk.size_bytes for chunk in chunks)

    def _rewrite(self) -> bool:
        """Retire the chunks with holes; return True if there were any."""
        self.dataset.catch_up()
        chunks = self._sound_chunks()
        chosen = _chosen(chunks, self.request)
        files = sum(chunks[fill.id.value].file_count if fill.live_bytes else 0 for fill in chosen)
        self.progress.expect(
            self.files_moved + files, self.bytes_moved + sum(fill.live_bytes for fill in chosen)
        )
        target = self.request.target_bytes or target_of(chunks)
        before = self.rounds
        for part in rounds(chosen, self.request.round_bytes):
            self._round([fill.id for fill in part], target)
        return self.rounds > before

    def _round(self, wanted: Sequence[ChunkId], target_bytes: int) -> None:
        """Move the live files out of some chunks and retire these.

        Chunks that hold no files are retired with them if these are few.
        """
        chunks = self._sound_chunks()
        ids = {chunk_id for chunk_id in wanted if chunk_id.value in chunks}
        ids |= _few_bare(chunks)
        sources = [SourceChunk(chunk_id, chunks[chunk_id.value]) for chunk_id in sorted(ids)]
        chunks_metadata: list[ChunkMetadata] = []
        keep_together = self.request.keep_together or "none"
        with closing(Mover(self.dataset, target_bytes, keep_together)) as mover:
            try:
                for read in mover.read(sources):
                    if isinstance(read, DamagedChunk) and _is_dead(chunks[read.id.value]):
                        chunks_metadata.append(self._metadata_of_lost(read.id, chunks))
                    elif self._moved(mover, read):
                        assert isinstance(read, LoadedChunk)
                        record = read.source.record
                        check_holes(self.dataset, read.head, record)
                        chunks_metadata.append(chunk_metadata_of(read.head, record.generation))
                moved = mover.finish()
            except Exception:
                discard(self.dataset, mover.stored)
                raise
        if not chunks_metadata:
            discard(self.dataset, moved)
            return
        self._retire(chunks_metadata, moved)
        self.chunks_dead += sum(
            _is_dead(chunks[chunk_metadata.id.value]) for chunk_metadata in chunks_metadata
        )

    def _metadata_of_lost(
        self, chunk_id: ChunkId, chunks: Mapping[bytes, ChunkRecord]
    ) -> ChunkMetadata:
        """Return the chunk metadata of an unreadable chunk that no record refers to.

        Its files have been put again or deleted. It may have had entries of any directory. Costs
        one scan for each such chunk.
        """
        added = chunks[chunk_id.value].generation
        return unknown_chunk_metadata(chunk_id, added, self._directories())

    def _directories(self) -> Iterator[bytes]:
        """Yield the paths of all live directories."""
        pending = [b""]
        while pending:
            directory = pending.pop()
            yield directory
            prefix = directory + b"/" if directory else b""
            names = self.dataset.namespace.directory_names(directory)
            pending.extend(prefix + name for name in names)

    def _moved(self, mover: Mover, read: LoadedChunk | DamagedChunk) -> bool:
        """Move one chunk; False if it cannot be read, so that it must stay."""
        if isinstance(read, LoadedChunk):
            try:
                mover.move(read)
            except (Corrupt, NotFound) as error:
                read = DamagedChunk(read.source.id, str(error))
        if isinstance(read, DamagedChunk):
            self.damaged[read.id] = read.reason
            return False
        size = int(read.head.entries.length[read.positions].sum())
        self.files_moved += len(read.positions)
        self.bytes_moved += size
        self.progress.advance(len(read.positions), size)
        return True

    def _collect_tombstones(self) -> bool:
        """Drop the tombstones that hide nothing, in chunks without files.

        Returns True if there were any.
        """
        chunks = self._sound_chunks()
        bare = [ChunkId(chunk_id) for chunk_id, record in chunks.items() if not record.file_count]
        if not bare:
            return False
        chunks_metadata = self._read_metadata(bare, chunks)
        current = [
            tombstone
            for chunk_metadata in chunks_metadata
            for tombstone in current_tombstones(chunk_metadata, chunks[chunk_metadata.id.value])
        ]
        store, name = self.dataset.store, self.dataset.ref.name
        objects = chunk_sizes(store, name) if current else {}
        check_listed(store, _hidden_in(name, current, objects))
        collection = TombstoneCollection(current, objects.keys())
        if not collection.collectable:
            return False
        retiring = {chunk_metadata.id for chunk_metadata in chunks_metadata}
        self.commits = _commits(self.dataset, self.commits)
        lengths = {ref.id: ref.head_bytes for commit in self.commits for ref in commit.added}
        present = {
            ChunkId(chunk_id): record.head_bytes
            for chunk_id, record in self.dataset.namespace.chunks().items()
        }
        # An object that no commit names does not count: its entries never belonged to the dataset.
        examined = lengths.keys() & objects.keys() | present.keys()
        lengths.update(present)
        collection.look_at(
            {chunk_id: chunk_id in present and chunk_id not in retiring for chunk_id in examined},
            lambda chunk_id: self.dataset.reader.head(chunk_id, lengths[chunk_id]),
        )
        dropped = collection.collectable
        chosen = [
            chunk_metadata
            for chunk_metadata in chunks_metadata
            if any(concerns(tombstone, dropped) for tombstone in chunk_metadata.tombstones)
        ]
        if not chosen:
            return False
        self._retire(chosen, collection=collection)
        return True

    def _retire(
        self,
        chunks_metadata: Sequence[ChunkMetadata],
        moved: Sequence[SealedChunk] = (),
        collection: TombstoneCollection | None = None,
    ) -> None:
        commit, dropped = retire(self.dataset, chunks_metadata, moved, collection)
        self.rounds += 1
        self.chunks_retired += len(chunks_metadata)
        self.chunks_added += len(commit.added)
        self.deletions_dropped += dropped

    def _read_metadata(
        self, ids: Sequence[ChunkId], chunks: Mapping[bytes, ChunkRecord]
    ) -> list[ChunkMetadata]:
        def read(chunk_id: ChunkId) -> ChunkMetadata | DamagedChunk:
            record = chunks[chunk_id.value]
            try:
                head = self.dataset.reader.head(chunk_id, record.head_bytes)
            except (Corrupt, NotFound) as error:
                return DamagedChunk(chunk_id, str(error))
            check_holes(self.dataset, head, record)
            return chunk_metadata_of(head, record.generation)

        chunks_metadata = []
        with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "heads") as pool:
            for found in pool.map(read, ids):
                if isinstance(found, DamagedChunk):
                    self.damaged[found.id] = found.reason
                else:
                    chunks_metadata.append(found)
        return chunks_metadata

    def _sound_chunks(self) -> dict[bytes, ChunkRecord]:
        """Return the records of all chunks except those that were found damaged."""
        chunks = self.dataset.namespace.chunks()
        for chunk_id in self.damaged:
            chunks.pop(chunk_id.value, None)
        return chunks


def _hidden_in(
    name: str, tombstones: Iterable[Tombstone], listed: Container[ChunkId]
) -> Iterator[str]:
    """Yield the keys of the chunks that tombstones hide entries of, unless they are listed."""
    hidden = {ChunkId(tombstone.seen.chunk) for tombstone in tombstones}
    return (chunk_key(name, chunk_id) for chunk_id in hidden if chunk_id not in listed)


def _is_dead(record: ChunkRecord) -> bool:
    """Return True if no record of the index refers to anything in the chunk."""
    return record.deleted_count == record.entry_count


def _settled(dataset: Dataset, request: PurgeRequest) -> PurgeRequest:
    """Check a request, and fill in the packing settings that the dataset remembers."""
    request = _checked(request)
    if None in (request.target_bytes, request.keep_together):
        remembered = remembered_packing(dataset)
        if remembered is not None:
            choice = PackingChoice(request.target_bytes, None, request.keep_together)
            settings = choice.over(remembered)
            request = replace(
                request,
                target_bytes=settings.target_bytes,
                keep_together=settings.keep_together,
            )
    return request


def _checked(request: PurgeRequest) -> PurgeRequest:
    if min(request.leave, request.grace_s, request.small_bytes) < 0:
        raise UsageError(
            "`leave`, the grace period and the size of small chunks must not be negative"
        )
    if request.target_bytes is not None and not (
        MIN_CHUNK_BYTES <= request.target_bytes <= MAX_CHUNK_BYTES
    ):
        raise UsageError(
            "the size of a chunk must be from 4 KiB to 1 GiB", "4MiB suits most datasets"
        )
    if request.round_bytes < 1:
        raise UsageError("the size of a round must be at least one byte")
    return request


def _chosen(chunks: Mapping[bytes, ChunkRecord], request: PurgeRequest) -> tuple[ChunkFill, ...]:
    target = request.target_bytes or target_of(chunks)
    return choose(chunks, request.leave, min(request.small_bytes, target // 4))


def _few_bare(chunks: Mapping[bytes, ChunkRecord]) -> set[ChunkId]:
    """Return the chunks without files, if one chunk can hold their entries.

    So the rounds do not leave one such chunk each.
    """
    bare = {chunk_id: record for chunk_id, record in chunks.items() if not record.file_count}
    if sum(record.entry_count for record in bare.values()) > MAX_ENTRIES:
        return set()
    return {ChunkId(chunk_id) for chunk_id in bare}


def _commits(dataset: Dataset, known: Sequence[Commit]) -> list[Commit]:
    """Return all commits from the first on; `known` are the first of them.

    Costs a get for each further commit. Raises `Corrupt` if one is missing.
    """
    commits = list(known)
    missing = range(len(commits) + BIRTH_GENERATION, dataset.namespace.state().generation + 1)
    with ThreadPoolExecutor(_REQUESTS_AT_ONCE, "commits") as pool:
        try:
            commits.extend(pool.map(dataset.log.read, missing))
        except NotFound as error:
            name = dataset.ref.name
            raise Corrupt(
                f"a commit of dataset {name} is missing ({error}): restore it from a copy of the "
                f"store, or see `dlcmd recover {name} --without-commits -n`"
            ) from error
    commits.extend(dataset.log.since(len(commits)))
    return commits


def _retired_after_replacement(
    dataset: Dataset, commits: Sequence[Commit], grace_s: float
) -> tuple[list[RetiredChunk], list[RetiredChunk], Pins]:
    """Return the retired chunks that may be deleted, those that must stay, and the pins.

    The snapshots that puts published do not count: a purge replaces them if they are in its way.
    """
    return _retired(dataset, commits, grace_s, replaceable(dataset.store, dataset.ref.name))


def _retired(
    dataset: Dataset, commits: Sequence[Commit], grace_s: float, without: Collection[str] = ()
) -> tuple[list[RetiredChunk], list[RetiredChunk], Pins]:
    """Return the retired chunks that may be deleted now, those that must stay, and the pins.

    Published snapshots in `without` pin nothing.
    """
    now_ns = time.time_ns()
    pinned = pins(dataset.store, dataset.ref.name, now_ns, without)
    deletable: list[RetiredChunk] = []
    waiting: list[RetiredChunk] = []
    for chunk in stored_retired_chunks(dataset.store, dataset.ref, commits):
        may_go = may_be_deleted(chunk, pinned, grace_s, now_ns)
        (deletable if may_go else waiting).append(chunk)
    return deletable, waiting, pinned


def _dataset_bytes(dataset: Dataset) -> int:
    prefix = dataset_prefix(dataset.ref.name)
    return sum(info.size_bytes for info in dataset.store.list(prefix))
