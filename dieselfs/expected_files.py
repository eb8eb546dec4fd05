"""What snapshots say of the content of chunks: a chunk may be sound in itself and yet not be the one that a dataset is made of.

Its own header vouches for a chunk's files. Where a snapshot is read, it has the last word: a chunk is believed whole only if it holds each of the
snapshot's files where, as long, and with the hash that the snapshot says.
"""

from __future__ import annotations

from collections.abc import Sequence

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import FileColumns
from metadata.snapshot import Snapshot


class ExpectedFiles:
    """Implements `chunk_reader.Expected`. Thread-safe. Pickles as the snapshots do; they must stay open. About 0.1 µs and 100 bytes a chunk at first use."""

    def __init__(self, *snapshots: Snapshot) -> None:
        self._snapshots = list(snapshots)
        self._numbers: dict[int, dict[bytes, int]] = {}
        """Of each snapshot's chunks, by its place; two threads may make the same."""

    def __reduce__(self) -> tuple[type[ExpectedFiles], tuple[Snapshot, ...]]:
        return type(self), tuple(self._snapshots)

    @property
    def snapshots(self) -> Sequence[Snapshot]:
        """As of now; more may be added at the end."""
        return tuple(self._snapshots)

    def add(self, snapshot: Snapshot | None) -> Snapshot | None:
        """Another one that is read; the same."""
        if snapshot is not None:
            self._snapshots.append(snapshot)
        return snapshot

    def of(self, chunk: ChunkId) -> FileColumns | None:
        """The files of a chunk; None if no snapshot names it."""
        for at, snapshot in enumerate(self._snapshots):
            numbers = self._numbers.get(at)
            if numbers is None:
                ids = snapshot.columns.chunk_id
                numbers = {ids[n].tobytes(): n for n in range(snapshot.chunk_count)}
                self._numbers[at] = numbers
            number = numbers.get(chunk.value)
            if number is not None:
                files, columns = snapshot.files_in_chunk(number), snapshot.columns
                rows = slice(files.start, files.stop)
                return FileColumns(columns.offset[rows], columns.length[rows], columns.hash[rows])
        return None
