"""The numbers by which the kernel knows files: each means one file for as long as the mount lives.

    1                        the root of the mount
    2 … 2^40 - 1             the control directory and its files
    2^40 + snapshot inode    a file or directory of the dataset

One process serves one snapshot, so the arithmetic needs no state. Documents of the control
directory get a new number at each look-up. A server that takes a connection over must not reuse the
numbers of the one before, since the kernel may still hold pages under them: numbering starts at a
place that the clock gives.
"""

from __future__ import annotations

from typing import Final

from dieselfs.fuse.requests.kernel_protocol import ROOT_NODE
from metadata.snapshot import ROOT

CONTROL_NODE: Final = 2
SHUFFLE_NODE: Final = 3
PLAN_NODE: Final = 4
WHY_NODE: Final = 5
FIRST_CONTROL_FILE_NODE: Final = 6
DATASET_NODES: Final = 1 << 40
"""The node of the snapshot's inode 0.

Every smaller one belongs to the control directory, except the root's.
"""

_TICK_SHIFT: Final = 16
_START_MASK: Final = (1 << 39) - 1


def is_control(node: int) -> bool:
    """Return True if `node` is the control directory or lies in it."""
    return ROOT_NODE < node < DATASET_NODES


def node_of(inode: int) -> int:
    """Return the kernel's number of a file or directory of the snapshot."""
    return ROOT_NODE if inode == ROOT else DATASET_NODES + inode


def inode_of(node: int) -> int:
    """Return the snapshot's number of a node that is not of the control directory."""
    return ROOT if node == ROOT_NODE else node - DATASET_NODES


def first_control_file(now_ns: int) -> int:
    """Return the first number for control files of a server that starts now.

    A later server begins above all numbers of an earlier one of the last 400 days, unless that one
    has given out more than 15,000 a second on average. 2^39 numbers are left in any case.
    """
    return FIRST_CONTROL_FILE_NODE + ((now_ns >> _TICK_SHIFT) & _START_MASK)
