"""What changed between two snapshots of a dataset: paths added, removed, changed, or with other attributes.

Content is compared by hash and length, as both snapshots have them; not a byte of it is read. Most files lie in chunks that have not changed in
between: these are compared by columns, and their paths as one text. The others' paths are looked up in bulk.
Together 1 to 4 µs a file. Memory is needed for what differs, for the
directories, and a byte a file.
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
    """For each chunk of `before` that has as many files in `after`, how far its inodes are from there; for the others `_ELSEWHERE`."""
    was, now = before.columns.chunk_first_inode, after.columns.chunk_first_inode
    numbers = {chunk_id: number for number, chunk_id in enumerate(after.columns.chunk_id.tolist())}
    shift = np.full(before.chunk_count, _ELSEWHERE, np.int64)
    for number, chunk_id in enumerate(before.columns.chunk_id.tolist()):
        there = numbers.get(chunk_id)
        if there is not None and was[number + 1] - was[number] == now[there + 1] - now[there]:
            shift[number] = int(now[there]) - int(was[number])
    return shift


def _same_in_place(before: Snapshot, after: Snapshot, old: _Inodes, shift: _Inodes) -> _Inodes:
    """The inode in `after` of each file that is the same in path and attributes, as its place in its chunk suggests; else -1."""
    moved = shift[before.columns.chunk[old]]
    new = np.where(moved == _ELSEWHERE, -1, old + moved)
    new[new >= 0] = np.where(
        _differ(before, after, old[new >= 0], new[new >= 0]), -1, new[new >= 0]
    )
    same = new >= 0
    if before.paths_text(old[same], b"\0") != after.paths_text(new[same], b"\0"):
        return np.full(len(old), -1, np.int64)  # look each up
    return new


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
