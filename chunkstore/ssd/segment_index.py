"""Where each segment lies: LMDB in shared memory, a view of the regions' tables that all processes of a node share.

    segments   chunk (16) + number (4, big-endian)  →  region, offset, length, checksums
    regions    region (4, big-endian)               →  state, generation, dataset, bytes, entries, born, last used
    contents   region (4, big-endian)               →  the keys of its segments, one after the other

Every method is one transaction. `lmdb.Error` means that the index can't be used: its owner throws it away and reads the tables again.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

import lmdb

from chunkstore.ssd.segments import CHECKSUMS_BYTES, Placed, Segment

Order: TypeAlias = Literal["lru", "fifo"]

_KEY: Final = struct.Struct(">16sI")
_PLACED: Final = struct.Struct(f"<III{CHECKSUMS_BYTES}s")
_REGION_KEY: Final = struct.Struct(">I")
_REGION: Final = struct.Struct("<BQ16sIIQd")
_META: Final = b"view of"
FREE, FILLING, FULL = range(3)
_BYTES_A_SEGMENT: Final = 512
"""Of map, which is address space and not memory: about 150 are used."""
_LEAST_MAP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Region:
    """One region's record. Immutable."""

    number: int
    state: int = FREE
    """`FREE`, `FILLING` (or left by who did) or `FULL`."""
    generation: int = 0
    dataset: bytes = bytes(16)
    used_bytes: int = 0
    """Up to here its file is filled."""
    entries: int = 0
    born: int = 0
    """When its turn began: counts up."""
    last_used: float = 0.0
    """Wall clock, in seconds."""


