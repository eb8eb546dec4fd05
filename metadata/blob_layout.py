"""The place of every file in the blobs: sparse virtual files that hold a dataset's content at block
boundaries.

A kernel image (kernel_image.py) names no chunks and holds no content: it says at which block of
which extra device a file starts. The devices are the blobs. Files lie in them in inode order, which
is chunk order, so the files of a chunk are one range of a blob. A block address has 32 bits: after
16 TiB the next file starts another device, and no file straddles two.

Positions count blocks in one space in which device d begins at d × `device_blocks`; division yields
the device.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, Self

import numpy as np
import numpy.typing as npt

from metadata.erofs_format import BLOCK_BITS, MAX_DEVICES
from metadata.errors import KernelImageTooLarge
from metadata.snapshot import Snapshot

BLOCK_BYTES: Final = 1 << BLOCK_BITS
DEVICE_BLOCKS: Final = (1 << 32) - 1
"""The most blocks of one device: the last 32-bit block address means a hole."""


class BlobLayout:
    """The positions of files in blobs, and the file at each offset.

    Immutable: any thread may use it.
    """

    def __init__(
        self, lengths: npt.NDArray[np.unsignedinteger], device_blocks: int = DEVICE_BLOCKS
    ) -> None:
        """Lay out files of `lengths` bytes, by inode; about 12 ns a file.

        Raises `KernelImageTooLarge` if they do not fit.
        """
        lengths = lengths.astype(np.uint64, copy=False)
        partial = (lengths & np.uint64(BLOCK_BYTES - 1)) != 0
        blocks = (lengths >> np.uint64(BLOCK_BITS)) + partial
        _check_sizes(blocks, device_blocks)
        self.device_blocks = device_blocks
        self.file_count = len(blocks)
        self.first_block: npt.NDArray[np.int64] = np.zeros(len(blocks) + 1, np.int64)
        """F + 1 positions, not descending: each file's first block, then the end of the last file.

        An empty file has the position at which the next file starts, or would start.
        """
        np.cumsum(blocks, out=self.first_block[1:])
        self._device_first_file, self._device_end = self._split()
        self._position = self.first_block.data

    @classmethod
    def of(cls, snapshot: Snapshot, device_blocks: int = DEVICE_BLOCKS) -> Self:
        """Return the layout of a snapshot's files.

        Raises `KernelImageTooLarge` if a file or the dataset exceeds the devices.
        """
        return cls(snapshot.columns.length, device_blocks)

    def _split(self) -> tuple[list[int], list[int]]:
        """Move files that would straddle a device's end to the next device.

        Returns two lists: the first file of each device, then F; and the end of each device in
        blocks.
        """
        first = self.first_block
        packed_ends = first[1:].copy() if first[-1] > self.device_blocks else first[1:]
        starts, ends = [0], []
        packed_start = 0
        while True:
            past = int(np.searchsorted(packed_ends, packed_start + self.device_blocks, "right"))
            if past == self.file_count:
                break
            packed = int(packed_ends[past - 1])
            ends.append(packed - packed_start)
            packed_start = packed
            starts.append(past)
            if len(starts) > MAX_DEVICES:
                raise KernelImageTooLarge(
                    f"the dataset needs more than {MAX_DEVICES} devices of {self.device_blocks} "
                    "blocks"
                )
        ends.append(int(first[-1]) - packed_start)
        for device in range(1, len(starts)):
            end = starts[device + 1] if device + 1 < len(starts) else self.file_count + 1
            shift = device * self.device_blocks - sum(ends[:device])
            first[starts[device] : end] += shift
        return [*starts, self.file_count], ends

    @property
    def device_count(self) -> int:
        """The number of devices, at least 1: an image always has a blob."""
        return len(self._device_end)

    def device_bytes(self, device: int) -> int:
        """Return the size of a blob: a multiple of the block, one block if it has no content."""
        return max(1, self._device_end[device]) * BLOCK_BYTES

    def device_of(self, inode: int) -> int:
        """Return the device of one file."""
        return min(self._place(inode) // self.device_blocks, len(self._device_end) - 1)

    def start_byte(self, inode: int) -> int:
        """Return the byte of its device's blob at which a file starts; 0.4 µs.

        Raises `IndexError` if the inode is not a file's.
        """
        position = self._place(inode)
        device = min(position // self.device_blocks, len(self._device_end) - 1)
        return (position - device * self.device_blocks) * BLOCK_BYTES

    def _place(self, inode: int) -> int:
        if not 0 <= inode < self.file_count:
            raise IndexError(f"inode {inode} is not a file of this layout")
        return self._position[inode]

    def file_at(self, device: int, byte_offset: int) -> int:
        """Return the inode of the file whose blocks contain the offset; 1.5 µs.

        The offset may lie past the file's length, in its last block: the kernel reads zeros there.
        Raises `IndexError` outside of all files.
        """
        block = byte_offset >> BLOCK_BITS
        if not 0 <= device < len(self._device_end) or not 0 <= block < self._device_end[device]:
            raise IndexError(f"there is no file at byte {byte_offset} of device {device}")
        # Empty files share the position of the file after them: the rightmost one has content.
        return bisect_right(self._position, device * self.device_blocks + block) - 1

    def range_of_files(self, first_inode: int, end_inode: int) -> list[tuple[int, int, int]]:
        """Return the (device, start, end) in bytes of the blobs that files [first, end) fill.

        There is one range for each device, and none for a device without content.
        """
        ranges = []
        bounds = self._device_first_file
        first, end = max(0, first_inode), min(end_inode, self.file_count)
        for device in range(
            bisect_right(bounds, first, hi=self.device_count) - 1, self.device_count
        ):
            low, high = max(first, bounds[device]), min(end, bounds[device + 1])
            if low >= high:
                break
            base = device * self.device_blocks
            start = self._position[low] - base
            stop = self._device_end[device]
            if high < bounds[device + 1]:
                stop = self._position[high] - base
            if start < stop:
                ranges.append((device, start * BLOCK_BYTES, stop * BLOCK_BYTES))
        return ranges


def _check_sizes(blocks: npt.NDArray[np.unsignedinteger], device_blocks: int) -> None:
    """Raise unless every file fits a device; after that no sum of blocks overflows 63 bits."""
    if not 0 < device_blocks <= DEVICE_BLOCKS:
        raise ValueError(f"a device has 1 to {DEVICE_BLOCKS} blocks, not {device_blocks}")
    largest = int(blocks.max(initial=0))
    if largest > device_blocks:
        inode = int(blocks.argmax())
        raise KernelImageTooLarge(
            f"the file of inode {inode} has {largest} blocks of {BLOCK_BYTES} bytes; "
            f"a device of an EROFS image has at most {device_blocks}"
        )
