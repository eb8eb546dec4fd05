"""How fast are readers of sound chunks while a store answers with other chunks' bytes for one chunk
in four?

An S3 server on loopback takes 5 ms for each GET. `dlcmd mount` has an eighth of the dataset as
memory. Six processes read all files once, chunk by chunk: four of them the files of sound chunks,
two those of the others. *undisturbed*: the server answers well; *swapped*: it does not, and the two
get EIO. *alone*: the four read without the two. The three take turns, each with a new mount.
*rate* is the undisturbed time until the last reader of sound chunks has ended, over the swapped
one, round by round; *rate over alone* has the harder baseline of readers that share with nobody.
Expectation: a refused file costs two GETs at the most and 0.2 ms of Python, so *rate* is above 1,
and that over alone is not much below. Bar: 0.9 for *rate*.

    python -m benchmarks.bench_swapped_store [--pairs 7]
    python -m benchmarks.bench_swapped_store --quick
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import (
    DLCMD,
    dlcmd_environment,
    make_tree,
    report,
    run_rounds,
    scratch,
    spread,
)
from benchmarks.throttling_server import CREDENTIALS, Throttling, swapping_server
from chunkstore.object_keys import chunk_key
from metadata.snapshot import Snapshot

NAME = "bench"
FILE_BYTES, CHUNK_BYTES = 32 << 10, 1 << 20
SWAPS_ONE_IN = 4
SOUND_READERS, OTHER_READERS = 4, 2
RULES = Throttling(1e6, 0.0, keeps_chunks=True, get_latency_s=0.005, swaps_one_in=SWAPS_ONE_IN)


def read_all(paths: Sequence[str]) -> tuple[int, int, float]:
    """Return the files read, the files with an error, and when the last one ended."""
    found = failed = 0
    for path in paths:
        try:
            with open(path, "rb") as file:
                found += len(file.read()) == FILE_BYTES
        except OSError:
            failed += 1
    return found, failed, time.monotonic()


@dataclass(slots=True)
class Bench:
    """Mounts of one dataset, and their readers."""

    folder: Path
    url: str
    swap: Callable[[bool], list[str]]
    chunks: int
    sound: list[list[str]] = field(default_factory=list)
    """The paths in each sound chunk."""
    others: list[list[str]] = field(default_factory=list)
    rounds: int = 0

    @property
    def environment(self) -> dict[str, str]:
        return dlcmd_environment(self.folder) | CREDENTIALS | {"DIESELFS_STORE": self.url}

    def dlcmd(self, *arguments: str | Path) -> str:
        command = [*DLCMD, *map(str, arguments)]
        return subprocess.run(
            command, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    def make(self) -> None:
        source = self.folder / "source"
        make_tree(source, self.chunks * CHUNK_BYTES // FILE_BYTES, 8, FILE_BYTES)
        self.dlcmd("put", "-q", "--chunk-size", "1MiB", f"{source}/", f"dl://{NAME}")
        made = json.loads(self.dlcmd("snapshot", "create", "--json", NAME))
        wrong = {*self.swap(True)}
        self.swap(False)
        with Snapshot.open(Path(made["file"])) as snapshot:
            for number in range(snapshot.chunk_count):
                key = chunk_key(NAME, snapshot.chunk(number).id)
                inodes = snapshot.files_in_chunk(number)
                paths = [os.fsdecode(snapshot.path_of(inode)) for inode in inodes]
                is_wrong = any(one.endswith(key) for one in wrong)
                (self.others if is_wrong else self.sound).append(paths)

    def turn(self, swapped: bool, alone: bool = False) -> float:
        """Read over a new mount; the seconds of the readers of sound chunks."""
        self.swap(swapped)
        self.rounds += 1
        mountpoint = self.folder / "mnt"
        mountpoint.mkdir(exist_ok=True)
        memory = f"{max(8, self.chunks // 8)}MiB"
        options = ("--prefill", "0", "--memory", memory, "--task", f"{os.getpid()}-{self.rounds}")
        self.dlcmd("mount", "--json", "--no-index", *options, NAME, mountpoint)
        try:
            return self.read(mountpoint, swapped, [] if alone else self.others)
        finally:
            self.dlcmd("umount", "-q", mountpoint)

    def read(self, mountpoint: Path, swapped: bool, wrong: list[list[str]]) -> float:
        parts = [
            [f"{mountpoint}/{path}" for paths in chunks[at::count] for path in paths]
            for chunks, count in ((self.sound, SOUND_READERS), (wrong, OTHER_READERS))
            for at in range(count)
        ]
        with multiprocessing.get_context("fork").Pool(len(parts)) as pool:
            pool.map(read_all, [[]] * len(parts), 1)  # all have started
            began = time.monotonic()
            results = pool.map(read_all, parts, 1)
        sound, others = results[:SOUND_READERS], results[SOUND_READERS:]
        assert sum(found for found, _, _ in sound) == sum(map(len, self.sound))
        assert sum(failed for _, failed, _ in others) == swapped * sum(map(len, wrong))
        return max(ended for _, _, ended in sound) - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    pairs, chunks = (1, 16) if chosen.quick else (chosen.pairs, chosen.mib)
    with scratch("swapped") as folder, swapping_server(RULES) as (url, swap):
        bench = Bench(folder, url, swap, chunks)
        bench.make()
        taken = run_rounds(
            {
                "undisturbed": lambda: bench.turn(False),
                "swapped": lambda: bench.turn(True),
                "alone": lambda: bench.turn(False, alone=True),
            },
            pairs,
            warm_up=0 if chosen.quick else 1,
            alternates=True,
        )
        rates = taken.ratios("swapped", "undisturbed")
        report(
            "readers of sound chunks beside swapped ones",
            rate=statistics.median(rates),
            rates=spread(rates),
            rate_over_alone=spread(taken.ratios("swapped", "alone")),
            seconds={name: spread(taken.seconds[name]) for name in taken.seconds},
            sound_files=sum(map(len, bench.sound)),
            other_files=sum(map(len, bench.others)),
            pairs=pairs,
        )


if __name__ == "__main__":
    main()
