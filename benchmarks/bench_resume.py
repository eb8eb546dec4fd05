"""How long until the first sample, when training goes on in the middle of an epoch of 1.28 M files?

Names as ImageNet's, made up: a snapshot, but no chunks, so a sample is its file's inode and reading
costs nothing. The dataset object and the sampler are built, workers are not: the clock runs from
`load_state_dict` to the first batch of a DataLoader that forks two. The plan is announced to a
made-up mount (a folder) meanwhile. Expectation: hashing and sorting 1.28 M files 60-90 ms, two
forks and their pipes 50 ms. A state of another world size orders the epoch once more, marks what
was read and orders what is left: 0.3 s. Beside it, in the same rounds, `RandomSampler` skipping to
the same place, which draws every index before it.

    python -m benchmarks.bench_resume [--files 1280000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, Sampler

from benchmarks.bench_snapshot import build, make_dataset
from benchmarks.harness import report, run_rounds, scratch
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from dieselfs.prefetch import announcement

BATCH = 256
WORKERS = 2


class Numbers(Dataset[int]):
    """Samples as `ImageFolder` lists them, each of which is read as its number."""

    def __init__(self, paths: list[str]) -> None:
        self.samples = [(path, 0) for path in paths]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> int:
        return index


def made_up_mount(folder: Path, snapshot: Path) -> Path:
    """What a mount says of itself, and a folder for plans. Every plan is taken."""
    root, task = folder / "mnt", folder / "task"
    (root / ".dieselfs").mkdir(parents=True)
    task.mkdir()
    document = {"snapshot_file": str(snapshot), "node_memory": str(task)}
    (root / ".dieselfs" / "dataset.json").write_text(json.dumps(document))
    announcement._answer = lambda mount_root, plan_id: {"accepted": True}
    return root


def resumed(
    images: Numbers, sampler: ChunkShuffleSampler, state: dict[str, Any], expected: list[int]
) -> Callable[[], float]:
    def run() -> float:
        loader = ChunkShuffleLoader(images, BATCH, sampler=sampler, num_workers=WORKERS)
        begin = time.perf_counter()
        loader.load_state_dict(state)
        batches = iter(loader)
        batch = next(batches)
        elapsed = time.perf_counter() - begin
        assert batch.tolist() == expected[:BATCH]
        return elapsed

    return run


class Skipping(Sampler[int]):
    """What is usually done: the same generator, and the first indices thrown away."""

    def __init__(self, images: Numbers, done: int) -> None:
        self.images = images
        self.done = done

    def __iter__(self) -> Any:
        drawn = iter(RandomSampler(self.images, generator=torch.Generator().manual_seed(1)))
        for _ in range(self.done):
            next(drawn)
        return drawn


def skipped(images: Numbers, done: int) -> Callable[[], float]:
    def run() -> float:
        loader = DataLoader(images, BATCH, sampler=Skipping(images, done), num_workers=WORKERS)
        begin = time.perf_counter()
        next(iter(loader))
        return time.perf_counter() - begin

    return run


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=1_280_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    dataset = make_dataset(options.files, min(1000, options.files))
    files = dataset.state.files
    with scratch("resume") as folder:
        root = made_up_mount(folder, build(dataset, folder / "snapshots"))
        images = Numbers([f"{root}/{path}" for path in dataset.paths])
        begin = time.perf_counter()
        sampler = ChunkShuffleSampler(images, seed=1)
        built_s = time.perf_counter() - begin
        done = files // 2 // BATCH * BATCH
        order = list(sampler)
        begin = time.perf_counter()
        assert sum(1 for _ in sampler) == files
        drawn_s = time.perf_counter() - begin
        same = sampler.state_dict(samples_done=done)
        eight = ChunkShuffleSampler(images, seed=1, rank=0, world_size=8, publish=False)
        other = eight.state_dict(samples_done=done // 8)
        sampler.load_state_dict(other)
        left = list(sampler)
        assert len(left) == files - done // 8 * 8
        times = run_rounds(
            {
                "same world": resumed(images, sampler, same, order[done:]),
                "from 8 ranks": resumed(images, sampler, other, left),
                "skipping": skipped(images, done),
            },
            options.rounds,
        )
        sampler.close()
    figures = {
        "first_sample_s": times.median("same world"),
        "first_sample_worst_s": max(times.seconds["same world"]),
        "first_sample_from_8_ranks_s": times.median("from 8 ranks"),
        "random_sampler_skipping_s": times.median("skipping"),
        "sampler_built_s": built_s,
        "index_drawn_ns": drawn_s / files * 1e9,
    }
    bars = {"first_sample_s": "<= 1", "sampler_built_s": "<= 2"}
    for name, value in figures.items():
        print(f"{name:32}{value:12.4f}  {bars.get(name, '')}", file=sys.stderr)
    report("how soon is the first sample of a resumed epoch", files=files, **figures)


if __name__ == "__main__":
    main()
