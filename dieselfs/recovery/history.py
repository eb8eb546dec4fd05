"""What the store alone knows of a dataset: its commits, what is missing of them, and the chunks that no commit names.

Cost: one listing of the commits, one of the chunks, a get a commit, and one ranged read for each chunk that no commit names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from chunkstore.chunk_format import ChunkHead, DatasetRef, decode_head, decode_preamble
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_listing import chunk_sizes
from chunkstore.chunk_reader import HEAD_GUESS_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit, newest_generation
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import (
    check_dataset_name,
    chunk_key,
    commit_key,
    snapshot_prefix,
)
from chunkstore.stores.object_store import ObjectInfo, ObjectStore
from dieselfs.errors import DirectoryNotFound, HistoryDamaged, Refused
from dieselfs.recovery.chunk_evidence import FURTHEST, ChunkEvidence
from dieselfs.recovery.parallel_reads import read_in_parallel
from metadata.errors import SnapshotRefused
from metadata.snapshot_format import MAX_HEADER_BYTES, decode_header

_LOST_COMMITS_HINT: Final = "restore them from a copy of the store, or see with `dlcmd recover --without-commits -n` what the chunks alone give back"
_NAMED_AT_MOST: Final = 5


@dataclass(frozen=True, slots=True)
class DamagedCommit:
    """A commit object that can't be believed."""

    generation: int
    reason: str


@dataclass(frozen=True, slots=True)
class UncommittedChunk:
    """A chunk object that no sound commit names: waste, being written just now, or its commit is lost."""

    id: ChunkId
    object_bytes: int
    evidence: ChunkEvidence | None
    """What its head says; None: it can't be read, and `flaw` says why."""
    flaw: str = ""
    """Why it is not whole; empty if head, dataset and length are right. Its payload has not been read."""

    @property
    def is_whole(self) -> bool:
        return not self.flaw


@dataclass(frozen=True, slots=True)
class History:
    """A dataset as its objects tell it."""

    name: str
    dataset: DatasetRef | None
    """By the sound commits; None if there is none, not even the birth."""
    commits: Sequence[Commit]
    """The sound ones, by generation."""
    missing: Sequence[int]
    """Generations that have been, by what else is there, and whose commit object is gone."""
    damaged: Sequence[DamagedCommit]
    stored: Mapping[ChunkId, int]
    """Every chunk object and its length in bytes."""
    uncommitted: Sequence[UncommittedChunk]
    """By id."""

    @property
    def newest(self) -> int:
        """The greatest generation that has been; 0: nothing is known of any."""
        last = self.commits[-1].generation if self.commits else 0
        gone = [*self.missing, *(commit.generation for commit in self.damaged)]
        return max([last, *gone])

    @property
    def lost(self) -> tuple[int, ...]:
        """Generations without a sound commit."""
        return tuple(sorted([*self.missing, *(commit.generation for commit in self.damaged)]))

    @property
    def is_removed(self) -> bool:
        return bool(self.commits) and self.commits[-1].removed

    def added(self) -> dict[ChunkId, int]:
        """Chunk -> generation that added it, of all that sound commits name."""
        return {ref.id: commit.generation for commit in self.commits for ref in commit.added}

    def retired(self) -> dict[ChunkId, int]:
        """Chunk -> generation that retired it."""
        return {chunk: commit.generation for commit in self.commits for chunk in commit.retired}

    @property
    def earliest_generation(self) -> int:
        """The first generation that an index can still be made for: the last at which a chunk was retired that has been deleted since."""
        gone = (g for chunk, g in self.retired().items() if chunk not in self.stored)
        return max(gone, default=BIRTH_GENERATION)

    def lost_chunks(self) -> list[ChunkRef]:
        """Chunks that are committed, not retired, and not in the store: their files are gone."""
        retired = self.retired()
        return [
            ref
            for commit in self.commits
            for ref in commit.added
            if ref.id not in retired and ref.id not in self.stored
        ]

    def check_exists(self) -> None:
        """`DirectoryNotFound` if there is no such dataset, or one that has ended."""
        if self.is_removed:
            raise DirectoryNotFound(
                f"dataset {self.name!r} is half removed",
                f"`dlcmd dataset rm {self.name}` finishes it",
            )
        if not self.newest:
            raise DirectoryNotFound(
                f"there is no dataset {self.name!r} in the store", "check the name and --store"
            )

    def check_complete(self) -> DatasetRef:
        """The dataset; `HistoryDamaged` if commits are lost, which says what can be done."""
        if self.lost or self.dataset is None:
            raise HistoryDamaged(_what_is_lost(self), _LOST_COMMITS_HINT)
        return self.dataset

    def known_to_reach(self, generation: int) -> History:
        """With the generations up to this one counted as missing that are unknown so far, unless it can't be believed."""
        if generation > self.newest + FURTHEST:
            return self
        missing = [*self.missing, *range(self.newest + 1, generation + 1)]
        return replace(self, missing=missing)

    def at(self, generation: int) -> Sequence[Commit]:
        """The commits up to `generation`; `Refused` if it is not there or can't be reached any more."""
        if not BIRTH_GENERATION <= generation <= len(self.commits):
            raise Refused(
                f"there is no generation {generation} of {self.name}",
                f"choose one from {self.earliest_generation} to {len(self.commits)}",
            )
        if generation < self.earliest_generation:
            raise Refused(
                f"generation {generation} of {self.name} can't be reached any more: chunks of it were purged and deleted",
                f"the earliest is {self.earliest_generation}",
            )
        return self.commits[:generation]


