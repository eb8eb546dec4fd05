"""The messages of /dev/fuse, as far as a read-only mount needs them.

They are pure functions between bytes and numbers. The structures are those of the kernel's
`include/uapi/linux/fuse.h`, version 7.31 and later (Linux 5.4). Numbers have the machine's byte
order and natural alignment.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

ROOT_NODE: Final = 1
"""FUSE_ROOT_ID."""
PAGE_BYTES: Final = 4096
MAX_READ_BYTES: Final = 1 << 20
"""The largest READ, 256 pages: the most that kernels before 6.13 allow."""
REQUEST_BYTES: Final = 1 << 17
"""A buffer for any request; the kernel refuses less than 8 KiB, and less than a WRITE needs."""
WRITE_BYTES: Final = REQUEST_BYTES - PAGE_BYTES
"""The largest WRITE: whole pages beside its header in the buffer."""
FOREVER_S: Final = 10 * 365 * 86400
"""The time for which the kernel may trust what cannot change.

It is longer than any mount lives, and countable in jiffies.
"""


class Opcode(IntEnum):
    """Kinds of requests."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    COPY_FILE_RANGE = 47
    TMPFILE = 51


class Notification(IntEnum):
    """Kinds of messages that a server sends without a request."""

    STORE = 4
    RESEND = 7


NAMES: Final = {
    Opcode.LOOKUP: "lookup",
    Opcode.FORGET: "forget",
    Opcode.BATCH_FORGET: "forget",
    Opcode.GETATTR: "getattr",
    Opcode.READLINK: "readlink",
    Opcode.OPEN: "open",
    Opcode.READ: "read",
    Opcode.STATFS: "statfs",
    Opcode.WRITE: "write",
    Opcode.RELEASE: "release",
    Opcode.GETXATTR: "getxattr",
    Opcode.LISTXATTR: "listxattr",
    Opcode.FLUSH: "flush",
    Opcode.OPENDIR: "opendir",
    Opcode.READDIR: "readdir",
    Opcode.READDIRPLUS: "readdir",
    Opcode.RELEASEDIR: "releasedir",
    Opcode.ACCESS: "access",
    Opcode.INTERRUPT: "interrupt",
    Opcode.IOCTL: "ioctl",
}
"""Kinds of requests as `stats.json` names them."""

CHANGES: Final = frozenset(
    [
        *(Opcode.SETATTR, Opcode.SYMLINK, Opcode.MKNOD, Opcode.MKDIR, Opcode.UNLINK, Opcode.RMDIR),
        *(Opcode.RENAME, Opcode.LINK, Opcode.WRITE, Opcode.SETXATTR, Opcode.REMOVEXATTR),
        *(Opcode.CREATE, Opcode.FALLOCATE, Opcode.RENAME2, Opcode.COPY_FILE_RANGE, Opcode.TMPFILE),
    ]
)
"""Requests that a read-only mount refuses.

The kernel refuses most of them itself on a mount that is `ro`.
"""

NO_REPLY: Final = frozenset([Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT])

IN_HEADER: Final = struct.Struct("=IIQQIIIHH")
"""length, opcode, unique, node, uid, gid, pid, total_extlen, padding"""
OUT_HEADER: Final = struct.Struct("=IiQ")
"""length, error, unique; a notification has unique 0 and its kind as error."""
READ_IN: Final = struct.Struct("=QQIIQII")
"""handle, offset, size, read_flags, lock_owner, flags, padding"""
WRITE_IN: Final = struct.Struct("=QQIIQII")
"""handle, offset, size, write_flags, lock_owner, flags, padding; then the bytes"""
WRITE_OUT: Final = struct.Struct("=II")
"""size, padding"""
IOCTL_IN: Final = struct.Struct("=QIIQII")
"""handle, flags, command, argument, size in, size out; then the bytes of the argument"""
IOCTL_OUT: Final = struct.Struct("=iIII")
"""result, flags, and the lengths of two lists that a restricted ioctl does not have"""
OPEN_OUT: Final = struct.Struct("=QII")
"""handle, open_flags, backing_id"""
RELEASE_IN: Final = struct.Struct("=QIIQ")
"""handle, flags, release_flags, lock_owner"""
ATTRIBUTES: Final = struct.Struct("=6Q10I")
"""node, size, blocks, atime, mtime, ctime, their ns, mode, nlink, uid, gid, rdev, blksize, flags"""
FORGET_IN: Final = struct.Struct("=Q")
"""lookups"""
BATCH_FORGET_IN: Final = struct.Struct("=II")
"""count, dummy; then node and lookups as 64-bit numbers for each"""
OPEN_IN: Final = struct.Struct("=II")
"""flags, open_flags"""
ACCESS_IN: Final = struct.Struct("=II")
"""mask, padding"""
GETXATTR_IN: Final = struct.Struct("=II")
"""size, padding; then the name (not with LISTXATTR)"""
GETXATTR_OUT: Final = struct.Struct("=II")
"""size, padding: the answer to a request of size 0"""
DIRECTORY_ENTRY: Final = struct.Struct("=QQII")
"""node, position of the next entry, length of the name, type; then the name, padded to 8 bytes"""
_STATFS = struct.Struct("=5Q4I24x")
_ENTRY_HEAD = struct.Struct("=4Q2I")
_ATTR_HEAD = struct.Struct("=QII")
_INIT_IN = struct.Struct("=5I")
_INIT_OUT = struct.Struct("=4I2H2I2H2I24x")
_STORE = struct.Struct("=QQII")

