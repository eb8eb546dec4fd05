"""The policy *oneshot* (DIESEL §4.2): a node fetches its share while the model loads.

The filling begins when the membership has settled, and again when the share has changed and has
stayed so for a while: if a peer is silent for a second, others must not read its share from the
store. Blocks that are cached already are skipped. Blocks are fetched in the order of their chunks'
ids, several at once. While a reader waits for the store, only one is fetched at a time, so that the
reader finds the store all but free.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Final

from chunkstore.errors import ChunkStoreError, Unavailable
from dieselfs.cache.node.master import AlreadyLoading, Master
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.runtime import Running, Runtime
from dieselfs.cache.ports.task_statistics import FillingStatistics
from dieselfs.errors import CacheFull, DieselFSError, MasterGone

log = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""The number of concurrent fetches.

32 MiB are then under way: a store that answers in 50 ms gives 640 MiB/s.
"""
LOOK_S: Final = 0.02
"""The interval at which a thread that gives way checks whether a reader still waits."""
STORE_PAUSE_S: Final = 1.0
"""The pause after the store did not answer, although the fetch waited as long as a reader would."""


class Oneshot:
    """The filling of one node's share. Thread-safe.

    Its threads begin with the first `fill`, and end with `close`.
    """

    def __init__(self, runtime: Runtime, memory: Master, at_once: int = AT_ONCE) -> None:
        self._runtime = runtime
        self._memory = memory
        self._at_once = at_once
        self._lock = runtime.lock()
        self._changed = runtime.condition(self._lock)
        self._wanted: deque[CacheBlock] = deque()
        self._under_way = 0
        self._has_begun = self._closed = False
        self._threads: list[Running] = []
        self._busy_since: float | None = None
        self._busy_s = 0.0
        """Busy time before `_busy_since`."""
        self._fetched_bytes = 0

    def fill(self, share: Sequence[CacheBlock]) -> None:
        """Fetch these blocks as far as there is room, instead of those left from the last call."""
        with self._lock:
            if self._closed:
                return
            self._has_begun = True
            self._wanted = deque(share)
            self._note_activity()
            while len(self._threads) < min(self._at_once, len(share)):
                name = f"oneshot-{len(self._threads)}"
                self._threads.append(self._runtime.start(self._run, name))
            self._changed.notify_all()

    def statistics(
        self, *, blocks: int, share_bytes: int, cached: tuple[int, int]
    ) -> FillingStatistics:
        """Return the statistics, completed by what the caller knows of the share.

        `cached` is (blocks, bytes) of the share that are cached on this node.
        """
        with self._lock:
            busy_s = self._busy_s
            if self._busy_since is not None:
                busy_s += self._runtime.now() - self._busy_since
            return FillingStatistics(
                blocks=blocks,
                blocks_cached=cached[0],
                share_bytes=share_bytes,
                cached_bytes=cached[1],
                fetched_bytes=self._fetched_bytes,
                rate_bytes_s=self._fetched_bytes / busy_s if busy_s else 0.0,
                done=self._has_begun and not self._busy(),
            )

    def close(self, timeout_s: float) -> None:
        """Begin no more fetches. Those under way end with the master, or by themselves."""
        deadline = self._runtime.now() + timeout_s
        self._stop()
        for thread in self._threads:
            thread.join(max(0.0, deadline - self._runtime.now()))

    def _stop(self) -> None:
        with self._lock:
            self._closed = True
            self._wanted.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while (block := self._next()) is not None:
            again = False
            try:
                self._fetch(block)
            except AlreadyLoading:
                pass
            except CacheFull as error:
                self._end_for_want_of_room(error)
            except MasterGone:
                self._stop()
            except Unavailable as error:
                log.debug("cannot load block %s of this node's share: %s", block.name, error)
                again = True
            except (ChunkStoreError, DieselFSError) as error:
                log.warning(
                    "block %s of this node's share is left to its readers: %s", block.name, error
                )
            except Exception:  # the filling must not end with it
                log.exception("block %s of this node's share is left to its readers", block.name)
            self._ended(block, again)

    def _fetch(self, block: CacheBlock) -> None:
        if self._memory.blocks.is_cached(block):
            return
        self._memory.fetch(block, ahead=True, as_owner=True)
        with self._lock:
            self._fetched_bytes += block.length

    def _next(self) -> CacheBlock | None:
        """Wait for the next block's turn and return it; None at the end."""
        with self._lock:
            while not self._closed:
                if not self._wanted:
                    self._changed.wait()
                elif self._under_way and self._memory.readers_wait():
                    self._changed.wait(LOOK_S)
                else:
                    self._under_way += 1
                    return self._wanted.popleft()
        return None

    def _ended(self, block: CacheBlock, again: bool) -> None:
        with self._lock:
            if again and not self._closed:
                self._wanted.append(block)
                self._changed.wait(STORE_PAUSE_S)
            self._under_way -= 1
            self._note_activity()
            self._changed.notify_all()

    def _end_for_want_of_room(self, error: CacheFull) -> None:
        with self._lock:
            if self._wanted:
                log.info(
                    "%d blocks of this node's share are not loaded: %s", len(self._wanted), error
                )
            self._wanted.clear()

    # Called with the lock held.

    def _busy(self) -> bool:
        return bool(self._wanted or self._under_way)

    def _note_activity(self) -> None:
        now = self._runtime.now()
        if self._busy_since is not None:
            self._busy_s += now - self._busy_since
        self._busy_since = now if self._busy() else None
