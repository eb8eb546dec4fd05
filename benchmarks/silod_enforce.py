"""Three real jobs on real mounts, under what `dlcmd alloc run` allocates to them.

Each job has a mount of its own. All mounts share an SSD tier, and a slow store that serves all of
them together. Node memory has room for the window of a plan alone, and the page cache is dropped
all the time, so what an epoch reads comes from the tier or from the store.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.harness import dlcmd, make_tree, report, scratch
from benchmarks.policy_jobs import environment, slow_dlcmd
from benchmarks.shared_slow_store import SharedSlowStore, state_of
from dieselfs.allocation.estimator import job_rate, uniform_hits
from dieselfs.allocation.jobs import Job, Resources
from dieselfs.allocation.plan import make_plan
from dieselfs.allocation.policies.naming import policy_of
from tests.own_node_memory import own_node_memory

MIB = 1 << 20
CACHE_BYTES = 300 * MIB
SYSTEMS = ("silod", "quiver", "coordl", "lru")
SETTLE_S, MEASURE_S = 100.0, 60.0
"""The first epochs of silod end within 80 s; then the rates are those of equation 4."""
_CHUNK, _CHUNK_BYTES = "1MiB", MIB
_FILE_BYTES = 110 << 10
_GROUP = 2
_MEMORY_BYTES = (4 * _GROUP + 8) * _CHUNK_BYTES
_PASSES = 1000
_DROP_EVERY_S = 0.5


@dataclass(frozen=True)
class RealJob:
    """A job, its dataset's size and the most that it reads."""

    name: str
    dataset_bytes: int
    speed_bytes_per_s: float


JOBS = (
    RealJob("fast", 240 * MIB, 60e6),
    RealJob("middle", 240 * MIB, 30e6),
    RealJob("slow", 480 * MIB, 6e6),
)


def enforce(systems: Sequence[str], store_bytes_per_s: float, settle_s: float) -> None:
    """Report a line a system: what the jobs read together and each, and what equation 4 says."""
    with _datasets() as folder:
        for system in systems:
            model = _model(system, store_bytes_per_s)
            SharedSlowStore.make(folder, bytes_per_s=store_bytes_per_s)
            found = _measure(folder, system, store_bytes_per_s, settle_s)
            report(
                "enforce",
                system=system,
                store_bytes_per_s=store_bytes_per_s,
                measured_bytes_per_s=sum(found.rates.values()),
                model_bytes_per_s=sum(model.values()),
                jobs=found.rates,
                model_jobs=model,
                estimated_jobs=found.estimated,
                from_store_bytes_per_s=found.store_bytes_per_s,
                wrong_files=found.wrong_files,
            )


def _model(system: str, store_bytes_per_s: float) -> dict[str, float]:
    """Return the rate of each job by equation 4, with what the system's policy gives."""
    jobs = [
        Job(each.name, each.name, each.dataset_bytes, each.speed_bytes_per_s, passes=_PASSES)
        for each in JOBS
    ]
    policy = policy_of("fifo", "alluxio" if system == "lru" else system)
    plan = make_plan(jobs, policy, Resources(len(jobs), CACHE_BYTES, store_bytes_per_s))
    return {planned.job.name: planned.rate_bytes_per_s for planned in plan.jobs}


