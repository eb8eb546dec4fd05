"""The store of segments on an SSD: it joins files, index, reading and filling.

Segments of chunks' objects are read by ranges and appended in batches. Calls block, and raise
`OSError` or `lmdb.Error` for any fault of the SSD or the index; the caller (`tier`) handles both.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chunkstore.ssd import index_environment
from chunkstore.ssd.admission import RegionPolicy, Reinsertion, ReinsertNothing
from chunkstore.ssd.eviction import DatasetLimits, LimitsOf, above_quota, expired
from chunkstore.ssd.index_opening import open_index
from chunkstore.ssd.policy_counts import DecidedRow, PolicyCounts
from chunkstore.ssd.read_counts import ReadCount, ReadCounts
from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.region_filling import FillingRules, RegionFilling
from chunkstore.ssd.release import fit, release
from chunkstore.ssd.segment_index import CLOCK_S, FREE, CachedChunk, Order, Region, SegmentIndex
from chunkstore.ssd.segment_reader import Entry, SegmentReader
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES, Placed, Segment

if TYPE_CHECKING:
    from chunkstore.ssd.region_ranking import NextUses, RegionKeys, RegionRanks

log = logging.getLogger(__name__)

_REGIONS_A_SECOND: Final = 1000
"""Regions checked for quotas and TTLs in a second: this takes 3 ms."""
_WHOLE_BYTES: Final = 64 << 20
"""The largest object that is read whole."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """The space and the reads of one dataset on a tier at present."""

    dataset: bytes
    regions: int
    bytes: int
    """The size of the dataset's regions on the SSD."""
    last_used: float
    hits: int = 0
    """Hits of all processes since the index was created, as are the two counts below.

    The counts lack what a process counted in the last second.
    """
    hit_bytes: int = 0
    misses: int = 0


