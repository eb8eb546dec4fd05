"""Training jobs whose datasets lie on one slow simulated disk, for benchmarks of cache policies.

Each job has a mount and a reader process of its own. All jobs read epoch by epoch, side by side,
and each epoch in another chunk-wise shuffled order, which the mount is told. Node memory has room
for the window of a plan alone, and the page cache is dropped before each epoch, off the clock. So
each epoch comes from what is below node memory.

The mounts prefill nothing. A kernel that reclaims idle memory by itself drops prefilled pages
before they are read; their chunks are then fetched again (`lost_chunks` in `stats.json`), which
would be counted here as if a cache had missed them. Their front is FUSE: EROFS without prefill
reads ahead beyond a chunk's end, and costs a slow store a seek a chunk.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.harness import dlcmd, dlcmd_environment, make_tree, scratch
from benchmarks.shared_slow_store import SharedSlowStore, state_of
from tests.own_node_memory import own_node_memory

SEEK_S, BYTES_PER_S = 0.090, 400e6
"""A chunk costs the disk 90 ms, and 10 ms of reading."""
EPOCHS = 3
BAR = 1.3
"""LRU reads so many times as many bytes of the store as *next-use*, over epochs 2 and 3."""
FILE_BYTES = 110 << 10
_CHUNK_BYTES = 4 << 20
GROUP = 4
_MEMORY_BYTES = (4 * GROUP + 8) * _CHUNK_BYTES


@dataclass(frozen=True)
class Job:
    """A job with a mount of its own."""

    name: str
    dataset: str


@dataclass(frozen=True)
class Epoch:
    """The cost of one epoch of all jobs."""

    store_bytes: int
    seconds: float


DIFFERENT = (Job("one", "first"), Job("two", "second"))
"""Two jobs with a dataset each."""
SHARED = (Job("one", "first"), Job("two", "first"))
"""Two jobs that read the same dataset, in orders of their own."""


@contextmanager
def datasets(prefix: str, chunks: int) -> Iterator[Path]:
    """Make a folder with two datasets of that many chunks on a slow disk; remove it afterwards.

    Shared memory is a folder of its own, so no other process of the machine sees the jobs.
    """
    with (
        scratch(prefix) as folder,
        own_node_memory(),
    ):
        _make(folder, chunks)
        yield folder


def _make(folder: Path, chunks: int) -> None:
    """Pack the datasets; from then on their disk is slow."""
    SharedSlowStore.make(folder)
    files = chunks * _CHUNK_BYTES // FILE_BYTES
    for name in ("first", "second"):
        make_tree(folder / name, files, 10, FILE_BYTES)
        dlcmd("put", "-q", f"{folder / name}/", name, folder=folder)
        subprocess.run(["rm", "-r", str(folder / name)], check=True)
    SharedSlowStore.make(folder, seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)


def total_bytes(folder: Path, jobs: Sequence[Job]) -> int:
    """Return the bytes of the objects of the jobs' datasets."""
    return sum(
        path.stat().st_size
        for dataset in {job.dataset for job in jobs}
        for path in (folder / "store" / "datasets" / dataset).rglob("chunks/*/*")
    )


def environment(folder: Path) -> dict[str, str]:
    """Return the variables of programs that read the slow disk."""
    return dlcmd_environment(folder) | {"DIESELFS_STORE": f"disk://{folder}"}


def slow_dlcmd(folder: Path, *arguments: str | Path) -> str:
    """Run `dlcmd` on the slow disk; return its standard output."""
    command = [sys.executable, "-m", "benchmarks.dlcmd_disk", *map(str, arguments)]
    done = subprocess.run(
        command, env=environment(folder), check=True, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


@contextmanager
def mounted(folder: Path, job: Job, *options: str) -> Iterator[Path]:
    """Mount a job's dataset."""
    root = folder / f"mnt-{job.name}"
    root.mkdir(exist_ok=True)
    own = [
        *("--task", f"{folder.name}-{job.name}", "--memory", str(_MEMORY_BYTES)),
        *("--prefill", "0", "--front", "fuse"),
    ]
    slow_dlcmd(folder, "mount", "-q", "--no-index", *own, *options, job.dataset, root)
    try:
        yield root
    finally:
        slow_dlcmd(folder, "umount", "-q", root)


class JobReader:
    """The process that reads a job's mount."""

    def __init__(
        self, folder: Path, job: Job, root: Path, seed: int, *, tells: str = "late"
    ) -> None:
        [snapshot] = (folder / "data").rglob(f"{job.dataset}-*.snapshot")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.epoch_reader"),
                *map(str, (snapshot, root, seed, GROUP, tells)),
            ],
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def read(self, epoch: int) -> float:
        """Read an epoch; return the seconds."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{epoch}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        found = json.loads(line or "{}")
        if found.get("wrong") != 0:
            raise RuntimeError(f"the reader said {line!r}")
        return float(found["seconds"])

    def close(self) -> None:
        """End the input, and wait for the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class RunningJobs:
    """Jobs with their mounts and readers."""

    def __init__(self, folder: Path, roots: Sequence[Path], readers: Sequence[JobReader]) -> None:
        self.roots = roots
        self._folder, self._readers = folder, readers

    def read(self, epoch: int) -> Epoch:
        """Have all jobs read an epoch side by side; return when all have ended it."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("1")
        before = state_of(self._folder).bytes
        seconds = together([partial(reader.read, epoch) for reader in self._readers])
        return Epoch(state_of(self._folder).bytes - before, max(seconds))


@contextmanager
def running(folder: Path, jobs: Sequence[Job], options: Sequence[str]) -> Iterator[RunningJobs]:
    """Mount what the jobs read with these options, and start their readers."""
    with ExitStack() as stack:
        roots, readers = [], []
        for seed, job in enumerate(jobs, 1):
            roots.append(stack.enter_context(mounted(folder, job, *options)))
            readers.append(JobReader(folder, job, roots[-1], seed))
            stack.callback(readers[-1].close)
        yield RunningJobs(folder, roots, readers)


def together(calls: Sequence[Callable[[], float]]) -> list[float]:
    """Make all calls at once."""
    results: list[float] = [0.0] * len(calls)

    def run(number: int) -> None:
        results[number] = calls[number]()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if 0.0 in results:
        raise RuntimeError("a reader has failed")
    return results


def later_bytes(epochs: Sequence[Epoch]) -> int:
    """Return the bytes of the store after the first epoch, in which no cache has anything."""
    return sum(epoch.store_bytes for epoch in epochs[1:])
