"""The chunks that a node knows its task to read: those of the snapshots by which its source verifies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dieselfs.node_memory.piece import CacheBlock, blocks_of, is_whole
from metadata.snapshot import Snapshot


class KnownChunks:
    """Each chunk once, in the order of their ids, which is that in which they were written. Immutable; made in 1 µs a chunk."""

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        """They stay open."""
        self._snapshots = tuple(snapshots)
        found: dict[bytes, tuple[int, int]] = {}
        for at, snapshot in enumerate(self._snapshots):
            ids = snapshot.columns.chunk_id
            for number in range(snapshot.chunk_count):
                found.setdefault(ids[number].tobytes(), (at, number))
        ordered = sorted(found)
        self._places = [found[id_] for id_ in ordered]
        self.ids: npt.NDArray[np.uint8] = np.frombuffer(b"".join(ordered), np.uint8).reshape(-1, 16)
        """(n, 16)."""

    def __len__(self) -> int:
        return len(self._places)

    def blocks(self, at: int) -> list[CacheBlock]:
        """All of the chunk at a place in `ids`, in order; none of one without bytes. Raises `SnapshotRefused`."""
        snapshot, number = self._snapshots[self._places[at][0]], self._places[at][1]
        chunk = snapshot.chunk(number)
        if is_whole(chunk):
            return [CacheBlock(chunk)] if chunk.payload_bytes else []
        files = (snapshot.extent(inode) for inode in snapshot.files_in_chunk(number))
        return [block for file in files for block, _ in blocks_of(file, 0, file.length)]
