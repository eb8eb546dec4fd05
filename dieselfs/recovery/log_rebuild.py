"""The rebuild of the log of a dataset whose commits are lost.

It is planned from what is left, then carried out (`log_plan`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit
from chunkstore.counted import agreed, counted
from chunkstore.errors import Corrupt, NotFound
from chunkstore.stores.object_store import ObjectStore
from dieselfs.errors import DirectoryNotFound
from dieselfs.recovery.chunk_evidence import ChunkEvidence
from dieselfs.recovery.history import History, read_chunk_head
from dieselfs.recovery.log_plan import LogPlan
from dieselfs.recovery.lost_commits import assign_generations
from dieselfs.recovery.parallel_reads import read_in_parallel

_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class LogRebuild:
    """The result of rebuilding the log, or of planning it."""

    dataset: DatasetRef
    plan: LogPlan
    replaced: int
    """The commits created in place of missing or damaged ones; others follow the last known one."""
    assigned: int
    """The chunks that these commits name."""
    assigned_files: int
    presumed_purged: int
    """The chunks that are no longer in the store; these commits retire them."""
    unassigned: int
    """The whole chunks of the dataset that no lost commit can have named.

    There are some if only the birth commit is lost.
    """
    foreign: int
    """The chunks of other datasets of that name, which stay untouched."""

    @property
    def unknowable(self) -> list[str]:
        """Sentences that describe what cannot be known any more."""
        gone = counted(self.presumed_purged, "chunk")
        absent = [
            f"whether {gone} that {agreed(self.presumed_purged, 'are')} not in the store "
            f"{agreed(self.presumed_purged, 'were')} purged, which is presumed, or "
            f"{agreed(self.presumed_purged, 'are')} lost"
        ]
        if not self.assigned:
            return [
                *absent[: self.presumed_purged],
                f"the times of {counted(self.replaced, 'commit')}, none of whose chunks still "
                "exist",
            ]
        return [
            f"which of {counted(self.assigned, 'chunk')} were never acknowledged: all their files "
            "are current now",
            "which of two versions of a file is newer, if two writers whose clocks differed put it "
            "and neither version was deleted",
            "the times of commits: they are taken from the chunks",
            "the modes and times of directories that have no entry",
            "which chunks a purge had retired: those that still exist are current again, with "
            "their holes",
            *absent[: self.presumed_purged],
        ]


def plan_log(
    store: ObjectStore, history: History, progress: Callable[[int], None] | None = None
) -> LogRebuild:
    """Decide what the lost commits were. Changes nothing.

    It reads the heads of all chunks; `progress` is called with their number so far. Raises
    `DirectoryNotFound` if nothing of the dataset is left.
    """
    dataset = history.dataset or _dataset_of_chunks(history)
    whole = [
        chunk.evidence
        for chunk in history.uncommitted
        if chunk.evidence is not None and chunk.evidence.dataset == dataset and chunk.is_whole
    ]
    added = history.added()
    named = list(_named_evidence(store, history, progress))
    once = {chunk: g for chunk, g in history.retired().items() if chunk not in added}
    retired = [evidence for evidence in named if evidence.ref.id in once]
    assigned = assign_generations(
        [*whole, *retired],
        added,
        named,
        history.lost,
        {evidence.ref.id: once[evidence.ref.id] for evidence in retired},
    )
    last = max([BIRTH_GENERATION, history.newest, *assigned.values()])
    lost = sorted({*(history.lost or [BIRTH_GENERATION]), *range(history.newest + 1, last + 1)})
    named_by: defaultdict[int, list[ChunkRef]] = defaultdict(list)
    for evidence in whole:
        if evidence.ref.id in assigned:
            named_by[assigned[evidence.ref.id]].append(evidence.ref)
    refs = {evidence.ref.id: evidence.ref for evidence in retired}
    for chunk, generation in _added_once(once, assigned, lost):
        # A chunk that is gone has no known lengths, and no process reads it.
        named_by[generation].append(refs.get(chunk, ChunkRef(chunk, 0, 0)))
    purged = _presumed_purged(history, lost)
    return LogRebuild(
        dataset,
        LogPlan(history.name, list(_commits(history, dataset, lost, named_by, purged))),
        len(history.lost),
        sum(evidence.ref.id in assigned for evidence in whole),
        sum(evidence.file_count for evidence in whole if evidence.ref.id in assigned),
        sum(map(len, purged.values())),
        sum(evidence.ref.id not in assigned for evidence in whole),
        sum(
            chunk.evidence is not None and chunk.evidence.dataset != dataset
            for chunk in history.uncommitted
        ),
    )


def _dataset_of_chunks(history: History) -> DatasetRef:
    """Return the dataset of most chunks."""
    counts = Counter(
        chunk.evidence.dataset.id
        for chunk in history.uncommitted
        if chunk.evidence is not None and chunk.is_whole
    )
    if not counts:
        raise DirectoryNotFound(
            f"the store has nothing of a dataset {history.name!r}", "check the name and --store"
        )
    return DatasetRef(history.name, max(counts, key=lambda found: (counts[found], found)))


def _named_evidence(
    store: ObjectStore, history: History, progress: Callable[[int], None] | None
) -> Iterator[ChunkEvidence]:
    """Yield the evidence of the committed chunks that are in the store and sound."""

    def read(chunk_id: ChunkId) -> ChunkEvidence | None:
        try:
            return ChunkEvidence.of(read_chunk_head(store, history.name, chunk_id))
        except (Corrupt, NotFound):
            return None

    named = sorted((history.added().keys() | history.retired().keys()) & history.stored.keys())
    for number, (_, evidence) in enumerate(read_in_parallel(read, named), start=1):
        if progress is not None:
            progress(number)
        if evidence is not None:
            yield evidence


def _added_once(
    once: Mapping[ChunkId, int], assigned: Mapping[ChunkId, int], lost: Sequence[int]
) -> Iterator[tuple[ChunkId, int]]:
    """Yield a lost generation for each chunk that sound commits retire and none adds.

    It is before the retirement: the one found for the chunk, or the last one.
    """
    for chunk, retired_at in once.items():
        if assigned.get(chunk, retired_at) < retired_at:
            yield chunk, assigned[chunk]
        elif before := [g for g in lost if BIRTH_GENERATION < g < retired_at]:
            yield chunk, before[-1]


def _presumed_purged(history: History, lost: Sequence[int]) -> dict[int, list[ChunkId]]:
    """Return the committed chunks that are missing and that a lost commit may have retired.

    They are listed under the last lost generation, if it is after their own.
    """
    found: defaultdict[int, list[ChunkId]] = defaultdict(list)
    added = history.added()
    for ref in history.lost_chunks():
        if lost[-1] > added[ref.id]:
            found[lost[-1]].append(ref.id)
    return found


def _commits(
    history: History,
    dataset: DatasetRef,
    wanted: Sequence[int],
    added: Mapping[int, Sequence[ChunkRef]],
    retired: Mapping[int, Sequence[ChunkId]],
) -> Iterator[Commit]:
    """Yield the commits of the generations `wanted`.

    Their times are those of their chunks, or of the commit before.
    """
    sound = {commit.generation: commit.time_ns for commit in history.commits}
    seconds = [chunk.seconds for chunk in history.stored]
    time_ns = min([*sound.values(), *(at * _NS for at in seconds)], default=0)
    position = 0
    for generation in range(BIRTH_GENERATION, wanted[-1] + 1):
        time_ns = sound.get(generation, time_ns)
        if generation != wanted[position]:
            continue
        position += 1
        refs = sorted(added.get(generation, []), key=lambda ref: ref.id)
        if refs:
            time_ns = refs[-1].id.seconds * _NS
        yield Commit(
            generation, dataset.id, time_ns, tuple(refs), tuple(retired.get(generation, ()))
        )
