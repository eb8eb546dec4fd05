"""The regions of a tier as files in a folder.

    <folder>/geometry.json    sizes, fixed when the folder was created, and the tier's random id
    <folder>/budget           bytes that all files together may take
    <folder>/lock             locked by processes that fill regions (`region_locks`)
    <folder>/regions/<n>      table (twice), then data; all blocks are reserved at creation

Every call may block, and raises `OSError`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from chunkstore.ssd.cached_file import read_from_memory
from chunkstore.ssd.region_locks import locks_of
from chunkstore.ssd.region_table import (
    PAGE_BYTES,
    RegionTable,
    decode_table,
    encode_table,
    slot_bytes,
)
from chunkstore.ssd.segments import BLOCKS, DEFAULT_SEGMENT_BYTES
from chunkstore.stores.object_store import Buffer

_GEOMETRY: Final = "geometry.json"
_SEGMENT_BYTES: Final = [BLOCKS * PAGE_BYTES << n for n in range(8)]
_MIN_REGION_BYTES: Final = 4 << 20
_MAX_REGION_BYTES: Final = 64 << 20
"""The largest region as long as there are not too many."""
_REGIONS_WANTED: Final = 256
"""The number of regions of a small budget, so that one reused region is a small part of it."""
_MOST_REGIONS: Final = 8192
"""The number of regions of a large budget (above 512 GiB).

