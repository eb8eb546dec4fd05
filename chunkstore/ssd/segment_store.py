"""Segments of chunks' objects in the regions of an SSD: read by ranges, appended in batches. One class that knows files and index.

Blocking; raises `OSError` or `lmdb.Error` for whatever is wrong with the SSD or the index. Whoever calls it bears with both (`tier`).
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from chunkstore.ssd.admission import Reinsertion, ReinsertNothing
from chunkstore.ssd.eviction import DatasetLimits, LimitsOf, next_region
from chunkstore.ssd.region_files import Geometry, RegionFiles
from chunkstore.ssd.region_table import PAGE_BYTES, RegionTable
from chunkstore.ssd.segment_index import FILLING, FREE, FULL, Order, Region, SegmentIndex
from chunkstore.ssd.segments import (
    DEFAULT_SEGMENT_BYTES,
    Placed,
    Segment,
    checksums_of,
    is_sound,
)
from chunkstore.stores.object_store import Buffer

Entry = tuple[Segment, Placed]
TOUCH_INTERVAL_S: Final = 1.0
IDLE_S: Final = 60.0
"""A region that was not written to for so long is not kept open for its dataset."""
_WHOLE: Final = 1 << 16
"""Segments of the largest object that is read whole: more than 16 MiB have."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Of one dataset on a tier, as of now."""

    dataset: bytes
    regions: int
    bytes: int
    """Of the SSD: whole regions."""
    last_used: float


