"""The kernel image: a snapshot's names, attributes and blob addresses as an EROFS file system.

Linux reads it by itself. The image holds no content. Every file says at which block of which extra
device it starts (blob_layout.py); the process that mounts the image provides those devices. So the
kernel answers every question about names and attributes without a request to a daemon, and asks for
content only. The format, byte by byte, is in docs/kernel-image.md.

The bytes are a function of the snapshot, the owner and `WRITER_VERSION`: no clock, no random
number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Protocol

import numpy as np

from chunkstore.errors import InvalidPath
from chunkstore.paths import check_names
from chunkstore.stores.object_store import Buffer
from metadata import erofs_format as erofs
from metadata.blob_layout import BLOCK_BYTES, BlobLayout
from metadata.erofs_format import DEVICE, SUPERBLOCK, SUPERBLOCK_AT
from metadata.kernel_image_directories import (
    Children,
    Dots,
    NameBytes,
    blocks_in_turn,
    blocks_of,
    list_entries,
    merge_children,
    pack_entries,
)
from metadata.kernel_image_inodes import (
    ImageOwner,
    InodeNumbers,
    Ints,
    directory_inodes,
    directory_records,
    file_records,
    ranges,
    starts_of,
)
from metadata.snapshot import Snapshot

WRITER_VERSION: Final = 1
"""The version of the bytes that the writer makes of one snapshot.

Golden bytes: tests/golden/kernel-image-v1.erofs.
"""
CONTROL_NAME: Final = b".dieselfs"
"""The name of the control directory in the root: an empty directory to mount something on."""
_DEVICES_AT: Final = 1152
"""Byte offset of the device table: the first slot after the superblock."""
_VOLUME_NAME: Final = b"dieselfs"


class BinaryOutput(Protocol):
    """A binary file that is written from front to back."""

    def write(self, data: Buffer, /) -> int: ...


def write_kernel_image(
    snapshot: Snapshot,
    out: BinaryOutput,
    owner: ImageOwner,
    *,
    layout: BlobLayout | None = None,
    control_name: bytes = CONTROL_NAME,
) -> int:
    """Write the image of a verified snapshot from front to back; return its number of bytes.

    The cost is about 0.5 µs a file. `layout` is `BlobLayout.of(snapshot)` if the caller has it
    already. Raises `KernelImageTooLarge`, `OSError` from `out`, and `ValueError` for a control name
    that is not a valid name.
    """
    _check_name(control_name)
    size = 0
    for part in _parts(snapshot, owner, layout or BlobLayout.of(snapshot), control_name):
        out.write(part)
        size += len(part)
    return size


def _parts(
    snapshot: Snapshot, owner: ImageOwner, layout: BlobLayout, control_name: bytes
) -> Iterator[bytes | memoryview]:
    columns = snapshot.columns
    names = NameBytes(columns, control_name)
    children = merge_children(columns, control_name)
    dots = Dots(names, children)
    packing = pack_entries(children, dots)
    numbers = InodeNumbers(packing.sizes, snapshot.file_count)
    has_links = snapshot.header.has_links
    entries = list_entries(columns, names, numbers, children, dots, packing, has_links=has_links)
    nlink = _links(children)
    del children, dots  # 40 bytes a file
    meta_block = -(-(_DEVICES_AT + layout.device_count * DEVICE.size) // BLOCK_BYTES)
    directories_at = meta_block + numbers.table_bytes // BLOCK_BYTES
    # The blocks of directories that are not inline follow the table.
    block_counts = np.diff(packing.first_block)
    block_counts[numbers.inline] = 0
    first_block = starts_of(block_counts)
    yield _first_blocks(
        snapshot, layout, numbers, directories_at + int(first_block[-1]), meta_block
    )
    inodes = directory_inodes(
        columns, numbers, owner, directories_at + first_block[:-1], packing.sizes, nlink
    )
    yield from directory_records(
        inodes,
        numbers,
        packing.sizes,
        lambda some: blocks_of(entries, names, packing.first_block[some]),
    )
    yield from file_records(columns, layout, numbers, owner)
    blocks = ranges(packing.first_block[:-1], block_counts)
    for data in blocks_in_turn(entries, names, blocks):
        yield data.data


def _check_name(name: bytes) -> None:
    try:
        check_names([name])
    except InvalidPath as error:
        raise ValueError(f"{name!r} is not a name for the control directory: {error}") from error


def _links(children: Children) -> Ints:
    """Return the link count of each directory: its name, its `.`, each sub-directory's `..`."""
    below = starts_of(children.is_directory)[children.first]
    return 2 + np.diff(below)


def _first_blocks(
    snapshot: Snapshot, layout: BlobLayout, numbers: InodeNumbers, blocks: int, meta_block: int
) -> bytes:
    """Return the superblock and the device table, with zeros up to `meta_block`."""
    superblock = SUPERBLOCK.pack(
        erofs.MAGIC,
        0,  # the checksum, set below
        erofs.COMPAT_CHECKSUM | erofs.COMPAT_MTIME,
        erofs.BLOCK_BITS,
        0,
        int(numbers.directory_nids[0]),
        numbers.directories + numbers.files,
        0,
        0,
        blocks,
        meta_block,
        0,
        snapshot.header.file_hash,  # as UUID
        _VOLUME_NAME,
        erofs.INCOMPAT_CHUNKED_FILE | erofs.INCOMPAT_DEVICE_TABLE,
        0,
        layout.device_count,
        _DEVICES_AT // DEVICE.size,
        0,
        0,
        0,
        0,
    )
    table = b"".join(
        DEVICE.pack(b"blob%d" % device, layout.device_bytes(device) // BLOCK_BYTES, 0)
        for device in range(layout.device_count)
    )
    data = bytearray(meta_block * BLOCK_BYTES)
    data[SUPERBLOCK_AT : SUPERBLOCK_AT + SUPERBLOCK.size] = superblock
    data[_DEVICES_AT : _DEVICES_AT + len(table)] = table
    at = SUPERBLOCK_AT + erofs.CHECKSUM_AT
    data[at : at + 4] = _crc32c(data[SUPERBLOCK_AT:BLOCK_BYTES]).to_bytes(4, "little")
    return bytes(data)


def _crc32c(data: bytes | bytearray) -> int:
    """Return the checksum of the superblock's block.

    It uses Castagnoli's polynomial, starts with all ones and is not inverted at the end. 3 KiB: 1
    ms.
    """
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value