The choice of a region to reuse looks at all of them, 2 µs each.
"""
_BESIDE_BYTES: Final = 1 << 20
"""The part of the budget that is left for folders, small files and probes."""
_LARGEST_BYTES: Final = 1 << 30
"""The largest region: offsets in a region have 32 bits."""
_READAHEAD_BYTES: Final = 128 << 10
_PROBE_BYTES: Final = 64 << 10
_PARTS_AT_ONCE: Final = 512
"""The most parts of one gathered write: IOV_MAX is 1,024."""
_LEFT_OVER_S: Final = 3600.0
"""Seconds after which a temporary file belongs to no living process."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """The sizes of a tier's folder, which never change."""

    id: str
    segment_bytes: int
    region_bytes: int
    """The size of a region's file, with its table."""

    @property
    def block_bytes(self) -> int:
        """The size of a segment's block, the unit of a checksum."""
        return self.segment_bytes // BLOCKS

    @property
    def max_entries(self) -> int:
        """The most entries of a region: the tails of chunks are shorter than a segment."""
        return 4 * self.region_bytes // self.segment_bytes

    @property
    def slot_bytes(self) -> int:
        """The size of one of the two slots of a region's table."""
        return slot_bytes(self.max_entries)

    @property
    def data_offset(self) -> int:
        """The offset in a region's file at which segments begin."""
        return 2 * self.slot_bytes

    def needed_bytes(self, content_bytes: int) -> int:
        """Return the size of region files that hold so many bytes of a dataset.

        Its chunks are taken to be much larger than a page. A region has a table, and less than a
        segment is left over; one region more may be open.
        """
        room = self.region_bytes - self.data_offset - self.segment_bytes
        return (-(-content_bytes // room) + 1) * self.region_bytes

    @property
    def least_bytes(self) -> int:
        """The smallest budget that has room for a region."""
        return _BESIDE_BYTES + self.region_bytes + PAGE_BYTES

    def regions_within(self, budget_bytes: int) -> int:
        """Return how many region files fit a budget, with the overhead of the file system."""
        return max(0, budget_bytes - _BESIDE_BYTES) // (self.region_bytes + PAGE_BYTES)


def region_bytes_for(budget_bytes: int, segment_bytes: int) -> int:
    """Return the region size for a budget, in whole segments.

    It is 4 to 64 MiB, and more only for the largest budgets.
    """
    wanted = min(max(budget_bytes // _REGIONS_WANTED, _MIN_REGION_BYTES), _MAX_REGION_BYTES)
    wanted = max(wanted, min(budget_bytes // _MOST_REGIONS, _LARGEST_BYTES))
    return max(wanted // segment_bytes, 8) * segment_bytes


class RegionFiles:
    """The files of one tier's regions.

    Thread-safe if only one thread at a time writes to a region. A forked child opens its own.
    """

    def __init__(
        self,
        folder: Path,
        budget_bytes: int | None,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    ) -> None:
        """Open the folder, or create it.

        The budget belongs to the folder: None keeps the last one that was set. The other sizes of
        an existing folder do not change. Raises `ValueError` for invalid sizes.
        """
        if segment_bytes not in _SEGMENT_BYTES:
            raise ValueError("a segment has 32 KiB to 4 MiB, a power of two")
        self.folder = folder
        self._regions = f"{folder}/regions/"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "regions").mkdir(mode=0o700, exist_ok=True)
        known = budget_bytes if budget_bytes is not None else self.budget_bytes
        mine = Geometry(os.urandom(8).hex(), segment_bytes, region_bytes_for(known, segment_bytes))
        if not (folder / _GEOMETRY).exists():
            _require_room(folder, mine, known)  # before the folder gets these sizes for ever
        self.geometry = _geometry(folder, mine)
        _require_room(folder, self.geometry, known)
        if budget_bytes is not None:
            _replace(folder / "budget", str(budget_bytes))
        self.locks = locks_of(folder)

    @property
    def count(self) -> int:
        """The number of regions that the budget allows now. 5 µs.

        Another process may have changed the budget.
        """
        return self.geometry.regions_within(self.budget_bytes)

    @property
    def has_budget(self) -> bool:
        """True if the folder's budget was ever set."""
        return (self.folder / "budget").exists()

    @property
    def budget_bytes(self) -> int:
        """The folder's budget.

        Raises `ValueError` if it was never set, and `OSError` if its file is damaged.
        """
        try:
            return int((self.folder / "budget").read_text())
        except FileNotFoundError:
            raise ValueError(
                f"{self.folder} is a new SSD tier: give it a budget with --ssd-size"
            ) from None
        except ValueError as error:
            raise OSError(
                f"{self.folder}/budget is damaged: set the budget again with --ssd-size"
            ) from error

    def remove_left_overs(self) -> None:
        """Remove temporary files of processes that were killed."""
        for folder in (self.folder, self.folder / "datasets"):
            for path in folder.glob(".*"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _LEFT_OVER_S:
                        path.unlink()

    def table(self, region: int) -> RegionTable | None:
        """Return a region's table, or None if it is damaged or missing."""
        size = self.geometry.slot_bytes
        try:
            with self._opened(region) as fd:
                slots = os.pread(fd, 2 * size, 0)
        except FileNotFoundError:
            return None
        return decode_table(region, slots, size, self.geometry.region_bytes)

    def make(self, region: int) -> None:
        """Create a region's file with all its blocks; later writes never find the disk full."""
        path = self._path(region)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self.geometry.region_bytes)
        except BaseException:
            os.unlink(path)  # without all its blocks the file must not be used
            raise
        finally:
            os.close(fd)

    def write(self, region: int, offset: int, parts: Sequence[Buffer]) -> None:
        """Write `parts` one behind the other, from `offset` on."""
        with self._opened(region, os.O_WRONLY) as fd:
            for first in range(0, len(parts), _PARTS_AT_ONCE):
                some = parts[first : first + _PARTS_AT_ONCE]
                length = sum(map(len, some))
                if os.pwritev(fd, some, offset) != length:
                    raise OSError(f"cannot write all bytes to region {region} of {self.folder}")
                offset += length

    def write_table(self, region: int, table: RegionTable) -> None:
        """Write a region's table into the slot of its turn; the other slot stays."""
        size = self.geometry.slot_bytes
        self.write(region, table.turn % 2 * size, [encode_table(table, size)])

    def read_into(self, target: memoryview, region: int, offset: int) -> bool:
        """Fill `target` from a region; return False if the file ends before.

        The kernel learns the whole length at once, because its own readahead begins small.
        """
        with self._opened(region) as fd:
            if len(target) > _READAHEAD_BYTES:
                os.posix_fadvise(fd, offset, len(target), os.POSIX_FADV_WILLNEED)
            return os.preadv(fd, [target], offset) == len(target)

    def read_from_memory(self, target: memoryview, region: int, offset: int) -> None:
        """Fill `target` from the page cache, without any wait.

        Raise `BlockingIOError` if part of it is not in memory, and `FileNotFoundError`.
        """
        read_from_memory(target, os.fsencode(self._path(region)), offset)

    def remove(self, region: int) -> None:
        """Remove a region's file, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(self._path(region))

    def is_there(self) -> bool:
        """Return whether the folder is still the one that was opened."""
        try:
            known = _read_geometry(self.folder / _GEOMETRY) == self.geometry
            return known and os.path.isdir(self._regions)
        except FileNotFoundError:
            return False

    def probe(self) -> None:
        """Write, read back and compare; raise `OSError` for other bytes than were written."""
        path, data = self.folder / f".probe.{os.getpid()}", os.urandom(_PROBE_BYTES)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, data, 0)
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            if os.pread(fd, _PROBE_BYTES, 0) != data:
                raise OSError(f"{path} returned other bytes than were written")
        finally:
            os.close(fd)
            path.unlink(missing_ok=True)

    def present(self) -> list[int]:
        """Return the numbers of the regions that have files, in order."""
        return sorted(int(name) for name in os.listdir(self.folder / "regions") if name.isdecimal())

    def _path(self, region: int) -> str:
        return f"{self._regions}{region:07d}"

    @contextmanager
    def _opened(self, region: int, flags: int = os.O_RDONLY) -> Iterator[int]:
        """Yield a descriptor of a region's file. 3 µs.

        Permanently open descriptors would exceed their limit (often 1,024).
        """
        fd = os.open(self._path(region), flags | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def _replace(path: Path, text: str) -> None:
    """Write a file so that other processes see either the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    temporary.write_text(text)
    os.rename(temporary, path)


def _require_room(folder: Path, geometry: Geometry, budget_bytes: int) -> None:
    if not geometry.regions_within(budget_bytes):
        raise ValueError(
            f"a budget of {budget_bytes} bytes is too small for the SSD tier {folder}: "
            f"set at least {geometry.least_bytes}"
        )


def _geometry(folder: Path, mine: Geometry) -> Geometry:
    """Return the folder's geometry; the first process defines it."""
    path = folder / _GEOMETRY
    if not path.exists():
        temporary = folder / f".geometry.{mine.id}"
        temporary.write_text(json.dumps(asdict(mine)))
        try:
            os.link(temporary, path)
        except FileExistsError:
            pass
        finally:
            temporary.unlink()
    return _read_geometry(path)


def _read_geometry(path: Path) -> Geometry:
    try:
        return Geometry(**json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise OSError(
            f"{path} is damaged: remove {path.parent}; an empty tier replaces it"
        ) from error
