"""The directories of a kernel image: their entries, sorted by the names' bytes, packed into blocks.

A snapshot lists a directory's sub-directories and files apart, each sorted; EROFS needs one sorted
list with `.` and `..` in it. All lists are merged at once with numpy, in columns of one row an
entry, so that a million directories of one file cost as much as one directory of a million files.
Only a directory that holds both files and directories takes a step in Python for each
sub-directory. Directories are numbered as in the snapshot; one more, the last, is the empty control
directory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from chunkstore.chunk_format import are_links
from metadata.blob_layout import BLOCK_BYTES
from metadata.erofs_format import DIRENT, TYPE_DIRECTORY, TYPE_FIFO, TYPE_LINK, TYPE_REGULAR
from metadata.kernel_image_inodes import InodeNumbers, Ints, ranges, starts_of
from metadata.snapshot_format import Columns

_DOT: Final = ord(".")
_BLOCKS_AT_ONCE: Final = 512
"""The blocks that are made in one step: 2 MiB.

So the index arrays of their bytes (20 MiB) stay small.
"""


@dataclass(frozen=True, slots=True)
class Children:
    """The names of all directories without `.` and `..`.

    They are listed directory by directory, each in ascending order of bytes.
    """

    first: Ints
    """The row of each directory's first child, then the number of rows."""
    number: Ints
    """A file's rank, or a directory's number."""
    is_directory: npt.NDArray[np.bool_]
    name_at: Ints
    """The position of the name in the `NameBytes`."""
    name_bytes: Ints


class NameBytes:
    """The bytes of all names by one index.

    The index covers the snapshot file and, after it, the names that it lacks (`..`, the control
    name).
    """

    def __init__(self, columns: Columns, control_name: bytes) -> None:
        self._file = columns.file
        self._more = np.frombuffer(b".." + control_name + b"\0", np.uint8)
        self.dots_at = len(self._file)
        """The position of `..`, and of `.` with length 1."""
        self.control_at = self.dots_at + 2

    def take(self, index: Ints) -> npt.NDArray[np.uint8]:
        """Return the bytes at each position of `index`."""
        taken = self._file.take(index, mode="clip")
        late = np.flatnonzero(index >= len(self._file))
        taken[late] = self._more[index[late] - len(self._file)]
        return taken


@dataclass(slots=True)
class _Listing:
    """The sub-directories and files of all directories, apart.

    The control directory has replaced its namesake in the root.
    """

    directories: Ints
    directory_count: Ints
    ranks: Ints
    file_count: Ints


def merge_children(columns: Columns, control_name: bytes) -> Children:
    """List all directories of a snapshot, including the control directory in the root.

    The cost is about 30 ns a file.
    """
    names = _DirectoryNames(columns, control_name)
    listing = _with_control(columns, names, control_name)
    children_count = listing.directory_count + listing.file_count
    first = starts_of(children_count)
    row = _rows_of_directories(columns, names, listing, first, control_name)
    is_directory = np.zeros(int(first[-1]), bool)
    is_directory[row] = True
    number = np.empty(len(is_directory), np.int64)
    number[is_directory] = listing.directories
    number[~is_directory] = listing.ranks
    name_at, name_bytes = np.empty_like(number), np.empty_like(number)
    name_at[is_directory] = names.at[listing.directories]
    name_bytes[is_directory] = names.bytes[listing.directories]
    inodes = columns.by_name[listing.ranks]
    name_at[~is_directory] = columns.name_at[inodes].astype(np.int64) + columns.names_start
    name_bytes[~is_directory] = columns.name_bytes[inodes]
    return Children(first, number, is_directory, name_at, name_bytes)


class _DirectoryNames:
    """The positions of the directories' names, by number; the control directory is the last."""

    def __init__(self, columns: Columns, control_name: bytes) -> None:
        path_at = columns.directory_path_at.astype(np.int64)
        above = columns.directory_parent
        start = path_at[:-1] + (path_at[1:] - path_at[:-1])[above]
        end = path_at[1:] - 1
        start[0], end[0] = 0, 0  # the root has no name
        base = columns.directory_paths_start
        control_at = NameBytes(columns, control_name).control_at
        self.at = np.append(start + base, control_at)
        self.bytes = np.append(end - start, len(control_name))
        self._heap = columns.directory_paths
        self._base = base
        self._control_name = control_name

    def name(self, number: int) -> bytes:
        if number == len(self.at) - 1:
            return self._control_name
        start = int(self.at[number]) - self._base
        return self._heap[start : start + int(self.bytes[number])].tobytes()


