"""The page filler of buffered EROFS, for small files.

A chunk is a range of a blob, which the kernel reads ahead on advice.

One `posix_fadvise(WILLNEED)` a MiB puts 256 small files into the page cache; their reader makes the
files' own pages from it (1.2 µs a file). So bytes are there twice for a while, until the blob's
range is dropped behind the reader (0.6 µs a file) or, where memory for all files is lacking, the
files' own pages too, by the helper process.

An advice reads no more than the readahead size, and does not wait. One read of a byte of each
step's last page waits: a signal can end this wait for an answer of other threads of this process.
The open of a blob is a request for which a killed process would wait forever, so it is done once;
the close is no request (`BlobServer` has no FLUSH).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

import numpy as np

from dieselfs.fuse.pages.page_filler import Inodes
from dieselfs.fuse.pages.page_helper import Helper
from dieselfs.fuse.pages.threaded_filler import ThreadedFiller
from metadata.snapshot import Snapshot

log = logging.getLogger(__name__)

BYTE_RANGE = tuple[int, int, int]
"""Device, start, end."""
_GAP_FILES: Final = 8
"""Up to this many files between two requested ones are filled too: fewer, longer ranges."""


class Layout(Protocol):
    """The places of files: `metadata.blob_layout.BlobLayout`."""

    def range_of_files(self, first_inode: int, end_inode: int) -> Sequence[BYTE_RANGE]: ...


class RangeFiller(ThreadedFiller):
    """A filler that advises on ranges of the blob; implements `PageFiller`."""

    stages = True

    def __init__(
        self,
        snapshot: Snapshot,
        layout: Layout,
        open_blob: Callable[[int], int],
        readahead_bytes: int,
        helper: Helper,
        own_pids: set[int],
    ) -> None:
        """Create a filler.

        `open_blob` opens the blob of a device. `readahead_bytes` is what one advice reads,
        `read_ahead_kb` of the blob's mount. `helper` is the caller's, to close after this. For
        `own_pids` see `ThreadedFiller`.
        """
        super().__init__(snapshot, own_pids)
        self._layout, self._open_blob = layout, open_blob
        self._step, self._helper = readahead_bytes, helper
        self._opening = threading.Lock()
        self._blobs: dict[int, int] = {}
        """Descriptors by device, open from their first use on."""

    def _fill(self, chunk: int, files: Inodes) -> bool:
        complete = True
        for device, ranges in self._by_device(files, _GAP_FILES):
            blob = self._blob(device)
            steps = [
                (at, min(at + self._step, end))
                for _, start, end in ranges
                for at in range(start, end, self._step)
            ]
            for start, end in steps:
                os.posix_fadvise(blob, start, end - start, os.POSIX_FADV_WILLNEED)
            complete &= all([_arrives(blob, end - 1) for _, end in steps])
        return complete

    def _drop(self, files: Inodes, staged_only: bool) -> None:
        for device, ranges in self._by_device(files):
            blob = self._blob(device)
            for _, start, end in ranges:
                os.posix_fadvise(blob, start, end - start, os.POSIX_FADV_DONTNEED)
        if not staged_only:
            self._helper.drop(self._snapshot.paths_text(files, b"\0"))

    def close(self, timeout_s: float = 1.0) -> None:
        """End the threads, and close the blobs if all threads have ended in time."""
        super().close(timeout_s)
        if self.has_ended:
            with self._opening:
                while self._blobs:
                    os.close(self._blobs.popitem()[1])

    def _by_device(self, files: Inodes, gap: int = 0) -> Iterator[tuple[int, Iterator[BYTE_RANGE]]]:
        ranges = [
            found
            for first, end in _runs(files, gap)
            for found in self._layout.range_of_files(first, end)
        ]
        return groupby(sorted(ranges), itemgetter(0))

    def _blob(self, device: int) -> int:
        with self._opening:
            if device not in self._blobs:
                blob = self._blobs[device] = self._open_blob(device)
                os.posix_fadvise(blob, 0, 0, os.POSIX_FADV_RANDOM)  # one byte is one byte
            return self._blobs[device]


def _arrives(blob: int, at: int) -> bool:
    """Wait for the page with this byte; False if it cannot be read."""
    try:
        os.pread(blob, 1, at)
    except OSError as error:
        log.debug("byte %d of the blob: %s", at, error)
        return False
    return True


def _runs(files: Inodes, gap: int) -> list[tuple[int, int]]:
    """Return (first, end) of runs of consecutive inodes, with at most `gap` others in between."""
    if not len(files):
        return []
    ordered = np.sort(files).astype(np.int64)
    breaks = np.flatnonzero(np.diff(ordered) > 1 + gap)
    first = ordered[np.concatenate([[0], breaks + 1])]
    end = ordered[np.append(breaks, len(ordered) - 1)] + 1
    return list(zip(first.tolist(), end.tolist(), strict=True))
