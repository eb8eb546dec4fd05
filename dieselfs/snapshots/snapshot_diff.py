"""The differences between two snapshots of a dataset.

They are paths added, removed, changed, or with other attributes. Content is compared by hash and
length, which both snapshots have; no byte of it is read. Most files lie in chunks that have not
changed in between: these are compared by columns, and their paths as one text. The paths of the
others are looked up in bulk. Together this costs 1 to 4 µs a file. Memory is needed for the
differences, the directories, and a byte a file.
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
_ELSEWHERE: Final = np.iinfo(np.int64).min


class ChangeKind(StrEnum):
    """The kind of a difference between two snapshots."""

    ADDED = "added"
    REMOVED = "removed"
    CHANGED = "changed"
    """A file of another hash or length, or a symbolic link in the place of a file."""
    ATTRIBUTES = "attributes"
    """Another mode or modification time, and nothing else.

    For a directory only another mode counts: its time changes with its content.
    """


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs.

    A path that changed from a file to a directory is both removed and added.
    """

    path: bytes
    kind: ChangeKind
    is_directory: bool
    before: int | None
    """The inode in the older snapshot; None for an added path."""
    after: int | None
    """The inode in the newer snapshot; None for a removed path."""


def diff(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    """Return the changes from `before` to `after`, in the order of their paths' bytes.

    Both snapshots must stay open until the last change is taken. Raises `ValueError` if they are of
    different datasets.
    """
    if before.dataset.id != after.dataset.id:
        raise ValueError("the snapshots are of different datasets")
    if before.id == after.id:
        return iter(())
    changes = [*_file_changes(before, after), *_directory_changes(before, after)]
    # For a path that has changed its type the removal comes before the addition.
    changes.sort(key=lambda change: (change.path, change.kind is ChangeKind.ADDED))
    return iter(changes)


def _file_changes(before: Snapshot, after: Snapshot) -> Iterator[Change]:
    found_after = np.zeros(after.file_count, bool)
    shift = _shift_of_chunks(before, after)
    for start in range(0, before.file_count, _FILES_A_BLOCK):
        old = np.arange(start, min(start + _FILES_A_BLOCK, before.file_count), dtype=np.int64)
        in_place = _same_in_place(before, after, old, shift)
        found_after[in_place[in_place >= 0]] = True
        old = old[in_place < 0]
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


def _shift_of_chunks(before: Snapshot, after: Snapshot) -> _Inodes:
    """Return the distance from the inodes of each chunk of `before` to its inodes in `after`.

    A chunk that `after` lacks, or has with another number of files, gets `_ELSEWHERE`.
    """
    was, now = before.columns.chunk_first_inode, after.columns.chunk_first_inode
    numbers = {chunk_id: number for number, chunk_id in enumerate(after.columns.chunk_id.tolist())}
    shift = np.full(before.chunk_count, _ELSEWHERE, np.int64)
    for number, chunk_id in enumerate(before.columns.chunk_id.tolist()):
        there = numbers.get(chunk_id)
        if there is not None and was[number + 1] - was[number] == now[there + 1] - now[there]:
            shift[number] = int(now[there]) - int(was[number])
    return shift


def _same_in_place(before: Snapshot, after: Snapshot, old: _Inodes, shift: _Inodes) -> _Inodes:
    """Return the inode in `after` of each file that has the same path and attributes; else -1.

    The candidate is the file at the same place in its chunk.
    """
    moved = shift[before.columns.chunk[old]]
    new = np.where(moved == _ELSEWHERE, -1, old + moved)
    new[new >= 0] = np.where(
        _differ(before, after, old[new >= 0], new[new >= 0]), -1, new[new >= 0]
    )
    same = new >= 0
    if before.paths_text(old[same], b"\0") != after.paths_text(new[same], b"\0"):
        return np.full(len(old), -1, np.int64)  # look up each one
    return new


def _differ(before: Snapshot, after: Snapshot, old: _Inodes, new: _Inodes) -> npt.NDArray[np.bool_]:
    """Return a mask of the pairs that differ in hash, length, mode or time."""
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
    same = same and before.is_link(old) == after.is_link(new)
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
    """Return the inode of every directory by its path; the root's path is empty."""
    inodes = range(DIRECTORY_BASE, DIRECTORY_BASE + snapshot.directory_count)
    return {snapshot.path_of(inode): inode for inode in inodes}
