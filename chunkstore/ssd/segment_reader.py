"""Segments read from the regions in which they lie: what lies side by side at once, each block verified if that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.segment_index import SegmentIndex
from chunkstore.ssd.segments import Placed, Segment, is_sound

Entry: TypeAlias = tuple[Segment, Placed]


class SegmentReader:
    """Thread-safe."""

    def __init__(self, files: RegionFiles, index: SegmentIndex, now: Callable[[], float]) -> None:
        self._files, self._index, self._now = files, index, now
        self._geometry = files.geometry
        self._used: dict[int, float] = {}

    def take_used(self) -> dict[int, float]:
        """Which regions were read since this was asked last, and when."""
        used, self._used = self._used, {}
        return dict(used)  # a thread may still be adding to it

    def read(
        self, entries: Sequence[Entry], start: int, length: int, verified: bool, waits: bool
    ) -> memoryview | None:
        """`length` bytes from `start`, counted from the beginning of the first entry, as far as there are; None if they are not sound, or were let go in
        this moment. Segments of one chunk, in order. For `verified` and `waits` see `SegmentStore.read`.
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
                self._drop(run, waits)  # it was let go in this moment, or somebody has removed it
                return None
            if verified:
                damaged = self._damaged(run, first - run_start, part)
                if damaged is not None:
                    self._drop([damaged], waits)
                    return None
            self._used[region] = self._now()
        return data[start - begin : start - begin + length].toreadonly()

    def _damaged(self, run: Sequence[Entry], start: int, view: memoryview) -> Entry | None:
        """The first one that is not sound of what was read of a run, from a block's beginning on."""
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
        """Forget what is not there, so that it comes again from the store. Others may be at the index for long."""
        if not waits:
            raise BlockingIOError
        for segment, placed in entries:
            self._index.drop(segment, placed)


def uninitialised(length: int) -> memoryview:
    """Memory that is not filled with zeros before it is filled with data: touching it first is what costs."""
    return np.empty(length, np.uint8).data


def _runs(entries: Sequence[Entry], segment_bytes: int) -> Iterator[list[Entry]]:
    """Entries that lie one behind the other, to be read at once."""
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
