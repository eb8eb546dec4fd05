"""The rest of an epoch of which a part was read, perhaps by another number of ranks.

Pure functions.

An epoch that is resumed with the same division continues at the same place of the same order. With
another one a new *stage* begins: the files that no rank has read are shuffled as a subset of the
dataset (docs/shuffled-order.md), under the same seed and epoch, and divided among the present
ranks. An epoch may have any number of stages; a file is read once, except for padding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.shuffle.order import Padding, ShuffledOrder, files_a_rank, shuffle_order


@dataclass(frozen=True, slots=True)
class Division:
    """The order of the files of a stage, and their division among ranks."""

    world_size: int = 1
    group_size: int = 100
    drop_last: bool = False
    """Leave out the files that do not divide evenly among ranks, instead of padding.

    The meaning is that of `DistributedSampler`.
    """

    @property
    def padding(self) -> Padding:
        """The padding rule of `shuffle_order`."""
        return "drop" if self.drop_last else "pad"

    def files_a_rank(self, files: int) -> int:
        """Return the length of every rank's order of `files` files."""
        return files_a_rank(files, self.world_size, self.padding)


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of an epoch that was read under one division."""

    division: Division
    samples_done: int
    """Samples read by each rank: in data-parallel training all ranks have read equally many."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """The epoch and the files that its stages have in common."""

    chunk_first_inode: npt.NDArray[np.unsignedinteger]
    files: npt.NDArray[np.uint32]
    """Ascending inodes."""
    seed: int
    epoch: int

    def order(self, division: Division, rank: int, files: npt.NDArray[np.uint32]) -> ShuffledOrder:
        """Return one rank's order of a stage in which `files` are left.

        Costs about 30 ns a file.
        """
        return shuffle_order(
            self.chunk_first_inode,
            self.seed,
            self.epoch,
            division.group_size,
            rank,
            division.world_size,
            division.padding,
            files=files,
        )

    def left_after(self, stages: Iterable[Stage]) -> npt.NDArray[np.uint32]:
        """Return the files that no rank has read, ascending.

        None are left by a stage that was read to its end. The call computes what every rank read:
        about 0.3 µs a file and stage, and 5 ms a rank for 35,000 chunks.
        """
        files = self.files
        for stage in stages:
            if stage.samples_done >= stage.division.files_a_rank(len(files)):
                return files[:0]
            left = np.ones(len(files), np.bool_)
            for rank in range(stage.division.world_size):
                read = self.order(stage.division, rank, files).inodes[: stage.samples_done]
                left[np.searchsorted(files, read)] = False
            files = files[left]
        return files