DIRECT_IO: Final = 1 << 0
KEEP_CACHE: Final = 1 << 1
CACHE_DIR: Final = 1 << 3
NO_FLUSH: Final = 1 << 5

_ASYNC_READ = 1 << 0
_ATOMIC_O_TRUNC = 1 << 3
_BIG_WRITES = 1 << 5
_DO_READDIRPLUS = 1 << 13
_ASYNC_DIO = 1 << 15
_NO_OPEN_SUPPORT = 1 << 17
_PARALLEL_DIROPS = 1 << 18
_MAX_PAGES = 1 << 22
_NO_OPENDIR_SUPPORT = 1 << 24
_INIT_EXT = 1 << 30
_HAS_RESEND = 1 << 39

_MAX_BACKGROUND: Final = 64
"""READs ahead under way at a time.

They are enough to fill the page cache from memory; chunks hide a store's latency.
"""
_FLAGS_ALWAYS: Final = _ASYNC_READ | _ASYNC_DIO | _MAX_PAGES | _PARALLEL_DIROPS | _INIT_EXT
_FLAGS_OF_TREES: Final = _DO_READDIRPLUS | _NO_OPEN_SUPPORT | _NO_OPENDIR_SUPPORT
_FLAGS_OF_WRITABLE: Final = _DO_READDIRPLUS | _NO_OPENDIR_SUPPORT | _ATOMIC_O_TRUNC | _BIG_WRITES


@dataclass(frozen=True, slots=True)
class Init:
    """The agreement with the kernel."""

    minor: int
    flags: int

    @property
    def open_may_be_refused(self) -> bool:
        """True if ENOSYS to OPEN and OPENDIR makes the kernel skip them."""
        return bool(self.flags & _NO_OPEN_SUPPORT and self.flags & _NO_OPENDIR_SUPPORT)


def answer_init(
    body: memoryview, *, is_tree: bool, is_writable: bool = False
) -> tuple[Init, bytes]:
    """Return the agreement with the kernel, and the reply that states it.

    With `is_tree`, the mount shows many files, not one blob. With `is_writable`, some of them are
    written; each OPEN is a request then, so that it can be refused. The kernel refuses names longer
    than this protocol's minor version defines, so no more than 45 is claimed.
    """
    _, minor, readahead, flags, upper = _INIT_IN.unpack_from(
        bytes(body).ljust(_INIT_IN.size, b"\0")
    )
    offered = flags | (upper << 32 if flags & _INIT_EXT else 0)
    more = _FLAGS_OF_WRITABLE if is_writable else _FLAGS_OF_TREES if is_tree else 0
    wanted = _FLAGS_ALWAYS | _HAS_RESEND | more
    agreed = offered & wanted
    reply = _INIT_OUT.pack(
        7,
        min(minor, 45),
        max(readahead, MAX_READ_BYTES),
        agreed & 0xFFFFFFFF,
        _MAX_BACKGROUND,
        _MAX_BACKGROUND,
        WRITE_BYTES if is_writable else PAGE_BYTES,
        1,
        MAX_READ_BYTES // PAGE_BYTES,
        0,
        agreed >> 32,
        0,
    )
    return Init(minor, agreed), reply


def attributes(
    node: int, mode: int, size: int, mtime_ns: int, uid: int, gid: int, links: int = 1
) -> bytes:
    """Return `struct fuse_attr`: `mode` with its type bits, `size` in bytes."""
    seconds, nanoseconds = divmod(mtime_ns, 1_000_000_000)
    seconds &= 0xFFFFFFFFFFFFFFFF
    return ATTRIBUTES.pack(
        *(node, size, (size + 511) // 512, seconds, seconds, seconds),
        *(nanoseconds, nanoseconds, nanoseconds, mode, links, uid, gid, 0, PAGE_BYTES, 0),
    )


def entry(node: int, attr: bytes, valid_s: int = FOREVER_S) -> bytes:
    """Return `struct fuse_entry_out`, the answer to LOOKUP.

    Node 0 means that there is no such name, for `valid_s`.
    """
    return _ENTRY_HEAD.pack(node, 0, valid_s, valid_s, 0, 0) + attr


NO_ENTRY: Final = entry(0, bytes(ATTRIBUTES.size))
"""The answer that there is no such name, and never will be."""


def attributes_reply(attr: bytes, valid_s: int = FOREVER_S) -> bytes:
    """Return the answer to GETATTR."""
    return _ATTR_HEAD.pack(valid_s, 0, 0) + attr


def statfs_reply(blocks: int, files: int, name_bytes: int) -> bytes:
    """Return the answer to STATFS: a full file system of so many blocks of 4 KiB."""
    return _STATFS.pack(blocks, 0, 0, files, 0, PAGE_BYTES, name_bytes, PAGE_BYTES, 0)


def store_notification(node: int, offset: int, length: int) -> bytes:
    """Return the head of a message that puts bytes into the page cache of a node.

    The `length` bytes follow it.
    """
    body = _STORE.pack(node, offset, length, 0)
    total = OUT_HEADER.size + len(body) + length
    return OUT_HEADER.pack(total, Notification.STORE, 0) + body


def resend_notification() -> bytes:
    """Return a message that has the kernel send unanswered requests again (Linux 6.9)."""
    return OUT_HEADER.pack(OUT_HEADER.size, Notification.RESEND, 0)
