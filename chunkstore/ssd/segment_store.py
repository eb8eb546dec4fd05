"""Segments of chunks' objects in the regions of an SSD: read by ranges, appended in batches. What puts files, index, reading and filling together.

Blocking; raises `OSError` or `lmdb.Error` for whatever is wrong with the SSD or the index. Whoever calls it bears with both (`tier`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from chunkstore.ssd import index_environment
from chunkstore.ssd.admission import Reinsertion, ReinsertNothing
from chunkstore.ssd.eviction import DatasetLimits, LimitsOf, above_quota, expired
from chunkstore.ssd.index_opening import open_index
from chunkstore.ssd.letting_go import fit, let_go
from chunkstore.ssd.read_counts import ReadCount, ReadCounts
from chunkstore.ssd.region_files import RegionFiles
from chunkstore.ssd.region_filling import FillingRules, RegionFilling
from chunkstore.ssd.segment_index import CLOCK_S, FREE, CachedChunk, Order, SegmentIndex
from chunkstore.ssd.segment_reader import Entry, SegmentReader
from chunkstore.ssd.segments import DEFAULT_SEGMENT_BYTES, Segment

log = logging.getLogger(__name__)

_REGIONS_A_SECOND: Final = 1000
"""Looked at for quotas and TTLs: 3 ms."""
_WHOLE_BYTES: Final = 64 << 20
"""No larger object is read whole."""


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
        files = RegionFiles(folder, budget_bytes, segment_bytes)
        self._open_files: Callable[[int | None], RegionFiles] = partial(
            RegionFiles, folder, segment_bytes=segment_bytes
        )
        self._budget_known = files.budget_bytes
        """In case that the folder is made anew."""
        self._rules = FillingRules(order, limits_of, reinsertion or ReinsertNothing(), now)
        self._index_folder = index_folder
        self._now = now
        self._writing = threading.Lock()
        self.counts = ReadCounts()
        """For readers to say what they have had, and what not."""
        self._take_up(files, open_index(files, index_folder, now()))

    def _take_up(self, files: RegionFiles, index: SegmentIndex) -> None:
        self._files, self._index, self._geometry = files, index, files.geometry
        self._reader = SegmentReader(files, index, self._now)
        self._filling = RegionFilling(files, index, self._rules)
        self._budget_seen = 0
        self._limits_due = 0.0

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
        return self._reader.read(entries, start - first * size, length, verified, waits)

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
        return self._reader.read(entries, 0, total, verified, waits)

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
            cached = self._index.find(chunk, first, len(parts))
            missing = [
                (Segment(chunk, first + n), part)
                for n, part in enumerate(parts)
                if cached[n] is None
            ]
            return self._filling.append(dataset, missing)

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

    def cached(self, dataset: bytes) -> dict[bytes, CachedChunk]:
        """What there is of each chunk of a dataset. About 2 µs a segment."""
        return self._index.cached(dataset, self._geometry.segment_bytes)

    def occupancy(self) -> list[Occupancy]:
        """Of each dataset that holds something, or was read. About 2 µs a region."""
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

    def evict(self, dataset: bytes) -> int:
        """Let go of all that is held of a dataset, but for what another process is just writing; how many bytes of the SSD are free now."""
        with self._writing:
            self._filling.end(dataset)
            return sum(
                let_go(self._files, self._index, region)
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
            self._filling.give_up()
            files = self._open_files(None if self._files.has_budget else self._budget_known)
            self._index.close()
            self._take_up(files, open_index(files, self._index_folder, self._now(), anew=anew))

    def tend(self) -> None:
        """What is due from time to time: the others hear which regions were read; regions above the budget or a quota, or not used for as long as
        their TTL, are let go; what is not written to any more is not kept open. `OSError` if folder or index are not those that were opened. If nothing is due 50 µs, and 2 µs a region.
        """
        if not self.is_there:
            raise OSError("the folder, or the index, is not the one that was opened")
        self.touch()
        self._index.free_slots_of_the_dead()
        with self._writing:
            self._filling.end_idle()
            self._obey_budget()
            self._obey_limits()

    def sweep(self) -> None:
        """Remove indexes of this user's tiers that have been deleted, and that nobody uses. It may wait for disks of other tiers."""
        for folder in index_environment.sweep(self._index_folder.parent):
            log.info("the index %s is of a tier that has gone: removed", folder)

    def touch(self) -> None:
        """Tell the others which regions were read, and how often datasets were."""
        used, counted = self._reader.take_used(), self.counts.take()
        if used or counted:
            self._index.touch(used, counted)

    def close(self) -> None:
        with self._writing:
            self.touch()
            self._filling.end_all()
        self._index.close()

    # With the lock held.

    def _obey_budget(self) -> None:
        count = self._files.count
        if count != self._budget_seen:
            self._budget_known = self._files.budget_bytes
            self._filling.end_above(count)
            fits = fit(self._files, self._index, self._index.regions(), count)
            self._budget_seen = count if fits else -1

    def _obey_limits(self) -> None:
        """Quotas and TTLs; and times of use that a clock set back has left in the future. At once where there are few regions; many are looked at every few seconds."""
        began = time.monotonic()
        if began < self._limits_due:
            return
        regions, now, limits_of = self._index.regions(), self._now(), self._rules.limits_of
        self._limits_due = began + len(regions) // _REGIONS_A_SECOND
        late = [region.number for region in regions if region.last_used > now + CLOCK_S]
        if late:
            self._index.touch(dict.fromkeys(late, now), {})
        surplus = above_quota(regions, limits_of, self._geometry.region_bytes, self._rules.order)
        for region in surplus + expired(regions, limits_of, now):
            self._filling.end_if(region)
            let_go(self._files, self._index, region)
