"""Segments of chunks' objects in the regions of an SSD: read by ranges, appended in batches. One class that knows files and index.

Blocking; raises `OSError` or `lmdb.Error` for whatever is wrong with the SSD or the index. Whoever calls it bears with both (`tier`).
"""

from __future__ import annotations

import errno
import logging
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from chunkstore.ssd import index_environment
from chunkstore.ssd.admission import Reinsertion, ReinsertNothing
from chunkstore.ssd.eviction import DatasetLimits, LimitsOf, above_quota, expired, next_region
from chunkstore.ssd.read_counts import ReadCounts
from chunkstore.ssd.region_files import Geometry, RegionFiles
from chunkstore.ssd.region_table import PAGE_BYTES, RegionTable
from chunkstore.ssd.segment_index import (
    CLOCK_S,
    FILLING,
    FREE,
    FULL,
    UNSOUND,
    HeldChunk,
    Order,
    Region,
    SegmentIndex,
)
from chunkstore.ssd.segments import (
    DEFAULT_SEGMENT_BYTES,
    Placed,
    Segment,
    checksums_of,
    is_sound,
)
from chunkstore.stores.object_store import Buffer

log = logging.getLogger(__name__)

Entry = tuple[Segment, Placed]
IDLE_S: Final = 60.0
"""A region that was not written to for so long is not kept open for its dataset."""
_WHOLE_BYTES: Final = 64 << 20
"""No larger object is read whole."""
_WORTH_RESUMING: Final = 4
"""A region with a quarter of its room left, and of entries at least so many, is filled on."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Of one dataset on a tier, as of now."""

    dataset: bytes
    regions: int
    bytes: int
    """Of the SSD: whole regions."""
    last_used: float
    hits: int = 0
    """Of all processes, since the index was made, like those below; what a process has counted in the last second is not in it."""
    hit_bytes: int = 0
    misses: int = 0


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
        """Opens the folder or makes it; the budget is the folder's, see `RegionFiles`. About 1 s for 100,000 segments if the index must be filled, some milliseconds else."""
        self._files = RegionFiles(folder, budget_bytes, segment_bytes)
        self._open_files: Callable[[], RegionFiles] = partial(
            RegionFiles, folder, self._files.budget_bytes, segment_bytes
        )
        self._geometry = self._files.geometry
        self._order, self._limits_of, self._now = order, limits_of, now
        self._reinsertion = reinsertion or ReinsertNothing()
        self._index_folder = index_folder
        self._writing = threading.Lock()
        self._filling: dict[bytes, _Filling] = {}
        """By dataset: the region that this process fills."""
        self.counts = ReadCounts()
        """For readers to say what they have had, and what not."""
        self._used: dict[int, float] = {}
        self._budget_seen = 0
        self._index: SegmentIndex
        self._prepare()

    @property
    def budget_bytes(self) -> int:
        """Of the folder, as somebody said it last."""
        return self._files.budget_bytes

    @property
    def budget_regions(self) -> int:
        return self._files.count

    @property
    def region_data_bytes(self) -> int:
        """Of a region, without its table."""
        return self._geometry.region_bytes - self._geometry.data_offset

    @property
    def region_bytes(self) -> int:
        return self._geometry.region_bytes

    @property
    def segment_bytes(self) -> int:
        return self._geometry.segment_bytes

    def read(
        self,
        chunk: bytes,
        start: int,
        length: int,
        *,
        verified: bool = True,
        waits: bool = True,
    ) -> memoryview | None:
        """Bytes of a chunk's object as far as it has them; None if one of their segments is not held, or not sound.

        Not `verified`: they may be damaged, or another's, and it is for the caller to find it out and to `forget` them. Not `waits`: `BlockingIOError` if
        they are not in the page cache.
        """
        size = self._geometry.segment_bytes
        first, last = start // size, (start + max(length, 1) - 1) // size
        entries: list[Entry] = []
        for number, placed in enumerate(self._index.find(chunk, first, last - first + 1), first):
            if placed is None:
                return None
            entries.append((Segment(chunk, number), placed))
            if placed.length < size:
                break
        return self._read(entries, start - first * size, length, verified, waits)

    def read_whole(
        self, chunk: bytes, *, verified: bool = True, waits: bool = True
    ) -> memoryview | None:
        """A chunk's whole object, if all of it is held; see `read`."""
        size = self._geometry.segment_bytes
        entries: list[Entry] = []
        for number, placed in enumerate(self._index.find(chunk, 0, _WHOLE_BYTES // size)):
            if placed is None:
                return None
            entries.append((Segment(chunk, number), placed))
            if placed.length < size:
                break
        else:
            return None
        total = (len(entries) - 1) * size + entries[-1][1].length
        return self._read(entries, 0, total, verified, waits)

    def append(
        self, dataset: bytes, chunk: bytes, first: int, data: memoryview, is_end: bool
    ) -> bool:
        """Keep what is missing of a run of segments of a chunk, from number `first` on; False if there is no room for the dataset. `is_end`: the object ends with it."""
        size = self._geometry.segment_bytes
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        if is_end and len(data) % size == 0:
            parts.append(memoryview(b""))  # so that the end can be told
        if not is_end and len(data) % size:
            raise ValueError("only an object's last segment is shorter")
        with self._writing:
            held = self._index.find(chunk, first, len(parts))
            missing = [
                (Segment(chunk, first + n), part) for n, part in enumerate(parts) if held[n] is None
            ]
            return self._append(dataset, missing)

    def holds(self, chunk: bytes, first: int, length: int, is_end: bool) -> bool:
        """Whether `length` bytes from segment `first` on are held; `is_end`: the object ends with them."""
        size = self._geometry.segment_bytes
        count = length // size + 1 if is_end else -(-length // size)
        return None not in self._index.find(chunk, first, count)

    def forget(self, chunk: bytes) -> int:
        """What is held of a chunk turned out to be wrong, or not wanted; how many segments it was."""
        return self._index.forget_chunk(chunk)

    def claim(self, name: bytes) -> bool:
        """Whether nobody else on the node fetches what has this name; `disclaim` ends it, or the end of this process."""
        return self._files.claim(name)

    def disclaim(self, name: bytes) -> None:
        self._files.disclaim(name)

    def held(self, dataset: bytes) -> dict[bytes, HeldChunk]:
        """What there is of each chunk of a dataset. About 2 µs a segment."""
        return self._index.held(dataset, self._geometry.segment_bytes)

    def occupancy(self) -> list[Occupancy]:
        """Of each dataset that holds something, or was read."""
        found = {
            dataset: Occupancy(dataset, 0, 0, 0.0, count.hits, count.hit_bytes, count.misses)
            for dataset, count in self._index.reads().items()
        }
        for region in self._index.regions():
            if region.state != FREE:
                of = found.get(region.dataset) or Occupancy(region.dataset, 0, 0, 0.0)
                found[region.dataset] = replace(
                    of,
                    regions=of.regions + 1,
                    bytes=of.bytes + self._geometry.region_bytes,
                    last_used=max(of.last_used, region.last_used),
                )
        return list(found.values())

    def evict(self, dataset: bytes) -> int:
        """Let go of all that is held of a dataset, but for what another process is just writing; how many bytes of the SSD are free now."""
        with self._writing:
            filling = self._filling.pop(dataset, None)
            if filling is not None:
                self._files.unlock(filling.region.number)
            return sum(
                self._let_go(region)
                for region in self._index.regions()
                if region.state != FREE and region.dataset == dataset
            )

    @property
    def is_there(self) -> bool:
        """Whether folder and index are still those that were opened."""
        return (
            self._files.is_there()
            and self._index.is_there
            and self._index.is_view_of(self._geometry.id.encode())
        )

    def reopen(self, *, anew: bool = False) -> None:
        """Make the folder anew, or take the one that is in its place now; `anew`: the index is damaged, and is made again from the tables."""
        with self._writing:
            self._filling.clear()
            self._used = {}
            self._files = self._open_files()
            self._geometry = self._files.geometry
            self._index.close()
            self._prepare(anew=anew)

    def tend(self) -> None:
        """What is due from time to time: the others hear which regions were read; regions above the budget or a quota, or not used for as long as
        their TTL, are let go; what is not written to any more is not kept open. `OSError` if folder or index are not those that were opened. 50 µs if nothing is due.
        """
        if not self.is_there:
            raise OSError("the folder, or the index, is not the one that was opened")
        self.touch()
        self._index.free_slots_of_the_dead()
        with self._writing:
            self._end_idle()
            regions = self._index.regions()
            count = self._files.count
            if count != self._budget_seen:
                self._end_above(count)
                self._fit(regions, count)
            now = self._now()
            late = [region.number for region in regions if region.last_used > now + CLOCK_S]
            if late:
                self._index.touch(dict.fromkeys(late, now), {})
            surplus = above_quota(
                regions, self._limits_of, self._geometry.region_bytes, self._order
            )
            for region in surplus + expired(regions, self._limits_of, now):
                filling = self._filling.get(region.dataset)
                if filling is not None and filling.region.number == region.number:
                    self._end_region(region.dataset)
                self._let_go(region)

    def touch(self) -> None:
        """Tell the others which regions were read, and how often datasets were."""
        used, self._used = self._used, {}
        counted = self.counts.take()
        if used or counted:
            self._index.touch(dict(used), counted)

    def close(self) -> None:
        with self._writing:
            self.touch()
            for dataset in list(self._filling):
                self._end_region(dataset)
        self._index.close()

    def _let_go(self, region: Region) -> int:
        """Forget a region and remove its file, if it is still what it was and nobody fills it; how many bytes of the SSD are free now."""
        if not self._files.lock(region.number):
            return 0
        try:
            if not self._index.release(region.number, region.generation):
                return 0
            self._files.remove(region.number)
            return self._geometry.region_bytes
        finally:
            self._files.unlock(region.number)

    # Reading.

    def _read(
        self, entries: Sequence[Entry], start: int, length: int, verified: bool, waits: bool
    ) -> memoryview | None:
        """`length` bytes from `start`, counted from the beginning of the first entry."""
        block, size = self._geometry.block_bytes if verified else 1, self._geometry.segment_bytes
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
            try:
                if not waits:
                    self._files.read_from_memory(part, region, offset)
                elif not self._files.read_into(part, region, offset):
                    return None
            except FileNotFoundError:
                if self._index.find(run[0][0].chunk, run[0][0].number, 1) == [run[0][1]]:
                    raise
                return None  # it was let go in this moment
            if verified and not self._is_sound(run, first - run_start, part):
                return None
            self._used[region] = self._now()
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
            self._end_above(self._files.count)
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

    def _end_idle(self) -> None:
        """So that they may leave, too."""
        for idle in [of for of, filling in self._filling.items() if self._is_idle(filling)]:
            self._end_region(idle)

    def _end_above(self, count: int) -> None:
        """Regions that the budget has no room for any more, since another process made it smaller."""
        for dataset, filling in list(self._filling.items()):
            if filling.region.number >= count:
                self._end_region(dataset)
                self._remove(filling.region.number)

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
        try:
            self._files.write(region.number, filling.offset, parts)
            filling.entries += entries
            filling.turn += 1
            filling.offset = offset
            self._files.write_table(region.number, filling.table)
            filling.region = replace(
                region, used_bytes=offset, entries=len(filling.entries), last_used=self._now()
            )
            self._index.add(filling.region, entries)
        except BaseException:
            del self._filling[region.dataset]  # the next write tries another place
            self._files.unlock(region.number)
            raise

    def _begin_region(self, dataset: bytes) -> _Filling | None:
        """The next region, emptied, with what is reinserted of it written again first."""
        self._end_idle()
        resumed = self._resumed(dataset)
        if resumed is not None:
            return resumed
        try:
            return self._begun(dataset, may_grow=True)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # Others have filled the disk: what has its blocks can be used again.
            filling = self._begun(dataset, may_grow=False)
            if filling is None:
                raise
            return filling

    def _resumed(self, dataset: bytes) -> _Filling | None:
        """A region that another process, or this one earlier, has left half filled: who reads little and often would take a region each time."""
        count, room = self._files.count, self._geometry.region_bytes // _WORTH_RESUMING
        for region in self._index.regions():
            if (
                region.state != FREE
                and region.dataset == dataset
                and region.number < count
                and region.used_bytes + room <= self._geometry.region_bytes
                and region.entries + _WORTH_RESUMING <= self._geometry.max_entries
                and self._files.lock(region.number)
            ):
                filling = self._taken_up(region)
                if filling is not None:
                    self._filling[dataset] = filling
                    return filling
                self._files.unlock(region.number)
        return None

    def _taken_up(self, region: Region) -> _Filling | None:
        """With its lock held; None if it is not what it was."""
        now = [found for found in self._index.regions() if found.number == region.number]
        table = self._files.table(region.number)
        if now != [region] or table is None or table.generation != region.generation:
            return None
        filling = _Filling(replace(region, state=FILLING, last_used=self._now()), self._geometry)
        filling.turn, filling.entries = table.turn, list(table.entries)
        for _, placed in table.entries:
            end = placed.offset + -(-placed.length // PAGE_BYTES) * PAGE_BYTES
            filling.offset = max(filling.offset, end)
        self._index.put_regions([filling.region])
        return filling

    def _begun(self, dataset: bytes, *, may_grow: bool) -> _Filling | None:
        count = self._files.count

        def choose(regions: Sequence[Region], busy: Container[int]) -> Region | None:
            return next_region(
                [of for of in regions if of.number < count and (may_grow or of.state != FREE)],
                dataset,
                self._limits_of,
                self._geometry.region_bytes,
                self._order,
                self._now(),
                busy,
            )

        def begun(region: Region, born: int) -> Region:
            return Region(
                region.number, FILLING, secrets.randbits(63), dataset, 0, 0, born, self._now()
            )

        self._limits_of(dataset)  # reads what is to be read before others wait for the transaction
        taken = self._index.take(choose, self._files.lock, begun)
        if taken is None:
            return None
        former, region, lost = taken
        if region.number >= self._files.count:  # made smaller in this moment
            self._files.unlock(region.number)
            self._remove(region.number)
            return None
        try:
            kept = self._kept(former.dataset, lost)
            self._files.make(region.number)
            filling = _Filling(region, self._geometry)
            for filling.turn in (0, 1):  # nothing of its predecessor's is to be believed
                self._files.write_table(region.number, filling.table)
        except BaseException:
            self._index.release(region.number)
            self._files.unlock(region.number)
            raise
        self._filling[dataset] = filling
        self._reinsert(former.dataset, kept)
        return filling

    def _is_idle(self, filling: _Filling) -> bool:
        return abs(self._now() - filling.region.last_used) > IDLE_S

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
        try:
            self._index.put_regions([replace(filling.region, state=FULL)])
        finally:
            self._files.unlock(filling.region.number)

    # Opening.

    def _prepare(self, *, anew: bool = False) -> None:
        """See to it that the index is a view of the tables, and that there are no more regions than the budget allows."""
        self._files.lock_all()
        try:
            if anew:
                index_environment.discard(self._index_folder)
            self._index = self._opened_index()
            tables = self._geometry.id.encode()
            if not self._index.is_view_of(tables):
                self._index.fill(tables, self._described())
            self._fit(self._index.regions(), self._files.count)
            self._files.remove_left_overs()
        finally:
            self._files.unlock_all()

    def _opened_index(self) -> SegmentIndex:
        try:
            return SegmentIndex(self._index_folder)
        except UNSOUND as error:
            log.warning("the index %s is made anew: %s", self._index_folder, error)
            index_environment.discard(self._index_folder)
            return SegmentIndex(self._index_folder)

    def _fit(self, regions: Sequence[Region], count: int) -> None:
        """As many regions as the budget has room for; of the others, those that nobody fills go now."""
        known = {region.number for region in regions}
        above = [number for number in known | set(self._files.present()) if number >= count]
        gone = [self._remove(number) for number in sorted(above)]
        self._index.add_free(count)
        self._budget_seen = count if all(gone) else -1

    def _remove(self, number: int) -> bool:
        """With its file; False if somebody fills it."""
        if not self._files.lock(number):
            return False
        try:
            self._index.release(number, remove=True)
            self._files.remove(number)
        finally:
            self._files.unlock(number)
        return True

    def _described(self) -> Iterator[tuple[Region, list[Entry]]]:
        for number in self._files.present():
            table = self._files.table(number)
            if table is None or not table.entries:
                yield Region(number), []
                continue
            end = max(placed.offset + placed.length for _, placed in table.entries)
            count = len(table.entries)
            region = Region(
                number, FULL, table.generation, table.dataset, end, count, table.born, self._now()
            )
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
