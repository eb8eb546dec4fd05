"""The samples of a tree of class folders as columns, in the order of torchvision's ImageFolder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dieselfs.errors import UsageError
from dieselfs.shuffle.class_labels import class_folder_labels
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE


@dataclass(frozen=True, slots=True, eq=False)
class ClassFolders:
    """Files by sample index, and the classes' names: 8 bytes a sample."""

    classes: list[str]
    """Names of the folders, sorted."""
    inodes: npt.NDArray[np.uint32]
    targets: npt.NDArray[np.int32]
    """The number of each sample's class."""


def class_folders(
    snapshot: Snapshot, under: str = "", extensions: str | Sequence[str] | None = None
) -> ClassFolders:
    """Return every file below a folder of `under`; that folder is the file's class, at any depth.

    Costs about 0.3 µs a file. `extensions`, such as `(".jpg", ".png")`, leaves out files whose
    names end otherwise, in any case, for another 0.5 µs a file. Raises `UsageError` if there is no
    such directory, or no folder in it.
    """
    labels = class_folder_labels(snapshot, "top", under)
    inode = snapshot.resolve(under.strip("/"))
    assert inode is not None  # otherwise the labels would have been refused
    base = inode - DIRECTORY_BASE
    columns = snapshot.columns
    first, count = (
        int(columns.directory_first_directory[base]),
        int(columns.directory_directory_count[base]),
    )
    if not count:
        raise UsageError(
            f"{under or 'the root'} of {snapshot.dataset.name} has no folders that name classes",
            "name the directory that has one folder for each class: under=…",
        )
    files = np.flatnonzero((labels >= first) & (labels < first + count))
    if extensions is not None:
        files = files[_with_extension(snapshot, files, extensions)]
    targets = labels[files] - first
    by_name = np.empty(snapshot.file_count, np.int64)
    by_name[columns.by_name] = np.arange(snapshot.file_count)
    parent = columns.parent[files]
    order = np.lexsort((by_name[files], _order_of_directories(snapshot)[parent], targets))
    names = [
        os.fsdecode(snapshot.name(DIRECTORY_BASE + number))
        for number in range(first, first + count)
    ]
    return ClassFolders(names, files[order].astype(np.uint32), targets[order].astype(np.int32))


def _order_of_directories(snapshot: Snapshot) -> npt.NDArray[np.int64]:
    """Return the place of each directory among all, sorted by path as text."""
    numbers = range(snapshot.directory_count)
    paths = [os.fsdecode(snapshot.path_of(DIRECTORY_BASE + number)) for number in numbers]
    place = np.empty(len(paths), np.int64)
    place[sorted(numbers, key=paths.__getitem__)] = np.arange(len(paths))
    return place


def _with_extension(
    snapshot: Snapshot, inodes: npt.NDArray[np.integer], extensions: str | Sequence[str]
) -> npt.NDArray[np.bool_]:
    extensions = (extensions,) if isinstance(extensions, str) else extensions
    endings = tuple(os.fsencode(extension.lower()) for extension in extensions)
    paths = snapshot.paths_text(inodes, b"\0").lower().split(b"\0")[:-1]
    return np.fromiter((path.endswith(endings) for path in paths), np.bool_, len(paths))
