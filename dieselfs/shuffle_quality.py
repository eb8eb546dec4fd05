"""Is this shuffle random enough? What a group size does to the mix of classes in a batch, and what it costs, before any training.

    with Snapshot.open(path) as snapshot:
        found = report(snapshot, [10, 100], class_folder_labels(snapshot))
        found.recommended.group_size

A chunk-wise shuffle (`dieselfs.shuffle`) is as good as its chunks are mixed. If a chunk samples the whole dataset (packed with the default order,
scatter), any group size gives batches like a full shuffle's. If it holds one class (packed by path), a batch holds no more classes
than the group has chunks. The formulas, and how the numbers relate to a model's accuracy: docs/shuffle-quality.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from dieselfs.errors import UsageError
from dieselfs.group_memory import group_memory
from dieselfs.label_mix import ClassMixing, class_mixing, distinct_numbers
from dieselfs.shuffle import ShuffleParameters, shuffle_order
from metadata.snapshot import Snapshot

DEFAULT_BATCH: Final = 256
CLOSE: Final = 0.02
"""An order is close to a full shuffle with a mix smaller by this part, and with this distance, at most …"""
CLOSE_THROUGHOUT: Final = 0.1
"""… and if no tenth of the epoch has a mix smaller than the full shuffle's smallest by more than this part: a last group of few chunks."""
_SORTED_BELOW: Final = 0.5
"""A packing is class-sorted if its chunks hold fewer classes beside the first than this part of what evenly mixed ones would."""
_LADDER: Final = 1.2
"""Candidates for a recommended group size grow by this factor."""
_CHUNK_SIZES: Final = 64
"""Different chunk sizes, in files, for which the number of classes to expect is calculated; between them it is interpolated."""


@dataclass(frozen=True, slots=True)
class OrderQuality:
    """One order of all files."""

    mix: ClassMixing
    distance: float
    """From a full shuffle, by total variation: 0 is a full shuffle's, 1 that of files sorted by class."""
    chunks_in_batch: float
    """Distinct chunks in a batch. Two files of one chunk meet in each epoch; this one sees, whatever the classes are."""


@dataclass(frozen=True, slots=True)
class GroupQuality:
    """A chunk-wise shuffle with one group size."""

    group_size: int
    """Chunks."""
    order: OrderQuality
    memory_bytes: int
    """What it needs at most, in whatever epoch (`dieselfs.group_memory`)."""


@dataclass(frozen=True, slots=True)
class ChunkClasses:
    """How well the packing has mixed classes: means over chunks."""

    found: float
    """Distinct classes in a chunk."""
    expected: float
    """The same if files had been dealt to the chunks at random."""

    @property
    def sorted_by_class(self) -> bool:
        """So sorted that only a group of many chunks mixes classes. Not said of chunks that can't hold several, as of one large file each."""
        can_mix = self.expected >= 1.5
        return can_mix and self.found - 1 < _SORTED_BELOW * (self.expected - 1)


@dataclass(frozen=True, slots=True)
class ShuffleReport:
    """Of one snapshot, for one epoch of one seed, read by one rank."""

    snapshot: str
    """Its id."""
    files: int
    """That are read."""
    classes: int
    chunks: int
    """That hold a file that is read."""
    batch: int
    seed: int
    epoch: int
    full: OrderQuality
    """A full shuffle: all chunks are one group."""
    directory: OrderQuality
    """Directory by directory, sorted by name."""
    groups: tuple[GroupQuality, ...]
    """Those asked for, ascending."""
    chunk_classes: ChunkClasses
    recommended: GroupQuality
    """The smallest group size (on a ladder of factors of 1.2) that is close to a full shuffle."""
    fitting: GroupQuality | None
    """The largest group size that the memory given allows; None without one, or if no group fits."""
    least_memory_bytes: int
    """For groups of one chunk."""

    def is_close(self, order: OrderQuality) -> bool:
        """Whether an order mixes as well as a full shuffle does."""
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
    """Measure chunk-wise shuffles of a snapshot. `labels` are by inode, negative for files that are not read (`class_labels`).

    Group sizes beyond the number of chunks mean all of them. Some 0.3 s a group size for 1.28 million files, and a dozen of them for
    the references and the recommendation. `UsageError` if no file is read; `ValueError` for numbers out of range.
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
        orders.full.mix.batch,
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
    """1, 3, 10, 30, … below the number of chunks, and that number."""
    sizes = [digit * 10**power for power in range(10) for digit in (1, 3)]
    return [*(size for size in sizes if size < chunks), max(chunks, 1)]


@dataclass(frozen=True, slots=True)
class _Samples:
    """The files that are read, their classes numbered without gaps."""

    read: npt.NDArray[np.bool_]
    """By inode."""
    labels: npt.NDArray[np.unsignedinteger]
    """By inode; 0 where nothing is read."""
    class_files: npt.NDArray[np.int64]

    @property
    def files(self) -> int:
        return int(self.class_files.sum())

    def of(self, inodes: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.unsignedinteger]:
        """Those that are read, in the same order."""
        return inodes if self.files == len(self.read) else inodes[self.read[inodes]]

    def sorted_by_class(self) -> npt.NDArray[np.unsignedinteger]:
        """Labels, not inodes."""
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
        self._full_variation = self._mix(self._shuffled(self.memory.chunks)).variation
        self.full = self.group(self.memory.chunks).order

    def group(self, size: int) -> GroupQuality:
        """Each size is measured once."""
        if size not in self._groups:
            order = self.measure(self._shuffled(size))
            self._groups[size] = GroupQuality(size, order, self.memory.of(size))
        return self._groups[size]

    def measure(self, inodes: npt.NDArray[np.unsignedinteger]) -> OrderQuality:
        mix = self._mix(inodes)
        scale = self._sorted_variation - self._full_variation
        distance = (mix.variation - self._full_variation) / scale if scale > 0 else 0.0
        chunk = self._snapshot.columns.chunk[self.samples.of(inodes)]
        return OrderQuality(mix, distance, distinct_numbers(chunk, self._batch))

    def recommended(self) -> GroupQuality:
        """The first close one of a ladder, found by halving: a larger group is hardly worse, and all chunks are the full shuffle."""
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

    def _mix(self, inodes: npt.NDArray[np.unsignedinteger]) -> ClassMixing:
        labels = self.samples.labels[self.samples.of(inodes)]
        return class_mixing(labels, self.samples.class_files, self._batch)


def _is_close(order: OrderQuality, full: OrderQuality) -> bool:
    return (
        order.distance <= CLOSE
        and order.mix.mean >= (1 - CLOSE) * full.mix.mean
        and min(order.mix.by_part) >= (1 - CLOSE_THROUGHOUT) * min(full.mix.by_part)
    )


def _ladder(chunks: int) -> list[int]:
    """1, 2, 3, …, each a fifth greater than the one before once that is a number, up to `chunks`."""
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
    # Few different sizes and few different shares: 64 x as many powers as there are different class sizes.
    shares, equal = np.unique(share, return_counts=True)
    expected = ((1 - (1 - shares) ** sizes[:, None]) * equal).sum(axis=1)
    return ChunkClasses(
        float(len(pairs) / len(files)), float(np.interp(files, sizes, expected).mean())
    )
