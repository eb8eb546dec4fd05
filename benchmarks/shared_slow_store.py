"""A slow store that many processes share: one queue for all of them, and one account of what they
have read.

    folder/store        the objects
    folder/disk.json    how slow it is
    folder/disk.state   its queue and its account

Device time is reckoned, not slept, as in `slow_store`; the queue's end lies in a file that all
processes map, on the clock that they share.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import struct
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper

_STATE = struct.Struct("<dddqq")


@dataclass(frozen=True, slots=True)
class DiskState:
    """Of all processes, since the disk was made. Times are of CLOCK_MONOTONIC."""

    busy_until: float = 0.0
    first_read: float = 0.0
    """When it arrived; 0 if there was none."""
    last_read: float = 0.0
    """When it ended."""
    reads: int = 0
    bytes: int = 0


class SharedSlowStore(ReadWrapper):
    """Implements `ObjectStore`. Pickles to its folder. Only reads are slowed and counted."""

    def __init__(self, folder: Path) -> None:
        super().__init__(LocalDirectory(folder / "store"))
        self._folder = folder
        speed = json.loads((folder / "disk.json").read_text())
        self._seek_s = float(speed["seek_s"])
        self._bytes_per_s = float(speed["bytes_per_s"] or math.inf)
        renew_now_and_after_fork(self)

    @classmethod
    def make(cls, folder: Path, *, seek_s: float = 0.0, bytes_per_s: float | None = None) -> None:
        """As fast as it is if nothing is said. A folder that was made before keeps its objects, and
        loses its account."""
        (folder / "store").mkdir(parents=True, exist_ok=True)
        (folder / "disk.json").write_text(
            json.dumps({"seek_s": seek_s, "bytes_per_s": bytes_per_s})
        )
        (folder / "disk.state").write_bytes(bytes(_STATE.size))

    def renew(self) -> None:
        # Own descriptors: what `flock` locks is the file as it was opened, so threads of two
        # objects, and forked processes, exclude each other too.
        self._file = os.open(self._folder / "disk.state", os.O_RDWR | os.O_CLOEXEC)
        # A process that ends closes it by itself, and threads may read until then.
        weakref.finalize(self, os.close, self._file).atexit = False
        self._state = mmap.mmap(self._file, _STATE.size)
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type[SharedSlowStore], tuple[Path]]:
        return type(self), (self._folder,)

    def state(self) -> DiskState:
        return DiskState(*_STATE.unpack_from(self._state))

    def _read(self, read: Read) -> bytes:
        arrival = time.monotonic()
        data = read.of(self._wrapped)
        service_s = self._seek_s + len(data) / self._bytes_per_s
        with self._lock:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                past = self.state()
                end = max(arrival, past.busy_until) + service_s
                last = max(end, time.monotonic())
                counts = past.reads + 1, past.bytes + len(data)
                _STATE.pack_into(self._state, 0, end, past.first_read or arrival, last, *counts)
            finally:
                fcntl.flock(self._file, fcntl.LOCK_UN)
        time.sleep(max(0.0, end - time.monotonic()))
        return data


def state_of(folder: Path) -> DiskState:
    """Of a disk that others read."""
    return DiskState(*_STATE.unpack((folder / "disk.state").read_bytes()))
