"""Huge pages for processes of the tests that fork.

A worker that has collected all tests has 360 MB, and a fork copies the page tables of all of it: 28
ms of CPU time in parent and child, which is more than most children need. With huge pages it is 6
ms. The child still copies single pages of what it changes.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Final

_MADV_COLLAPSE: Final = 25
_HUGE_PAGE_BYTES: Final = 2 << 20


def use_huge_pages() -> None:
    """Put this process's memory of now into huge pages. A kernel before Linux 6.1 refuses, and
    nothing changes."""
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, permissions, _, _, inode, *_ = line.split()
        if (permissions, inode) != ("rw-p", "0"):
            continue
        first, end = (int(address, 16) for address in bounds.split("-"))
        first = -(-first // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
        end = end // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
        if first < end:
            madvise(first, end - first, _MADV_COLLAPSE)
