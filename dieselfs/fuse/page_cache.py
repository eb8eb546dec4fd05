"""The page-cache work of a mount: its fillers.

They fill along known orders (`mount_plans`), and for misses without one (`miss_prefill`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dieselfs.fuse.pages.miss_prefill import MissPrefill
from dieselfs.fuse.pages.page_filler import PageFiller
from dieselfs.fuse.pages.page_helper import PageHelper
from dieselfs.fuse.pages.page_statistics import FillStatistics, MissPrefillStatistics
from dieselfs.fuse.requests.file_reader import CachedSource
from dieselfs.prefetch.close_events import CloseEvents
from metadata.snapshot import Snapshot

if TYPE_CHECKING:
    from dieselfs.fuse.fronts.made_front import MadeFront
    from dieselfs.fuse.supervision.shutdown import Shutdown

log = logging.getLogger(__name__)

_END_TIMEOUT_S: Final = 0.5


class PageCache:
    """The fillers of one mount. They do nothing before `start`."""

    def __init__(
        self,
        snapshot: Snapshot,
        source: CachedSource,
        mountpoint: Path,
        limit_bytes: int | None,
    ) -> None:
        """Create it; for `limit_bytes` see `MissPrefill`."""
        self._snapshot, self._source = snapshot, source
        self._mountpoint, self._limit_bytes = mountpoint, limit_bytes
        self.own_threads: set[int] = set()
        """Threads and processes of this mount, whose READs are no reader's."""
        self._helper: PageHelper | None = None
        self._front: MadeFront | None = None
        self._prefill: MissPrefill | None = None
        self._note_miss: Callable[[int], None] = lambda inode: None

    def start(
        self, front: MadeFront, is_paused: Callable[[], bool], note_miss: Callable[[int], None]
    ) -> None:
        """Fill for misses from now on, but not while a known order is prefetched (`is_paused`).

        `note_miss` is called with files whose READs were not answered from node memory.
        """
        self._front, self._note_miss = front, note_miss
        self._helper = PageHelper(self._mountpoint, self.own_threads, front.readahead_bytes)
        try:
            events = CloseEvents(self._mountpoint)
        except OSError as error:  # no reason to end: the mount serves without prefill
            log.warning("misses fill no page cache: %s; raise fs.inotify.max_user_instances", error)
            return
        prefill = MissPrefill(
            self.make_filler(),
            events,
            self._snapshot,
            self._limit_bytes,
            own_pids=self.own_threads,
            is_paused=is_paused,
            discard=self._source.discard,
        )
        prefill.start()
        self._prefill = prefill

    def make_filler(self) -> PageFiller:
        """Return a new filler for an order, or for misses."""
        assert self._front is not None
        assert self._helper is not None
        return self._front.make_filler(self._source, self._helper, self.own_threads)

    def note_read(self, inode: int, thread: int) -> None:
        """Note that a READ has been answered whose first file is this one.

        It was answered from memory, or from a chunk that may be cached now.
        """
        prefill = self._prefill  # another thread may stop it meanwhile
        if prefill is None or thread in self.own_threads:
            return
        extent = self._snapshot.extent(inode)
        if self._source.peek(extent, 0, min(1, extent.length)) is not None:
            prefill.note_miss(self._snapshot.chunk_number(inode), thread)
        else:
            self._note_miss(inode)

    def stop(self) -> None:
        """Fill no more for misses, and end the helper: paths lead to another mount from now on."""
        prefill, self._prefill = self._prefill, None
        if prefill is not None:
            prefill.close(_END_TIMEOUT_S)
        if self._helper is not None:
            self._helper.close(_END_TIMEOUT_S)

    def statistics(self) -> MissPrefillStatistics:
        """Return the counters of prefill for misses; zeros if there is none."""
        prefill = self._prefill
        return MissPrefillStatistics() if prefill is None else prefill.statistics()

    def filled(self) -> FillStatistics:
        """Return the counters of fills for misses."""
        prefill = self._prefill
        return FillStatistics() if prefill is None else prefill.filled()

    def close(self, shutdown: Shutdown) -> None:
        """End the fills for misses and the helper process within the time of `shutdown`."""
        if self._prefill is not None:
            self._prefill.close(shutdown.left_s(_END_TIMEOUT_S))
        if self._helper is not None:
            self._helper.close(shutdown.left_s(_END_TIMEOUT_S))
