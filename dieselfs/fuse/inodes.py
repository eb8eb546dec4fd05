"""The numbers by which the kernel knows files. Each means one file for as long as the mount lives.

    1                                  the root of the mount
    2 … 2^40 - 1                       the control directory and what is in it
    epoch << 40 | snapshot inode       a file or directory of the dataset, epoch = 1, 2, …

The kernel keeps names and bytes under these numbers for good. A refresh that used a number again
would serve the old file's bytes under the new file's name, so every snapshot that a mount shows in
its life has an epoch of its own (design §6 a).

The root keeps its number through all epochs, so the positions in its listing are numbered alike,
epoch << 40 | index of the next child, and tell which snapshot's listing a reader is in.
"""

from __future__ import annotations

from typing import Final

ROOT_INODE: Final = 1  # FUSE_ROOT_ID, fixed by the kernel
CONTROL_INODE: Final = 2
SHUFFLE_INODE: Final = 3
PLAN_INODE: Final = 4
FIRST_CONTROL_FILE_INODE: Final = 5
"""From here on control files are numbered as they are looked up."""
FIRST_EPOCH: Final = 1

_EPOCH_SHIFT: Final = 40
_SNAPSHOT_MASK: Final = (1 << _EPOCH_SHIFT) - 1
FIRST_DATASET_INODE: Final = FIRST_EPOCH << _EPOCH_SHIFT


def is_control(inode: int) -> bool:
    """Whether `inode` is the control directory or lies in it."""
    return ROOT_INODE < inode < FIRST_DATASET_INODE


def kernel_inode(epoch: int, snapshot_inode: int) -> int:
    """The kernel's number of anything in a snapshot but its root, which is always `ROOT_INODE`."""
    return epoch << _EPOCH_SHIFT | snapshot_inode


def epoch_of(inode: int) -> int:
    """The epoch in which the kernel learnt `inode`; 0 for the root and control files."""
    return inode >> _EPOCH_SHIFT


def snapshot_inode(inode: int) -> int:
    """The number in its epoch's snapshot of a file or directory that is not the root."""
    return inode & _SNAPSHOT_MASK


def root_position(epoch: int, index: int) -> int:
    """Where a listing of the root stands that began in `epoch` and goes on with child `index`."""
    return epoch << _EPOCH_SHIFT | index


def index_in_root(position: int) -> int:
    """The child that a listing of the root goes on with; its epoch is the position's `epoch_of`."""
    return position & _SNAPSHOT_MASK
