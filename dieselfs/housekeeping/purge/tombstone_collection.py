"""Tombstone collection: find the tombstones that hide nothing (docs/decisions/0008, rule 4).

Such a tombstone is dropped with its chunk. It may go when no object in the store holds what it
hides, and no chunk that stays has another entry of its path. Otherwise an index built from the
store would show the path again, or have another record of it. A directory's tombstone stays as long
as any record lies below it. The heads of all chunks are read for that, but paths are compared chunk
by chunk.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from chunkstore.chunk_format import KIND_TOMBSTONE, ChunkHead, Entries
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Corrupt, NotFound
from chunkstore.paths import ancestors
from dieselfs.housekeeping.purge.chunk_metadata import Named, Tombstone

_HEADS_AT_ONCE = 16


class TombstoneCollection:
    """The tombstones that hide nothing; each examined chunk can only remove some."""

    def __init__(self, tombstones: Iterable[Tombstone], objects: Collection[ChunkId]) -> None:
        """Start with the tombstones whose hidden entries lie in no object.

        `objects` are the chunks in the store.
        """
        present = {chunk_id.value for chunk_id in objects}
        candidates = [found for found in tombstones if found.seen.chunk not in present]
        self._files = {found.path for found in candidates if not found.of_directory}
        self._directories = {found.path for found in candidates if found.of_directory}
        self._seen: set[ChunkId] = set()

    @property
    def collectable(self) -> frozenset[Named]:
        """The tombstones that may be dropped, so far."""
        return frozenset(
            [(path, stat.S_IFREG) for path in self._files]
            + [(path, stat.S_IFDIR) for path in self._directories]
        )

    def look_at(
        self, chunks: Mapping[ChunkId, bool], read_head: Callable[[ChunkId], ChunkHead]
    ) -> None:
        """Remove the tombstones that entries of these chunks still need; chunk -> whether it stays.

        Chunks that were examined before are skipped. If a chunk that stays cannot be read, no
        tombstone may be dropped. Costs one read of a head each, 16 at a time.
        """
        unread = [chunk_id for chunk_id in chunks if chunk_id not in self._seen]

        def read(chunk_id: ChunkId) -> ChunkHead | None:
            if not self._files and not self._directories:
                return None
            try:
                return read_head(chunk_id)
            except (Corrupt, NotFound):
                if chunks[chunk_id]:
                    self._files, self._directories = set(), set()
                return None

        with ThreadPoolExecutor(_HEADS_AT_ONCE, "heads") as pool:
            for chunk_id, head in zip(unread, pool.map(read, unread), strict=True):
                self._seen.add(chunk_id)
                if head is not None:
                    self._discard_needed(head.entries, stays=chunks[chunk_id])

    def _discard_needed(self, entries: Entries, *, stays: bool) -> None:
        paths = entries.paths
        tombstones = self._files.union(self._directories).intersection(paths)
        if tombstones:
            columns = zip(paths, entries.kind.tolist(), entries.mode.tolist(), strict=True)
            for path, kind, mode in columns:
                if path in tombstones and (stays or kind != KIND_TOMBSTONE):
                    of_directory = stat.S_ISDIR(mode)
                    (self._directories if of_directory else self._files).discard(path)
        if self._directories:
            self._directories -= _directories_above(entries, tombstones=stays)


def without_needed_by_carried(
    collectable: Collection[Named], current: Collection[Tombstone]
) -> set[Named]:
    """Return the part of `collectable` that may go when the rest of `current` is rewritten.

    A directory's record stays as long as there is any record below it, also a tombstone's, which
    would not be found without it.
    """
    left = set(collectable)
    while True:
        carried = (found.path for found in current if found.named not in left)
        above = {(top, stat.S_IFDIR) for path in carried for top in ancestors(path)}
        if left.isdisjoint(above):
            return left
        left -= above


def concerns(tombstone: Tombstone, collectable: Collection[Named]) -> bool:
    """Return True if the tombstone is in `collectable`, or lies below a path in it."""
    above = ((path, stat.S_IFDIR) for path in ancestors(tombstone.path))
    return tombstone.named in collectable or any(named in collectable for named in above)


def _directories_above(entries: Entries, *, tombstones: bool) -> set[bytes]:
    """Return every directory above a file or directory of the chunk, at any depth.

    With `tombstones`, the directories above tombstones are included.
    """
    paths: Sequence[bytes] = entries.paths
    if not tombstones:
        living = np.flatnonzero(entries.kind != KIND_TOMBSTONE).tolist()
        paths = [paths[at] for at in living]
    parents = {path.rpartition(b"/")[0] for path in paths} - {b""}
    return parents.union(*map(ancestors, parents))
