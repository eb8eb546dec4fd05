"""The inodes of a kernel image: their numbers (nids), and their records from a snapshot's columns.

Directories come first, by number as in the snapshot, with the control directory after them. A
directory whose entries fit behind its inode, in the same block, has them there; otherwise a million
small directories would take 4 GiB. Files follow, 96 bytes each, by rank, which is the order of
listings: a file's nid is a linear function of its rank. The kernel shows nids as inode numbers.
Numbers 0 and 1 stay unused, since 0 means "no file" to some programs.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from metadata.blob_layout import BLOCK_BYTES, BlobLayout
from metadata.erofs_format import (
    BLOCK_BITS,
    CHUNK_BASED,
    CHUNK_INDEXES,
    EXTENDED,
    FILE,
    FILE_CHUNKS,
    FLAT_INLINE,
    FLAT_PLAIN,
    INODE,
    LAYOUT_SHIFT,
    MAX_CHUNK_BITS,
    NULL_BLOCK,
    SLOT_BYTES,
)
from metadata.snapshot_format import Columns

Ints = npt.NDArray[np.int64]
_FIRST_NID: Final = 2
_BLOCK_SLOTS: Final = BLOCK_BYTES // SLOT_BYTES
_DIRECTORY_SLOTS: Final = INODE.itemsize // SLOT_BYTES
_FILE_SLOTS: Final = FILE.itemsize // SLOT_BYTES
_FILES_AT_ONCE: Final = 1 << 15
"""The files whose inodes are made in one step: 3 MiB."""
_DIRECTORIES_AT_ONCE: Final = 512
"""The directories whose records are made in one step, of up to 2 MiB."""
_NS: Final = 10**9
_CONTROL_MODE: Final = stat.S_IFDIR | 0o555


def ranges(first: npt.NDArray[np.integer], count: npt.NDArray[np.integer]) -> Ints:
    """Return the numbers of all ranges [first, first + count), one range after the other."""
    sizes = count.astype(np.int64)
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(first.astype(np.int64) - (ends - sizes), sizes) + np.arange(total)


def starts_of(sizes: npt.NDArray[np.integer | np.bool_]) -> Ints:
    """Return 0 and the running sums of `sizes`."""
    starts = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


@dataclass(frozen=True, slots=True)
class ImageOwner:
    """The owner that an image gives to its files, since a snapshot names none."""

    uid: int
    gid: int
    private: bool = False
    """True if only the owner gets past the root directory."""


class InodeNumbers:
    """The nids of an image, which are the positions of its inodes."""

    def __init__(self, directory_sizes: Ints, files: int) -> None:
        """Place the inodes; 0.2 µs a directory.

        `directory_sizes`: the bytes of the entries of all directories, including the control
        directory.
        """
        self.files = files
        self.inline = directory_sizes <= BLOCK_BYTES - INODE.itemsize
        """The mask of the directories whose entries lie behind their inode."""
        inline_slots = np.where(self.inline, -(-directory_sizes // SLOT_BYTES), 0)
        self.directory_nids, self._first_file = _place_records(_DIRECTORY_SLOTS + inline_slots)

    def file_nid(self, rank: Ints) -> Ints:
        """Return the nids of the files with these ranks."""
        return self._first_file + rank * _FILE_SLOTS

    @property
    def directories(self) -> int:
        """The number of directories, including the root and the control directory."""
        return len(self.directory_nids)

    @property
    def files_at(self) -> int:
        """The byte of the table at which files begin, counted from nid 0."""
        return self._first_file * SLOT_BYTES

    @property
    def table_bytes(self) -> int:
        """The length of the table, from nid 0 to the end of its last block."""
        end = self.files_at + self.files * FILE.itemsize
        return -(-end // BLOCK_BYTES) * BLOCK_BYTES


def _place_records(slots: Ints) -> tuple[Ints, int]:
    """Return the first slot of each record, and the slot after the last record.

    No record crosses a block. One step a block.
    """
    before = starts_of(slots)
    placed = np.empty(len(slots), np.int64)
    slot, record = _FIRST_NID, 0
    while record < len(slots):
        left = _BLOCK_SLOTS - slot % _BLOCK_SLOTS
        end = int(np.searchsorted(before, before[record] + left, "right")) - 1
        placed[record:end] = slot + before[record:end] - before[record]
        slot += int(before[end] - before[record])
        if end < len(slots):
            slot += -slot % _BLOCK_SLOTS
        record = end
    return placed, slot


def directory_records(
    inodes: npt.NDArray[np.void],
    numbers: InodeNumbers,
    sizes: Ints,
    blocks_of_directories: Callable[[Ints], npt.NDArray[np.uint8]],
) -> Iterator[memoryview]:
    """Yield the bytes of the table up to the first file, in order, several directories at a time.

    `blocks_of_directories` returns the entry blocks, 4096 bytes each, of the inline directories
    with the given numbers.
    """
    ends = np.append(numbers.directory_nids[1:], numbers.files_at // SLOT_BYTES)
    start = 0
    for low in range(0, len(inodes), _DIRECTORIES_AT_ONCE):
        some = np.arange(low, min(len(inodes), low + _DIRECTORIES_AT_ONCE))
        end = int(ends[some[-1]])
        table = np.zeros((end - start) * SLOT_BYTES, np.uint8)
        at = (numbers.directory_nids[some] - start) * SLOT_BYTES
        table[ranges(at, np.full(len(some), INODE.itemsize))] = inodes[some].view(np.uint8)
        inline = numbers.inline[some]
        used = sizes[some[inline]]
        target = ranges(at[inline] + INODE.itemsize, used)
        source = ranges(np.arange(len(used)) * BLOCK_BYTES, used)
        table[target] = blocks_of_directories(some[inline])[source]
        yield table.data
        start = end


def file_records(
    columns: Columns, layout: BlobLayout, numbers: InodeNumbers, owner: ImageOwner
) -> Iterator[memoryview]:
    """Yield the bytes of the table from the first file on, in order, many files at a time.

    The cost is 0.15 µs a file.
    """
    for first in range(0, numbers.files, _FILES_AT_ONCE):
        ranks = range(first, min(numbers.files, first + _FILES_AT_ONCE))
        table = _file_inodes(columns, layout, owner, ranks, numbers.directories)
        yield table.view(np.uint8).data
    end = numbers.files_at + numbers.files * FILE.itemsize
    yield memoryview(bytes(numbers.table_bytes - end))


def directory_inodes(
    columns: Columns,
    numbers: InodeNumbers,
    owner: ImageOwner,
    first_block: Ints,
    sizes: Ints,
    nlink: Ints,
) -> npt.NDArray[np.void]:
    """Return the inodes of all directories by number.

    `first_block`: the first block in the image of each directory that is not inline.
    """
    table = np.zeros(len(sizes), INODE)
    _fill(table, owner, 0)
    layout = np.where(numbers.inline, FLAT_INLINE, FLAT_PLAIN)
    table["format"] = EXTENDED | layout << LAYOUT_SHIFT
    table["mode"] = np.append(columns.directory_mode, _CONTROL_MODE)
    if owner.private:
        table["mode"][0] &= stat.S_IFDIR | 0o700
    table["size"], table["nlink"] = sizes, nlink
    table["start"] = np.where(numbers.inline, 0, first_block)
    _set_mtime(table, np.append(columns.directory_mtime_ns, columns.directory_mtime_ns[0]))
    return table


def _file_inodes(
    columns: Columns, layout: BlobLayout, owner: ImageOwner, ranks: range, first_ino: int
) -> npt.NDArray[np.void]:
    inodes = columns.by_name[ranks.start : ranks.stop].astype(np.int64)
    table = np.zeros(len(inodes), FILE)
    _fill(table, owner, first_ino + ranks.start)
    table["format"] = EXTENDED | CHUNK_BASED << LAYOUT_SHIFT
    table["mode"], table["nlink"] = columns.mode[inodes], 1
    _set_mtime(table, columns.mtime_ns[inodes])
    lengths = columns.length[inodes]
    table["size"] = lengths
    bits = _chunk_bits(lengths)
    table["start"] = CHUNK_INDEXES | bits
    device, block = np.divmod(layout.first_block[inodes], layout.device_blocks)
    for number in range(FILE_CHUNKS):
        begin = np.int64(number) << bits + BLOCK_BITS
        used = begin < lengths.astype(np.int64)
        index = table["chunks"][:, number]
        index["device"] = np.where(used, device + 1, 0)
        index["block"] = np.where(used, block + (begin >> BLOCK_BITS), NULL_BLOCK)
    return table


def _fill(table: npt.NDArray[np.void], owner: ImageOwner, first_ino: int) -> None:
    """Set the owner and `ino`.

    `ino` is for the stat of 32-bit programs alone: the order of the table, from 1.
    """
    table["uid"], table["gid"] = owner.uid, owner.gid
    table["ino"] = np.arange(first_ino + 1, first_ino + 1 + len(table))


def _set_mtime(table: npt.NDArray[np.void], mtime_ns: npt.NDArray[np.int64]) -> None:
    """Set the time; seconds are rounded down, so that nanoseconds are never negative (timespec)."""
    table["mtime_s"], table["mtime_ns"] = np.divmod(mtime_ns, _NS)


def _chunk_bits(lengths: npt.NDArray[np.uint64]) -> Ints:
    """Return log2 of the blocks of the smallest chunk that holds each file, at most 31 (8 TiB)."""
    blocks = -(-lengths.astype(np.int64) // BLOCK_BYTES)
    # frexp(n - 1) yields the bits of n - 1: exact, since a file has fewer than 2^53 blocks.
    bits = np.frexp(np.maximum(blocks - 1, 0).astype(np.float64))[1].astype(np.int64)
    return np.minimum(bits, MAX_CHUNK_BITS)
