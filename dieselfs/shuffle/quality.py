"""The randomness of a chunk-wise shuffle, measured before any training.

It is the effect of a group size on the classes per batch, and its cost in memory.

    with Snapshot.open(path) as snapshot:
        found = report(snapshot, [10, 100], class_folder_labels(snapshot))
        found.recommended.group_size

A chunk-wise shuffle (`dieselfs.shuffle.order`) is as good as its chunks are mixed. If a chunk
samples the whole dataset (packed with the default order, scatter), any group size gives batches
like a full shuffle's. If it holds one class (packed by path), a batch holds no more classes than
the group has chunks. docs/shuffle-quality.md has the formulas, and relates the numbers to a
model's accuracy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.errors import UsageError
from dieselfs.shuffle.class_mixing import ClassMixing, class_mixing, distinct_numbers
from dieselfs.shuffle.group_memory import group_memory
from dieselfs.shuffle.order import ShuffleParameters, shuffle_order
from metadata.snapshot import Snapshot

DEFAULT_BATCH: Final = 256
CLOSE: Final = 0.02
"""The limit of closeness to a full shuffle.

A close order has fewer classes per batch by at most this part, and at most this distance.
"""
CLOSE_THROUGHOUT: Final = 0.1
"""The second limit of closeness, for each tenth of the epoch.

No tenth has fewer classes per batch than the full shuffle's smallest by more than this part. A last
group of few chunks may have so.
"""
_SORTED_BELOW: Final = 0.5
"""The limit below which a packing is class-sorted.

Its chunks then hold fewer classes beside the first than this part of what evenly mixed chunks would
hold.
"""
_LADDER: Final = 1.2
"""The factor between candidates for a recommended group size."""
_CHUNK_SIZES: Final = 64
"""The number of chunk sizes, in files, for which the expected number of classes is calculated.

