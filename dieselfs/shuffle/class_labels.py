"""The class of each file, read off its path.

A class is a number for each inode; it serves to measure how well an order mixes classes. Image
datasets name the class by a folder (torchvision's ImageFolder: `train/cat/1.jpg`). "parent", the
default, takes the directory that a file lies in; "top" takes the first directory below the root, or
below `under`, for classes that are divided further (`cat/2019/1.jpg`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import are_links
from dieselfs.errors import UsageError
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

ClassRule = Literal["parent", "top"]
Labels = npt.NDArray[np.int64]
"""The class of each file, by inode; shape (files,).

Equal numbers are one class; measurements leave out `NOT_READ`.
"""

NOT_READ: Final = -1
_PATHS_AT_ONCE: Final = 65_536


def class_folder_labels(
    snapshot: Snapshot, rule: ClassRule = "parent", under: str | bytes = ""
) -> Labels:
    """Return the class folder of each file, by inode: the number of a directory.

    Files outside the directory `under` are `NOT_READ`: a training job reads only one of `train/`
    and `val/`. Files directly in it are a class of their own. Raises `UsageError` if there is no
    such directory and `SnapshotRefused` if the directories make no tree. Costs about 2 ns a file.
    """
    if rule not in ("parent", "top"):
        raise ValueError(f"a class rule must be 'parent' or 'top', not {rule!r}")
    parent = snapshot.columns.directory_parent.astype(np.int64)
    _check_tree(snapshot, parent)
    base = _directory(snapshot, under)
    top = _first_below(parent, base)
    inside = (top == base) | (parent[top] == base)
    label = top if rule == "top" else np.arange(len(parent))
    return _without_links(snapshot, np.where(inside, label, NOT_READ)[snapshot.columns.parent])


def labels_by_path(snapshot: Snapshot, label: Callable[[bytes], Hashable | None]) -> Labels:
    """Return the class of each file as a function of its path, for classes that are not folders.

    A result of None means `NOT_READ`. Costs about 1 µs a file.
    """
    number: dict[Hashable, int] = {}
    labels = np.empty(snapshot.file_count, np.int64)
    for start in range(0, snapshot.file_count, _PATHS_AT_ONCE):
        inodes = np.arange(start, min(start + _PATHS_AT_ONCE, snapshot.file_count))
        paths = snapshot.paths_text(inodes, b"\0").split(b"\0")[:-1]
        for inode, path in zip(inodes, paths, strict=True):
            found = label(path)
            labels[inode] = NOT_READ if found is None else number.setdefault(found, len(number))
    return _without_links(snapshot, labels)


def _without_links(snapshot: Snapshot, labels: Labels) -> Labels:
    """Mark symbolic links, which no order has, as not read."""
    if snapshot.has_links:
        labels[are_links(snapshot.columns.mode)] = NOT_READ
    return labels


def _check_tree(snapshot: Snapshot, parent: npt.NDArray[np.int64]) -> None:
    """Raise `SnapshotRefused` unless parents come before their children.

    Otherwise a climb to the root may never end.
    """
    holders = snapshot.columns.parent
    if (parent[1:] >= np.arange(1, len(parent))).any() or (
        len(holders) and int(holders.max()) >= len(parent)
    ):
        raise SnapshotRefused(f"{snapshot.path} is damaged: its directories do not form a tree")


def _directory(snapshot: Snapshot, path: str | bytes) -> int:
    """Return the number of the directory at `path`; the root is 0."""
    encoded = os.fsencode(path).strip(b"/")
    inode = snapshot.resolve(encoded)
    if inode is None or not snapshot.is_directory(inode):
        raise UsageError(
            f"{os.fsdecode(encoded)}: no such directory in {snapshot.dataset.name}",
            f"see `dlcmd ls {snapshot.dataset.name}`, or leave the directory out",
        )
    return inode - DIRECTORY_BASE


def _first_below(parent: npt.NDArray[np.int64], base: int) -> npt.NDArray[np.int64]:
    """Map each directory to its ancestor, or itself, that lies directly below `base`.

    `base` maps to itself, a directory outside it to the root.
    """
    found = np.arange(len(parent))
    while True:
        climbing = (found != 0) & (found != base) & (parent[found] != base)
        if not climbing.any():
            return found
        found[climbing] = parent[found[climbing]]