class SegmentStore:
    """Thread-safe; any number of processes of a node share one folder. A forked child opens its own."""

    def __init__(
        self,
        folder: Path,
        index_folder: Path,
        budget_bytes: int | None,
        *,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        order: Order = "lru",
        reinsertion: Reinsertion | None = None,
        limits_of: LimitsOf = lambda dataset: DatasetLimits(),
        now: Callable[[], float] = time.time,
    ) -> None:
        """Opens the folder or makes it; the budget is the folder's, see `RegionFiles`. 0.3 s for 100,000 segments if the index must be filled, 1 ms else."""
        self._open_files: Callable[[], RegionFiles] = partial(
            RegionFiles, folder, budget_bytes, segment_bytes
        )
        self._files = self._open_files()
        self._geometry = geometry = self._files.geometry
        self._order, self._limits_of, self._now = order, limits_of, now
        self._reinsertion = reinsertion or ReinsertNothing()
        self._index = SegmentIndex(index_folder, geometry.max_entries * (self._files.count + 1))
        self._writing = threading.Lock()
        self._filling: dict[bytes, _Filling] = {}
        """By dataset: the region that this process fills."""
        self._used: dict[int, float] = {}
        self._touched_at = now()
        self._prepare()

    @property
    def budget_regions(self) -> int:
        return self._files.count

    @property
    def region_bytes(self) -> int:
        return self._geometry.region_bytes

    @property
    def segment_bytes(self) -> int:
        return self._geometry.segment_bytes

    def read(self, chunk: bytes, start: int, length: int) -> memoryview | None:
        """Bytes of a chunk's object, verified; None if one of its segments is not held, or not sound. The range lies in the object."""
        size = self._geometry.segment_bytes
        first, last = start // size, (start + max(length, 1) - 1) // size
        placed = self._index.find(chunk, first, last - first + 1)
        if None in placed:
            return None
        entries = [(Segment(chunk, first + n), at) for n, at in enumerate(placed) if at is not None]
        return self._read(entries, start - first * size, length)

    def read_whole(self, chunk: bytes) -> memoryview | None:
        """A chunk's whole object, if all of it is held."""
        size = self._geometry.segment_bytes
        entries: list[Entry] = []
        for number, placed in enumerate(self._index.find(chunk, 0, _WHOLE // (size >> 12))):
            if placed is None:
                return None
            entries.append((Segment(chunk, number), placed))
            if placed.length < size:
                break
        else:
            return None
        total = (len(entries) - 1) * size + entries[-1][1].length
        return self._read(entries, 0, total)

    def append(
        self, dataset: bytes, chunk: bytes, first: int, data: memoryview, is_end: bool
    ) -> bool:
        """Keep a run of segments of a chunk, from number `first` on; False if there is no room for the dataset. `is_end`: the object ends with it."""
        size = self._geometry.segment_bytes
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        if is_end and len(data) % size == 0:
            parts.append(memoryview(b""))  # so that the end can be told
        if not is_end and len(data) % size:
            raise ValueError("only an object's last segment is shorter")
        segments = [Segment(chunk, first + n) for n in range(len(parts))]
        with self._writing:
            return self._append(dataset, list(zip(segments, parts, strict=True)))

    def holds(self, chunk: bytes, first: int, count: int) -> bool:
        return None not in self._index.find(chunk, first, count)

    def chunks(self, dataset: bytes) -> dict[bytes, int]:
        """Of a dataset: bytes held of each chunk."""
        return self._index.chunks(dataset)

    def occupancy(self) -> list[Occupancy]:
        found: dict[bytes, Occupancy] = {}
        for region in self._index.regions():
            if region.state != FREE:
                of = found.get(region.dataset) or Occupancy(region.dataset, 0, 0, 0.0)
                found[region.dataset] = Occupancy(
                    region.dataset,
                    of.regions + 1,
                    of.bytes + self._geometry.region_bytes,
                    max(of.last_used, region.last_used),
                )
        return list(found.values())

    def evict(self, dataset: bytes) -> int:
        """Let go of all that is held of a dataset, but for what another process is just writing; how many bytes of the SSD are free now."""
        with self._writing:
            filling = self._filling.pop(dataset, None)
            if filling is not None:
                self._files.unlock(filling.region.number)
            freed = 0
            for region in self._index.regions():
                if (
                    region.state != FREE
                    and region.dataset == dataset
                    and self._files.lock(region.number)
                ):
                    self._index.release(region.number)
                    self._files.unlock(region.number)
                    freed += self._geometry.region_bytes
        return freed

    def is_there(self) -> bool:
        """Whether the folder is still the one that was opened."""
        return self._files.is_there()

    def reopen(self) -> None:
        """Make the folder anew, or take the one that is in its place now."""
        with self._writing:
            self._filling.clear()
            self._files = self._open_files()
            self._geometry = self._files.geometry
            self._prepare()

    def touch(self) -> None:
        """Tell the others which regions were read; by itself at most once a second."""
        used, self._used = self._used, {}
        self._touched_at = self._now()
        if used:
            self._index.touch(used)

    def close(self) -> None:
        with self._writing:
            self.touch()
            for filling in self._filling.values():
                self._files.unlock(filling.region.number)
            self._filling.clear()
        self._index.close()

    # Reading.

    def _read(self, entries: Sequence[Entry], start: int, length: int) -> memoryview | None:
        """`length` bytes from `start`, counted from the beginning of the first entry."""
        block, size = self._geometry.block_bytes, self._geometry.segment_bytes
        total = (len(entries) - 1) * size + entries[-1][1].length
        begin, end = start // block * block, min(-(-(start + length) // block) * block, total)
        data = _uninitialised(end - begin)
        for run in _runs(entries, size):
            run_start = (run[0][0].number - entries[0][0].number) * size
            run_end = run_start + (len(run) - 1) * size + run[-1][1].length
            first, last = max(begin, run_start), min(end, run_end)
            if first >= last:
                continue
            region, part = run[0][1].region, data[first - begin : last - begin]
            offset = run[0][1].offset + first - run_start
            if not self._files.read_into(part, region, offset):
                return None
            if not self._is_sound(run, first - run_start, part):
                return None
            self._used[region] = self._now()
        if self._now() - self._touched_at > TOUCH_INTERVAL_S:
            self.touch()
        return data[start - begin : start - begin + length].toreadonly()

    def _is_sound(self, run: Sequence[Entry], start: int, view: memoryview) -> bool:
        """What was read of a run, from a block's beginning on. What is damaged is forgotten, so that it comes again from the store."""
        block, size = self._geometry.block_bytes, self._geometry.segment_bytes
        at = 0
        while at < len(view):
            segment, placed = run[(start + at) // size]
            inside = (start + at) % size
            part = view[at : at + placed.length - inside]
            if not is_sound(segment, inside // block, part, placed.checksums, block):
                self._index.drop(segment, placed)
                return False
            at += len(part)
        return True

    # Writing; with the lock held.

    def _append(self, dataset: bytes, segments: Sequence[tuple[Segment, memoryview]]) -> bool:
        left = list(segments)
        while left:
            filling = self._filling.get(dataset) or self._begin_region(dataset)
            if filling is None:
                return False
            count = filling.room_for([len(data) for _, data in left])
            if count:
                self._write(filling, left[:count])
                left = left[count:]
            if left:
                self._end_region(dataset)
        return True

    def _write(self, filling: _Filling, segments: Sequence[tuple[Segment, memoryview]]) -> None:
        offset, region = filling.offset, filling.region
        parts: list[Buffer] = []
        entries: list[Entry] = []
        for segment, data in segments:
            checksums = checksums_of(segment, data, self._geometry.block_bytes)
            entries.append((segment, Placed(region.number, offset, len(data), checksums)))
            padding = -len(data) % PAGE_BYTES
            parts += [data, bytes(padding)] if padding else [data]
            offset += len(data) + padding
        self._files.write(region.number, filling.offset, parts)
        filling.entries += entries
        filling.turn += 1
        filling.offset = offset
        self._files.write_table(region.number, filling.table)
        filling.region = replace(
            region, used_bytes=offset, entries=len(filling.entries), last_used=self._now()
        )
        self._index.add(filling.region, entries)

    def _begin_region(self, dataset: bytes) -> _Filling | None:
        """The next region, emptied, with what is reinserted of it written again first."""
        for idle in [of for of, filling in self._filling.items() if self._is_idle(filling)]:
            self._end_region(idle)  # so that it may leave, too

        count = self._files.count

        def choose(regions: Sequence[Region]) -> Region | None:
            return next_region(
                [region for region in regions if region.number < count],
                dataset,
                self._limits_of,
                self._geometry.region_bytes,
                self._order,
                self._now(),
            )

        def begun(region: Region, born: int) -> Region:
            return Region(
                region.number, FILLING, secrets.randbits(63), dataset, 0, 0, born, self._now()
            )

        taken = self._index.take(choose, self._files.lock, begun)
        if taken is None:
            return None
        former, region, lost = taken
        try:
            kept = self._kept(former.dataset, lost)
            self._files.make(region.number)
            filling = _Filling(region, self._geometry)
            for filling.turn in (0, 1):  # nothing of its predecessor's is to be believed
                self._files.write_table(region.number, filling.table)
        except BaseException:
            self._files.unlock(region.number)
            raise
        self._filling[dataset] = filling
        self._reinsert(former.dataset, kept)
        return filling

    def _is_idle(self, filling: _Filling) -> bool:
        return self._now() - filling.region.last_used > IDLE_S

    def _kept(self, dataset: bytes, lost: Sequence[Entry]) -> list[tuple[Segment, memoryview]]:
        """What is to be reinserted, read before it is overwritten."""
        by_segment = dict(lost)
        kept = []
        for segment in self._reinsertion.stays(dataset, list(by_segment)):
            placed = by_segment[segment]
            data = _uninitialised(placed.length)
            came = self._files.read_into(data, placed.region, placed.offset)
            if came and is_sound(segment, 0, data, placed.checksums, self._geometry.block_bytes):
                kept.append((segment, data))
        return kept

    def _reinsert(self, dataset: bytes, kept: Sequence[tuple[Segment, memoryview]]) -> None:
        """As far as the region has room that is being filled for their dataset: no other leaves for them."""
        filling = self._filling.get(dataset)
        if filling is not None and kept:
            count = filling.room_for([len(data) for _, data in kept])
            if count:
                self._write(filling, kept[:count])

    def _end_region(self, dataset: bytes) -> None:
        filling = self._filling.pop(dataset)
        self._index.put_region(replace(filling.region, state=FULL))
        self._files.unlock(filling.region.number)

    # Opening.

    def _prepare(self) -> None:
        """See to it that the index is a view of the tables, and that there are no more regions than the budget allows."""
        self._files.lock_all()
        try:
            tables = self._geometry.id.encode()
            if not self._index.is_view_of(tables):
                self._index.fill(tables, self._described())
            known = {region.number for region in self._index.regions()}
            count = self._files.count
            for number in sorted(known | set(self._files.present())):
                if number >= count and self._files.lock(number):
                    self._index.release(number, remove=True)
                    self._files.remove(number)
                    self._files.unlock(number)
            for number in range(count):
                if number not in known:
                    self._index.put_region(Region(number))
        finally:
            self._files.unlock_all()

    def _described(self) -> Iterator[tuple[Region, list[Entry]]]:
        for number in self._files.present():
            table = self._files.table(number)
            if table is None or not table.entries:
                yield Region(number), []
                continue
            end = max(placed.offset + placed.length for _, placed in table.entries)
            count = len(table.entries)
            region = Region(number, FULL, table.generation, table.dataset, end, count, table.born)
            yield region, list(table.entries)


class _Filling:
    """A region that this process fills."""

    def __init__(self, region: Region, geometry: Geometry) -> None:
        self.region = region
        self.offset = geometry.data_offset
        self.turn = 0
        self.entries: list[Entry] = []
        self._geometry = geometry

    @property
    def table(self) -> RegionTable:
        region = self.region
        return RegionTable(
            region.generation, self.turn, region.dataset, region.born, tuple(self.entries)
        )

    def room_for(self, lengths: Sequence[int]) -> int:
        """How many of the segments, in order, still fit."""
        offset = self.offset
        for count, length in enumerate(lengths):
            offset += -(-length // PAGE_BYTES) * PAGE_BYTES
            if (
                offset > self._geometry.region_bytes
                or len(self.entries) + count >= self._geometry.max_entries
            ):
                return count
        return len(lengths)


def _uninitialised(length: int) -> memoryview:
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