Other sizes are interpolated.
"""


@dataclass(frozen=True, slots=True)
class OrderQuality:
    """The quality of one order of all files."""

    classes_per_batch: ClassMixing
    distance: float
    """The distance from a full shuffle, by total variation.

    A full shuffle has 0, files sorted by class have 1.
    """
    chunks_in_batch: float
    """Distinct chunks in a batch.

    Two files of one chunk meet in each epoch; this number shows it, whatever the classes are.
    """


@dataclass(frozen=True, slots=True)
class GroupQuality:
    """The quality of a chunk-wise shuffle with one group size."""

    group_size: int
    """Chunks in a group."""
    order: OrderQuality
    memory_bytes: int
    """The memory that it needs at most, in any epoch (`dieselfs.shuffle.group_memory`)."""


@dataclass(frozen=True, slots=True)
class ChunkClasses:
    """The class mixing of the packing: means over chunks."""

    found: float
    """Distinct classes in a chunk."""
    expected: float
    """Distinct classes in a chunk if files had been dealt to the chunks at random."""

    @property
    def sorted_by_class(self) -> bool:
        """True if the packing is so sorted that only a group of many chunks mixes classes.

        Always False for chunks that cannot hold several classes, such as those of one large file
        each.
        """
        fits_several = self.expected >= 1.5
        return fits_several and self.found - 1 < _SORTED_BELOW * (self.expected - 1)


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """The result for one snapshot, for one epoch of one seed, read by one rank."""

    snapshot: str
    """The id of the snapshot."""
    files: int
    """Files that are read."""
    classes: int
    chunks: int
    """Chunks that hold a file that is read."""
    batch: int
    seed: int
    epoch: int
    full: OrderQuality
    """A full shuffle: all chunks are one group."""
    directory: OrderQuality
    """The order directory by directory, sorted by name."""
    groups: tuple[GroupQuality, ...]
    """The requested group sizes, ascending."""
    chunk_classes: ChunkClasses
    recommended: GroupQuality
    """The smallest group size, on a ladder of factors of 1.2, that is close to a full shuffle."""
    fitting: GroupQuality | None
    """The largest group size that the given memory allows.

    None if no memory is given, or no group fits.
    """
    least_memory_bytes: int
    """The memory for groups of one chunk."""

    def is_close(self, order: OrderQuality) -> bool:
        """Return True if an order mixes as well as a full shuffle does."""
        return _is_close(order, self.full)


def report(
    snapshot: Snapshot,
    group_sizes: Sequence[int],
    labels: npt.NDArray[np.integer],
    batch: int = DEFAULT_BATCH,
    seed: int = 0,
    epoch: int = 0,
    memory_bytes: int | None = None,
) -> ShuffleReport:
    """Measure chunk-wise shuffles of a snapshot.

    `labels` are by inode, negative for files that are not read (`class_labels`). Group sizes beyond
    the number of chunks mean all of them. Takes some 0.3 s a group size for 1.28 million files, and
    a dozen times that for the references and the recommendation. Raises `UsageError` if no file is
    read, and `ValueError` for numbers out of range.
    """
    if len(labels) != snapshot.file_count:
        raise ValueError(f"{len(labels)} labels for {snapshot.file_count} files")
    if not (np.asarray(labels) >= 0).any():
        raise UsageError(
            f"{snapshot.dataset.name} has no file to measure",
            "put files, or choose another --under",
        )
    for size in group_sizes:
        ShuffleParameters(seed, epoch, size)  # checks it
    orders = _Orders(snapshot, np.asarray(labels), batch, seed, epoch)
    memory = orders.memory
    sizes = sorted({min(size, memory.chunks) for size in group_sizes})
    fitting = memory.largest_group(memory_bytes) if memory_bytes is not None else 0
    return ShuffleReport(
        snapshot.id,
        orders.samples.files,
        len(orders.samples.class_files),
        memory.chunks,
        orders.full.classes_per_batch.batch,
        seed,
        epoch,
        orders.full,
        orders.measure(snapshot.columns.by_name),
        tuple(orders.group(size) for size in sizes),
        _chunk_classes(snapshot, orders.samples),
        orders.recommended(),
        orders.group(fitting) if fitting else None,
        memory.of(1),
    )


def usual_group_sizes(chunks: int) -> list[int]:
    """Return 1, 3, 10, 30, … below the number of chunks, and that number."""
    sizes = [digit * 10**power for power in range(10) for digit in (1, 3)]
    return [*(size for size in sizes if size < chunks), max(chunks, 1)]


@dataclass(frozen=True, slots=True)
class _Samples:
    """The files that are read, with their classes numbered without gaps."""

    read: npt.NDArray[np.bool_]
    """A mask by inode."""
    labels: npt.NDArray[np.unsignedinteger]
    """Labels by inode; 0 for files that are not read."""
    class_files: npt.NDArray[np.int64]

    @property
    def files(self) -> int:
        return int(self.class_files.sum())

    def of(self, inodes: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
        """Return the inodes that are read, in the same order."""
        return inodes if self.files == len(self.read) else inodes[self.read[inodes]]

    def sorted_by_class(self) -> npt.NDArray[np.unsignedinteger]:
        """Return the labels, not inodes, sorted."""
        return np.repeat(
            np.arange(len(self.class_files), dtype=self.labels.dtype), self.class_files
        )


def _samples(labels: npt.NDArray[np.integer]) -> _Samples:
    read = labels >= 0
    _, numbers, class_files = np.unique(labels[read], return_inverse=True, return_counts=True)
    # Two bytes sort faster than four.
    narrow: type[np.unsignedinteger] = np.uint16 if len(class_files) <= 1 << 16 else np.uint32
    numbered: npt.NDArray[np.unsignedinteger] = np.zeros(len(labels), narrow)
    numbered[read] = numbers
    return _Samples(read, numbered, class_files)


class _Orders:
    """Orders of one snapshot, measured by the same labels."""

    def __init__(
        self,
        snapshot: Snapshot,
        labels: npt.NDArray[np.integer],
        batch: int,
        seed: int,
        epoch: int,
    ) -> None:
        self._snapshot = snapshot
        self._batch, self._seed, self._epoch = batch, seed, epoch
        self.samples = _samples(labels)
        self._groups: dict[int, GroupQuality] = {}
        self.memory = group_memory(snapshot, self.samples.read)
        self._read_alone = (
            None if self.samples.read.all() else np.flatnonzero(self.samples.read).astype(np.uint32)
        )
        by_class = self.samples.sorted_by_class()
        self._sorted_variation = class_mixing(by_class, self.samples.class_files, batch).variation
        self._full_variation = self._class_mixing(self._shuffled(self.memory.chunks)).variation
        self.full = self.group(self.memory.chunks).order

    def group(self, size: int) -> GroupQuality:
        """Return the quality of a group size; each size is measured once."""
        if size not in self._groups:
            order = self.measure(self._shuffled(size))
            self._groups[size] = GroupQuality(size, order, self.memory.of(size))
        return self._groups[size]

    def measure(self, inodes: npt.NDArray[np.unsignedinteger]) -> OrderQuality:
        mixing = self._class_mixing(inodes)
        scale = self._sorted_variation - self._full_variation
        distance = (mixing.variation - self._full_variation) / scale if scale > 0 else 0.0
        chunk = self._snapshot.columns.chunk[self.samples.of(inodes)]
        return OrderQuality(mixing, distance, distinct_numbers(chunk, self._batch))

    def recommended(self) -> GroupQuality:
        """Return the first close group size of a ladder, found by bisection.

        A larger group is hardly worse, and all chunks are the full shuffle.
        """
        sizes = _ladder(self.memory.chunks)
        low, high = 0, len(sizes) - 1
        while low < high:
            middle = (low + high) // 2
            if _is_close(self.group(sizes[middle]).order, self.full):
                high = middle
            else:
                low = middle + 1
        return self.group(sizes[high])

    def _shuffled(self, group_size: int) -> npt.NDArray[np.uint32]:
        bounds = self._snapshot.chunk_first_inode
        return shuffle_order(
            bounds, self._seed, self._epoch, group_size, files=self._read_alone
        ).inodes

    def _class_mixing(self, inodes: npt.NDArray[np.unsignedinteger]) -> ClassMixing:
        labels = self.samples.labels[self.samples.of(inodes)]
        return class_mixing(labels, self.samples.class_files, self._batch)


def _is_close(order: OrderQuality, full: OrderQuality) -> bool:
    mixing, best = order.classes_per_batch, full.classes_per_batch
    return (
        order.distance <= CLOSE
        and mixing.mean >= (1 - CLOSE) * best.mean
        and min(mixing.by_part) >= (1 - CLOSE_THROUGHOUT) * min(best.by_part)
    )


def _ladder(chunks: int) -> list[int]:
    """Return 1, 2, 3, …, up to `chunks`.

    Each is a fifth greater than the one before, or one greater while a fifth is less than one.
    """
    sizes = [1]
    while sizes[-1] < chunks:
        sizes.append(min(chunks, max(sizes[-1] + 1, int(sizes[-1] * _LADDER))))
    return sizes


def _chunk_classes(snapshot: Snapshot, samples: _Samples) -> ChunkClasses:
    classes = len(samples.class_files)
    chunk = snapshot.columns.chunk[samples.read].astype(np.int64)
    pairs = np.unique(chunk * classes + samples.labels[samples.read])
    files = np.bincount(chunk)
    files = files[files > 0]
    sizes = np.unique(np.geomspace(files.min(), files.max(), _CHUNK_SIZES).astype(np.int64))
    share = samples.class_files / samples.files
    # Few different sizes and few different shares: 64 powers for each distinct class size.
    shares, equal = np.unique(share, return_counts=True)
    expected = ((1 - (1 - shares) ** sizes[:, None]) * equal).sum(axis=1)
    return ChunkClasses(
        float(len(pairs) / len(files)), float(np.interp(files, sizes, expected).mean())
    )
