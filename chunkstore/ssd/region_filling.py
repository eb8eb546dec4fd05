"""The filling of regions with segments, for each dataset in regions of its own.

The module chooses the next region, empties it, writes to it and closes it. A policy that predicts
uses may fill several regions of a dataset at a time (*fill classes*), so that the chunks of a
region can be evicted together.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

from chunkstore.ssd.admission import RegionPolicy, Reinsertion
from chunkstore.ssd.eviction import LimitsOf, Ranking, next_region, ranking_by
from chunkstore.ssd.region_files import Geometry, RegionFiles
from chunkstore.ssd.region_table import PAGE_BYTES, RegionTable
from chunkstore.ssd.release import remove
from chunkstore.ssd.segment_index import FILLING, FREE, FULL, Order, Region, SegmentIndex
from chunkstore.ssd.segment_reader import Entry, uninitialised
from chunkstore.ssd.segments import Placed, Segment, checksums_of, is_sound
from chunkstore.stores.object_store import Buffer

IDLE_S: Final = 60.0
"""Seconds without a write after which a region is no longer kept open for its dataset."""
_WORTH_RESUMING: Final = 4
"""The bounds for resuming a region: a quarter of its room is left, and this many entries."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class FillingRules:
    """The eviction and reinsertion rules of a tier, and its clock."""

    order: Order
    limits_of: LimitsOf
    reinsertion: Reinsertion
    now: Callable[[], float]
    policy: Callable[[], RegionPolicy | None] = lambda: None
    """The policy that goes before order and reinsertion, if there is one now."""

    @property
    def ranking(self) -> Ranking:
        """The order of eviction at present."""
        policy, otherwise = self.policy(), ranking_by(self.order)
        return otherwise if policy is None else policy.ranking(otherwise)


