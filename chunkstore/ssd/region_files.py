"""The regions of a tier as files of a folder, and the locks of those that are being filled.

    <folder>/geometry.json    sizes, fixed when the folder was made, and the tier's random id
    <folder>/budget           bytes that all files together may take
    <folder>/lock             byte n is locked by the process that fills region n; others by who fetches a chunk
    <folder>/regions/<n>      table (twice), then data; all blocks reserved when it is made

Every call may block, and raises `OSError`. POSIX locks are dropped by closing *any* descriptor of the file, so a process opens it once and never closes it.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import xxhash

from chunkstore.ssd.cached_file import read_from_memory
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
"""While there are not too many."""
_REGIONS_WANTED: Final = 256
"""Of a small budget: so that a region that is used again is a small part of it."""
_MOST_REGIONS: Final = 8192
"""Of a large one (above 512 GiB): all are looked at when one is chosen to be used again, 2 µs each."""
_BESIDE_BYTES: Final = 1 << 20
"""Of the budget, for folders, small files and probes."""
_LARGEST_BYTES: Final = 1 << 30
"""Offsets in a region have 32 bits."""
_READAHEAD_BYTES: Final = 128 << 10
_EXCLUSIVE: Final = 1 << 40
"""The byte that who reads all tables, or changes the number of regions, locks."""
_CLAIMS: Final = 1 << 61
"""Bytes from here on are locked by who fetches a chunk: one each, by the chunk's hash."""
_PARTS_AT_ONCE: Final = 512
"""Of a gathered write: IOV_MAX is 1,024."""
_LEFT_OVER_S: Final = 3600.0
"""A temporary file of this age is nobody's."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of a tier's folder, for ever."""

    id: str
    segment_bytes: int
    region_bytes: int
    """Of a file, with its table."""

    @property
    def block_bytes(self) -> int:
        return self.segment_bytes // BLOCKS

    @property
    def max_entries(self) -> int:
        """In a region: tails of chunks are shorter than a segment."""
        return 4 * self.region_bytes // self.segment_bytes

    @property
    def slot_bytes(self) -> int:
        return slot_bytes(self.max_entries)

    @property
    def data_offset(self) -> int:
        return 2 * self.slot_bytes

    @property
    def least_bytes(self) -> int:
        """The smallest budget that has room for anything."""
        return _BESIDE_BYTES + self.region_bytes + PAGE_BYTES

    def regions_within(self, budget_bytes: int) -> int:
        """How many files a budget has room for, with what the file system needs beside them."""
        return max(0, budget_bytes - _BESIDE_BYTES) // (self.region_bytes + PAGE_BYTES)


