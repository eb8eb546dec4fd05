"""A reader of segments from their regions.

Adjacent segments are read together; each block is verified if the caller wants it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.segment_index import SegmentIndex
from chunkstore.ssd.segments import Placed, Segment, is_sound

Entry: TypeAlias = tuple[Segment, Placed]


class SegmentReader:
    """The reader of one tier's segments. Thread-safe."""

    def __init__(self, files: RegionFiles, index: SegmentIndex, now: Callable[[], float]) -> None:
        self._files, self._index, self._now = files, index, now
        self._geometry = files.geometry
        self._used: dict[int, float] = {}

    def take_used(self) -> dict[int, float]:
        """Return the regions that were read since the last call, and when."""
        used, self._used = self._used, {}
        return dict(used)  # a thread may still add to it

    def read(
        self, entries: Sequence[Entry], start: int, length: int, verified: bool, waits: bool
    ) -> memoryview | None:
        """Return `length` bytes from `start`, counted from the beginning of the first entry.

        The result is shorter if the entries end before. It is None if the bytes are damaged, or if
        a region was released at that moment. The entries are segments of one chunk, in order. See
        `SegmentStore.read` for `verified` and `waits`.
        """
        block, size = self._geometry.block_bytes if verified else 1, self._geometry.segment_bytes
        total = (len(entries) - 1) * size + entries[-1][1].length
        if start >= total:
            return memoryview(b"")
        begin, end = start // block * block, min(-(-(start + length) // block) * block, total)
        data = uninitialised(end - begin)
        for run in _runs(entries, size):
            run_start = (run[0][0].number - entries[0][0].number) * size
            run_end = run_start + (len(run) - 1) * size + run[-1][1].length
            first, last = max(begin, run_start), min(end, run_end)
            if first >= last:
                continue
            region, part = run[0][1].region, data[first - begin : last - begin]
            offset = run[0][1].offset + first - run_start
            try:
                if not waits:
                    self._files.read_from_memory(part, region, offset)
                elif not self._files.read_into(part, region, offset):
                    return None
            except FileNotFoundError:
                self._drop(run, waits)  # the region was just released, or a user removed its file
                return None
            if verified:
                damaged = self._damaged(run, first - run_start, part)
                if damaged is not None:
                    self._drop([damaged], waits)
                    return None
            self._used[region] = self._now()
        return data[start - begin : start - begin + length].toreadonly()

    def _damaged(self, run: Sequence[Entry], start: int, view: memoryview) -> Entry | None:
        """Return the first damaged entry in a part of a run that starts at a block's beginning."""
        block, size = self._geometry.block_bytes, self._geometry.segment_bytes
        at = 0
        while at < len(view):
            segment, placed = entry = run[(start + at) // size]
            inside = (start + at) % size
            part = view[at : at + placed.length - inside]
            if not is_sound(segment, inside // block, part, placed.checksums, block):
                return entry
            at += len(part)
        return None

    def _drop(self, entries: Sequence[Entry], waits: bool) -> None:
        """Drop unreadable segments from the index, so that they are fetched from the store again.

        A caller that must not wait gets `BlockingIOError`, because others may use the index for
        long.
        """
        if not waits:
            raise BlockingIOError
        for segment, placed in entries:
            self._index.drop(segment, placed)


def uninitialised(length: int) -> memoryview:
    """Return memory that is not zeroed first, because the first touch is the expensive one."""
    return np.empty(length, np.uint8).data


def _runs(entries: Sequence[Entry], segment_bytes: int) -> Iterator[list[Entry]]:
    """Yield runs of entries that are adjacent in a region, to be read together."""
    run: list[Entry] = []
    for entry in entries:
        if run:
            before = run[-1][1]
            follows = (
                before.length == segment_bytes
                and entry[1].region == before.region
                and entry[1].offset == before.offset + segment_bytes
            )
            if not follows:
                yield run
                run = []
        run.append(entry)
    if run:
        yield run
