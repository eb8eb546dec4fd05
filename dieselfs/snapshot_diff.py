"""What changed between two snapshots of a dataset: paths added, removed, changed, or with other attributes.

Content is compared by hash and length, as both snapshots have them; not a byte of it is read. Every path of the older one is looked up in the
newer one in bulk, about 1 µs a file. Memory is needed for what
differs, for the directories, and a byte a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

_Inodes = npt.NDArray[np.int64]
_FILES_A_BLOCK: Final = 1 << 16


class ChangeKind(StrEnum):
    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    """A file of another hash or length."""
    ATTRIBUTES = "attributes"
    """Another mode or modification time, and nothing else. Of a directory another mode: its time changes with what is put into it."""


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs. A path that was a file and is a directory now is removed and added."""

    path: bytes
    kind: ChangeKind
    is_directory: bool
    before: int | None
    """Inode in the older snapshot; None of what is added."""
    after: int | None
    """Inode in the newer snapshot; None of what is removed."""


def diff(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """The changes from `before` to `after`, in the order of their paths' bytes. Both must stay open until the last is taken.

    `ValueError` if they are of different datasets.
    """
    if before.dataset.id != after.dataset.id:
        raise ValueError("the snapshots are of different datasets")
    if before.id == after.id:
        return iter(())
    changes = [*_file_changes(before, after), *_directory_changes(before, after)]
    # A path that has changed its type: first what was, then what is.
    changes.sort(key=lambda change: (change.path, change.kind is ChangeKind.ADDED))
    return iter(changes)


def _file_changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    found_after = np.zeros(after.file_count, bool)
    for start in range(0, before.file_count, _FILES_A_BLOCK):
        old = np.arange(start, min(start + _FILES_A_BLOCK, before.file_count), dtype=np.int64)
        paths = before.paths_text(old, b"\0").split(b"\0")[:-1]
        new = after.resolve_many(paths)
        is_file = (new >= 0) & (new < DIRECTORY_BASE)
        found_after[new[is_file]] = True
        differs = np.flatnonzero(~is_file | _differ(before, after, old, np.where(is_file, new, 0)))
        for row in differs.tolist():
            yield _file_change(before, after, paths[row], int(old[row]), int(new[row]))
    added = np.flatnonzero(~found_after)
    for start in range(0, len(added), _FILES_A_BLOCK):
        new = added[start : start + _FILES_A_BLOCK]
        paths = after.paths_text(new, b"\0").split(b"\0")[:-1]
        for path, inode in zip(paths, new.tolist(), strict=True):
            yield Change(path, ChangeKind.ADDED, False, None, inode)


def _differ(before: Snapshot, after: Snapshot, old: _Inodes, new: _Inodes) -> npt.NDArray[np.bool_]:
    """Which of the pairs have not all in common."""
    if not after.file_count:
        return np.ones(len(old), bool)
    was, now = before.columns, after.columns
    differs: npt.NDArray[np.bool_] = was.hash[old] != now.hash[new]
    differs |= was.length[old] != now.length[new]
    differs |= was.mode[old] != now.mode[new]
    differs |= was.mtime_ns[old] != now.mtime_ns[new]
    return differs


def _file_change(before: Snapshot, after: Snapshot, path: bytes, old: int, new: int) -> Change:
    if not 0 <= new < DIRECTORY_BASE:
        return Change(path, ChangeKind.REMOVED, False, old, None)
    was, now = before.columns, after.columns
    same = was.hash[old] == now.hash[new] and was.length[old] == now.length[new]
    kind = ChangeKind.ATTRIBUTES if same else ChangeKind.CHANGED
    return Change(path, kind, False, old, new)


def _directory_changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    old_paths, new_paths = _directories(before), _directories(after)
    for path, old in old_paths.items():
        new = new_paths.get(path)
        if new is None:
            yield Change(path, ChangeKind.REMOVED, True, old, None)
        elif before.mode(old) != after.mode(new):
            yield Change(path, ChangeKind.ATTRIBUTES, True, old, new)
    for path, new in new_paths.items():
        if path not in old_paths:
            yield Change(path, ChangeKind.ADDED, True, None, new)


def _directories(snapshot: Snapshot) -> dict[bytes, int]:
    """Path -> inode of every directory; the root's path is empty."""
    inodes = range(DIRECTORY_BASE, DIRECTORY_BASE + snapshot.directory_count)
    return {snapshot.path_of(inode): inode for inode in inodes}