class SegmentIndex:
    """Thread-safe, and shared between processes; a forked child opens its own."""

    def __init__(self, folder: Path, max_segments: int) -> None:
        """`folder` is on a tmpfs. `lmdb.Error` if it can't be opened."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._environment: Any = lmdb.open(
            str(folder),
            map_size=_LEAST_MAP_BYTES + _BYTES_A_SEGMENT * max_segments,
            max_dbs=3,
            sync=False,
            metasync=False,
            mode=0o600,
        )
        self._segments = self._environment.open_db(b"segments")
        self._regions = self._environment.open_db(b"regions")
        self._contents = self._environment.open_db(b"contents")
        self._environment.reader_check()

    def close(self) -> None:
        self._environment.close()

    def is_view_of(self, tables: bytes) -> bool:
        """Whether it was filled from the tables of this name."""
        with self._environment.begin() as transaction:
            return bool(transaction.get(_META) == tables)

    def fill(
        self,
        tables: bytes,
        regions: Iterable[tuple[Region, Sequence[tuple[Segment, Placed]]]],
    ) -> None:
        """Anew, from what the tables say. About 2 µs a segment."""
        with self._environment.begin(write=True) as transaction:
            for database in (self._segments, self._regions, self._contents):
                transaction.drop(database, delete=False)
            for region, entries in regions:
                self._put_region(transaction, region)
                self._put_entries(transaction, region.number, entries)
            transaction.put(_META, tables)

    def find(self, chunk: bytes, first: int, count: int) -> list[Placed | None]:
        """Segments `first` … of a chunk. About 1 µs each."""
        found: list[Placed | None] = [None] * count
        with self._environment.begin(db=self._segments) as transaction:
            cursor = transaction.cursor()
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
        """More segments of a region that is being filled, whose state is now `region`."""
        with self._environment.begin(write=True) as transaction:
            self._put_region(transaction, region)
            self._put_entries(transaction, region.number, entries)

    def put_region(self, region: Region) -> None:
        with self._environment.begin(write=True) as transaction:
            self._put_region(transaction, region)

    def drop(self, segment: Segment, placed: Placed) -> bool:
        """Forget a segment that is damaged; False if it lies elsewhere by now, or nowhere."""
        key = _KEY.pack(segment.chunk, segment.number)
        with self._environment.begin(write=True, db=self._segments) as transaction:
            value = transaction.get(key)
            if value is None or Placed(*_PLACED.unpack(value)) != placed:
                return False
            return bool(transaction.delete(key))

    def regions(self) -> list[Region]:
        with self._environment.begin(db=self._regions) as transaction:
            return list(self._all(transaction))

    def entries(self, region: int) -> list[tuple[Segment, Placed]]:
        """The segments that still lie in a region."""
        with self._environment.begin() as transaction:
            return list(self._entries(transaction, region))

    def take(
        self,
        choose: Callable[[Sequence[Region]], Region | None],
        lock: Callable[[int], bool],
        begun: Callable[[Region, int], Region],
    ) -> tuple[Region, Region, list[tuple[Segment, Placed]]] | None:
        """A region to be filled from its beginning: what it was, what it is now, and the segments that lay in it and are forgotten. None if there is none.

        `choose` picks one, `lock` takes it or makes the next be chosen; `begun` says what it is from now on, given the number of its turn.
        """
        with self._environment.begin(write=True) as transaction:
            candidates = list(self._all(transaction))
            turn = 1 + max((region.born for region in candidates), default=0)
            while (chosen := choose(candidates)) is not None:
                candidates.remove(chosen)
                if lock(chosen.number):
                    lost = list(self._entries(transaction, chosen.number))
                    self._forget(transaction, chosen.number, lost)
                    taken = begun(chosen, turn)
                    self._put_region(transaction, taken)
                    return chosen, taken, lost
        return None

    def touch(self, used: Mapping[int, float]) -> None:
        """Regions that were read, and when."""
        with self._environment.begin(write=True, db=self._regions) as transaction:
            for number, when in used.items():
                value = transaction.get(_REGION_KEY.pack(number))
                if value is not None:
                    *rest, last_used = _REGION.unpack(value)
                    transaction.put(
                        _REGION_KEY.pack(number), _REGION.pack(*rest, max(last_used, when))
                    )

    def release(self, number: int, *, remove: bool = False) -> None:
        """Forget what a region holds; `remove` forgets the region too."""
        with self._environment.begin(write=True) as transaction:
            self._forget(transaction, number, list(self._entries(transaction, number)))
            key = _REGION_KEY.pack(number)
            value = transaction.get(key, db=self._regions)
            if remove:
                transaction.delete(key, db=self._regions)
            elif value is not None:
                transaction.put(
                    key, _REGION.pack(FREE, 0, bytes(16), 0, 0, 0, 0.0), db=self._regions
                )

    def chunks(self, dataset: bytes) -> dict[bytes, int]:
        """Of a dataset: how many bytes of each chunk are held. About 1 µs a segment."""
        held: dict[bytes, int] = {}
        with self._environment.begin() as transaction:
            for region in self._all(transaction):
                if region.dataset == dataset:
                    for segment, placed in self._entries(transaction, region.number):
                        held[segment.chunk] = held.get(segment.chunk, 0) + placed.length
        return held

    def _all(self, transaction: Any) -> Iterator[Region]:
        for key, value in transaction.cursor(db=self._regions):
            yield Region(_REGION_KEY.unpack(key)[0], *_REGION.unpack(value))

    def _put_region(self, transaction: Any, region: Region) -> None:
        value = _REGION.pack(
            region.state,
            region.generation,
            region.dataset,
            region.used_bytes,
            region.entries,
            region.born,
            region.last_used,
        )
        transaction.put(_REGION_KEY.pack(region.number), value, db=self._regions)

    def _put_entries(
        self, transaction: Any, region: int, entries: Sequence[tuple[Segment, Placed]]
    ) -> None:
        keys = [_KEY.pack(segment.chunk, segment.number) for segment, _ in entries]
        for key, (_, placed) in zip(keys, entries, strict=True):
            value = _PLACED.pack(placed.region, placed.offset, placed.length, placed.checksums)
            transaction.put(key, value, db=self._segments)
        held = transaction.get(_REGION_KEY.pack(region), b"", db=self._contents)
        transaction.put(_REGION_KEY.pack(region), bytes(held) + b"".join(keys), db=self._contents)

    def _entries(self, transaction: Any, region: int) -> Iterator[tuple[Segment, Placed]]:
        """Those recorded for it that have not been recorded for another region since."""
        keys = transaction.get(_REGION_KEY.pack(region), b"", db=self._contents)
        for at in range(0, len(keys), _KEY.size):
            key = keys[at : at + _KEY.size]
            value = transaction.get(key, db=self._segments)
            if value is not None:
                placed = Placed(*_PLACED.unpack(value))
                if placed.region == region:
                    yield Segment(*_KEY.unpack(key)), placed

    def _forget(
        self, transaction: Any, region: int, entries: Sequence[tuple[Segment, Placed]]
    ) -> None:
        for segment, _ in entries:
            transaction.delete(_KEY.pack(segment.chunk, segment.number), db=self._segments)
        transaction.delete(_REGION_KEY.pack(region), db=self._contents)
