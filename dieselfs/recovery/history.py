"""The history of a dataset as the store alone shows it.

It consists of the commits, the missing and damaged ones, and the chunks that no commit names. The
cost is one listing of the commits, one of the chunks, a get a commit, and one ranged read for each
chunk that no commit names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import numpy as np

from chunkstore.chunk_format import ChunkHead, DatasetRef, Entries, decode_head, decode_preamble
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_listing import chunk_sizes
from chunkstore.chunk_reader import HEAD_GUESS_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit, newest_generation
from chunkstore.counted import agreed, counted
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import check_dataset_name, chunk_key, commit_key, snapshot_prefix
from chunkstore.stores.object_store import ObjectInfo, ObjectStore
from dieselfs.errors import DirectoryNotFound, HistoryDamaged, Refused
from dieselfs.recovery.chunk_evidence import FURTHEST, ChunkEvidence
from dieselfs.recovery.parallel_reads import read_in_parallel
from metadata.errors import SnapshotRefused
from metadata.rebuild.chunk_table import chunks_to_read
from metadata.snapshot_format import MAX_HEADER_BYTES, decode_header

_LOST_COMMITS_HINT: Final = (
    "restore them from a copy of the store, or list with `dlcmd recover --without-commits -n` "
    "what can be rebuilt from the chunks alone"
)
_NAMED_AT_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class DamagedCommit:
    """A commit object that cannot be trusted."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class UncommittedChunk:
    """A chunk object that no sound commit names.

    It is garbage, or is being written now, or its commit is lost.
    """

    id: ChunkId
    object_bytes: int
    evidence: ChunkEvidence | None
    """The evidence in its head; None if the head cannot be read, and `flaw` gives the reason."""
    flaw: str = ""
    """The reason why the chunk is not whole; empty if head, dataset and length are right.

    The payload has not been read.
    """

    @property
    def is_whole(self) -> bool:
        """True if head, dataset and length are right."""
        return not self.flaw


