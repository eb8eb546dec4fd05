"""The index of segments: LMDB in shared memory, shared by all processes of a node.

It is a view of the regions' tables:

    segments   chunk (16) + number (4, big-endian)  →  region, offset, length, checksums
    regions    region (4, big-endian)               →  state, generation, dataset, bytes, entries,
                                                       born, last used
    contents   region (4, big-endian)               →  the keys of its segments, one after the other
    reads      dataset (16)                         →  hits, their bytes, misses
    decisions  hash of what follows the counts (16) →  8 counts of bytes of a cache policy, and, as
                                                       JSON, role, policy, dataset, bucket, job

Every method is one transaction. `lmdb.Error` means that the index is unusable at the moment. An
index that cannot be opened is discarded and rebuilt from the tables.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import lmdb
import xxhash

from chunkstore.ssd.index_environment import acquire, release
from chunkstore.ssd.policy_counts import REST, CountedRow, DecidedRow, PolicyCounts
from chunkstore.ssd.read_counts import ReadCount
from chunkstore.ssd.segments import CHECKSUMS_BYTES, Placed, Segment

Order: TypeAlias = Literal["lru", "fifo"]

_KEY: Final = struct.Struct(">16sI")
_PLACED: Final = struct.Struct(f"<III{CHECKSUMS_BYTES}s")
_REGION_KEY: Final = struct.Struct(">I")
_REGION: Final = struct.Struct("<BQ16sIIQd")
_READS: Final = struct.Struct("<QQQ")
_DECISIONS: Final = struct.Struct("<8Q")
_MAX_DECISIONS: Final = 4096
"""Rows of policies' counts; what has no row of its own is added to that of its policy's rest."""
_META: Final = b"view of"
CLOCK_S: Final = 60.0
"""Seconds beyond which a time of use in the future stems from a clock that was set back since."""
FREE, FILLING, FULL = range(3)
UNSOUND: Final = (
    lmdb.CorruptedError,
    lmdb.InvalidError,
    lmdb.PageNotFoundError,
    lmdb.PanicError,
    lmdb.VersionMismatchError,
)
"""Errors which show that the index is damaged, and not only temporarily unusable."""


@dataclass(frozen=True, slots=True)
class Region:
    """The record of one region. Immutable."""

    number: int
    state: int = FREE
    """`FREE`, `FILLING` (also if the filling process died) or `FULL`."""
    generation: int = 0
    dataset: bytes = bytes(16)
    used_bytes: int = 0
    """The position in the region's file up to which it is filled."""
    entries: int = 0
    born: int = 0
    """The position of the region in the order in which regions were begun: a counter."""
    last_used: float = 0.0
    """The wall-clock time in seconds of the last read or write.

    The SSD does not hold it: in a rebuilt index, it is the time of the rebuild.
    """


@dataclass(frozen=True, slots=True)
class CachedChunk:
    """The cached part of a chunk's object."""

    bytes: int
    is_whole: bool


