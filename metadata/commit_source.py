"""The commits that an index lacks, and the heads of their chunks, read from the store."""

from __future__ import annotations

from collections.abc import Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import Commit, CommitLog
from chunkstore.errors import Corrupt, NotFound
from metadata.errors import DatasetNotFound

_READERS = 8


def commits_after(log: CommitLog, generation: int, held: int | None) -> list[Commit]:
    """Return all commits after `generation`, in order; for a held index up to `held`.

    Raises `DatasetNotFound` if the dataset has been removed, also if its name is used again.
    """
    commits: list[Commit] = []
    if held is not None and generation >= held:
        return commits
    try:
        for commit in log.since(generation):
            if commit.removed:
                raise removed(log)
            commits.append(commit)
            if commit.generation == held:
                break
    except Corrupt:
        if log.is_born():
            raise
        raise removed(log) from None
    return commits


def removed(log: CommitLog) -> DatasetNotFound:
    """Return the error that says that the dataset has been removed."""
    return DatasetNotFound(f"dataset {log.dataset.name!r} has been removed")


class ChunkGone(Exception):
    """A chunk that a later commit retires is no longer in the store, or cannot be read."""


class ChunkHeads:
    """A reader of chunk heads: one ranged read for each chunk, eight at once.

    Leaving the context ends the threads. `NotFound` and `Corrupt` from the store are passed on, but
    a chunk in `retired` may be missing or damaged: that raises `ChunkGone`.
    """

    def __init__(self, reader: ChunkReader, retired: Set[ChunkId]) -> None:
        """`retired`: the chunks that the known commits retire."""
        self._reader = reader
        self._retired = retired
        self._threads = ThreadPoolExecutor(_READERS, "heads")

    def __enter__(self) -> ChunkHeads:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def added(self, commit: Commit) -> list[ChunkHead]:
        """Return the heads of all chunks that the commit adds. Raises `ChunkGone`."""
        return self._read([(ref.id, ref.head_bytes) for ref in commit.added])

    def lasting(self, commit: Commit) -> list[ChunkHead]:
        """Return the heads of those added chunks that no commit retires."""
        return self._read(
            [(ref.id, ref.head_bytes) for ref in commit.added if ref.id not in self._retired]
        )

    def retired(self, commit: Commit) -> list[ChunkHead]:
        """Return the heads of all chunks that the commit retires. Raises `ChunkGone`."""
        return self._read([(chunk_id, None) for chunk_id in commit.retired])

    def _read(self, chunks: Sequence[tuple[ChunkId, int | None]]) -> list[ChunkHead]:
        return list(self._threads.map(self._head, chunks))

    def _head(self, chunk: tuple[ChunkId, int | None]) -> ChunkHead:
        chunk_id, head_bytes = chunk
        try:
            return self._reader.head(chunk_id, head_bytes)
        except (NotFound, Corrupt) as error:
            if chunk_id in self._retired:
                raise ChunkGone(f"chunk {chunk_id} was purged: {error}") from error
            raise