@contextmanager
def _datasets() -> Iterator[Path]:
    """Pack the jobs' datasets; remove them afterwards."""
    with (
        scratch("enforce") as folder,
        own_node_memory(),
    ):
        SharedSlowStore.make(folder)
        for job in JOBS:
            make_tree(folder / job.name, job.dataset_bytes // _FILE_BYTES, 10, _FILE_BYTES)
            source = f"{folder / job.name}/"
            dlcmd("put", "-q", "--chunk-size", _CHUNK, source, job.name, folder=folder)
            subprocess.run(["rm", "-r", source], check=True)
        yield folder


@dataclass(frozen=True)
class _Measured:
    """The rates of the jobs and of the store, and how many files had wrong bytes."""

    rates: dict[str, float]
    estimated: dict[str, float]
    """The rates by equation 4 with each job's budget and cache; {} without allocations."""
    store_bytes_per_s: float
    wrong_files: int


def _measure(folder: Path, system: str, store_bytes_per_s: float, settle_s: float) -> _Measured:
    with ExitStack() as stack:
        if system != "lru":
            stack.enter_context(_allocator(folder, system, store_bytes_per_s))
        stack.enter_context(_without_page_cache())
        tier = stack.enter_context(TemporaryDirectory(dir=folder))
        readers = []
        for seed, job in enumerate(JOBS, 1):
            root = stack.enter_context(_mounted(folder, job, tier))
            readers.append(_Reader(folder, job, root, seed))
            stack.callback(readers[-1].close)
        time.sleep(settle_s)
        before, of_store = [reader.last() for reader in readers], state_of(folder).bytes
        time.sleep(MEASURE_S)
        after, store = [reader.last() for reader in readers], state_of(folder).bytes - of_store
        return _Measured(
            {
                job.name: (now["bytes"] - then["bytes"]) / (now["time"] - then["time"])
                for job, then, now in zip(JOBS, before, after, strict=True)
            },
            {} if system == "lru" else {job.name: _estimated(folder, job) for job in JOBS},
            store / MEASURE_S,
            sum(int(now["wrong"]) for now in after),
        )


def _estimated(folder: Path, job: RealJob) -> float:
    """Return the rate that the estimator gives for what the job's mount is allowed and has."""
    stats = json.loads((_root(folder, job) / ".dieselfs/stats.json").read_text())["allocation"]
    cached_share = stats["effective_bytes"] / stats["dataset_bytes"]
    return job_rate(job.speed_bytes_per_s, stats["allowed_bytes_per_s"], uniform_hits(cached_share))


def _root(folder: Path, job: RealJob) -> Path:
    return folder / f"mnt-{job.name}"


@contextmanager
def _allocator(folder: Path, system: str, store_bytes_per_s: float) -> Iterator[None]:
    """Run an allocator, to which the jobs are declared."""
    for job in JOBS:
        slow_dlcmd(
            *(folder, "alloc", "job", "add", job.name, job.name),
            *("--speed", f"{job.speed_bytes_per_s:.0f}", "--passes", str(_PASSES)),
        )
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.dlcmd_disk", "alloc", "run", "--system", system),
            *("--cache", str(CACHE_BYTES), "--remote-io", f"{store_bytes_per_s:.0f}"),
        ],
        env=environment(folder),
        stdout=sys.stderr,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()
        for job in JOBS:
            slow_dlcmd(folder, "alloc", "job", "rm", job.name)


@contextmanager
def _mounted(folder: Path, job: RealJob, tier: str) -> Iterator[Path]:
    root = _root(folder, job)
    root.mkdir(exist_ok=True)
    options = [
        *("--task", f"{folder.name}-{job.name}", "--memory", str(_MEMORY_BYTES)),
        *("--prefill", "0", "--front", "fuse", "--job", job.name),
        *("--ssd", tier, "--ssd-size", str(CACHE_BYTES)),
    ]
    slow_dlcmd(folder, "mount", "-q", "--no-index", *options, job.name, root)
    try:
        yield root
    finally:
        slow_dlcmd(folder, "umount", "-q", root)


@contextmanager
def _without_page_cache() -> Iterator[None]:
    """Drop clean pages all the time."""
    ended = threading.Event()

    def drop() -> None:
        while not ended.wait(_DROP_EVERY_S):
            Path("/proc/sys/vm/drop_caches").write_text("1")

    thread = threading.Thread(target=drop)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class _Reader:
    """The process that reads a job's mount, and the last line that it wrote."""

    def __init__(self, folder: Path, job: RealJob, root: Path, seed: int) -> None:
        [snapshot] = (folder / "data").rglob(f"{job.name}-*.snapshot")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.paced_reader"),
                *map(str, (snapshot, root, seed, _GROUP, job.speed_bytes_per_s)),
            ],
            env=environment(folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._name, self._first = job.name, threading.Event()
        self._thread = threading.Thread(target=self._receive)
        self._thread.start()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines[:] = [line]
            self._first.set()

    def last(self) -> dict[str, float]:
        """Return what the reader wrote last."""
        if self._process.poll() is not None or not self._first.wait(60):
            raise RuntimeError(f"the reader of {self._name} has failed")
        found: dict[str, float] = json.loads(self._lines[0])
        return found

    def close(self) -> None:
        """End the input, and wait for the process."""
        assert self._process.stdin is not None
        self._process.stdin.write("end\n")
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()
