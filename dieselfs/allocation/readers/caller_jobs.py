"""The jobs of those who read through one mount: each pays for its own misses.

The kernel tells with each READ which thread makes it. A thread is looked up once, when its first
READ misses, and remembered by its id and its start, since ids are used again. READs of the kernel
itself (readahead by its own threads) and of processes without a job are the mount's own.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Final

from chunkstore.stores.read_turn import Payer
from dieselfs.allocation.readers.job_allocations import JobAllocations
from dieselfs.allocation.readers.process_jobs import PROC, job_of_process, started_at

MAX_THREADS: Final = 4096
"""The most threads that are remembered, the last ones that missed."""
IDLE_S: Final = 60.0
"""A job without threads that missed nothing for so long has ended."""
_SWEEP_S: Final = 10.0


class CallerJobs:
    """The jobs of a mount's callers. Thread-safe."""

    def __init__(
        self,
        jobs: JobAllocations,
        proc: Path = PROC,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._jobs, self._proc, self._clock = jobs, proc, clock
        self._lock = threading.Lock()
        self._threads: OrderedDict[tuple[int, int], str | None] = OrderedDict()
        self._payers: dict[str, Payer] = {}
        self._missed_at: dict[str, float] = {}
        self._swept_at = clock()

    def payer(self, pid: int) -> Payer | None:
        """Return what pays for a READ of this thread that misses; None: the mount's own job."""
        started = started_at(pid, self._proc) if pid else None
        if started is None:
            return None
        with self._lock:
            thread, now = (pid, started), self._clock()
            if thread not in self._threads:
                self._threads[thread] = job_of_process(pid, self._proc)
                if len(self._threads) > MAX_THREADS:
                    self._threads.popitem(last=False)
            self._threads.move_to_end(thread)
            job = self._threads[thread]
            if job is None:
                return None
            self._missed_at[job] = now
            if job not in self._payers:
                self._payers[job] = self._jobs.join(job, measured=True)
            return self._payers[job]

    def sweep(self) -> None:
        """Forget threads that have ended, and jobs without threads. Call it about once a second."""
        now = self._clock()
        if now - self._swept_at < _SWEEP_S:
            return
        with self._lock:
            self._swept_at = now
            for pid, started in [*self._threads]:
                if started_at(pid, self._proc) != started:
                    del self._threads[pid, started]
            alive = set(self._threads.values())
            ended = [
                job
                for job, missed_at in self._missed_at.items()
                if job not in alive and now - missed_at > IDLE_S
            ]
            for job in ended:
                del self._payers[job], self._missed_at[job]
                self._jobs.leave(job)
