"""Stores that are slow in a known way: a disk with one queue, and a store of which some reads
straggle. Only reads are slowed."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper


@dataclass(frozen=True, slots=True)
class DeviceStatistics:
    requests: int = 0
    bytes: int = 0
    busy_s: float = 0.0


class SlowStore(ReadWrapper):
    """A disk: one request at a time, first come, first served; each takes a seek and its bytes at a
    constant rate, also when it follows on the one before.

    Device time is reckoned, not slept: a request ends `seek_s + bytes / bytes_per_s` after the end
    of the one before it, or after its arrival if the device was idle, and its caller sleeps until
    then. So what a sleep takes too long is not lost to the device, and what the wrapped store takes
    is hidden while it is shorter. The queue is of one process: a pickled or forked one has its own,
    and counters from 0.
    """

    def __init__(
        self, store: ObjectStore, seek_s: float = 8.3e-3, bytes_per_s: float = 150e6
    ) -> None:
        super().__init__(store)
        self._seek_s = seek_s
        self._bytes_per_s = bytes_per_s
        renew_now_and_after_fork(self)

    def renew(self) -> None:
        self._lock = threading.Lock()
        self._busy_until = 0.0
        self._statistics = DeviceStatistics()

    def __reduce__(self) -> tuple[type[SlowStore], tuple[ObjectStore, float, float]]:
        return type(self), (self._wrapped, self._seek_s, self._bytes_per_s)

    def statistics(self) -> DeviceStatistics:
        """Of the device: busy seconds are reckoned ones, up to the end of the last request that was
        accepted."""
        return self._statistics

    def _read(self, read: Read) -> bytes:
        arrival = time.monotonic()
        data = read.of(self._wrapped)
        service_s = self._seek_s + len(data) / self._bytes_per_s
        with self._lock:
            self._busy_until = end = max(arrival, self._busy_until) + service_s
            past = self._statistics
            self._statistics = DeviceStatistics(
                past.requests + 1, past.bytes + len(data), past.busy_s + service_s
            )
        time.sleep(max(0.0, end - time.monotonic()))
        return data


class StragglingStore(ReadWrapper):
    """Every read takes `read_s`, give or take `jitter` of it; a `share` of them, drawn at random,
    takes `factor` times as long. All at once if asked at once. Which reads straggle follows from
    the seed and the order in which they arrive."""

    def __init__(
        self,
        store: ObjectStore,
        share: float = 0.01,
        factor: float = 50.0,
        *,
        read_s: float = 8e-3,
        jitter: float = 0.1,
        seed: int = 1,
    ) -> None:
        super().__init__(store)
        self._share = share
        self._factor = factor
        self._read_s = read_s
        self._jitter = jitter
        self._lock = threading.Lock()
        self._random = random.Random(seed)
        self.reads = 0

    def _read(self, read: Read) -> bytes:
        self._wait()
        return read.of(self._wrapped)

    def _wait(self) -> None:
        begin = time.monotonic()
        with self._lock:
            self.reads += 1
            seconds = self._read_s * self._random.uniform(1 - self._jitter, 1 + self._jitter)
            if self._random.random() < self._share:
                seconds *= self._factor
        time.sleep(max(0.0, begin + seconds - time.monotonic()))
