"""How fast are pairs of an image and a text as samples, against `get_many` of as many files?

Pairs of 4 KiB and 200 bytes, packed with `--keep-together sample`, all of it in node memory, one
process. 256 samples at a time in random order, as a DataLoader's worker asks for them
(`__getitems__`), and beside it in the same rounds `Client.get_many` of the same 512 files in the
same order, by their inodes and by their paths. Times are the process's own, of all its threads.
Expectation: `get_many` takes 1.0 µs a pair by inode, nearly all of it copies, and 1.4 by path. A
sample adds its key (0.13 µs with the C extension, 0.4 without: its text is in five places of the
snapshot), the dictionary with its end (0.15 to 0.25) and its indices (0.03). So the ratio is 0.7 by
inode, and 1.0 by path.

    python -m benchmarks.bench_samples [--samples 50000] [--rounds 9] [--quick]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import report, run_rounds, scratch
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.integrations.torch_samples import SampleDataset
from metadata.kv.memory import MemoryStore

BATCH = 256
SIZES = {"jpg": 4096, "json": 200}
FOLDERS = 100


def connected(folder: Path, **options: Any) -> Client:
    return Client.connect(
        "pairs",
        store=LocalDirectory(folder / "store"),
        index=MemoryStore(),
        snapshot_folder=folder / "snapshots",
        **options,
    )


def pack(folder: Path, samples: int) -> Path:
    """Pack pairs of random content; return the snapshot."""
    (folder / "store").mkdir()
    content = random.Random(1).randbytes(4096 + samples)
    with connected(folder, create=True, keep_together="sample") as client:
        for number in range(samples):
            for part, size in SIZES.items():
                path = f"class{number % FOLDERS:02d}/{number:07d}.{part}"
                client.put(content[number : number + size], path)
        return client.save_meta()


def timed(read: Callable[[Any], object], batches: Sequence[Any]) -> Callable[[], float]:
    def run() -> float:
        begin = time.process_time()
        for batch in batches:
            kept = read(batch)  # until the next
        assert kept
        return time.process_time() - begin

    return run


def batches_of(items: Any, size: int) -> Iterator[Any]:
    return (items[at : at + size] for at in range(0, len(items), size))


def measure(client: Client, dataset: SampleDataset, rounds: int) -> None:
    order = np.random.default_rng(1).permutation(len(dataset))
    files = dataset.part_inodes[order].ravel()
    paths = dataset.snapshot.paths_text(files, b"\0").decode().split("\0")[:-1]
    each = BATCH * len(SIZES)
    found = run_rounds(
        {
            "samples": timed(dataset.__getitems__, [*batches_of(order.tolist(), BATCH)]),
            "get_many": timed(client.get_many, [*batches_of(files, each)]),
            "get_many by path": timed(client.get_many, [*batches_of(paths, each)]),
        },
        rounds,
        alternates=True,
    )
    report(
        "pairs as SampleDataset, warm, against get_many of as many files",
        samples_over_get_many=statistics.median(found.ratios("samples", "get_many")),
        samples_over_get_many_by_path=statistics.median(
            found.ratios("samples", "get_many by path")
        ),
        samples=len(dataset),
        rounds=rounds,
        sizes=SIZES,
        us_a_sample={name: found.median(name) / len(dataset) * 1e6 for name in found.seconds},
        samples_a_second=len(dataset) / found.median("samples"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    samples, rounds = (2_000, 3) if options.quick else (options.samples, options.rounds)
    with scratch("samples") as folder:
        snapshot, budget_bytes = pack(folder, samples), samples * 6144 + (64 << 20)
        with connected(folder) as client:
            client.load_meta(snapshot)
            client.open_memory(budget_bytes, task=f"{folder.name}-client")
            task, reader = TaskFolder.at(f"{folder.name}-samples"), client.dataset.reader
            with NodeMemory.open(task, reader, budget_bytes=budget_bytes) as memory:
                measure(client, SampleDataset(client, parts=tuple(SIZES), memory=memory), rounds)


if __name__ == "__main__":
    main()