class SegmentIndex:
    """The index of one tier, shared by processes and by the stores of one process.

    Thread-safe; a forked child opens its own.
    """

    def __init__(self, folder: Path, tier: Path) -> None:
        """Open the index of the folder `tier`; `folder` is on a tmpfs.

        Raises `lmdb.Error` and `OSError` if the index cannot be opened or if other users can access
        it.
        """
        self._environment = acquire(folder, tier)
        self._closed = False

    @property
    def is_there(self) -> bool:
        """True while other processes that open the index find the same one."""
        return self._environment.is_there

    def close(self) -> None:
        """Close the index. May be repeated."""
        if not self._closed:
            self._closed = True
            release(self._environment)

    def free_slots_of_the_dead(self) -> None:
        """Free the reader slots of killed processes.

        Such a slot prevents the reuse of old pages, so the index would grow.
        """
        self._environment.free_slots_of_the_dead()

    def is_view_of(self, tables: bytes) -> bool:
        """Return whether the index was filled from the tables of this name."""
        with self._environment.begin() as transaction:
            return bool(transaction.get(_META) == tables)

    def fill(
        self,
        tables: bytes,
        regions: Iterable[tuple[Region, Sequence[tuple[Segment, Placed]]]],
    ) -> None:
        """Rebuild the index from the tables. Takes about 3 µs a segment.

        If two tables name the same segment, the later one counts.
        """
        with self._environment.begin(write=True) as transaction:
            of = self._environment
            for database in (of.segments, of.regions, of.contents, of.reads, of.decisions):
                transaction.drop(database, delete=False)
            everything: list[tuple[bytes, bytes]] = []
            for region, entries in regions:
                self._put_region(transaction, region)
                packed = _packed(entries)
                everything += packed
                keys = b"".join(key for key, _ in packed)
                transaction.put(
                    _REGION_KEY.pack(region.number), keys, db=self._environment.contents
                )
            everything.sort(key=itemgetter(0))
            transaction.cursor(db=self._environment.segments).putmulti(everything)
            transaction.put(_META, tables)

    def find(self, chunk: bytes, first: int, count: int) -> list[Placed | None]:
        """Return the places of `count` segments of a chunk from `first` on. About 1 µs each."""
        found: list[Placed | None] = [None] * count
        with self._environment.begin() as transaction:
            cursor = transaction.cursor(db=self._environment.segments)
            there = cursor.set_range(_KEY.pack(chunk, first))
            while there:
                key, value = cursor.item()
                at, number = _KEY.unpack(key)
                if at != chunk or number >= first + count:
                    break
                found[number - first] = Placed(*_PLACED.unpack(value))
                there = cursor.next()
        return found

    def add(self, region: Region, entries: Sequence[tuple[Segment, Placed]]) -> None:
        """Add segments of a region that is being filled; `region` is the region's new state."""
        with self._environment.begin(write=True) as transaction:
            self._put_region(transaction, region)
            self._put_entries(transaction, region.number, entries)

    def put_region(self, region: Region) -> None:
        """Set a region's state, and keep the later of the two times of last use."""
        with self._environment.begin(write=True) as transaction:
            key = _REGION_KEY.pack(region.number)
            value = transaction.get(key, db=self._environment.regions)
            known = None if value is None else Region(region.number, *_REGION.unpack(value))
            if known is not None and known.generation == region.generation:
                last_used = max(region.last_used, known.last_used)
                region = replace(region, last_used=last_used)
            self._put_region(transaction, region)

    def drop(self, segment: Segment, placed: Placed) -> bool:
        """Drop a damaged segment; return False if it lies elsewhere by now, or nowhere."""
        key = _KEY.pack(segment.chunk, segment.number)
        with self._environment.begin(write=True) as transaction:
            value = transaction.get(key, db=self._environment.segments)
            if value is None or Placed(*_PLACED.unpack(value)) != placed:
                return False
            return bool(transaction.delete(key, db=self._environment.segments))

    def regions(self) -> list[Region]:
        """Return the records of all regions."""
        with self._environment.begin() as transaction:
            return list(self._all(transaction))

    def take(
        self,
        choose: Callable[[Sequence[Region], Container[int]], Region | None],
        lock: Callable[[int], bool],
        begun: Callable[[Region, int], Region],
    ) -> tuple[Region, Region, list[tuple[Segment, Placed]]] | None:
        """Take a region for filling from its beginning.

        Return its former record, its new record, and the segments that lay in it and are dropped;
        or None if there is no region. `choose` picks a region that is not busy. `lock` locks it; if
        that fails, the region becomes busy. `begun` returns its new record, given its turn number.
        """
        busy: set[int] = set()
        with self._environment.begin(write=True) as transaction:
            regions = list(self._all(transaction))
            turn = 1 + max((region.born for region in regions), default=0)
            while (chosen := choose(regions, busy)) is not None:
                if lock(chosen.number):
                    lost = list(self._entries(transaction, chosen.number))
                    self._drop_entries(transaction, chosen.number, lost)
                    taken = begun(chosen, turn)
                    self._put_region(transaction, taken)
                    return chosen, taken, lost
                busy.add(chosen.number)
        return None

    def contents(self, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return the keys of the segments that were written to each region, one after the other.

        Some of them may be dropped by now. A key is the chunk (16 bytes) and the segment's number
        (4, big-endian).
        """
        with self._environment.begin() as transaction:
            return {
                number: bytes(
                    transaction.get(_REGION_KEY.pack(number), b"", db=self._environment.contents)
                )
                for number in numbers
            }

    def add_free(self, count: int) -> None:
        """Add records for those of the first `count` regions that have none."""
        with self._environment.begin(write=True) as transaction:
            for number in range(count):
                value = _region_value(Region(number))
                transaction.put(
                    _REGION_KEY.pack(number), value, db=self._environment.regions, overwrite=False
                )

    def reads(self) -> dict[bytes, ReadCount]:
        """Return the counts of reads by dataset.

        They cover all processes since the index was created, as far as those have published them.
        """
        with self._environment.begin() as transaction:
            cursor = transaction.cursor(db=self._environment.reads)
            return {dataset: ReadCount(*_READS.unpack(value)) for dataset, value in cursor}

    def decisions(self) -> dict[DecidedRow, PolicyCounts]:
        """Return the counts of cache policies, of all processes as `reads` are."""
        found = {}
        with self._environment.begin() as transaction:
            for _, value in transaction.cursor(db=self._environment.decisions):
                role, policy, *row = json.loads(bytes(value[_DECISIONS.size :]))
                counts = PolicyCounts(*_DECISIONS.unpack(value[: _DECISIONS.size]))
                found[DecidedRow(role, policy, CountedRow(*row))] = counts
        return found

    def add_decisions(self, decided: Mapping[DecidedRow, PolicyCounts]) -> None:
        """Add to the counts of cache policies."""
        with self._environment.begin(write=True) as transaction:
            database = self._environment.decisions
            for by, counts in decided.items():
                key, names = _decided_key(by)
                known = transaction.get(key, db=database)
                is_full = transaction.stat(database)["entries"] >= _MAX_DECISIONS
                if known is None and is_full:
                    key, names = _decided_key(by._replace(row=REST))
                    known = transaction.get(key, db=database)
                sums = PolicyCounts()
                if known is not None:
                    sums = PolicyCounts(*_DECISIONS.unpack(known[: _DECISIONS.size]))
                sums.add(counts)
                transaction.put(key, _DECISIONS.pack(*astuple(sums)) + names, db=database)

    def touch(self, used: Mapping[int, float], counted: Mapping[bytes, ReadCount]) -> None:
        """Record the times at which regions were read, and add to the counts of reads.

        A later time that is already known stays, unless it is more than `CLOCK_S` later.
        """
        with self._environment.begin(write=True) as transaction:
            for dataset, count in counted.items():
                known = transaction.get(dataset, bytes(_READS.size), db=self._environment.reads)
                hits, hit_bytes, misses = _READS.unpack(known)
                sums = hits + count.hits, hit_bytes + count.hit_bytes, misses + count.misses
                transaction.put(dataset, _READS.pack(*sums), db=self._environment.reads)
            regions = self._environment.regions
            for number, when in used.items():
                key = _REGION_KEY.pack(number)
                value = transaction.get(key, db=regions)
                if value is not None:
                    *rest, last_used = _REGION.unpack(value)
                    is_later = when < last_used <= when + CLOCK_S
                    record = _REGION.pack(*rest, last_used if is_later else when)
                    transaction.put(key, record, db=regions)

    def release(self, number: int, generation: int | None = None, *, remove: bool = False) -> bool:
        """Drop the segments of a region; `remove` drops its record too.

        Return False, and do nothing, if the region is no longer of `generation`.
        """
        key = _REGION_KEY.pack(number)
        with self._environment.begin(write=True) as transaction:
            value = transaction.get(key, db=self._environment.regions)
            if generation is not None and (value is None or _REGION.unpack(value)[1] != generation):
                return False
            self._drop_entries(transaction, number, list(self._entries(transaction, number)))
            if remove:
                transaction.delete(key, db=self._environment.regions)
            elif value is not None:
                self._put_region(transaction, Region(number))
            return True

    def forget_chunk(self, chunk: bytes) -> int:
        """Drop all segments of a chunk; return how many there were."""
        with self._environment.begin(write=True) as transaction:
            cursor, count = transaction.cursor(db=self._environment.segments), 0
            there = cursor.set_range(_KEY.pack(chunk, 0))
            while there and cursor.key()[: len(chunk)] == chunk:
                there = cursor.delete()
                count += 1
            return count

    def cached(self, dataset: bytes, segment_bytes: int) -> dict[bytes, CachedChunk]:
        """Return the cached part of each chunk of a dataset. Takes about 2 µs a segment."""
        counted: dict[bytes, tuple[int, int, int]] = {}
        with self._environment.begin() as transaction:
            for region in self._all(transaction):
                if region.state != FREE and region.dataset == dataset:
                    for segment, placed in self._entries(transaction, region.number):
                        size, count, last = counted.get(segment.chunk, (0, 0, -1))
                        if placed.length < segment_bytes:
                            last = segment.number
                        counted[segment.chunk] = size + placed.length, count + 1, last
        return {
            chunk: CachedChunk(size, count == last + 1)
            for chunk, (size, count, last) in counted.items()
        }

    def _all(self, transaction: Any) -> Iterator[Region]:
        for key, value in transaction.cursor(db=self._environment.regions):
            yield Region(_REGION_KEY.unpack(key)[0], *_REGION.unpack(value))

    def _put_region(self, transaction: Any, region: Region) -> None:
        key = _REGION_KEY.pack(region.number)
        transaction.put(key, _region_value(region), db=self._environment.regions)

    def _put_entries(
        self, transaction: Any, region: int, entries: Sequence[tuple[Segment, Placed]]
    ) -> None:
        packed = _packed(entries)
        for key, value in packed:
            transaction.put(key, value, db=self._environment.segments)
        cached = transaction.get(_REGION_KEY.pack(region), b"", db=self._environment.contents)
        keys = b"".join(key for key, _ in packed)
        transaction.put(
            _REGION_KEY.pack(region), bytes(cached) + keys, db=self._environment.contents
        )

    def _entries(self, transaction: Any, region: int) -> Iterator[tuple[Segment, Placed]]:
        """Yield the segments recorded for a region and not recorded for another region since."""
        keys = transaction.get(_REGION_KEY.pack(region), b"", db=self._environment.contents)
        size = _KEY.size  # a segment that was dropped and written again is listed twice
        for key in dict.fromkeys(keys[at : at + size] for at in range(0, len(keys), size)):
            value = transaction.get(key, db=self._environment.segments)
            if value is not None:
                placed = Placed(*_PLACED.unpack(value))
                if placed.region == region:
                    yield Segment(*_KEY.unpack(key)), placed

    def _drop_entries(
        self, transaction: Any, region: int, entries: Sequence[tuple[Segment, Placed]]
    ) -> None:
        for segment, _ in entries:
            transaction.delete(
                _KEY.pack(segment.chunk, segment.number), db=self._environment.segments
            )
        transaction.delete(_REGION_KEY.pack(region), db=self._environment.contents)


def _decided_key(by: DecidedRow) -> tuple[bytes, bytes]:
    """Return the key of a row of counts, and the names that it stands for."""
    names = json.dumps([by.role, by.policy, *by.row]).encode()
    return xxhash.xxh3_128_digest(names), names


def _region_value(region: Region) -> bytes:
    return _REGION.pack(
        region.state,
        region.generation,
        region.dataset,
        region.used_bytes,
        region.entries,
        region.born,
        region.last_used,
    )


def _packed(entries: Sequence[tuple[Segment, Placed]]) -> list[tuple[bytes, bytes]]:
    return [
        (
            _KEY.pack(segment.chunk, segment.number),
            _PLACED.pack(placed.region, placed.offset, placed.length, placed.checksums),
        )
        for segment, placed in entries
    ]
