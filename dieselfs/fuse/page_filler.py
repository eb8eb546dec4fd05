"""The port through which files are brought into the page cache ahead of their readers.

A chunk that has arrived in node memory is *filled*: its files are put into the page cache, so that
no reader waits for a request. Behind the readers pages are *dropped*. How either is done differs by
front (`range_filler`, `file_filler`, `store_filler`); when it is done is decided by `planned_pages`
where the reading order is known, and by `miss_prefill` where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dieselfs.fuse.statistics import FillStatistics

Inodes: TypeAlias = npt.NDArray[np.uint32]
"""Files of the snapshot."""

MAX_FILLED_FILE_BYTES: Final = 512 << 10
"""Larger files are read in large requests, which cost little more than filling."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A chunk whose filling has ended."""

    chunk: int
    complete: bool
    """Whether all files asked for are in the page cache. The rest is left to its readers."""


class PageFiller(Protocol):
    """Threads of its own do the work, a few chunks at a time; no call waits for it.

    One thread uses a filler; `statistics` and `close` may be called from any.
    """

    @property
    def stages(self) -> bool:
        """Whether filled pages are a second copy, of the blob's, beside those that a reader makes
        of the file itself.
        """
        ...

    @property
    def opens_files(self) -> bool:
        """Whether filling opens and closes files, which looks like a reader to those that watch
        them.
        """
        ...

    @property
    def wake_fd(self) -> int:
        """Readable when `take_filled` has something to do."""
        ...

    def fill(self, chunk: int, files: Inodes) -> None:
        """Bring these files of a chunk that is in node memory: increasing inodes, each of 1 to
        `MAX_FILLED_FILE_BYTES` bytes.
        """
        ...

    def take_filled(self) -> list[Filled]:
        """Return the fills that have ended since the last call. Calls the `then` of each drop that
        has ended, in this thread.
        """
        ...

    def drop(
        self, files: Inodes, then: Callable[[], None] = ..., *, staged_only: bool = False
    ) -> None:
        """Drop the files' pages from the page cache, in any order of inodes. A failure is logged,
        and `then` is called as well.

        `staged_only`: keep the files' own pages, which a filler that stages has not made. Other
        fillers do nothing then.
        """
        ...

    def statistics(self) -> FillStatistics:
        """Counters since it was made."""
        ...

    def close(self, timeout_s: float = 1.0) -> None:
        """End, and wait for that so long. Queued fills are left out, queued drops are still done.
        May be called again.
        """
        ...
