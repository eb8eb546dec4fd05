"""How many bytes does a cache policy that knows the jobs keep away from a slow store, live?

Two jobs read through two mounts of one node. The mounts share an SSD tier over one slow store, in
which a chunk of 4 MiB takes 90 ms to find and 10 ms to read. The tier has room for half of what the
jobs read. Each job reads its dataset three times, each time in another chunk-wise shuffled order,
which its mount is told. Node memory has room for the window of a plan alone, and mounts with a plan
drop the pages that were read, so each epoch comes from the tier or from the store.

    different    the jobs have a dataset each
    shared       both read the same dataset, in orders of their own

The answer is the bytes that the store gave in each epoch, and its time, with no tier, with an LRU
tier and with `--ssd-policy next-use`. Bar: LRU reads 1.3 times as many bytes, over epochs 2 and 3.

Expectation: of one job's random orders LRU keeps 1/2 + 1/2 ln 1/2 = 0.15 of a dataset of which it
has room for half, and a fixed half keeps 0.5: 0.85 / 0.5 = 1.7 times fewer bytes.

    python -m benchmarks.bench_ssd_policies_live [--only different,shared,cluster] [--chunks 150]

As root.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import dlcmd, dlcmd_environment, make_tree, report, scratch
from benchmarks.shared_disk import SharedDisk, state_of

SEEK_S, BYTES_PER_S = 0.090, 400e6
EPOCHS = 3
FILE_BYTES = 110 << 10
CHUNK_BYTES = 4 << 20
GROUP = 4
MEMORY_BYTES = (4 * GROUP + 8) * CHUNK_BYTES
SYSTEMS = ("none", "lru", "next-use")
BAR = 1.3


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


CASES = {
    "different": (Job("one", "first"), Job("two", "second")),
    "shared": (Job("one", "first"), Job("two", "first")),
}


def make(folder: Path, chunks: int) -> None:
    """Pack two datasets of that many chunks, on a disk that is not slow yet."""
    SharedDisk.make(folder)
    files = chunks * CHUNK_BYTES // FILE_BYTES
    for name in ("first", "second"):
        make_tree(folder / name, files, 10, FILE_BYTES)
        dlcmd("put", "-q", f"{folder / name}/", name, folder=folder)
        subprocess.run(["rm", "-r", str(folder / name)], check=True)


def total_bytes(folder: Path, jobs: Sequence[Job]) -> int:
    """The bytes of the objects of the jobs' datasets."""
    return sum(
        path.stat().st_size
        for dataset in {job.dataset for job in jobs}
        for path in (folder / "store" / "datasets" / dataset).rglob("chunks/*/*")
    )


def snapshot_of(folder: Path, dataset: str) -> Path:
    [path] = (folder / "data").rglob(f"{dataset}-*.snapshot")
    return path


def environment(folder: Path) -> dict[str, str]:
    return dlcmd_environment(folder) | {"DIESELFS_STORE": f"disk://{folder}"}


def slow_dlcmd(folder: Path, *arguments: str | Path) -> None:
    command = [sys.executable, "-m", "benchmarks.dlcmd_disk", *map(str, arguments)]
    subprocess.run(command, env=environment(folder), check=True, stdout=subprocess.DEVNULL)


@contextmanager
def mounted(folder: Path, job: Job, *options: str) -> Iterator[Path]:
    root = folder / f"mnt-{job.name}"
    root.mkdir(exist_ok=True)
    own = ("--task", f"{folder.name}-{job.name}", "--memory", str(MEMORY_BYTES))
    slow_dlcmd(folder, "mount", "-q", "--no-index", *own, *options, job.dataset, root)
    try:
        yield root
    finally:
        slow_dlcmd(folder, "umount", "-q", root)


class JobReader:
    """The process that reads a job's mount."""

    def __init__(self, folder: Path, job: Job, root: Path, seed: int) -> None:
        snapshot = snapshot_of(folder, job.dataset)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.epoch_reader"),
                *map(str, (snapshot, root, seed, GROUP)),
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
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def epochs_of(folder: Path, jobs: Sequence[Job], options: Sequence[str]) -> list[Epoch]:
    """Have all jobs read side by side; an epoch begins when all have ended the one before."""
    found = []
    with ExitStack() as stack:
        readers = []
        for seed, job in enumerate(jobs, 1):
            root = stack.enter_context(mounted(folder, job, *options))
            reader = JobReader(folder, job, root, seed)
            stack.callback(reader.close)
            readers.append(reader)
        for epoch in range(EPOCHS):
            before = state_of(folder).bytes
            seconds = together([partial(reader.read, epoch) for reader in readers])
            found.append(Epoch(state_of(folder).bytes - before, max(seconds)))
    return found


def together(calls: Sequence[Any]) -> list[float]:
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


def measure(folder: Path, case: str, systems: Sequence[str]) -> None:
    jobs = CASES[case]
    size = total_bytes(folder, jobs)
    later: dict[str, int] = {}
    for system in systems:
        ssd = folder / f"ssd-{case}-{system}"
        options = ["--ssd", "none"]
        if system != "none":
            options = ["--ssd", str(ssd), "--ssd-size", str(size // 2)]
        if system not in ("none", "lru"):
            options += ["--ssd-policy", system]
        epochs = epochs_of(folder, jobs, options)
        later[system] = sum(epoch.store_bytes for epoch in epochs[1:])
        report(
            "live policies",
            case=case,
            policy=system,
            dataset_bytes=size,
            store_bytes=[epoch.store_bytes for epoch in epochs],
            seconds=[round(epoch.seconds, 2) for epoch in epochs],
            lru_over_this=later["lru"] / later[system] if "lru" in later else None,
            bar=BAR if system == "next-use" else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--chunks", type=int, default=150, help="chunks of each dataset")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    options = parser.parse_args()
    with scratch("policies-live") as folder:
        make(folder, options.chunks)
        SharedDisk.make(folder, seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)
        for case in options.only.split(","):
            measure(folder, case, options.systems.split(","))


if __name__ == "__main__":
    main()