def _with_control(columns: Columns, names: _DirectoryNames, control_name: bytes) -> _Listing:
    control = len(columns.directory_parent)
    directories = ranges(columns.directory_first_directory, columns.directory_directory_count)
    ranks = ranges(columns.directory_first_file, columns.directory_file_count)
    directory_count = np.append(columns.directory_directory_count.astype(np.int64), 0)
    file_count = np.append(columns.directory_file_count.astype(np.int64), 0)
    in_root = directories[: directory_count[0]].tolist()
    place = bisect_left(in_root, control_name, key=names.name)
    if place < len(in_root) and names.name(in_root[place]) == control_name:
        directories[place] = control
    else:
        directories = np.insert(directories, place, control)
        directory_count[0] += 1
    files_in_root = _file_names(columns, ranks[: file_count[0]], control_name)
    place = bisect_left(files_in_root, control_name)
    if place < len(files_in_root) and files_in_root[place] == control_name:
        ranks = np.delete(ranks, place)
        file_count[0] -= 1
    return _Listing(directories, directory_count, ranks, file_count)


def _file_names(columns: Columns, ranks: Ints, control_name: bytes) -> list[bytes]:
    """Return the names of a directory's files at `ranks`.

    They lie one after the other in the heap, each ended by NUL. `ranks` is a range, or a range
    without the hidden namesake of the control directory.
    """
    if not len(ranks):
        return []
    first, last = columns.by_name[ranks[0]], columns.by_name[ranks[-1]]
    end = int(columns.name_at[last]) + int(columns.name_bytes[last])
    found = columns.names[int(columns.name_at[first]) : end].tobytes().split(b"\0")
    if len(found) > len(ranks):
        found.remove(control_name)
    return found


def _rows_of_directories(
    columns: Columns, names: _DirectoryNames, listing: _Listing, first: Ints, control_name: bytes
) -> Ints:
    """Return the row of each sub-directory among the children of its directory, files included."""
    starts = starts_of(listing.directory_count)
    parents = np.repeat(np.arange(len(starts) - 1), listing.directory_count)
    row = first[parents] + np.arange(len(parents)) - starts[parents]
    file_starts = starts_of(listing.file_count)
    for mixed in np.flatnonzero((listing.directory_count > 0) & (listing.file_count > 0)).tolist():
        ranks = listing.ranks[file_starts[mixed] : file_starts[mixed + 1]]
        files = _file_names(columns, ranks, control_name)
        below = range(int(starts[mixed]), int(starts[mixed + 1]))
        for at, number in zip(
            below, listing.directories[below.start : below.stop].tolist(), strict=True
        ):
            row[at] += bisect_left(files, names.name(number))
    return row


@dataclass(frozen=True, slots=True)
class DirentPacking:
    """The distribution of all directories' entries, including `.` and `..`, to blocks."""

    first: Ints
    """The row of each directory's first entry, then the number of entries."""
    starts: Ints
    """The bytes of entries and names before each entry, with one row more than entries.

    The sum runs over all directories, without the slack of blocks.
    """
    block_first: Ints
    """The first entry of each block, then the number of entries."""
    first_block: Ints
    """The first block of each directory, then the number of blocks."""
    sizes: Ints
    """The bytes of each directory; only the used part of its last block counts."""


@dataclass(frozen=True, slots=True)
class DirentColumns:
    """All directory entries, including `.` and `..`, one row each."""

    packing: DirentPacking
    nid: Ints
    type: npt.NDArray[np.uint8]
    name_at: Ints


class Dots:
    """The rows of `.` and `..` among the entries.

    Names such as `-x`, `!` and `.-` may sort before either.
    """

    def __init__(self, names: NameBytes, children: Children) -> None:
        lead, second = names.take(children.name_at), names.take(children.name_at + 1)
        before_dot = lead < _DOT
        # No name is `.`: one that starts with it has a second byte.
        before_dots = before_dot | ((lead == _DOT) & (second < _DOT))
        count = len(children.first) - 1
        self.first = children.first + 2 * np.arange(count + 1)
        self.one = self.first[:-1] + np.diff(starts_of(before_dot)[children.first])
        self.two = self.first[:-1] + np.diff(starts_of(before_dots)[children.first]) + 1
        self.children = np.ones(int(self.first[-1]), bool)
        """The mask of the rows that are children's; children keep their order."""
        self.children[self.one] = self.children[self.two] = False

    def spread(self, children: Ints, one: Ints | int, two: Ints | int) -> Ints:
        """Return a column of entries made of the columns of the children, of `.` and of `..`."""
        column = np.empty(len(self.children), np.int64)
        column[self.children], column[self.one], column[self.two] = children, one, two
        return column


