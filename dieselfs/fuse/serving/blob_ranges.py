"""The bytes of the blob in terms of the dataset's files.

It is pure arithmetic on a snapshot's columns and the blob's layout. A *run* is a stretch of the
blob that is one stretch of a chunk's payload too: files that fill their blocks and follow each
other in the chunk, or a single file. Cached chunks are answered run by run: for files of whole
blocks a READ of 1 MiB is one slice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import FileExtent
from dieselfs.fuse.requests.file_reader import FileRange, Wanted
from metadata.blob_layout import BLOCK_BYTES, BlobLayout
from metadata.snapshot import Snapshot

_MAX_PADDING = bytes(1 << 20)


class BlobRanges:
    """The places of files in the blob of one snapshot.

    Immutable: any thread may use it. It takes 20 ns a file to build.
    """

    def __init__(self, snapshot: Snapshot, layout: BlobLayout) -> None:
        self._snapshot, self.layout = snapshot, layout
        filled = np.flatnonzero(snapshot.columns.length != 0)
        begins_run = _begins_run(snapshot, layout, filled)
        first_files = filled[begins_run]
        self._run_file = first_files.data
        """The first file of each run."""
        self._run_block = layout.first_block[first_files].data
        self._run_bytes = _run_bytes(snapshot, filled, begins_run).data
        self._file = filled.data
        self._file_block = layout.first_block[filled].data
        self._length = snapshot.numbers("length")

    def runs(self, device: int, start: int, end: int) -> list[Wanted]:
        """Return bytes [start, end) of a device's blob, run by run, with the zeros between them.

        The hash of a run's extent covers its first file only: good for bytes that node memory has
        verified. Raises `SnapshotRefused` if the snapshot was damaged.
        """
        return self._wanted(self._run_block, self._run, device, start, end)

    def files(self, device: int, start: int, end: int) -> list[Wanted]:
        """Return the same ranges, file by file: good for every tier."""
        return self._wanted(self._file_block, self._one_file, device, start, end)

    def first_file(self, device: int, start: int) -> int:
        """Return the inode of the file whose blocks hold this byte."""
        return self.layout.file_at(device, start)

    def _run(self, number: int) -> FileExtent:
        first = self._snapshot.extent(self._run_file[number])
        return FileExtent(first.chunk, first.offset, self._run_bytes[number], first.hash)

    def _one_file(self, number: int) -> FileExtent:
        return self._snapshot.extent(self._file[number])

    def _wanted(
        self,
        blocks: memoryview[int],
        extent_of: Callable[[int], FileExtent],
        device: int,
        start: int,
        end: int,
    ) -> list[Wanted]:
        base = device * self.layout.device_blocks * BLOCK_BYTES
        at, end = base + start, base + end
        number = bisect_right(blocks, at // BLOCK_BYTES) - 1
        count = len(blocks)
        wanted: list[Wanted] = []
        while at < end:
            if 0 <= number < count:
                extent = extent_of(number)
                into = at - blocks[number] * BLOCK_BYTES
                length = min(extent.length - into, end - at)
                if length > 0:
                    wanted.append(FileRange(extent, into, length))
                    at += length
            number += 1
            padding = min(blocks[number] * BLOCK_BYTES if number < count else end, end) - at
            if padding > 0:
                wanted.append(_zeros(padding))
                at += padding
        self._snapshot.check_unchanged()
        return wanted


def _begins_run(
    snapshot: Snapshot, layout: BlobLayout, filled: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return a mask of the files that begin a run.

    Only files that end with their block can have a neighbour in their run, so the others cost
    nothing.
    """
    columns = snapshot.columns
    begins = np.ones(len(filled), np.bool_)
    is_aligned = columns.length[filled[:-1]] % BLOCK_BYTES == 0
    at = np.flatnonzero(is_aligned)
    before, after = filled[at], filled[at + 1]
    length = columns.length[before].astype(np.int64)
    chunk = columns.chunk[after]
    begins[at + 1] = ~(
        (chunk == columns.chunk[before])
        & (columns.offset[after] == columns.offset[before] + columns.length[before])
        & (layout.first_block[after] == layout.first_block[before] + length // BLOCK_BYTES)
        & (columns.chunk_payload_bytes[chunk] <= MAX_WHOLE_BYTES)
    )
    return begins


def _run_bytes(
    snapshot: Snapshot, filled: npt.NDArray[np.int64], begins: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    if not len(filled):
        return np.empty(0, np.int64)
    length = snapshot.columns.length[filled].astype(np.int64)
    return np.add.reduceat(length, np.flatnonzero(begins))


def _zeros(count: int) -> bytes | memoryview:
    if count <= len(_MAX_PADDING):
        return memoryview(_MAX_PADDING)[:count]
    return bytes(count)
