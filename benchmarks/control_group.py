"""The page cache and the shared memory of some processes, as the kernel charges a control group for
them."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup/memory")
_SAMPLED_S = 0.02
_numbers = itertools.count()


class ControlGroup:
    """A memory control group (version 1) of this benchmark's own, and the peak of what it is
    charged for files and shared memory."""

    def __init__(self) -> None:
        self.folder = GROUPS / f"dieselfs-bench-{os.getpid()}-{next(_numbers)}"
        self.peak_bytes = 0
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> ControlGroup:
        self.folder.mkdir()
        self._sampler.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._sampler.join()
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            try:
                (self.folder / "memory.force_empty").write_text("0")
                self.folder.rmdir()
                return
            except OSError:
                time.sleep(0.1)

    def enter(self) -> None:
        """Of a process that has just been forked."""
        (self.folder / "cgroup.procs").write_text(str(os.getpid()))

    def charged_bytes(self) -> int:
        """For files, shared memory among them."""
        return self.statistics()["total_cache"]

    def page_cache_bytes(self) -> int:
        found = self.statistics()
        return found["total_cache"] - found["total_shmem"]

    def statistics(self) -> dict[str, int]:
        lines = (self.folder / "memory.stat").read_text().splitlines()
        return {name: int(value) for name, value in map(str.split, lines)}

    def start_over(self) -> None:
        self.peak_bytes = self.charged_bytes()

    def _sample(self) -> None:
        while not self._ended.wait(_SAMPLED_S):
            self.peak_bytes = max(self.peak_bytes, self.charged_bytes())
