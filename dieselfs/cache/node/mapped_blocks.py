"""The cache blocks that one process maps, and which of these maps its master was told of.

A reader's slice of a block keeps the map alive after the process has dropped it. So the moment that
counts is when the map is gone for good. This may happen in any thread at any time, in a destructor,
where no lock may be taken. So the destructor only records it, and the master is told later.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

from chunkstore.chunk_id import PRINTED_LENGTH, ChunkId
from dieselfs.cache.node.chunk_files import block_name, map_block
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.wire.local_messages import Mapped, Message, Unmapped, batches

_Key: TypeAlias = bytes | str
"""The chunk's id for its whole payload, which makes a hit quick; else the block's name."""


class MappedBlocks:
    """The maps of one process. Thread-safe. A lookup takes no lock and no system call."""

    def __init__(self) -> None:
        self._views: dict[_Key, memoryview] = {}
        self.whole: Callable[[bytes], memoryview | None] = self._views.get
        """Return the payload of the chunk of this id, if it is mapped.

        It is not a method: a method would cost a hit a tenth of its time.
        """
        self._changes: deque[tuple[int, str]] = deque()
        """The changes that are not counted yet.

        Each is (+1 for a new map or -1 for one that is gone, the block's name).
        """
        self._maps: Counter[str] = Counter()
        """The number of maps by name.

        A block that was evicted and fetched again may be mapped twice.
        """
        self._reported: set[str] = set()
        """The names that the master believes to be mapped here."""
        self._unreported: set[str] = set()
        """The names about which the master may be wrong."""
        self._reporting = threading.Lock()
        self._listeners: tuple[Callable[[str], None], ...] = ()
        self._evicted: deque[str] = deque()
        """The names of evicted blocks that are not dropped yet."""

    def on_dropped(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the name of each block that is dropped from now on.

        The thread that drops the block calls it.
        """
        self._listeners = (*self._listeners, listener)

    def get(self, block: CacheBlock) -> memoryview | None:
        """Return the block if it is mapped."""
        return self._views.get(block.chunk.id.value if block.file is None else block.name)

    def map(self, folder: Path, block: CacheBlock) -> memoryview | None:
        """Map a block; return None if its file is missing or cannot be mapped.

        Cost: see `map_block`.
        """
        return self._mapped(folder, block.name, block.length)

    def map_chunk(self, folder: Path, name: str) -> memoryview | None:
        """Map a whole chunk of which only the name is known."""
        found = self._views.get(_key(name))
        if found is not None:
            return found
        try:
            length = os.stat(folder / name).st_size
        except OSError:
            return None
        return self._mapped(folder, name, length)

    def drop(self, name: str) -> None:
        """Drop the map of a block; do nothing if it is not mapped."""
        if self._views.pop(_key(name), None) is not None:
            for listener in self._listeners:
                listener(name)

    def note_evicted(self, name: str) -> None:
        """Note that a block is to be dropped. Any thread may call it with any lock held."""
        self._evicted.append(name)

    def drop_evicted(self) -> None:
        """Drop the blocks that were noted."""
        while self._evicted:
            try:
                self.drop(self._evicted.popleft())
            except IndexError:  # another thread took the last one
                return

    def drop_missing(self, folder: Path) -> None:
        """Drop the maps of all blocks whose files are gone.

        A file that the task's new master has not verified yet is there.
        """
        try:
            present = set(map(block_name, os.listdir(folder)))
        except FileNotFoundError:
            present = set()
        for name in self.names():
            if name not in present:
                self.drop(name)

    def clear(self) -> None:
        """Drop all maps without calling the listeners."""
        self._views.clear()

    def names(self) -> Iterator[str]:
        """Yield the names of the mapped blocks."""
        for key in tuple(self._views):
            yield key if isinstance(key, str) else str(ChunkId(key))

    def size(self) -> tuple[int, int]:
        """Return (blocks, bytes)."""
        views = tuple(self._views.values())
        return len(views), sum(map(len, views))

    def report_changes(self, send: Callable[[Message], bool]) -> None:
        """Tell the master what has changed, until `send` returns False.

        If another thread is doing so, this returns at once and leaves the changes to it.
        """
        if not self._changes and not self._unreported:
            return
        if self._reporting.acquire(blocking=False):
            try:
                self._report(send)
            finally:
                self._reporting.release()

    def report_all(self, send: Callable[[Message], bool]) -> None:
        """Tell a new master about all maps."""
        with self._reporting:
            self._reported.clear()
            self._unreported.update(self._maps)
            self._report(send)

    def renew_locks(self) -> None:
        """Make new locks in a forked child, which has the maps of its parent."""
        self._reporting = threading.Lock()

    def _mapped(self, folder: Path, name: str, length: int) -> memoryview | None:
        if not length:
            return memoryview(b"")
        try:
            made = map_block(folder, name, length)
        except OSError:  # too many maps, too many files, too little memory
            return None
        if made is None:
            return None
        view = memoryview(made)
        kept = self._views.setdefault(_key(name), view)
        if kept is view:
            self._changes.append((1, name))
            weakref.finalize(made, self._changes.append, (-1, name)).atexit = False
        return kept

    def _report(self, send: Callable[[Message], bool]) -> None:
        while self._changes:
            change, name = self._changes.popleft()
            self._maps[name] += change
            if not self._maps[name]:
                del self._maps[name]
            self._unreported.add(name)
        mapped = [
            name for name in self._unreported if name in self._maps and name not in self._reported
        ]
        gone = [
            name for name in self._unreported if name not in self._maps and name in self._reported
        ]
        for part in batches(mapped):
            if not send(Mapped(part)):
                return
            self._reported.update(part)
        for part in batches(gone):
            if not send(Unmapped(part)):
                return
            self._reported.difference_update(part)
        self._unreported.clear()


def _key(name: str) -> _Key:
    return ChunkId.parse(name).value if len(name) == PRINTED_LENGTH else name
