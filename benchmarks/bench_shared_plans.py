"""How many bytes of a slow store do two jobs save that share a dataset and tell their orders?

Two mounts of one dataset share node memory, which has room for half of it. A job reads through
each, epoch after epoch, in chunk-wise shuffled orders of its own. Nothing is prefilled, and the
page cache is dropped before each epoch, so all bytes come from node memory or from the store.

    merged    the jobs tell their orders an epoch ahead; what any of them reads soonest stays
    late      the same, but an epoch's order is told when the one before is over
    uniform   no order is told; what is cached stays
    lru       no order is told; the least recently used chunk is evicted

The answer is the bytes that left the store after the first epoch. Bar: uniform reads 1.2 times as
many as merged orders.

Expectation: with half of the dataset uniform caching misses 0.5, and Belady's choice for two jobs
0.28, which is 1.8 times fewer. Two windows of 4 chunks and 8 under way take a part of the memory.

    python -m benchmarks.bench_shared_plans [--chunks 240] [--epochs 3]
        [--systems merged,uniform]

As root. `bench_silod --only known-order` replays the same without mounts.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.harness import dlcmd, make_tree, report, scratch
from benchmarks.policy_jobs import FILE_BYTES, GROUP, Job, JobReader, slow_dlcmd, together
from benchmarks.shared_slow_store import SharedSlowStore, state_of
from tests.own_node_memory import own_node_memory

TELLS = {"merged": "ahead", "late": "late", "uniform": "untold", "lru": "untold"}
"""When the jobs tell the order of an epoch, with each system."""
BAR = 1.2
CHUNK_BYTES = 1 << 20
SEEK_S, BYTES_PER_S = 0.002, 100e6
JOBS = (Job("one", "first"), Job("two", "first"))


@contextmanager
def dataset(chunks: int) -> Iterator[Path]:
    """Make a folder with a dataset on a slow disk; remove it afterwards."""
    with (
        scratch("shared-plans") as folder,
        own_node_memory(),
    ):
        SharedSlowStore.make(folder)
        make_tree(folder / "first", chunks * CHUNK_BYTES // FILE_BYTES, 10, FILE_BYTES)
        dlcmd("put", "-q", "--chunk-size", "1MiB", f"{folder}/first/", "first", folder=folder)
        subprocess.run(["rm", "-r", str(folder / "first")], check=True)
        SharedSlowStore.make(folder, seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)
        yield folder


@contextmanager
def mounted(folder: Path, number: int, memory_bytes: int, system: str) -> Iterator[Path]:
    """Mount a job's dataset. A byte more of memory makes a server of its own of each mount."""
    root = folder / f"mnt-{number}"
    root.mkdir(exist_ok=True)
    options = [
        *("--task", folder.name, "--memory", str(memory_bytes + number)),
        *("--prefill", "0", "--front", "fuse", "--no-index"),
        *(("--eviction", "lru") if system == "lru" else ()),
    ]
    slow_dlcmd(folder, "mount", "-q", *options, "first", root)
    try:
        yield root
    finally:
        slow_dlcmd(folder, "umount", "-q", root)


def store_bytes(folder: Path, system: str, memory_bytes: int, epochs: int) -> list[int]:
    """Return the bytes that left the store in each epoch of both jobs."""
    found = []
    with ExitStack() as stack:
        readers = []
        for number, job in enumerate(JOBS, 1):
            root = stack.enter_context(mounted(folder, number, memory_bytes, system))
            readers.append(JobReader(folder, job, root, number, tells=TELLS[system]))
            stack.callback(readers[-1].close)
        for epoch in range(epochs):
            os.sync()
            Path("/proc/sys/vm/drop_caches").write_text("1")
            before = state_of(folder).bytes
            together([partial(reader.read, epoch) for reader in readers])
            found.append(state_of(folder).bytes - before)
    return found


def measure(folder: Path, systems: Sequence[str], epochs: int) -> None:
    """Report a line a system."""
    chunks = [*(folder / "store" / "datasets" / "first").rglob("chunks/*/*")]
    size = sum(path.stat().st_size for path in chunks)
    later: dict[str, int] = {}
    for system in systems:
        found = store_bytes(folder, system, size // 2, epochs)
        later[system] = sum(found[1:])
        report(
            "shared plans",
            system=system,
            dataset_bytes=size,
            chunks=len(chunks),
            cached_share=0.5,
            window_share=len(JOBS) * (GROUP + 8) / len(chunks),
            store_bytes=found,
            miss_share=later[system] / (size * len(JOBS) * (epochs - 1)),
            over_merged=later[system] / later["merged"] if "merged" in later else None,
            bar=BAR if system == "uniform" else None,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chunks", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--systems", default="merged,uniform")
    options = parser.parse_args()
    systems = options.systems.split(",")
    if not set(systems) <= set(TELLS):
        parser.error(f"name systems of {', '.join(TELLS)}")
    with dataset(options.chunks) as folder:
        measure(folder, systems, options.epochs)


if __name__ == "__main__":
    main()