class SegmentStore:
    """The segments of one folder, which any number of processes of a node share.

    Thread-safe; a forked child opens its own.
    """

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
        """Open the folder, or create it; the budget belongs to the folder (`RegionFiles`).

        Takes about 1 s for 100,000 segments if the index must be filled, and some milliseconds if
        not.
        """
        files = RegionFiles(folder, budget_bytes, segment_bytes)
        self._open_files: Callable[[int | None], RegionFiles] = partial(
            RegionFiles, folder, segment_bytes=segment_bytes
        )
        self._budget_known = files.budget_bytes
        """The last known budget, for the case that the folder is created again."""
        self.policy: RegionPolicy | None = None
        """The policy that goes before order and reinsertion; it may change at any time."""
        self._rules = FillingRules(
            order, limits_of, reinsertion or ReinsertNothing(), now, lambda: self.policy
        )
        self._index_folder = index_folder
        self._now = now
        self._writing = threading.Lock()
        self.counts = ReadCounts()
        """The counters in which readers record hits and misses."""
        self._take_up(files, open_index(files, index_folder, now()))

    def _take_up(self, files: RegionFiles, index: SegmentIndex) -> None:
        self._files, self._index, self._geometry = files, index, files.geometry
        self._reader = SegmentReader(files, index, self._now)
        self._keys: RegionKeys | None = None
        self._filling = RegionFilling(files, index, self._rules)
        self._budget_seen = 0
        self._limits_due = 0.0
        self._held, self._regions_of = Counter[bytes](), Counter[bytes]()
        self.full: frozenset[bytes] = frozenset()
        """The datasets that are at their allocated quotas, so nothing is to be fetched for them."""

    @property
    def budget_bytes(self) -> int:
        """The folder's budget, as it was last set."""
        return self._files.budget_bytes

    @property
    def budget_regions(self) -> int:
        """The number of regions that the budget allows now."""
        return self._files.count

    @property
    def region_data_bytes(self) -> int:
        """The size of a region without its table."""
        return self._geometry.region_bytes - self._geometry.data_offset

    @property
    def region_bytes(self) -> int:
        """The size of a region's file, with its table."""
        return self._geometry.region_bytes

    @property
    def segment_bytes(self) -> int:
        """The size of a segment."""
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
        """Return bytes of a chunk's object, up to its end.

        Return None if a segment of the range is not cached, or is damaged. Without `verified`, the
        bytes may be damaged or belong to another segment; the caller must detect this and `forget`
        them. Without `waits`, the call raises `BlockingIOError` if the bytes are not in the page
        cache.
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
        return self._reader.read(entries, start - first * size, length, verified, waits)

    def read_whole(
        self, chunk: bytes, *, verified: bool = True, waits: bool = True
    ) -> memoryview | None:
        """Return a chunk's whole object if all of it is cached; see `read`."""
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
        return self._reader.read(entries, 0, total, verified, waits)

    def append(
        self, dataset: bytes, chunk: bytes, first: int, data: memoryview, is_end: bool
    ) -> bool:
        """Write those of a run of segments, from number `first` on, that are not cached yet.

        Return False if there is no room for the dataset. `is_end`: the object ends with the run.
        """
        size = self._geometry.segment_bytes
        parts = [data[at : at + size] for at in range(0, len(data), size)]
        if is_end and len(data) % size == 0:
            parts.append(memoryview(b""))  # marks the object's end
        if not is_end and len(data) % size:
            raise ValueError("only the last segment of an object may be shorter")
        with self._writing:
            cached = self._index.find(chunk, first, len(parts))
            missing = [
                (Segment(chunk, first + n), part)
                for n, part in enumerate(parts)
                if cached[n] is None
            ]
            policy = self.policy
            fill_class = 0 if policy is None else policy.fill_class(chunk, first * size)
            return self._filling.append(dataset, missing, fill_class)

    def holds(self, chunk: bytes, first: int, length: int, is_end: bool) -> bool:
        """Return whether `length` bytes from segment `first` on are cached.

        `is_end`: the object ends with these bytes.
        """
        size = self._geometry.segment_bytes
        count = length // size + 1 if is_end else -(-length // size)
        return None not in self._index.find(chunk, first, count)

    def places(self, chunk: bytes, first: int, count: int) -> list[Placed | None]:
        """Return the places of `count` segments of a chunk from number `first` on."""
        return self._index.find(chunk, first, count)

    def forget(self, chunk: bytes) -> int:
        """Drop a chunk that is damaged or unwanted; return how many segments it had."""
        return self._index.forget_chunk(chunk)

    def claim(self, name: bytes) -> bool:
        """Claim a fetch on this node; return False if a process already holds the claim.

        `disclaim` or the end of this process ends the claim.
        """
        return self._files.locks.claim(name)

    def disclaim(self, name: bytes) -> None:
        """End the claim of a name."""
        self._files.locks.disclaim(name)

    def cached(self, dataset: bytes) -> dict[bytes, CachedChunk]:
        """Return the cached part of each chunk of a dataset. Takes about 2 µs a segment."""
        return self._index.cached(dataset, self._geometry.segment_bytes)

    def occupancy(self) -> list[Occupancy]:
        """Return the occupancy of each dataset with regions or reads. About 2 µs a region."""
        reads = self._index.reads()
        last_used: dict[bytes, list[float]] = {dataset: [] for dataset in reads}
        for region in self._index.regions():
            if region.state != FREE:
                last_used.setdefault(region.dataset, []).append(region.last_used)
        found = []
        for dataset, times in last_used.items():
            count, size = reads.get(dataset, ReadCount()), len(times) * self._geometry.region_bytes
            found.append(
                Occupancy(
                    dataset, len(times), size, max(times, default=0.0),
                    count.hits, count.hit_bytes, count.misses,
                )
            )  # fmt: skip
        return found

    def held_bytes(self, dataset: bytes) -> int:
        """Return the bytes of a dataset's chunks that are cached, as of the last second."""
        return self._held.get(dataset, 0)

    def taken_bytes(self, dataset: bytes) -> int:
        """Return the size of the regions in which these bytes are, as of the last second."""
        return self._regions_of[dataset] * self._geometry.region_bytes

    def needed_bytes(self, content_bytes: int) -> int:
        """Return the size of regions that hold so many bytes of a dataset."""
        return self._geometry.needed_bytes(content_bytes)

    def ranked(self, next_uses: NextUses, now: float) -> RegionRanks | None:
        """Return the ranks of all regions by predicted next uses, or None without predictions.

        Used by one thread at a time.
        """
        from chunkstore.ssd.region_ranking import RegionKeys, ranked

        if self._keys is None:
            self._keys = RegionKeys(self._geometry.segment_bytes)
        count, limits_of = self._files.count, self._rules.limits_of
        regions = [of for of in self._index.regions() if of.number < count]
        return ranked(
            regions,
            self._keys,
            self._index.contents,
            next_uses,
            now,
            lambda dataset: limits_of(dataset).pinned,
        )

    def evict(self, dataset: bytes) -> int:
        """Release all regions of a dataset; return how many bytes of the SSD became free.

        Regions that another process is filling stay.
        """
        with self._writing:
            self._filling.end(dataset)
            return sum(
                release(self._files, self._index, region)
                for region in self._index.regions()
                if region.state != FREE and region.dataset == dataset
            )

    @property
    def is_there(self) -> bool:
        """True if folder and index are still those that were opened."""
        return (
            self._files.is_there()
            and self._index.is_there
            and self._index.is_view_of(self._geometry.id.encode())
        )

    def reopen(self, *, rebuild: bool = False) -> None:
        """Open the folder that is in place now, or create it again.

        `rebuild`: the index is damaged, and is rebuilt from the tables.
        """
        with self._writing:
            self._filling.give_up()
            files = self._open_files(None if self._files.has_budget else self._budget_known)
            self._index.close()
            self._take_up(
                files, open_index(files, self._index_folder, self._now(), rebuild=rebuild)
            )

    def probe(self, *, rebuild: bool) -> None:
        """Raise `OSError` or `lmdb.Error` unless the SSD works.

        Reopen a folder that is missing or was created again, and for `rebuild` a damaged index.
        """
        if rebuild or not self.is_there:
            self.reopen(rebuild=rebuild)
        self._files.probe()

    def tend(self) -> None:
        """Do the periodic work.

        The process publishes which regions it read. It releases regions above the budget or a quota
        and regions past their TTL, and closes regions that are no longer written to. Raises
        `OSError` if folder or index are not those that were opened. Without work to do it takes 50
        µs, and 2 µs a region.
        """
        if not self.is_there:
            raise OSError(f"the SSD tier {self._files.folder} or its index was removed or replaced")
        self.touch()
        self._index.free_slots_of_the_dead()
        with self._writing:
            self._filling.end_idle()
            self._obey_budget()
            self._obey_limits()

    def sweep(self) -> None:
        """Remove unused indexes of this user's deleted tiers. May wait for disks of other tiers."""
        for folder in index_environment.sweep(self._index_folder.parent):
            log.info("removed the index %s: the folder of its SSD tier does not exist", folder)

    def touch(self) -> None:
        """Publish to other processes which regions were read, and the counts of reads."""
        used, counted = self._reader.take_used(), self.counts.take()
        if used or counted:
            self._index.touch(used, counted)
        decided = {} if self.policy is None else self.policy.take_counts()
        if decided:
            self._index.add_decisions(decided)

    def decisions(self) -> dict[DecidedRow, PolicyCounts]:
        """Return what cache policies have decided, as `occupancy` counts reads."""
        return self._index.decisions()

    def close(self) -> None:
        """Publish the counts, and close regions and index."""
        with self._writing:
            self.touch()
            self._filling.end_all()
        self._index.close()

    # The caller of the methods below holds the lock.

    def _obey_budget(self) -> None:
        count = self._files.count
        if count != self._budget_seen:
            self._budget_known = self._files.budget_bytes
            self._filling.end_above(count)
            fits = fit(self._files, self._index, self._index.regions(), count)
            self._budget_seen = count if fits else -1

    def _obey_limits(self) -> None:
        """Enforce quotas and TTLs, and correct times of use that lie in the future.

        Such times remain when a clock is set back. With few regions this happens at each call; many
        regions are checked every few seconds.
        """
        began = time.monotonic()
        if began < self._limits_due:
            return
        regions, now, limits_of = self._index.regions(), self._now(), self._rules.limits_of
        self._limits_due = began + len(regions) // _REGIONS_A_SECOND
        late = [region.number for region in regions if region.last_used > now + CLOCK_S]
        if late:
            self._index.touch(dict.fromkeys(late, now), {})
        surplus = above_quota(regions, limits_of, self._geometry.region_bytes, self._rules.ranking)
        for region in surplus + expired(regions, limits_of, now):
            self._filling.end_if(region)
            release(self._files, self._index, region)
        self._note_full(regions)

    def _note_full(self, regions: Sequence[Region]) -> None:
        """Note the datasets that have all regions of their allocated quotas, and fill none here."""
        self._held = Counter[bytes]()
        for region in regions:
            if region.state != FREE:
                self._held[region.dataset] += region.used_bytes - self._geometry.data_offset
        self._regions_of = held = Counter(
            region.dataset for region in regions if region.state != FREE
        )
        limits_of, size = self._rules.limits_of, self._geometry.region_bytes
        allowed = {dataset: limits_of(dataset).regions(size) for dataset in held}
        self.full = frozenset(
            dataset
            for dataset, count in allowed.items()
            if count is not None
            and held[dataset] >= count
            and not self._filling.is_filling(dataset)
        )
