"""The chunks that a node expects its task to read.

They are those of the snapshots by which the node's source verifies.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dieselfs.cache.ports.block import CacheBlock, blocks_of, is_whole
from metadata.snapshot import Snapshot


class KnownChunks:
    """The chunks of some snapshots, each once, in the order of their ids.

    The chunks were written in this order. Immutable. Takes 1 µs a chunk to build.
    """

    def __init__(self, snapshots: Sequence[Snapshot]) -> None:
        """The snapshots stay open."""
        self._snapshots = tuple(snapshots)
        found: dict[bytes, tuple[int, int]] = {}
        for at, snapshot in enumerate(self._snapshots):
            ids = snapshot.columns.chunk_id
            for number in range(snapshot.chunk_count):
                found.setdefault(ids[number].tobytes(), (at, number))
        ordered = sorted(found)
        self._places = [found[id_] for id_ in ordered]
        self.ids: npt.NDArray[np.uint8] = np.frombuffer(b"".join(ordered), np.uint8).reshape(-1, 16)
        """The chunk ids, of shape (n, 16)."""

    def __len__(self) -> int:
        return len(self._places)

    def blocks(self, at: int) -> list[CacheBlock]:
        """Return all cache blocks of the chunk at a place in `ids`, in order.

        A chunk without bytes has none. Raises `SnapshotRefused`.
        """
        snapshot, number = self._snapshots[self._places[at][0]], self._places[at][1]
        chunk = snapshot.chunk(number)
        if is_whole(chunk):
            return [CacheBlock(chunk)] if chunk.payload_bytes else []
        files = (snapshot.extent(inode) for inode in snapshot.files_in_chunk(number))
        return [block for file in files for block, _ in blocks_of(file, 0, file.length)]
