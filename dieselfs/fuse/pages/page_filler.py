"""The port through which files are filled into the page cache ahead of their readers.

A chunk that has arrived in node memory is *filled*: its files are put into the page cache, so that
no reader waits for a request. Behind the readers pages are *dropped*. The fronts differ in how they
do either (`range_filler`, `file_filler`, `store_filler`). `planned_pages` decides when, where the
reading order is known, and `miss_prefill` where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from dieselfs.fuse.pages.page_statistics import FillStatistics

Inodes: TypeAlias = npt.NDArray[np.uint32]
"""Files of the snapshot."""

MAX_FILLED_FILE_BYTES: Final = 512 << 10
"""The size above which files are not filled.

Larger files are read in large requests, which cost little more than filling.
"""


@dataclass(frozen=True, slots=True)
class Filled:
    """A chunk whose fill has ended."""

    chunk: int
    complete: bool
    """True if all requested files are in the page cache. The rest is left to its readers."""


class PageFiller(Protocol):
    """A filler of the page cache.

    Threads of its own do the work, a few chunks at a time; no call waits for it. One thread uses a
    filler; any thread may call `statistics` and `close`.
    """

    @property
    def stages(self) -> bool:
        """True if filled pages are a second copy.

        They are the blob's pages, beside those that a reader makes of the file itself.
        """
        ...

    @property
    def opens_files(self) -> bool:
        """True if filling opens and closes files.

        A watch of these files takes that for a reader.
        """
        ...

    @property
    def wake_fd(self) -> int:
        """A descriptor that is readable when `take_filled` has something to do."""
        ...

    def fill(self, chunk: int, files: Inodes) -> None:
        """Fill these files of a chunk that is in node memory.

        They are increasing inodes, each of 1 to `MAX_FILLED_FILE_BYTES` bytes.
        """
        ...

    def take_filled(self) -> list[Filled]:
        """Return the fills that have ended since the last call.

        Calls the `then` of each drop that has ended, in this thread.
        """
        ...

    def drop(
        self, files: Inodes, then: Callable[[], None] = ..., *, staged_only: bool = False
    ) -> None:
        """Drop the files' pages from the page cache, in any order of inodes.

        A failure is logged, and `then` is called as well. `staged_only` keeps the files' own pages,
        which a filler that stages has not made. Other fillers do nothing then.
        """
        ...

    def statistics(self) -> FillStatistics:
        """Return the counters since the filler was made."""
        ...

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop, and wait for that at most `timeout_s`.

        Queued fills are left out, queued drops are still done. May be called again.
        """
        ...
