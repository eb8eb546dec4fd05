"""Does a chunk-wise shuffle train as well as a full shuffle (DIESEL §6.5, Fig. 13)?

20 classes of 512 made-up images of 256 bytes, packed by `dlcmd put` into 160 chunks of 16 KiB, once
in the default order (scatter) and once by path; a small network with batch normalisation, which
suffers most from batches of few classes, trained in the order of a full shuffle, of chunk-wise
shuffles with groups of 1 to 64 chunks, and of the directories. What is packed is read back through
the client, and the orders are those of `shuffle_order` on the packed dataset's snapshot. Seed by
seed all orders begin with the same weights; differences are taken seed by seed to the full shuffle,
with a 95% confidence interval (Student's t), at the end and, for how fast it gets there, as the
mean over epochs. One interval in twenty misses 0 by chance. A second full shuffle, of another seed,
shows what noise is.

Expectation: scatter packing is a random sample whatever the group size, so its difference is noise;
groups of few class-sorted chunks make batches of few classes, and lose; directory order learns
nothing, since the last batches are all of one class.

    nice python -m benchmarks.bench_accuracy [--quick] >> benchmarks/results/accuracy.jsonl
    python -m benchmarks.plot_accuracy
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from benchmarks.harness import dlcmd, report, scratch
from benchmarks.made_images import SIDE, Images, make_images
from benchmarks.small_network import Tensors, Training, tensors
from dieselfs.assembly import open_index, open_store
from dieselfs.client import Client
from dieselfs.shuffle.class_labels import class_folder_labels
from dieselfs.shuffle.order import shuffle_order
from dieselfs.shuffle.quality import OrderQuality, ShuffleReport
from dieselfs.shuffle.quality import report as measure
from metadata.snapshot import Snapshot

QUESTION: Final = "what accuracy does an order reach"
FULL: Final = "full shuffle"
AGAIN: Final = "full shuffle, another seed"
DIRECTORY: Final = "directory order"
_ANOTHER_SEED: Final = 1000
_CHUNK_BYTES: Final = 16 << 10
_TEST_IMAGES: Final = 200
"""Of each class."""
_TELLING: Final = 0.02
"""An interval that reaches further to both sides says nothing."""
# Student's t for two-sided 95%, by degrees of freedom from 1.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093),
)


@dataclass(frozen=True, slots=True)
class Size:
    per_class: int
    epochs: int
    seeds: int
    groups: tuple[int, ...]
    classes: int = 20


@dataclass(frozen=True, slots=True)
class Packed:
    """One packing, read back."""

    snapshot: Snapshot
    samples: Tensors
    """By inode."""
    quality: ShuffleReport


@dataclass(frozen=True, slots=True)
class Order:
    name: str
    packing: str
    group_size: int | None
    """None: all chunks, or none at all."""
    packed: Packed
    quality: OrderQuality
    epoch: Callable[[int, int], npt.NDArray[np.unsignedinteger]]
    """(seed, epoch) → inodes."""


@dataclass(frozen=True, slots=True)
class Difference:
    """To the full shuffle with the same weights to begin with, in parts of 1."""

    mean: float
    half_interval: float

    @property
    def verdict(self) -> str:
        if abs(self.mean) > self.half_interval:
            return "differs"
        return "within noise" if self.half_interval <= _TELLING else "too few seeds to tell"


def difference(own: list[float], base: list[float]) -> Difference:
    each = [a - b for a, b in zip(own, base, strict=True)]
    if len(each) < 2:
        return Difference(each[0], math.inf)
    error = statistics.stdev(each) / math.sqrt(len(each))
    return Difference(statistics.mean(each), _T[len(each) - 2] * error)


def write_tree(images: Images, root: Path) -> None:
    """Class folders of raw images."""
    for label in np.unique(images.labels):
        (root / f"class{label:02d}").mkdir(parents=True)
    for number, (pixels, label) in enumerate(zip(images.pixels, images.labels, strict=True)):
        (root / f"class{label:02d}/{number:06d}.raw").write_bytes(pixels.tobytes())


@contextmanager
def packed(tree: Path, folder: Path, order: str, groups: tuple[int, ...]) -> Iterator[Packed]:
    # One process, or which files share a process, and so chunks, depends on which is faster.
    options = ["-q", "-j", "1", "--order", order, "--chunk-size", str(_CHUNK_BYTES)]
    dlcmd("put", *options, f"{tree}/", order, folder=folder)
    store, index = open_store(f"file://{folder}/store"), open_index(f"lmdb://{folder}/index")
    with Client.connect(order, store=store, index=index, snapshot_folder=folder) as client:
        path = client.save_meta()
        client.load_meta(path)
        with Snapshot.open(path) as snapshot:
            paths = snapshot.paths_text(np.arange(snapshot.file_count), b"\0").split(b"\0")[:-1]
            data = b"".join(map(client.get, paths))
            labels = class_folder_labels(snapshot)
            images = Images(
                np.frombuffer(data, np.uint8).reshape(-1, SIDE, SIDE),
                np.unique(labels, return_inverse=True)[1],
            )
            yield Packed(snapshot, tensors(images), measure(snapshot, groups, labels))
    index.close()


def orders(scatter: Packed, by_path: Packed) -> list[Order]:
    """The first is the one that the others are compared with."""

    def shuffled(packed: Packed, group_size: int, add_to_seed: int = 0):  # type: ignore[no-untyped-def]
        first = packed.snapshot.chunk_first_inode
        return lambda seed, epoch: (
            shuffle_order(first, seed + add_to_seed, epoch, group_size).inodes
        )

    everything = scatter.snapshot.chunk_count
    full = scatter.quality.full
    found = [
        Order(FULL, "any", None, scatter, full, shuffled(scatter, everything)),
        Order(AGAIN, "any", None, scatter, full, shuffled(scatter, everything, _ANOTHER_SEED)),
    ]
    for packing, packed in (("scatter", scatter), ("path", by_path)):
        for group in packed.quality.groups:
            size = group.group_size
            name = f"{packing} packing, group {size}"
            found.append(Order(name, packing, size, packed, group.order, shuffled(packed, size)))
    by_name = by_path.snapshot.columns.by_name
    found.append(
        Order(DIRECTORY, "any", None, by_path, by_path.quality.directory, lambda *_: by_name)
    )
    return found


def train(order: Order, test: Tensors, seed: int, size: Size) -> list[float]:
    """Accuracy after each epoch."""
    training = Training(size.classes, seed, size.epochs)
    curve = []
    for epoch in range(size.epochs):
        training.learn_epoch(order.packed.samples, order.epoch(seed, epoch))
        curve.append(training.accuracy(test))
    return curve


def tell(order: Order, curves: list[list[float]], base: list[list[float]], size: Size) -> None:
    final = [curve[-1] for curve in curves]
    by_epoch = [statistics.mean(epoch) for epoch in zip(*curves, strict=True)]
    change = difference(final, [curve[-1] for curve in base])
    slower = difference([*map(statistics.mean, curves)], [*map(statistics.mean, base)])
    compared = order.name != FULL
    report(
        QUESTION,
        order=order.name,
        packing=order.packing,
        group_size=order.group_size,
        chunks=order.packed.snapshot.chunk_count,
        classes=size.classes,
        images=order.packed.snapshot.file_count,
        seeds=size.seeds,
        accuracy=statistics.mean(final),
        deviation=statistics.stdev(final) if len(final) > 1 else 0.0,
        difference=change.mean if compared else None,
        difference_95=change.half_interval if compared and len(final) > 1 else None,
        difference_over_epochs=slower.mean if compared else None,
        difference_over_epochs_95=slower.half_interval if compared and len(final) > 1 else None,
        classes_per_batch=order.quality.classes_per_batch.mean,
        distance=order.quality.distance,
        effective_batch=order.quality.classes_per_batch.effective_batch,
        curve=[round(value, 4) for value in by_epoch],
    )
    shown = f"{_points(change)}; over all epochs {_points(slower)}"
    print(
        f"{order.name:28} classes per batch {order.quality.classes_per_batch.mean:5.1f}"
        f"  distance {order.quality.distance:6.3f}"
        f"  {100 * statistics.mean(final):6.2f}%  {shown if compared else ''}",
        file=sys.stderr,
    )


def _points(change: Difference) -> str:
    return f"{100 * change.mean:+6.2f} ± {100 * change.half_interval:.2f} points, {change.verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="that it works, not what it says")
    parser.add_argument("--seeds", type=int, default=8, choices=range(1, len(_T) + 2), metavar="N")
    parser.add_argument("--epochs", type=int, default=10)
    options = parser.parse_args()
    size = Size(512, options.epochs, options.seeds, (1, 4, 16, 64))
    if options.quick:
        size = Size(128, 3, 2, (1, 4))
    test = tensors(make_images(size.classes, _TEST_IMAGES, part=1))
    with scratch("accuracy") as folder:
        write_tree(make_images(size.classes, size.per_class, part=0), folder / "tree")
        with (
            packed(folder / "tree", folder / "scatter", "scatter", size.groups) as scatter,
            packed(folder / "tree", folder / "path", "path", size.groups) as by_path,
        ):
            found = orders(scatter, by_path)
            curves: dict[str, list[list[float]]] = {order.name: [] for order in found}
            for seed in range(size.seeds):
                for order in found:
                    curves[order.name].append(train(order, test, seed, size))
                    print(f"  seed {seed}, {order.name}", file=sys.stderr, flush=True)
            for order in found:
                tell(order, curves[order.name], curves[FULL], size)


if __name__ == "__main__":
    main()
