"""Entries of a snapshot's directory in the kernel's format, READDIRPLUS or READDIR.

NumPy encodes many entries together. An entry is a head (attributes and the length of the name) and
the name, padded to 8 bytes. Heads are columns of one structured array; entries whose names have the
same padded length are laid out together. It takes 0.3 µs an entry, where Python takes 5.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import sliding_window_view

from dieselfs.fuse.requests.attributes import BLOCK_BYTES, DIRECTORY_BYTES, Owner
from dieselfs.fuse.requests.kernel_protocol import FOREVER_S
from dieselfs.fuse.requests.nodes import DATASET_NODES
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot
from metadata.snapshot_format import DIRECTORY_BASE, TAIL_BYTES, Columns

DIRECTORY_TYPE: Final = 4
FILE_TYPE: Final = 8
LINK_TYPE: Final = 10
_TYPE_SHIFT: Final = 12
"""A type in a directory is the type bits of the mode: 8 a file, 10 a symbolic link."""
MAX_NAME_BYTES: Final = 255
_NS: Final = 1_000_000_000
_WORD: Final = 8
_HEAD: Final = np.dtype(
    [
        *(("nodeid", "u8"), ("generation", "u8"), ("entry_valid", "u8"), ("attr_valid", "u8")),
        *(("entry_valid_ns", "u4"), ("attr_valid_ns", "u4")),
        *(("ino", "u8"), ("size", "u8"), ("blocks", "u8")),
        *(("atime", "u8"), ("mtime", "u8"), ("ctime", "u8")),
        *(("atime_ns", "u4"), ("mtime_ns", "u4"), ("ctime_ns", "u4"), ("mode", "u4")),
        *(("nlink", "u4"), ("uid", "u4"), ("gid", "u4"), ("rdev", "u4")),
        *(("blksize", "u4"), ("flags", "u4")),
        *(("entry_ino", "u8"), ("off", "u8"), ("namelen", "u4"), ("type", "u4")),
    ]
)
"""`struct fuse_direntplus` without the name.

