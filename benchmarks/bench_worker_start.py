"""How long until a DataLoader's workers deliver their first samples: forked, forked and opened
again, or spawned?

Two workers, one sample each, from node memory that holds the whole dataset; the clock runs until
both samples are there and the workers have ended. `worker_ms` is what the first sample takes inside
a worker. *inherited*: the child goes on with what it inherited, whose fork hooks have renewed locks
and the membership of the task (what DieselFS does). *reopened*: the child opens the dataset from
its pickle before its first sample, as it would if one hook at the top replaced all others.
*spawned*: a fresh process opens the pickle. Beside each start a dataset of plain numbers, which
costs what the DataLoader does itself. Expectation: a fork and its pipes take 20 ms, joining the
task 2 ms, a map of the snapshot 1 ms; a spawned process imports torch, 2 s.

    python -m benchmarks.bench_worker_start [--files 50000] [--rounds 21]
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset

from benchmarks.bench_client import Packed
from benchmarks.harness import report, run_rounds, scratch, spread
from dieselfs.integrations.torch_dataset import DieselDataset

WORKERS = 2
SIZE_BYTES = 4096
SPAWNS = 7


class Numbers(Dataset[int]):
    def __len__(self) -> int:
        return WORKERS

    def __getitem__(self, index: int) -> int:
        return index


class FirstSample(Dataset[float]):
    """How long a worker takes for its first sample, in milliseconds; a worker that `reopens` first
    opens the dataset from its pickle."""

    def __init__(self, images: DieselDataset, reopens: bool) -> None:
        self._images = images
        self._pickle = pickle.dumps(images) if reopens else None

    def __len__(self) -> int:
        return WORKERS

    def __getitem__(self, index: int) -> float:
        begin = time.perf_counter()
        if self._pickle is not None:
            self._parents = self._images  # nothing of the parent's is finalised in a worker
            self._images = pickle.loads(self._pickle)
        self._images[index]
        return (time.perf_counter() - begin) * 1000


def started(
    images: Dataset[Any], context: str, samples: list[float] | None = None
) -> Callable[[], float]:
    def run() -> float:
        loader = DataLoader(
            images,
            batch_size=None,
            sampler=range(WORKERS),
            num_workers=WORKERS,
            multiprocessing_context=context,
        )
        begin = time.perf_counter()
        found = list(loader)
        elapsed = time.perf_counter() - begin
        if samples is not None:
            samples.extend(found)
        return elapsed

    return run


def read_all(images: DieselDataset) -> None:
    """Fill node memory, in a process of its own: a training job's parent maps no chunk either."""
    for first in range(0, len(images), 1024):
        images.__getitems__(range(first, min(first + 1024, len(images))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    with scratch("worker-start") as folder:
        packed = Packed(folder, options.files, SIZE_BYTES)
        with packed.connected() as client:
            images = DieselDataset(client, extensions=(".jpg",), loader=len)
            reader = multiprocessing.get_context("fork").Process(target=read_all, args=(images,))
            reader.start()
            reader.join()
            inherited: list[float] = []
            reopened: list[float] = []
            forked = run_rounds(
                {
                    "numbers": started(Numbers(), "fork"),
                    "inherited": started(FirstSample(images, False), "fork", inherited),
                    "reopened": started(FirstSample(images, True), "fork", reopened),
                },
                options.rounds,
                alternates=True,
            )
            spawned = run_rounds(
                {
                    "numbers": started(Numbers(), "spawn"),
                    "spawned": started(FirstSample(images, False), "spawn"),
                },
                SPAWNS,
                alternates=True,
            )
            images.close()
    report(
        "first samples of two DataLoader workers",
        files=options.files,
        rounds=options.rounds,
        forked_s={name: spread(seconds) for name, seconds in forked.seconds.items()},
        spawned_s={name: spread(seconds) for name, seconds in spawned.seconds.items()},
        worker_ms={"inherited": spread(inherited), "reopened": spread(reopened)},
        reopened_over_inherited=1 / statistics.median(forked.ratios("reopened", "inherited")),
    )


if __name__ == "__main__":
    main()