@dataclass(frozen=True, slots=True)
class History:
    """A dataset as its objects show it."""

    name: str
    dataset: DatasetRef | None
    """The dataset of the sound commits; None if there is none, not even the birth commit."""
    commits: Sequence[Commit]
    """The sound commits, by generation."""
    missing: Sequence[int]
    """The generations without a commit object.

    Other objects show that they have existed.
    """
    damaged: Sequence[DamagedCommit]
    stored: Mapping[ChunkId, int]
    """Every chunk object and its length in bytes."""
    uncommitted: Sequence[UncommittedChunk]
    """The uncommitted chunks, by id."""

    @property
    def newest(self) -> int:
        """The greatest generation that has existed; 0 if none is known."""
        last = self.commits[-1].generation if self.commits else 0
        without_sound_commit = [*self.missing, *(commit.generation for commit in self.damaged)]
        return max([last, *without_sound_commit])

    @property
    def lost(self) -> tuple[int, ...]:
        """The generations without a sound commit."""
        return tuple(sorted([*self.missing, *(commit.generation for commit in self.damaged)]))

    @property
    def is_removed(self) -> bool:
        """True if the last sound commit removes the dataset."""
        return bool(self.commits) and self.commits[-1].removed

    def added(self) -> dict[ChunkId, int]:
        """Return chunk -> generation that added it, for all chunks that sound commits add."""
        return {ref.id: commit.generation for commit in self.commits for ref in commit.added}

    def retired(self) -> dict[ChunkId, int]:
        """Return chunk -> generation that retired it."""
        return {chunk: commit.generation for commit in self.commits for chunk in commit.retired}

    @property
    def reachable(self) -> Sequence[range]:
        """The generations for which an index can still be made, ascending.

        A generation is left out if a purge or gc has deleted one of its chunks: one that was added
        up to it and retired later.
        """
        added, found, first = self.added(), list[range](), BIRTH_GENERATION
        for begin, end in sorted(
            (added.get(chunk, BIRTH_GENERATION), retired)
            for chunk, retired in self.retired().items()
            if chunk not in self.stored
        ):
            if begin > first:
                found.append(range(first, begin))
            first = max(first, end)
        return [*found, range(first, len(self.commits) + 1)]

    def lost_chunks(self) -> list[ChunkRef]:
        """Return the chunks that are committed, not retired, and not in the store.

        Their files are lost.
        """
        retired = self.retired()
        return [
            ref
            for commit in self.commits
            for ref in commit.added
            if ref.id not in retired and ref.id not in self.stored
        ]

    def check_exists(self) -> None:
        """Raise `DirectoryNotFound` if there is no such dataset, or if it has been removed."""
        if self.is_removed:
            raise DirectoryNotFound(
                f"dataset {self.name!r} is half removed",
                f"finish it with `dlcmd dataset rm {self.name}`",
            )
        if not self.newest:
            raise DirectoryNotFound(
                f"there is no dataset {self.name!r} in the store", "check the name and --store"
            )

    def check_complete(self) -> DatasetRef:
        """Return the dataset; raise `HistoryDamaged`, with advice, if commits are lost."""
        if self.lost or self.dataset is None:
            raise HistoryDamaged(_what_is_lost(self), _LOST_COMMITS_HINT)
        return self.dataset

    def known_to_reach(self, generation: int) -> History:
        """Return this history with the unknown generations up to `generation` counted as missing.

        A generation too far beyond the newest is not trusted and changes nothing.
        """
        if generation > self.newest + FURTHEST:
            return self
        missing = [*self.missing, *range(self.newest + 1, generation + 1)]
        return replace(self, missing=missing)

    def at(self, generation: int) -> Sequence[Commit]:
        """Return the commits up to `generation`.

        Raises `Refused` if it does not exist or is not reachable any more.
        """
        if not BIRTH_GENERATION <= generation <= len(self.commits):
            raise Refused(f"there is no generation {generation} of {self.name}", self.choice())
        commits = self.commits[:generation]
        if not any(generation in reach for reach in self.reachable):
            raise Refused(
                f"generation {generation} of {self.name} cannot be rebuilt: "
                f"{_what_is_deleted(self, commits)}",
                self.choice(generation),
            )
        return commits

    def choice(self, near: int | None = None) -> str:
        """Return the advice to choose a reachable generation; it names the nearest ones.

        Without `near` these are the last ones.
        """
        goal = len(self.commits) if near is None else near
        nearest = sorted(
            self.reachable, key=lambda reach: min(abs(end - goal) for end in _ends(reach))
        )
        named = sorted(nearest[:_NAMED_AT_MOST], key=lambda reach: reach.start)
        listed = ", ".join(" to ".join(map(str, _ends(reach))) for reach in named)
        return f"choose one that still has all of its chunks: {listed}"


def read_history(
    store: ObjectStore,
    name: str,
    progress: Callable[[int], None] | None = None,
    *,
    dataset_id: bytes | None = None,
) -> History:
    """Return all that the store shows of the dataset.

    Missing and damaged objects raise nothing. `progress` is called with the generation of each
    commit that is read. `dataset_id` selects one of several datasets of that name, by default that
    of the birth commit. Commits of the others count as damaged, except the removal of an earlier
    one, which the next process that opens the dataset cleans up.
    """
    check_dataset_name(name)
    # The order matters: a chunk's or snapshot's commit is older than itself, so it is among the
    # commits, which are read afterwards.
    stored = chunk_sizes(store, name)
    snapshots = list(store.list(snapshot_prefix(name)))
    found, damaged = _read_commits(store, name, progress)
    dataset = _dataset_of(name, found, dataset_id)
    commits = [commit for commit in found if dataset and commit.dataset_id == dataset.id]
    damaged += [
        DamagedCommit(commit.generation, "it belongs to another dataset of this name")
        for commit in found
        if not (dataset and commit.dataset_id == dataset.id) and not commit.removed
    ]
    named = {ref.id for commit in commits for ref in commit.added}
    named.update(chunk for commit in commits for chunk in commit.retired)
    known = {commit.generation for commit in commits} | {entry.generation for entry in damaged}
    read = partial(_read_uncommitted, store, name, dataset, max(known, default=0), stored)
    uncommitted = [chunk for _, chunk in read_in_parallel(read, sorted(stored.keys() - named))]
    seen = [0, *known, *_generations_seen(uncommitted)]
    if dataset:
        seen += _snapshot_generations(store, dataset, snapshots, max(known, default=0))
    newest = max(seen) or (BIRTH_GENERATION if stored else 0)
    return History(
        name,
        dataset,
        commits,
        [g for g in range(BIRTH_GENERATION, newest + 1) if g not in known],
        sorted(damaged, key=lambda entry: entry.generation),
        _with_newer(store, name, commits, stored),
        uncommitted,
    )