It consists of `fuse_entry_out` (40 and 88 bytes) and `fuse_dirent` (24).
"""
_HEAD_WORDS: Final = _HEAD.itemsize // _WORD
_PLAIN_WORDS: Final = 3
"""The words of a READDIR head: the last 24 bytes of a READDIRPLUS head."""

Numbers = npt.NDArray[np.int64]
Heads = npt.NDArray[np.void]
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Names:
    """The places of the names of entries in `columns.file`."""

    at: Numbers
    length: Numbers


@dataclass(frozen=True, slots=True)
class Block:
    """Encoded entries one after the other; entry i lies from `starts[i]` to `starts[i + 1]`."""

    data: memoryview
    starts: Numbers

    @property
    def cached_bytes(self) -> int:
        return len(self.data) + self.starts.nbytes

    def part(self, first: int, size: int) -> memoryview:
        """Return as many whole entries from `first` on as fit into `size` bytes."""
        begin = int(self.starts[first])
        last = int(np.searchsorted(self.starts, begin + size, "right")) - 1
        return self.data[begin : int(self.starts[last])]


def encode(
    snapshot: Snapshot, number: int, first: int, end: int, owner: Owner, hidden: int, *, plus: bool
) -> Block:
    """Encode children [first, end) of directory `number`, in the order of `Snapshot.children`.

    The child of the inode `hidden` takes no room: its position is skipped. Raises `SnapshotRefused`
    if the columns do not agree.
    """
    columns = snapshot.columns
    directories = int(columns.directory_directory_count[number])
    split = max(first, min(end, directories))
    heads = np.zeros(end - first, _HEAD)
    parts = []
    if split > first:
        parts.append(_fill_directories(snapshot, number, first, heads[: split - first]))
    if end > split:
        parts.append(_fill_files(snapshot, number, split - directories, heads[split - first :]))
    names = Names(*(np.concatenate([getattr(p, f) for p in parts]) for f in ("at", "length")))
    _require_names(columns, names)
    _fill_common(heads, names, first, owner)
    shown = heads["ino"] != np.uint64(DATASET_NODES + hidden)
    return _lay_out(
        columns.file, heads.view(np.uint64).reshape(-1, _HEAD_WORDS), names, shown, plus
    )


def _fill_directories(snapshot: Snapshot, number: int, first: int, heads: Heads) -> Names:
    columns = snapshot.columns
    begin = int(columns.directory_first_directory[number]) + first
    rows = slice(begin, begin + len(heads))
    if (
        rows.start <= number  # or a walk has no end
        or rows.stop > snapshot.directory_count
        or (columns.directory_parent[rows] != number).any()
    ):
        raise _damaged(snapshot)
    heads["ino"] = np.arange(rows.start, rows.stop) + (DATASET_NODES + DIRECTORY_BASE)
    heads["size"] = DIRECTORY_BYTES
    heads["mode"] = columns.directory_mode[rows]
    heads["nlink"] = columns.directory_directory_count[rows] + 2
    heads["type"] = DIRECTORY_TYPE
    if (heads["mode"] >> _TYPE_SHIFT != DIRECTORY_TYPE).any():
        raise _damaged(snapshot)
    _fill_time(heads, columns.directory_mtime_ns[rows])
    # A path is its parent's path, its name and `/`.
    ends = columns.directory_path_at
    parent_bytes = int(ends[number + 1]) - int(ends[number])
    if not 0 <= parent_bytes <= len(columns.file):
        raise _damaged(snapshot)
    at = ends[rows].astype(np.int64) + parent_bytes
    length = ends[rows.start + 1 : rows.stop + 1].astype(np.int64) - 1 - at
    return Names(at + columns.directory_paths_start, length)


def _fill_files(snapshot: Snapshot, number: int, first: int, heads: Heads) -> Names:
    columns = snapshot.columns
    begin = int(columns.directory_first_file[number]) + first
    inodes = columns.by_name[begin : begin + len(heads)].astype(np.int64)
    if len(inodes) != len(heads) or int(inodes.max()) >= snapshot.file_count:
        raise _damaged(snapshot)
    at, length = columns.name_at[inodes].astype(np.int64), columns.name_bytes[inodes]
    _require_files_agree(snapshot, number, inodes, at, at + length)
    heads["ino"] = inodes + DATASET_NODES
    heads["size"] = columns.length[inodes]
    heads["mode"] = columns.mode[inodes]
    heads["nlink"] = 1
    heads["type"] = heads["mode"] >> _TYPE_SHIFT
    is_right = heads["type"] == FILE_TYPE
    if snapshot.has_links:
        is_right |= heads["type"] == LINK_TYPE
    if not is_right.all() or int(heads["size"].max()) > snapshot.total_bytes:
        raise _damaged(snapshot)
    _fill_time(heads, columns.mtime_ns[inodes])
    return Names(at + columns.names_start, length.astype(np.int64))


def _require_files_agree(
    snapshot: Snapshot, number: int, inodes: Numbers, start: Numbers, stop: Numbers
) -> None:
    """Raise `SnapshotRefused` unless the names of a directory's files lie one after the other.

    Each is ended by NUL (see `Snapshot.children`).
    """
    columns = snapshot.columns
    region = columns.names[int(start[0]) : int(stop[-1])]
    if (
        (start[1:] != stop[:-1] + 1).any()
        or (columns.parent[inodes] != number).any()
        or np.count_nonzero(region == 0) != len(inodes) - 1
    ):
        raise _damaged(snapshot)


def _damaged(snapshot: Snapshot) -> SnapshotRefused:
    return SnapshotRefused(f"{snapshot.path}: a directory's names and files do not agree: damaged")


def _require_names(columns: Columns, names: Names) -> None:
    end = len(columns.file) - TAIL_BYTES
    if (
        int(names.length.min()) < 1
        or int(names.length.max()) > MAX_NAME_BYTES
        or int(names.at.min()) < 0
        or int(names.at.max()) > end
        or int((names.at + names.length).max()) > end
    ):
        raise SnapshotRefused("a name of the snapshot is empty or out of bounds: damaged")


def _fill_time(heads: Heads, mtime_ns: npt.NDArray[np.int64]) -> None:
    seconds = np.floor_divide(mtime_ns, _NS)
    nanoseconds = mtime_ns - seconds * _NS
    for name in ("atime", "mtime", "ctime"):
        heads[name] = seconds.view(np.uint64)
        heads[f"{name}_ns"] = nanoseconds


def _fill_common(heads: Heads, names: Names, first: int, owner: Owner) -> None:
    heads["nodeid"] = heads["entry_ino"] = heads["ino"]
    heads["entry_valid"] = heads["attr_valid"] = FOREVER_S
    heads["blocks"] = (heads["size"] + np.uint64(511)) // np.uint64(512)
    heads["uid"], heads["gid"], heads["blksize"] = owner.uid, owner.gid, BLOCK_BYTES
    heads["off"] = np.arange(first + 1, first + 1 + len(heads))
    heads["namelen"] = names.length


def _lay_out(
    file: npt.NDArray[np.uint8],
    heads: Words,
    names: Names,
    shown: npt.NDArray[np.bool_],
    plus: bool,
) -> Block:
    if not plus:
        heads = heads[:, -_PLAIN_WORDS:]
    name_words = (names.length + (_WORD - 1)) // _WORD
    words = np.where(shown, heads.shape[1] + name_words, 0)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(words)])
    data = np.empty(int(starts[-1]), np.uint64)
    for width in np.unique(name_words[shown]).tolist():
        which = np.flatnonzero(shown & (name_words == width))
        entries = np.hstack([heads[which], _padded(file, names, which, width)])
        if len(which) == len(heads):
            data = entries.reshape(-1)
        else:
            data[starts[which][:, None] + np.arange(entries.shape[1])] = entries
    return Block(data.view(np.uint8).data, starts * _WORD)


def _padded(file: npt.NDArray[np.uint8], names: Names, which: Numbers, words: int) -> Words:
    """Return names of one padded length, a row each.

    A read beyond a name's end stays in the file's tail.
    """
    rows = sliding_window_view(file, words * _WORD)[names.at[which]]
    last = rows[:, -_WORD:]
    last[np.arange(_WORD) >= names.length[which][:, None] - (words - 1) * _WORD] = 0
    return rows.view(np.uint64)
