"""How long does training wait for its data, by iteration (DIESEL Fig. 14), and how long does it
take as a whole (Fig. 15)?

A narrow ResNet-18 learns 32 x 32 images of a kilobyte on one core, beside a DataLoader with one
worker. Four loaders take turns, with the same weights to begin with:

    ext4            files of a local disk, in the page cache, in full random order
    file by file    the same order, each file a request to a store of 8.3 ms and 150 MB/s: what the
                    paper's training does with Lustre
    chunk-wise      from the same store, in the order of ChunkShuffleSampler, with memory for two
                    groups of chunks, which are fetched ahead
    memory          node memory that has everything, in the same order

The waiting is that of the training loop for a batch. Accuracy is taken after each epoch, off the
clock; the time to the same accuracy is that to the lowest of the loaders' best.

Expectation: a batch of 64 takes the network 100 ms, and the store 64 x 8.3 = 530 ms file by file,
beside each other: four fifths of the time are waiting. Chunk-wise it takes one or two chunks, 10 to
20 ms, which are there before: no waiting but for the first batch of an epoch, and the time of ext4,
a fifth. The paper halves the waiting and saves 15 to 27 % of the time: its network is slower and
its store is faster.

    python -m benchmarks.bench_training [--per-class 128] [--epochs 6] [--rounds 1] [--quick]
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from benchmarks.bench_accuracy import write_tree
from benchmarks.harness import Rounds, dlcmd, report, run_rounds, scratch, spread
from benchmarks.made_images import Images, make_images
from benchmarks.shared_slow_store import SharedSlowStore
from benchmarks.small_resnet import Trainer
from dieselfs.assembly import open_index
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.task.node_memory import NodeMemory
from dieselfs.client import Client
from dieselfs.integrations.torch_dataset import DieselDataset
from dieselfs.integrations.torch_loader import ChunkShuffleLoader
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from metadata.snapshot import Snapshot

SIDE = 32
CLASSES = 10
BATCH = 64
CHUNK_BYTES = 64 << 10
GROUP = 4
GROUPS_BYTES = (2 * GROUP + 4) * CHUNK_BYTES
SEEK_S, BYTES_PER_S = 8.3e-3, 150e6
BASELINE = "file by file"
PAPER = {
    "Fig. 14": "data access time of about half of Lustre's",
    "Fig. 15": "IO time shorter by 51 to 58 %, the total by 15 to 27 %",
}

Batches = Callable[[int], Iterator[tuple[torch.Tensor, torch.Tensor]]]
"""The batches of an epoch."""


@dataclass(frozen=True, slots=True)
class Course:
    """The course of one training."""

    waits_s: list[list[float]] = field(default_factory=list)
    """The seconds of each wait, by epoch and iteration."""
    seconds: list[float] = field(default_factory=list)
    """From the beginning to the end of each epoch."""
    accuracy: list[float] = field(default_factory=list)

    def seconds_until(self, accuracy: float) -> float | None:
        found = zip(self.seconds, self.accuracy, strict=True)
        return next((seconds for seconds, reached in found if reached >= accuracy), None)


class FileByFile(Dataset[tuple[torch.Tensor, int]]):
    """Images by their paths, in class folders."""

    def __init__(self, paths: Sequence[str], read: Callable[[str], bytes]) -> None:
        self._paths, self._read = paths, read

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, int]:
        path = self._paths[number]
        return pixels_of(self._read(path)), int(path[len("class") :].partition("/")[0])


def pixels_of(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8).view(1, SIDE, SIDE) / 64.0 - 2.0


def tensors(images: Images) -> tuple[torch.Tensor, torch.Tensor]:
    pixels = torch.from_numpy(images.pixels.astype(np.float32) / 64 - 2).unsqueeze(1)
    return pixels, torch.from_numpy(images.labels)


def plain_batches(images: FileByFile, workers: int) -> Batches:
    order = torch.Generator().manual_seed(1)
    loader = DataLoader(
        images, BATCH, shuffle=True, generator=order, **_worker_options(workers), drop_last=True
    )
    return lambda epoch: iter(loader)


def chunkwise_batches(images: DieselDataset, workers: int) -> Batches:
    sampler = ChunkShuffleSampler(images, seed=1, group_size=GROUP, rank=0, world_size=1)
    loader: ChunkShuffleLoader[Any] = ChunkShuffleLoader(
        images, BATCH, sampler=sampler, **_worker_options(workers), drop_last=True
    )

    def batches(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        loader.set_epoch(epoch)
        return iter(loader)

    return batches


def _worker_options(workers: int) -> dict[str, Any]:
    if not workers:
        return {}
    context = {"persistent_workers": True, "multiprocessing_context": "fork"}
    return {"num_workers": workers, **context}


@contextmanager
def loaders(folder: Path, workers: int) -> Iterator[dict[str, Batches]]:
    """The four, over the tree `folder/tree` and the dataset `bench` that was packed from it."""
    tree, disk = folder / "tree", folder / "disk"
    paths = sorted(str(path.relative_to(tree)) for path in tree.rglob("*.raw"))
    with ExitStack() as stack:
        index = open_index(f"lmdb://{disk}/index")
        stack.callback(index.close)
        client = stack.enter_context(
            Client.connect(
                "bench",
                store=SharedSlowStore(disk),
                index=index,
                snapshot_folder=folder / "snapshots",
            )
        )
        client.load_meta(client.save_meta())
        snapshot = client.snapshot
        assert snapshot is not None

        def dataset(task: str, budget_bytes: int) -> DieselDataset:
            memory = stack.enter_context(_node_memory(client, snapshot, task, budget_bytes))
            return DieselDataset(
                client, loader=bytes, transform=pixels_of, extensions=[".raw"], memory=memory
            )

        everything = dataset("everything", 4 * sum(client.stat(path).size for path in paths))
        for number in range(len(everything)):
            everything[number]
        yield {
            "ext4": plain_batches(FileByFile(paths, lambda path: _read(tree / path)), workers),
            BASELINE: plain_batches(FileByFile(paths, client.get), workers),
            "chunk-wise": chunkwise_batches(dataset("groups", GROUPS_BYTES), workers),
            "memory": chunkwise_batches(everything, workers),
        }


@contextmanager
def _node_memory(
    client: Client, snapshot: Snapshot, task: str, budget_bytes: int
) -> Iterator[NodeMemory]:
    with (
        TemporaryDirectory(prefix="dieselfs-bench-", dir="/dev/shm") as folder,
        NodeMemory.open(
            TaskFolder.at(task, Path(folder)), client.dataset.reader, budget_bytes=budget_bytes
        ) as memory,
    ):
        yield memory


def _read(path: Path) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.readall()


def train(
    batches: Batches, epochs: int, seed: int, test: tuple[torch.Tensor, torch.Tensor]
) -> Course:
    trainer, course, spent_s = Trainer(CLASSES, seed), Course(), 0.0
    for epoch in range(epochs):
        waits, asked = [], time.perf_counter()
        begin = asked
        for images, labels in batches(epoch):
            waits.append(time.perf_counter() - asked)
            trainer.learn(images, labels)
            asked = time.perf_counter()
        spent_s += time.perf_counter() - begin
        course.waits_s.append(waits)
        course.seconds.append(spent_s)
        course.accuracy.append(trainer.accuracy(*test))
    return course


def tell_waits(courses: dict[str, list[Course]]) -> None:
    """Fig. 14: the waiting for a batch, by its place in an epoch."""
    by_place = {
        name: [statistics.mean(waits) for waits in zip(*_epochs(of), strict=True)]
        for name, of in courses.items()
    }
    means = {name: statistics.mean(waits) for name, waits in by_place.items()}
    report(
        "data access time by iteration, of a file-by-file loader's (Fig. 14)",
        ratio={name: means[name] / means[BASELINE] for name in means if name != BASELINE},
        mean_ms={name: 1e3 * mean for name, mean in means.items()},
        first_of_an_epoch_ms={name: 1e3 * waits[0] for name, waits in by_place.items()},
        by_iteration_ms={
            name: [round(1e3 * wait, 2) for wait in waits] for name, waits in by_place.items()
        },
        paper=PAPER["Fig. 14"],
    )


def tell_training(courses: dict[str, list[Course]], taken: Rounds) -> None:
    """Fig. 15: whole trainings, and until an accuracy that all reach."""
    target = min(max(course.accuracy) for of in courses.values() for course in of)
    until = {
        name: statistics.median(course.seconds_until(target) or 0.0 for course in of)
        for name, of in courses.items()
    }
    report(
        "time of a whole training, of a file-by-file loader's (Fig. 15)",
        ratio={
            name: spread([1 / ratio for ratio in taken.ratios(name, BASELINE)])
            for name in courses
            if name != BASELINE
        },
        seconds={name: taken.median(name) for name in courses},
        accuracy=target,
        seconds_to_accuracy=until,
        to_accuracy_ratio={name: until[name] / until[BASELINE] for name in courses},
        accuracy_at_end={
            name: statistics.mean(course.accuracy[-1] for course in of)
            for name, of in courses.items()
        },
        paper=PAPER["Fig. 15"],
    )


def _epochs(courses: Sequence[Course]) -> list[list[float]]:
    return [waits for course in courses for waits in course.waits_s]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--per-class", type=int, default=128, help=f"images; {CLASSES} classes")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small: that it works")
    options = parser.parse_args()
    if options.quick:
        options.per_class, options.epochs = 32, 2
    with scratch("training") as folder:
        write_tree(make_images(CLASSES, options.per_class, 0, SIDE), folder / "tree")
        put = ["put", "-q", "-j", "1", "--chunk-size", str(CHUNK_BYTES)]
        dlcmd(*put, f"{folder}/tree/", "bench", folder=folder / "disk")
        SharedSlowStore.make(folder / "disk", seek_s=SEEK_S, bytes_per_s=BYTES_PER_S)
        test = tensors(make_images(CLASSES, 50, 1, SIDE))
        with loaders(folder, options.workers) as found:
            courses: dict[str, list[Course]] = {name: [] for name in found}

            def run(name: str, batches: Batches) -> float:
                course = train(batches, options.epochs, len(courses[name]), test)
                courses[name].append(course)
                return course.seconds[-1]

            turns: dict[str, Callable[[], float]] = {
                name: lambda name=name, batches=batches: run(name, batches)  # type: ignore[misc]
                for name, batches in found.items()
            }
            taken = run_rounds(turns, options.rounds, warm_up=0)
        tell_waits(courses)
        tell_training(courses, taken)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