def generation_before(commits: Sequence[Commit], time_ns: int) -> int:
    """Return the last generation before the first commit that is not older than `time_ns`.

    The times are by the clocks of the writers. The result is 0 if there is no such generation.
    """
    for commit in commits:
        if commit.time_ns >= time_ns:
            return commit.generation - 1
    return commits[-1].generation if commits else 0


def read_chunk_head(store: ObjectStore, name: str, chunk_id: ChunkId) -> ChunkHead:
    """Return the head of a chunk of any dataset, by one ranged read, or two if it is long.

    Raises `Corrupt` and `NotFound`.
    """
    key = chunk_key(name, chunk_id)
    data = bytes(store.get_range(key, 0, HEAD_GUESS_BYTES))
    wanted = decode_preamble(data).head_bytes
    if len(data) < wanted:
        data += store.get_range(key, len(data), wanted - len(data))
    return decode_head(data, chunk_id)


def empty_head(dataset: DatasetRef, chunk: ChunkRef) -> ChunkHead:
    """Return the head of a chunk that is lost, as if nothing had been in it."""
    none = np.zeros(0, np.uint64)
    narrow = none.astype(np.uint8), none.astype(np.uint16), none.astype(np.int64)
    entries = Entries([], *narrow, none, none, none, none)
    return ChunkHead(chunk.id, dataset, chunk.payload_bytes, entries, chunk.head_bytes)


def _with_newer(
    store: ObjectStore, name: str, commits: Sequence[Commit], stored: Mapping[ChunkId, int]
) -> Mapping[ChunkId, int]:
    """Return the listing of chunks, listed again if it lacks a live chunk, which may be newer."""
    retired = {chunk for commit in commits for chunk in commit.retired}
    live = {ref.id for commit in commits for ref in commit.added} - retired
    return stored if live <= stored.keys() else {**stored, **chunk_sizes(store, name)}


def _read_commits(
    store: ObjectStore, name: str, progress: Callable[[int], None] | None
) -> tuple[list[Commit], list[DamagedCommit]]:
    """Return the sound and the damaged commits, of any dataset, by generation.

    A commit that a concurrent listing skipped is read as well.
    """

    def read(generation: int) -> Commit | DamagedCommit | None:
        try:
            return Commit.decode(store.get(commit_key(name, generation)), generation)
        except NotFound:
            return None
        except Corrupt as error:
            return DamagedCommit(generation, str(error))

    newest = newest_generation(store, name)
    sound: list[Commit] = []
    damaged: list[DamagedCommit] = []
    for generation, found in read_in_parallel(read, range(BIRTH_GENERATION, newest + 1)):
        if isinstance(found, Commit):
            sound.append(found)
        elif found is not None:
            damaged.append(found)
        if progress is not None:
            progress(generation)
    return sound, damaged


