"""Listings of a snapshot's directories as the kernel reads them, a part at a time.

A directory's children have fixed positions, sub-directories first and then files, each sorted by
name; an entry's `off` is the position of the next one. Blocks of `BLOCK_ENTRIES` positions are
encoded together and cached, so a request is a slice of a block and may begin anywhere.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Final

from dieselfs.fuse.requests.attributes import Owner
from dieselfs.fuse.requests.directory_entries import Block, encode
from metadata.snapshot import ROOT, Snapshot
from metadata.snapshot_format import DIRECTORY_BASE

BLOCK_ENTRIES: Final = 16_384
"""Some 3 MB and 6 ms: a directory of a million files does not stop other requests for long."""
CACHE_BYTES: Final = 64 << 20

_Key = tuple[int, int, bool]


class TreeListings:
    """The listings of a snapshot.

    Thread-safe. The latest `cache_bytes` of encoded listings are kept, or else one block.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        owner: Owner,
        hidden: bytes | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        """Create it; `hidden` is a name of the root that no listing shows."""
        self._snapshot, self._owner = snapshot, owner
        found = None if hidden is None else snapshot.lookup(ROOT, hidden)
        self._hidden = -1 if found is None else found
        self._cache_bytes = cache_bytes
        self._cached_bytes = 0
        self._blocks: OrderedDict[_Key, Block] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, directory: int, position: int, size: int, *, plus: bool) -> memoryview:
        """Return entries of the directory of that inode from `position` on, at most `size` bytes.

        The result is empty at the end. With `plus` the entries have attributes (READDIRPLUS).
        Raises `SnapshotRefused` for a damaged directory, and `IndexError` for a file.
        """
        count = self._snapshot.child_count(directory)
        while position < count:
            number, first = divmod(position, BLOCK_ENTRIES)
            part = self._block((directory, number, plus), count).part(first, size)
            if part:
                return part
            position = (number + 1) * BLOCK_ENTRIES  # only the hidden name was left in this block
        return memoryview(b"")

    def _block(self, key: _Key, count: int) -> Block:
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
                return block
        directory, number, plus = key
        first = number * BLOCK_ENTRIES
        block = encode(
            *(self._snapshot, directory - DIRECTORY_BASE, first, min(count, first + BLOCK_ENTRIES)),
            *(self._owner, self._hidden),
            plus=plus,
        )
        self._keep(key, block)
        return block

    def _keep(self, key: _Key, block: Block) -> None:
        with self._lock:
            if key in self._blocks:
                return  # another thread has encoded it meanwhile
            self._blocks[key] = block
            self._cached_bytes += block.cached_bytes
            while self._cached_bytes > self._cache_bytes and len(self._blocks) > 1:
                _, dropped = self._blocks.popitem(last=False)
                self._cached_bytes -= dropped.cached_bytes
