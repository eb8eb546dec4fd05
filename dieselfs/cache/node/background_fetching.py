"""Background fetches of lists of blocks, in order, by a few threads.

The threads are started when they are first needed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from chunkstore.stores.read_turn import Payer
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.errors import CacheFull, MasterGone

log = logging.getLogger(__name__)


class _List(NamedTuple):
    """Blocks that are still to be fetched, and what pays for them."""

    blocks: deque[CacheBlock]
    payer: Payer | None


class Prefetching:
    """The fetches of one master. Thread-safe.

    `fetch` is called for each block. A list ends at its first `CacheFull`; other errors are left
    for the block's readers.
    """

    def __init__(self, fetch: Callable[[CacheBlock, Payer | None], None], threads: int) -> None:
        self._fetch = fetch
        self._limit = threads
        self._threads: list[threading.Thread] = []
        self._lists: deque[_List] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def submit(self, blocks: Sequence[CacheBlock], payer: Payer | None = None) -> None:
        """Fetch these blocks after all earlier lists, and let this one pay. Return at once."""
        with self._changed:
            if self._closed:
                return
            self._lists.append(_List(deque(blocks), payer))
            for _ in range(min(len(blocks), self._limit - len(self._threads))):
                thread = threading.Thread(target=self._run, name="prefetch", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # no more threads
                    log.warning("cannot start a thread that prefetches: %s", error)
                    break
                self._threads.append(thread)
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Begin no more fetches, and wait for those under way.

        A fetch that takes longer than `timeout_s` ends by itself later.
        """
        with self._changed:
            self._closed = True
            self._lists.clear()
            self._changed.notify_all()
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _run(self) -> None:
        while (found := self._next()) is not None:
            listed, block = found
            try:
                self._fetch(block, listed.payer)
            except (CacheFull, MasterGone):
                listed.blocks.clear()
            except Exception as error:
                log.warning("cannot prefetch block %s: %s", block.name, error)

    def _next(self) -> tuple[_List, CacheBlock] | None:
        """Return the first list that is not empty and the block taken from it; None at the end."""
        with self._changed:
            while not self._closed:
                while self._lists and not self._lists[0].blocks:
                    self._lists.popleft()
                if self._lists:
                    return self._lists[0], self._lists[0].blocks.popleft()
                self._changed.wait()
        return None
