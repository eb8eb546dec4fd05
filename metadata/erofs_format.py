"""Constants and record layouts of EROFS, the kernel's read-only file system, as far as metadata
images use it.

The source is Linux `fs/erofs/erofs_fs.h`; docs/kernel-image.md describes every field used. All
numbers are little-endian. The writer and the tests' reader share this module and nothing else.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

SUPERBLOCK_AT: Final = 1024
"""Byte offset of the superblock; a boot sector may come before it."""
MAGIC: Final = 0xE0F5E1E2
BLOCK_BITS: Final = 12
SLOT_BYTES: Final = 32
"""An inode's nid is its byte offset from the metadata's start, divided by this."""

COMPAT_CHECKSUM: Final = 0x1
COMPAT_MTIME: Final = 0x2
INCOMPAT_CHUNKED_FILE: Final = 0x4
INCOMPAT_DEVICE_TABLE: Final = 0x8

SUPERBLOCK: Final = struct.Struct("<IIIBBHQQIIII16s16sIHHHBBIQ24x")
"""Magic, checksum, compatible features, block bits, extension slots, root nid, inode count, build
time in s and ns, blocks, first metadata block, first xattr block, UUID, volume name, incompatible
features, compression, extra devices, first slot of the device table, directory block bits, xattr
prefixes: count and start, packed nid.
"""
CHECKSUM_AT: Final = 4
"""Byte offset of the checksum in the superblock."""
DEVICE: Final = struct.Struct("<64sII56x")
"""Tag, blocks, block address in the unified address space (0: none)."""
MAX_DEVICES: Final = (1 << 16) - 1

FLAT_PLAIN: Final = 0
FLAT_INLINE: Final = 2
"""The last block's bytes lie behind the inode and cross no block."""
CHUNK_BASED: Final = 4
EXTENDED: Final = 1
"""The bit of an inode's format for the 64-byte form.

The layout of its data (above) starts at the next bit.
"""
LAYOUT_SHIFT: Final = 1
CHUNK_BITS_MASK: Final = 0x1F
"""The bits of a chunk format that hold log2 of a chunk's blocks."""
CHUNK_INDEXES: Final = 0x20
"""The bit of a chunk format: 8-byte indexes with a device follow the inode."""
MAX_CHUNK_BITS: Final = 31
NULL_BLOCK: Final = (1 << 32) - 1
"""The block address of a hole."""

TYPE_UNKNOWN, TYPE_REGULAR, TYPE_DIRECTORY, TYPE_FIFO, TYPE_LINK = 0, 1, 2, 5, 7

_INODE_FIELDS: Final = [
    ("format", "<u2"),
    ("xattr_count", "<u2"),
    ("mode", "<u2"),
    ("reserved", "<u2"),
    ("size", "<u8"),
    ("start", "<u4"),  # first block if flat, chunk format if chunk-based
    ("ino", "<u4"),
    ("uid", "<u4"),
    ("gid", "<u4"),
    ("mtime_s", "<i8"),
    ("mtime_ns", "<u4"),
    ("nlink", "<u4"),
    ("unused", "V16"),
]
INODE: Final = np.dtype(_INODE_FIELDS)
"""An extended inode, 64 bytes."""
CHUNK_INDEX: Final = np.dtype([("advice", "<u2"), ("device", "<u2"), ("block", "<u4")])
FILE_CHUNKS: Final = 2
"""Indexes after a file's inode: a chunk has at most 8 TiB, a device 16."""
FILE: Final = np.dtype([*_INODE_FIELDS, ("chunks", CHUNK_INDEX, FILE_CHUNKS), ("slack", "V16")])
"""A file's inode with its chunk indexes, in whole slots: 96 bytes."""
DIRENT: Final = np.dtype([("nid", "<u8"), ("name_at", "<u2"), ("type", "u1"), ("reserved", "u1")])
"""A directory entry, 12 bytes; `name_at` counts from its block's start."""