def pack_entries(children: Children, dots: Dots) -> DirentPacking:
    """Fill blocks with as many entries as fit, for all directories at once.

    Step k fills the k-th block of each directory.
    """
    starts = starts_of(dots.spread(children.name_bytes, 1, 2) + DIRENT.itemsize)
    active = np.arange(len(dots.first) - 1)
    begin, end = dots.first[:-1], dots.first[1:]
    begins, owners = [], []
    sizes = np.zeros(len(active), np.int64)
    while len(active):
        begins.append(begin)
        owners.append(active)
        until = np.searchsorted(starts, starts[begin] + BLOCK_BYTES, "right") - 1
        until = np.minimum(until, end)
        more = until < end
        sizes[active] += np.where(more, BLOCK_BYTES, starts[until] - starts[begin])
        active, begin, end = active[more], until[more], end[more]
    block_first = np.append(np.sort(np.concatenate(begins)), dots.first[-1])
    counts = np.bincount(np.concatenate(owners), minlength=len(sizes))
    return DirentPacking(dots.first, starts, block_first, starts_of(counts), sizes)


def list_entries(
    columns: Columns,
    names: NameBytes,
    numbers: InodeNumbers,
    children: Children,
    dots: Dots,
    packing: DirentPacking,
    *,
    has_links: bool = False,
) -> DirentColumns:
    """Return the entries; every directory must have its nid."""
    nids, number = numbers.directory_nids, children.number
    nid = numbers.file_nid(number)
    kind = np.full(len(number), TYPE_REGULAR)
    if has_links:
        of_files = ~children.is_directory
        modes = columns.mode[columns.by_name[number[of_files]]]
        kind[of_files] = np.where(are_links(modes), TYPE_LINK, TYPE_REGULAR)
    nid[children.is_directory] = nids[number[children.is_directory]]
    kind[children.is_directory] = TYPE_DIRECTORY
    kind[children.is_directory & (number == len(nids) - 1)] = TYPE_FIFO
    above = nids[np.append(columns.directory_parent, 0)]
    return DirentColumns(
        packing,
        dots.spread(nid, nids, above),
        dots.spread(kind, TYPE_DIRECTORY, TYPE_DIRECTORY).astype(np.uint8),
        dots.spread(children.name_at, names.dots_at, names.dots_at),
    )


def blocks_in_turn(
    entries: DirentColumns, names: NameBytes, blocks: Ints
) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the bytes of the blocks with these numbers, in order, several blocks at a time."""
    for low in range(0, len(blocks), _BLOCKS_AT_ONCE):
        yield blocks_of(entries, names, blocks[low : low + _BLOCKS_AT_ONCE])


def blocks_of(entries: DirentColumns, names: NameBytes, blocks: Ints) -> npt.NDArray[np.uint8]:
    """Return the bytes of the blocks with these numbers: entries, then their names, then zeros."""
    packing = entries.packing
    begin = packing.block_first[blocks]
    counts = packing.block_first[blocks + 1] - begin
    rows = ranges(begin, counts)
    block = np.repeat(np.arange(len(blocks)), counts)
    place = rows - begin[block]
    before = packing.starts[rows]
    name_bytes = packing.starts[rows + 1] - before - DIRENT.itemsize
    # Before a name lie the entries and names of the earlier rows, its own entry and those after it.
    name_offset = before - packing.starts[begin][block] + DIRENT.itemsize * (counts[block] - place)
    dirents = np.zeros(len(rows), DIRENT)
    dirents["nid"], dirents["type"] = entries.nid[rows], entries.type[rows]
    dirents["name_at"] = name_offset
    buffer = np.zeros(len(blocks) * BLOCK_BYTES, np.uint8)
    words, words_each = buffer.view(np.uint32), DIRENT.itemsize // 4
    at = block * (BLOCK_BYTES // 4) + place * words_each
    for word, column in enumerate(dirents.view(np.uint32).reshape(-1, words_each).T):
        words[at + word] = column
    source = ranges(entries.name_at[rows], name_bytes)
    buffer[ranges(block * BLOCK_BYTES + name_offset, name_bytes)] = names.take(source)
    return buffer
