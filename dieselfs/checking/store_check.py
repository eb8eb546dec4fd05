"""The content that the store must have by its commits, and the faults in the commits.

Commits must be sound and without a gap; they name the chunks that must exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef
from chunkstore.commit_log import BIRTH_GENERATION, Commit, CommitLog
from chunkstore.errors import Corrupt
from chunkstore.object_keys import commit_key
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.findings import Finding, FindingKind
from dieselfs.dataset.dataset import no_dataset
from dieselfs.recovery.history import History, read_history
from metadata.errors import DatasetNotFound

_ADVICE: Final = (
    "restore this object from a copy of the store; without one, see `dlcmd recover --help`"
)


@dataclass(frozen=True, slots=True)
class ListedDataset:
    """A dataset as commits and listings show it."""

    dataset: DatasetRef
    commits: tuple[Commit, ...]
    """The sound commits, in order."""
    broken: Mapping[int, Finding]
    """The generations up to the newest whose commit is missing or damaged."""
    newest: int
    """The greatest generation that has existed."""
    sizes: Mapping[ChunkId, int]
    """The bytes of every chunk object in the store."""
    uncommitted: int
    """The chunk objects that no commit names: being written now, or garbage."""

    def added(self, generation: int | None = None) -> dict[ChunkId, ChunkRef]:
        """Return the chunks committed up to `generation`, including retired ones.

        None means the newest generation.
        """
        return {
            ref.id: ref
            for commit in self.commits
            if generation is None or commit.generation <= generation
            for ref in commit.added
        }

    def required(self, generation: int | None = None) -> dict[ChunkId, ChunkRef]:
        """Return those chunks of `added` that no commit retires, in the order of their ids."""
        retired = {chunk_id for commit in self.commits for chunk_id in commit.retired}
        found = self.added(generation)
        return {chunk_id: found[chunk_id] for chunk_id in sorted(found.keys() - retired)}

    def history(self, generation: int) -> list[Commit]:
        """Return the commits up to `generation` without gaps.

        An empty commit replaces each broken one.
        """
        known = {commit.generation: commit for commit in self.commits}
        return [
            known.get(number) or Commit(number, self.dataset.id, 0)
            for number in range(BIRTH_GENERATION, generation + 1)
        ]


def read_stored(store: ObjectStore, name: str) -> ListedDataset:
    """Return the dataset as the store shows it.

    The cost is one listing of the commits and a get of each, one listing of the chunks, and one
    ranged read for each chunk without a commit. Raises `DatasetNotFound` if there is nothing of
    that name or it has been removed, `Corrupt` if not one commit is sound.
    """
    history = read_history(store, name)
    if not history.newest:
        raise no_dataset(store, name)
    if history.is_removed:
        raise DatasetNotFound(
            f"dataset {name!r} is half removed: finish it with `dlcmd dataset rm {name}`"
        )
    if history.dataset is None:
        raise Corrupt(
            f"all commits of dataset {name} are damaged: run `dlcmd recover {name}`, which reads "
            "the chunks themselves"
        )
    return ListedDataset(
        history.dataset,
        tuple(history.commits),
        _broken(history),
        history.newest,
        history.stored,
        len(history.uncommitted),
    )


def retired_after(store: ObjectStore, dataset: DatasetRef, generation: int) -> set[ChunkId]:
    """Return the chunks that commits later than `generation` have retired; a get for each commit.

    Such a chunk may have been deleted while it was checked.
    """
    return {
        chunk_id
        for commit in CommitLog(store, dataset).since(generation)
        for chunk_id in commit.retired
    }


def _broken(history: History) -> dict[int, Finding]:
    kinds: Sequence[tuple[int, FindingKind, str]] = [
        *(
            (g, FindingKind.COMMIT_MISSING, "the commit is not in the store")
            for g in history.missing
        ),
        *((c.generation, FindingKind.COMMIT_DAMAGED, c.reason) for c in history.damaged),
    ]
    return {
        generation: Finding(
            kind,
            commit_key(history.name, generation),
            f"{what}; only the index and snapshots know which chunks it added",
            _ADVICE,
            damaged=True,
        )
        for generation, kind, what in sorted(kinds, key=lambda broken: broken[0])
    }