def region_bytes_for(budget_bytes: int, segment_bytes: int) -> int:
    """4 to 64 MiB, more only for the largest budgets; in whole segments."""
    wanted = min(max(budget_bytes // _REGIONS_WANTED, _MIN_REGION_BYTES), _MAX_REGION_BYTES)
    wanted = max(wanted, min(budget_bytes // _MOST_REGIONS, _LARGEST_BYTES))
    return max(wanted // segment_bytes, 8) * segment_bytes


class RegionFiles:
    """Thread-safe, as long as each region is written by one thread at a time. A forked child opens its own."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int | None,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    ) -> None:
        """Opens the folder, or makes it. The budget is the folder's: None takes what was said last. The other sizes of one that exists stay as they are.

        `ValueError` for sizes that make no sense.
        """
        if segment_bytes not in _SEGMENT_BYTES:
            raise ValueError("a segment has 32 KiB to 4 MiB, a power of two")
        self.folder = folder
        self._regions = f"{folder}/regions/"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "regions").mkdir(mode=0o700, exist_ok=True)
        known = budget_bytes if budget_bytes is not None else self.budget_bytes
        mine = Geometry(secrets.token_hex(8), segment_bytes, region_bytes_for(known, segment_bytes))
        if not (folder / _GEOMETRY).exists():
            _require_room(folder, mine, known)  # before they are the folder's for ever
        self.geometry = _geometry(folder, mine)
        _require_room(folder, self.geometry, known)
        if budget_bytes is not None:
            _replace(folder / "budget", str(budget_bytes))
        self._locks = _locks_of(folder)

    @property
    def count(self) -> int:
        """How many regions there may be. Another process may have said so since: 5 µs."""
        return self.geometry.regions_within(self.budget_bytes)

    @property
    def has_budget(self) -> bool:
        """Whether anybody has said how large the folder may be."""
        return (self.folder / "budget").exists()

    @property
    def budget_bytes(self) -> int:
        try:
            return int((self.folder / "budget").read_text())
        except FileNotFoundError:
            raise ValueError(f"{self.folder} is a new tier: say how large it may be") from None
        except ValueError as error:
            raise OSError(
                f"{self.folder}/budget is damaged: say again how large it may be"
            ) from error

    def lock(self, region: int) -> bool:
        """Take it, to fill it; False if anybody has it, this process included."""
        return self._locks.take(region)

    def unlock(self, region: int) -> None:
        self._locks.release(region)

    def lock_all(self) -> None:
        """Wait to be the only one who reads or removes all of them; `unlock_all` ends it."""
        self._locks.wait(_EXCLUSIVE)

    def unlock_all(self) -> None:
        self._locks.release(_EXCLUSIVE)

    def claim(self, name: bytes) -> bool:
        """Whether nobody else on the node is at something of this name; `disclaim` ends it, or the end of the process. Two names may be taken for one."""
        return self._locks.take(_claim(name))

    def disclaim(self, name: bytes) -> None:
        self._locks.release(_claim(name))

    def remove_left_overs(self) -> None:
        """Temporary files of processes that were killed."""
        for folder in (self.folder, self.folder / "datasets"):
            for path in folder.glob(".*"):
                with suppress(OSError):
                    if time.time() - path.stat().st_mtime > _LEFT_OVER_S:
                        path.unlink()

    def table(self, region: int) -> RegionTable | None:
        """What it says of itself; None if it says nothing sound, or is not there."""
        size = self.geometry.slot_bytes
        try:
            with self._opened(region) as fd:
                slots = os.pread(fd, 2 * size, 0)
        except FileNotFoundError:
            return None
        return decode_table(region, slots, size, self.geometry.region_bytes)

    def make(self, region: int) -> None:
        """With all its blocks, so that writing to it never finds the disk full."""
        path = self._path(region)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, self.geometry.region_bytes)
        except BaseException:
            os.unlink(path)  # it had not all its blocks, so nothing of it counts
            raise
        finally:
            os.close(fd)

    def write(self, region: int, offset: int, parts: Sequence[Buffer]) -> None:
        with self._opened(region, os.O_WRONLY) as fd:
            for first in range(0, len(parts), _PARTS_AT_ONCE):
                some = parts[first : first + _PARTS_AT_ONCE]
                length = sum(map(len, some))
                if os.pwritev(fd, some, offset) != length:
                    raise OSError(f"a write to region {region} was cut short")
                offset += length

    def write_table(self, region: int, table: RegionTable) -> None:
        """Into the slot of its turn; the other one stays."""
        size = self.geometry.slot_bytes
        self.write(region, table.turn % 2 * size, [encode_table(table, size)])

    def read_into(self, target: memoryview, region: int, offset: int) -> bool:
        """Whether all of it came; not at the end of the file. The kernel is told at once how much it is: its own readahead begins small."""
        with self._opened(region) as fd:
            if len(target) > _READAHEAD_BYTES:
                os.posix_fadvise(fd, offset, len(target), os.POSIX_FADV_WILLNEED)
            return os.preadv(fd, [target], offset) == len(target)

    def read_from_memory(self, target: memoryview, region: int, offset: int) -> None:
        """As far as the page cache has it: never waits. `BlockingIOError` if not all of it is there, `FileNotFoundError`."""
        read_from_memory(target, os.fsencode(self._path(region)), offset)

    def remove(self, region: int) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self._path(region))

    def is_there(self) -> bool:
        """Whether the folder is still the one that was opened."""
        try:
            known = _read_geometry(self.folder / _GEOMETRY) == self.geometry
            return known and os.path.isdir(self._regions)
        except FileNotFoundError:
            return False

    def present(self) -> list[int]:
        """The regions that have files, in order."""
        return sorted(int(name) for name in os.listdir(self.folder / "regions") if name.isdecimal())

    def _path(self, region: int) -> str:
        return f"{self._regions}{region:07d}"

    @contextmanager
    def _opened(self, region: int, flags: int = os.O_RDONLY) -> Iterator[int]:
        """3 µs. Descriptors that are kept would meet their limit (often 1,024)."""
        fd = os.open(self._path(region), flags | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)


def _replace(path: Path, text: str) -> None:
    """Others see the old file or the new one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    temporary.write_text(text)
    os.rename(temporary, path)


def _require_room(folder: Path, geometry: Geometry, budget_bytes: int) -> None:
    if not geometry.regions_within(budget_bytes):
        raise ValueError(
            f"a tier of {budget_bytes} bytes is too small: {folder} needs {geometry.least_bytes} at least"
        )


def _geometry(folder: Path, mine: Geometry) -> Geometry:
    """Of the folder; who comes first says it."""
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
        raise OSError(f"{path} is damaged: remove {path.parent} to begin anew") from error


class _RegionLocks:
    """The locks of one folder in this process; never closed."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._mutex = threading.Lock()
        self._released = threading.Condition(self._mutex)
        self._mine: set[int] = set()

    def take(self, byte: int) -> bool:
        with self._mutex:
            if byte in self._mine:
                return False
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, byte)
            except (BlockingIOError, PermissionError):
                return False
            self._mine.add(byte)
            return True

    def wait(self, byte: int) -> None:
        with self._released:
            while byte in self._mine:
                self._released.wait()
            self._mine.add(byte)
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, byte)
        except BaseException:
            with self._released:
                self._mine.discard(byte)
                self._released.notify_all()
            raise

    def release(self, byte: int) -> None:
        with self._released:
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, byte)
            self._mine.discard(byte)
            self._released.notify_all()


def _claim(name: bytes) -> int:
    return _CLAIMS + (int(xxhash.xxh3_64_intdigest(name)) >> 4)


_open_locks: dict[tuple[int, int], _RegionLocks] = {}
_opening_locks = threading.Lock()


def _locks_of(folder: Path) -> _RegionLocks:
    path = folder / "lock"
    path.touch(
        mode=0o600
    )  # before it is opened: a second descriptor would drop the locks when it is closed
    with _opening_locks:
        found = os.stat(path)
        key = found.st_dev, found.st_ino
        if key not in _open_locks:
            _open_locks[key] = _RegionLocks(path)
        return _open_locks[key]


def _forget_locks() -> None:
    """In a forked child, which has none of its parent's. Closing drops none of the parent's either, but the numbers may be in use."""
    global _opening_locks
    _opening_locks = threading.Lock()
    _open_locks.clear()


os.register_at_fork(after_in_child=_forget_locks)