def read_history(
    store: ObjectStore,
    name: str,
    progress: Callable[[int], None] | None = None,
    *,
    dataset_id: bytes | None = None,
) -> History:
    """All that the store knows of the dataset. Raises nothing for what is missing or damaged; `progress` hears of commits read.

    `dataset_id` says of which life of the name it is to be, if not of that of the birth. Commits of other lives of the name count as damaged, but for the end of a former life, which is swept by whoever opens the dataset.
    """
    check_dataset_name(name)
    # In this order: a chunk's and a snapshot's commit is older than they are, so it is among those that are read after.
    stored = chunk_sizes(store, name)
    snapshots = list(store.list(snapshot_prefix(name)))
    found, damaged = _read_commits(store, name, progress)
    dataset = _dataset_of(name, found, dataset_id)
    commits = [commit for commit in found if dataset and commit.dataset_id == dataset.id]
    damaged += [
        DamagedCommit(commit.generation, "it belongs to another dataset of that name")
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
    """The last generation before the first commit that is not older than `time_ns`, by the clocks of the writers; 0: there is none."""
    for commit in commits:
        if commit.time_ns >= time_ns:
            return commit.generation - 1
    return commits[-1].generation if commits else 0


def read_chunk_head(store: ObjectStore, name: str, chunk_id: ChunkId) -> ChunkHead:
    """A head of whatever dataset, by one ranged read, or two if it is long. `Corrupt`, `NotFound`."""
    key = chunk_key(name, chunk_id)
    data = bytes(store.get_range(key, 0, HEAD_GUESS_BYTES))
    wanted = decode_preamble(data).head_bytes
    if len(data) < wanted:
        data += store.get_range(key, len(data), wanted - len(data))
    return decode_head(data, chunk_id)


def _with_newer(
    store: ObjectStore, name: str, commits: Sequence[Commit], stored: Mapping[ChunkId, int]
) -> Mapping[ChunkId, int]:
    """The listing made again if a live chunk is not in it: it may have come after."""
    retired = {chunk for commit in commits for chunk in commit.retired}
    live = {ref.id for commit in commits for ref in commit.added} - retired
    return stored if live <= stored.keys() else {**stored, **chunk_sizes(store, name)}


def _read_commits(
    store: ObjectStore, name: str, progress: Callable[[int], None] | None
) -> tuple[list[Commit], list[DamagedCommit]]:
    """Commits as they are, whatever their dataset, by generation. One that a listing under way has passed over is read as well."""

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
    """The one asked for, else that of the birth; without one, the dataset that most commits are of."""
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
        flaw = f"chunk {chunk_id} speaks of generation {evidence.newest_seen:,}"
    return UncommittedChunk(chunk_id, object_bytes, evidence, flaw)


def _generations_seen(chunks: Sequence[UncommittedChunk]) -> list[int]:
    """Generations that whole chunks say have been: those of versions that they carry or delete."""
    return [
        chunk.evidence.newest_seen
        for chunk in chunks
        if chunk.is_whole and chunk.evidence is not None
    ]


def _snapshot_generations(
    store: ObjectStore, dataset: DatasetRef, listed: Sequence[ObjectInfo], newest: int
) -> list[int]:
    """Generations after `newest` that published snapshots of this very dataset are of. One ranged read for each that claims it."""
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


def _what_is_lost(history: History) -> str:
    reasons = [f"commit {generation} is missing" for generation in history.missing]
    reasons += [damaged.reason for damaged in history.damaged]
    more = len(reasons) - _NAMED_AT_MOST
    text = ", ".join(reasons[:_NAMED_AT_MOST]) + (f" and {more:,} more" if more > 0 else "")
    return f"{len(reasons):,} of {history.newest:,} commits of {history.name} lost: {text}"