def _dataset_of(
    name: str, commits: Sequence[Commit], dataset_id: bytes | None
) -> DatasetRef | None:
    """Return the dataset with `dataset_id`, else that of the birth commit.

    Without a birth commit it is the dataset of most commits.
    """
    if dataset_id is not None:
        return DatasetRef(name, dataset_id)
    if not commits:
        return None
    if commits[0].generation == BIRTH_GENERATION:
        return DatasetRef(name, commits[0].dataset_id)
    counts = Counter(commit.dataset_id for commit in commits)
    return DatasetRef(name, max(counts, key=lambda dataset_id: (counts[dataset_id], dataset_id)))


def _read_uncommitted(
    store: ObjectStore,
    name: str,
    dataset: DatasetRef | None,
    newest: int,
    stored: Mapping[ChunkId, int],
    chunk_id: ChunkId,
) -> UncommittedChunk:
    object_bytes = stored[chunk_id]
    try:
        head = read_chunk_head(store, name, chunk_id)
    except (Corrupt, NotFound) as error:
        return UncommittedChunk(chunk_id, object_bytes, None, str(error))
    evidence = ChunkEvidence.of(head)
    flaw, wanted = "", head.head_bytes + head.payload_bytes
    if head.dataset.name != name or (dataset is not None and head.dataset != dataset):
        flaw = f"chunk {chunk_id} belongs to another dataset ({head.dataset.name})"
    elif object_bytes != wanted:
        flaw = f"chunk {chunk_id} has {object_bytes} bytes instead of {wanted}"
    elif evidence.newest_seen > newest + FURTHEST:
        flaw = f"chunk {chunk_id} names generation {evidence.newest_seen:,}, which cannot exist"
    return UncommittedChunk(chunk_id, object_bytes, evidence, flaw)


def _generations_seen(chunks: Sequence[UncommittedChunk]) -> list[int]:
    """Return the newest generation of the versions that each whole chunk carries or deletes."""
    return [
        chunk.evidence.newest_seen
        for chunk in chunks
        if chunk.is_whole and chunk.evidence is not None
    ]


def _snapshot_generations(
    store: ObjectStore, dataset: DatasetRef, listed: Sequence[ObjectInfo], newest: int
) -> list[int]:
    """Return the generations after `newest` of published snapshots of this very dataset.

    One ranged read for each snapshot whose name claims such a generation.
    """
    found = []
    for info in listed:
        text = info.key.rpartition("/")[2].partition("-")[0]
        if not text.isdecimal() or int(text) <= newest:
            continue
        with suppress(SnapshotRefused, NotFound):
            data = store.get_range(info.key, 0, MAX_HEADER_BYTES)
            header = decode_header(data, info.size_bytes)
            if header.dataset == dataset and header.generation <= newest + FURTHEST:
                found.append(header.generation)
    return found


def _ends(reach: range) -> list[int]:
    """Return the first and the last generation; once if they are the same."""
    return sorted({reach.start, reach.stop - 1})


def _what_is_deleted(history: History, commits: Sequence[Commit]) -> str:
    """Return which of the chunks that the last of `commits` needs a purge or gc has deleted."""
    needed = [chunk.ref.id for chunk in chunks_to_read(commits)]
    retired = history.retired()
    deleted = [chunk for chunk in needed if chunk in retired and chunk not in history.stored]
    chunks = [f"{chunk} (retired by generation {retired[chunk]})" for chunk in deleted]
    of = f"{len(deleted):,} of its {counted(len(needed), 'chunk')}"
    return f"{of} {agreed(len(deleted), 'were')} purged and deleted: {_first_of(chunks)}"


def _first_of(listed: Sequence[str]) -> str:
    more = len(listed) - _NAMED_AT_MOST
    return ", ".join(listed[:_NAMED_AT_MOST]) + (f" and {more:,} more" if more > 0 else "")


def _what_is_lost(history: History) -> str:
    reasons = [f"commit {generation} is missing" for generation in history.missing]
    reasons += [damaged.reason for damaged in history.damaged]
    text = _first_of(reasons)
    of = f"{len(reasons):,} of {counted(history.newest, 'commit')} of {history.name}"
    return f"{of} {agreed(len(reasons), 'are')} lost: {text}"