class RegionFilling:
    """The regions that this process fills, used by one thread at a time (the caller ensures this).

    Raises `OSError` and `lmdb.Error`. The region concerned is then left as it is, and the next
    write tries another place.
    """

    def __init__(self, files: RegionFiles, index: SegmentIndex, rules: FillingRules) -> None:
        self._files, self._index = files, index
        self._geometry = files.geometry
        self._rules, self._limits_of, self._now = rules, rules.limits_of, rules.now
        self._filling: dict[tuple[bytes, int], Filling] = {}
        """Dataset and fill class -> the region that this process fills for them."""

    def append(
        self, dataset: bytes, segments: Sequence[tuple[Segment, memoryview]], fill_class: int = 0
    ) -> bool:
        """Write segments of a dataset to its open region of a fill class.

        Return False if there is no room for the dataset; some of the segments may then be written.
        """
        left = list(segments)
        while left:
            self.end_above(self._files.count)
            filling = (
                self._filling.get((dataset, fill_class))
                or self._begin_region(dataset, fill_class)
                or self._any_of(dataset)
            )
            if filling is None:
                return False
            count = filling.room_for([len(data) for _, data in left])
            if count:
                self._write(filling, left[:count])
                left = left[count:]
            if left:
                self._end(filling)
        return True

    def _any_of(self, dataset: bytes) -> Filling | None:
        """Return a region that is filled for the dataset, of any fill class."""
        return next((of for key, of in self._filling.items() if key[0] == dataset), None)

    def is_filling(self, dataset: bytes) -> bool:
        """Return whether this process has a region open for the dataset."""
        return self._any_of(dataset) is not None

    def end_idle(self) -> None:
        """Close regions without recent writes, so that they can be evicted too."""
        for idle in [filling for filling in self._filling.values() if self._is_idle(filling)]:
            self._end(idle)

    def end_above(self, count: int) -> None:
        """Remove regions beyond `count`: another process made the budget smaller."""
        for filling in list(self._filling.values()):
            if filling.region.number >= count:
                self._end(filling)
                remove(self._files, self._index, filling.region.number)

    def _write(self, filling: Filling, segments: Sequence[tuple[Segment, memoryview]]) -> None:
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
            del self._filling[filling.key]  # the next write tries another place
            self._files.locks.release(region.number)
            raise

    def _begin_region(self, dataset: bytes, fill_class: int) -> Filling | None:
        """Return the next region, emptied; its reinserted segments are written to it first."""
        self.end_idle()
        resumed = self._resumed(dataset, fill_class)
        if resumed is not None:
            return resumed
        try:
            return self._begun(dataset, fill_class, may_grow=True)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            # Other users have filled the disk: regions that already have their blocks can be
            # reused.
            filling = self._begun(dataset, fill_class, may_grow=False)
            if filling is None:
                raise
            return filling

    def _resumed(self, dataset: bytes, fill_class: int) -> Filling | None:
        """Return a half-filled region that another process, or this one earlier, has left, or None.

        Otherwise a process that reads little and often would take a new region each time.
        """
        count = self._files.count
        for region in self._index.regions():
            if (
                region.state != FREE
                and region.dataset == dataset
                and region.number < count
                and self._is_worth_resuming(region)
                and self._files.locks.take(region.number)
            ):
                with self._unlocked_on_error(region.number):
                    filling = self._taken_up(region, fill_class)
                if filling is not None:
                    self._filling[filling.key] = filling
                    return filling
                self._files.locks.release(region.number)
        return None

    def _taken_up(self, region: Region, fill_class: int) -> Filling | None:
        """Return the region for filling, or None if it has changed; the caller holds its lock."""
        now = [found for found in self._index.regions() if found.number == region.number]
        table = self._files.table(region.number)
        if now != [region] or table is None or table.generation != region.generation:
            return None
        filling = Filling(region, self._geometry, fill_class)
        filling.turn, filling.entries = table.turn, list(table.entries)
        for _, placed in table.entries:
            end = placed.offset + -(-placed.length // PAGE_BYTES) * PAGE_BYTES
            filling.offset = max(filling.offset, end)
        # A process that died, or whose index update failed, has written more than the index knows.
        filling.region = replace(region, used_bytes=filling.offset, entries=len(filling.entries))
        if self._is_worth_resuming(filling.region):
            filling.region = replace(filling.region, state=FILLING, last_used=self._now())
            self._index.put_region(filling.region)
            return filling
        self._index.put_region(replace(filling.region, state=FULL))
        return None

    def _is_worth_resuming(self, region: Region) -> bool:
        room = self._geometry.region_bytes // _WORTH_RESUMING
        return (
            region.used_bytes + room <= self._geometry.region_bytes
            and region.entries + _WORTH_RESUMING <= self._geometry.max_entries
        )

    def _begun(self, dataset: bytes, fill_class: int, *, may_grow: bool) -> Filling | None:
        count, ranking = self._files.count, self._rules.ranking
        free = 0

        def choose(regions: Sequence[Region], busy: Container[int]) -> Region | None:
            nonlocal free
            usable = [of for of in regions if of.number < count and (may_grow or of.state != FREE)]
            free = sum(of.state == FREE for of in usable)
            return next_region(
                usable,
                dataset,
                self._limits_of,
                self._geometry.region_bytes,
                ranking,
                self._now(),
                busy,
            )

        def begun(region: Region, born: int) -> Region:
            return Region(
                region.number,
                FILLING,
                int.from_bytes(os.urandom(8)) >> 1,
                dataset,
                0,
                0,
                born,
                self._now(),
            )

        locked: list[int] = []

        def lock(number: int) -> bool:
            if self._files.locks.take(number):
                locked.append(number)
                return True
            return False

        self._limits_of(dataset)  # reads the limits before other processes wait for the transaction
        try:
            taken = self._index.take(choose, lock, begun)
        except BaseException:  # the transaction was not committed
            for number in locked:
                self._files.locks.release(number)
            raise
        if taken is None:
            return None
        former, region, lost = taken
        with self._unlocked_on_error(region.number):
            policy = self._rules.policy()
            if policy is not None:
                policy.taken(former, has_free=free > (former.state == FREE))
            is_above = region.number >= self._files.count
        if is_above:  # another process has just made the budget smaller
            self._files.locks.release(region.number)
            remove(self._files, self._index, region.number)
            return None
        with self._unlocked_on_error(region.number):
            try:
                kept = self._kept(former.dataset, lost)
                self._files.make(region.number)
                filling = Filling(region, self._geometry, fill_class)
                for filling.turn in (0, 1):  # tables of the former generation must not be trusted
                    self._files.write_table(region.number, filling.table)
            except BaseException:
                self._index.release(region.number)
                raise
        self._filling[filling.key] = filling
        self._reinsert(former.dataset, kept)
        return filling

    @contextmanager
    def _unlocked_on_error(self, region: int) -> Iterator[None]:
        """Unlock a region if the `with` block fails: the lock would keep it from all processes."""
        try:
            yield
        except BaseException:
            self._files.locks.release(region)
            raise

    def _is_idle(self, filling: Filling) -> bool:
        return abs(self._now() - filling.region.last_used) > IDLE_S

    def _kept(self, dataset: bytes, lost: Sequence[Entry]) -> list[tuple[Segment, memoryview]]:
        """Return the segments to reinsert, read before they are overwritten."""
        by_segment = dict(lost)
        kept = []
        reinsertion = self._rules.policy() or self._rules.reinsertion
        for segment in reinsertion.stays(dataset, list(by_segment)):
            placed = by_segment[segment]
            data = uninitialised(placed.length)
            came = self._files.read_into(data, placed.region, placed.offset)
            if came and is_sound(segment, 0, data, placed.checksums, self._geometry.block_bytes):
                kept.append((segment, data))
        return kept

    def _reinsert(self, dataset: bytes, kept: Sequence[tuple[Segment, memoryview]]) -> None:
        """Write the kept segments into the region that is being filled for their dataset.

        Only as many are written as fit: no other segment is evicted for them.
        """
        filling = self._any_of(dataset)
        if filling is not None and kept:
            count = filling.room_for([len(data) for _, data in kept])
            if count:
                self._write(filling, kept[:count])

    def end(self, dataset: bytes) -> None:
        """Close the dataset's regions here; they can then be evicted or filled further."""
        for filling in [of for key, of in self._filling.items() if key[0] == dataset]:
            self._end(filling)

    def _end(self, filling: Filling) -> None:
        del self._filling[filling.key]
        try:
            self._index.put_region(replace(filling.region, state=FULL))
        finally:
            self._files.locks.release(filling.region.number)

    def end_if(self, region: Region) -> None:
        """Close the region if this process fills it."""
        for filling in list(self._filling.values()):
            if filling.region.number == region.number:
                self._end(filling)

    def end_all(self) -> None:
        """Close all regions that this process fills."""
        for filling in list(self._filling.values()):
            self._end(filling)

    def give_up(self) -> None:
        """Abandon all regions without access to files and index, which may be out of reach."""
        for filling in self._filling.values():
            self._files.locks.release(filling.region.number)
        self._filling.clear()


class Filling:
    """A region that this process fills."""

    def __init__(self, region: Region, geometry: Geometry, fill_class: int) -> None:
        self.region = region
        self.key = region.dataset, fill_class
        self.offset = geometry.data_offset
        self.turn = 0
        self.entries: list[Entry] = []
        self._geometry = geometry

    @property
    def table(self) -> RegionTable:
        """The region's table as it is to be written."""
        region = self.region
        return RegionTable(
            region.generation, self.turn, region.dataset, region.born, tuple(self.entries)
        )

    def room_for(self, lengths: Sequence[int]) -> int:
        """Return how many of the segments, in order, still fit."""
        offset = self.offset
        for count, length in enumerate(lengths):
            offset += -(-length // PAGE_BYTES) * PAGE_BYTES
            if (
                offset > self._geometry.region_bytes
                or len(self.entries) + count >= self._geometry.max_entries
            ):
                return count
        return len(lengths)
