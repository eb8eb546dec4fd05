"""A log made again for a dataset whose commits are lost: planned from what is left, then carried out (`log_plan`)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit
from chunkstore.errors import Corrupt, NotFound
from chunkstore.stores.object_store import ObjectStore
from dieselfs.errors import DirectoryNotFound
from dieselfs.recovery.chunk_evidence import ChunkEvidence
from dieselfs.recovery.history import History, read_chunk_head
from dieselfs.recovery.log_plan import LogPlan
from dieselfs.recovery.lost_commits import deal
from dieselfs.recovery.parallel_reads import read_in_parallel

_NS: Final = 10**9


@dataclass(frozen=True, slots=True)
class LogRebuild:
    """What making the log again would do, or has done."""

    dataset: DatasetRef
    plan: LogPlan
    replaced: int
    """Commits that are made in place of missing or damaged ones; the others follow the last one known."""
    dealt: int
    """Chunks that these commits name."""
    dealt_files: int
    left: int
    """Whole chunks of the dataset that no lost commit can have named, since none but the birth is lost."""
    foreign: int
    """Chunks of other datasets of that name, left alone."""

    @property
    def unknowable(self) -> list[str]:
        """What is not known any more, in sentences."""
        if not self.dealt:
            return [
                f"the times of {self.replaced:,} commits, which had no chunks that are still there"
            ]
        return [
            f"which of {self.dealt:,} chunks were never acknowledged: all their files are there now",
            "which of two versions of a file is the newer, where two writers put it whose clocks differed and nobody deleted either",
            "times of commits: those of the chunks stand for them",
            "modes and times of directories that no entry describes",
            "which chunks a purge had retired: they are there again, as chunks full of holes",
        ]


def plan_log(
    store: ObjectStore, history: History, progress: Callable[[int], None] | None = None
) -> LogRebuild:
    """Decide what the lost commits were. Changes nothing. Reads the heads of all chunks; `progress` hears how many.

    `DirectoryNotFound` if nothing of the dataset is left.
    """
    dataset = history.dataset or _dataset_of_chunks(history)
    whole = [
        chunk.evidence
        for chunk in history.uncommitted
        if chunk.evidence is not None and chunk.evidence.dataset == dataset and chunk.is_whole
    ]
    dealt = deal(
        whole,
        history.added(),
        _said_by_named(store, history, progress),
        history.lost,
    )
    last = max([BIRTH_GENERATION, history.newest, *dealt.values()])
    added: defaultdict[int, list[ChunkRef]] = defaultdict(list)
    for evidence in whole:
        if evidence.ref.id in dealt:
            added[dealt[evidence.ref.id]].append(evidence.ref)
    wanted = [*(history.lost or [BIRTH_GENERATION]), *range(history.newest + 1, last + 1)]
    plan = LogPlan(history.name, list(_commits(history, dataset, sorted(set(wanted)), added)))
    return LogRebuild(
        dataset,
        plan,
        len(history.lost),
        len(dealt),
        sum(evidence.file_count for evidence in whole if evidence.ref.id in dealt),
        len(whole) - len(dealt),
        sum(
            chunk.evidence is not None and chunk.evidence.dataset != dataset
            for chunk in history.uncommitted
        ),
    )


def _dataset_of_chunks(history: History) -> DatasetRef:
    """The dataset that most chunks are of."""
    counts = Counter(
        chunk.evidence.dataset.id
        for chunk in history.uncommitted
        if chunk.evidence is not None and chunk.is_whole
    )
    if not counts:
        raise DirectoryNotFound(
            f"nothing is left of a dataset {history.name!r} in the store",
            "check the name and --store",
        )
    return DatasetRef(history.name, max(counts, key=lambda found: (counts[found], found)))


def _said_by_named(
    store: ObjectStore, history: History, progress: Callable[[int], None] | None
) -> Iterator[ChunkEvidence]:
    """What the heads of committed chunks say that are there and sound."""

    def read(chunk_id: ChunkId) -> ChunkEvidence | None:
        try:
            return ChunkEvidence.of(read_chunk_head(store, history.name, chunk_id))
        except (Corrupt, NotFound):
            return None

    named = [chunk for chunk in history.added() if chunk in history.stored]
    for number, (_, evidence) in enumerate(read_in_parallel(read, named), start=1):
        if progress is not None:
            progress(number)
        if evidence is not None:
            yield evidence


def _commits(
    history: History,
    dataset: DatasetRef,
    wanted: list[int],
    added: dict[int, list[ChunkRef]],
) -> Iterator[Commit]:
    """The commits of the generations `wanted`. Their times are those of their chunks, or of the commit before."""
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
        yield Commit(generation, dataset.id, time_ns, tuple(refs))
