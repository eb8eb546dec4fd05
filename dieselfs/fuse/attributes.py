"""What `stat` shows: the kernel's entry attributes, made from a mode, a size and a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyfuse3

FOREVER_S: Final = 10 * 365 * 86400.0
"""How long the kernel may believe what can't change. Longer than any mount lives, and small enough
to be counted in jiffies."""
BLOCK_BYTES: Final = 4096
"""What reads are told to be a good size. Not more: Python allocates a buffer of it at every open."""
DIRECTORY_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """Who owns everything in the mount; snapshots hold no owners."""

    uid: int
    gid: int


def entry_attributes(
    inode: int, mode: int, size: int, mtime_ns: int, owner: Owner, timeout_s: float, links: int = 1
) -> pyfuse3.EntryAttributes:
    """`mode` with its type bits, `size` in bytes; the kernel asks again after `timeout_s`."""
    entry = pyfuse3.EntryAttributes()
    entry.st_ino = inode
    entry.st_mode = mode
    entry.st_nlink = links
    entry.st_uid = owner.uid
    entry.st_gid = owner.gid
    entry.st_size = size
    entry.st_blocks = (size + 511) // 512
    entry.st_mtime_ns = entry.st_ctime_ns = entry.st_atime_ns = mtime_ns
    entry.entry_timeout = entry.attr_timeout = timeout_s
    return entry


def known_absent() -> pyfuse3.EntryAttributes:
    """The answer to a look-up that lets the kernel remember that there is no such name."""
    entry = pyfuse3.EntryAttributes()  # its inode is 0, which says so
    entry.entry_timeout = FOREVER_S
    return entry
