"""The cached chunks that a node's server serves: the files of the master's folder.

Each file is mapped once in this process and released when it is evicted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, TypeAlias

from chunkstore.chunk_id import ChunkId
from dieselfs.cache.node.mapped_blocks import MappedBlocks
from dieselfs.cache.node.master import Master
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.ports.cached_chunks import NodeStatus
from dieselfs.cache.wire.local_messages import Mapped, Message, Unmapped
from dieselfs.errors import CacheFull

LONGEST_WAIT_S: Final = 5.0
"""The longest wait for a byte budget in one of the server's threads; peers have other sources."""
_Completed: TypeAlias = Callable[[NodeStatus], NodeStatus]


class CachedFiles:
    """The `CachedChunks` of a master's folder, and a `CacheObserver`. Thread-safe.

    It lives in the master's process, until `close`. A block is mapped when it is first asked for,
    and stays mapped until the master evicts it. Bytes that are being sent then stay valid, and the
    master's accounting counts them until they are sent.
    """

    def __init__(
        self, folder: TaskFolder, master: Master, completed: _Completed = lambda status: status
    ) -> None:
        """`completed` adds to a status what the master does not know. It is called once a ping.

        It fills in the share, and the sources from which bytes came.
        """
        self._chunks, self._heads = folder.chunks, folder.heads
        self._master = master
        self._completed = completed
        self._blocks = MappedBlocks()
        self._whole = self._blocks.whole
        self._closed = False
        master.blocks.listen(self)

    def payload(self, chunk: ChunkId) -> memoryview | None:
        """Return a chunk's payload if it is cached. See `CachedChunks`."""
        view = self._whole(chunk.value)
        return self._mapped(str(chunk)) if view is None else view

    def head(self, chunk: ChunkId) -> memoryview | None:
        """Read the head of a cached chunk, in 20 µs each time. See `CachedChunks`.

        It is sent with whole chunks only. A map for each head would double the number of a
        process's maps, which is limited.
        """
        if self.payload(chunk) is None:
            return None
        try:
            return memoryview((self._heads / str(chunk)).read_bytes())
        except OSError:  # evicted meanwhile
            return None

    def block(self, block: CacheBlock) -> memoryview | None:
        """Return a block if it is cached. See `CachedChunks`."""
        view = self._blocks.get(block)
        return self._mapped(block.name) if view is None else view

    def is_loading(self, block: CacheBlock) -> bool:
        """Return whether the block is being read from the store.

        A caller that waits for such a block waits for no other node.
        """
        return self._master.is_loading(block)

    def load(self, block: CacheBlock) -> None:
        """Load a block. See `CachedChunks`.

        Raises `CacheFull` also if a reader of this node is fetching the block from another node, or
        if this node's job would wait for its budget for long: then the peer reads the store itself,
        and pays, instead of holding a thread here.
        """
        if not self._master.is_loading(block):
            wait_s = self._master.budget_wait_s(block)
            if wait_s > LONGEST_WAIT_S:
                raise CacheFull(f"this node's job may fetch block {block.name} in {wait_s:.0f} s")
        self._master.fetch(block, as_owner=True)

    def status(self) -> NodeStatus:
        """Return the master's status, completed by the callback of `__init__`."""
        self._report_maps()
        node = self._master.statistics()
        return self._completed(
            NodeStatus(
                budget_bytes=node.budget_bytes, cached_bytes=node.cached_bytes, blocks=node.blocks
            )
        )

    def close(self) -> None:
        """Release all maps. Bytes that are being sent stay valid."""
        self._closed = True
        self._master.blocks.ignore(self)
        self._blocks.clear()
        self._report_maps()

    def evicted(self, name: str) -> None:
        """Note that the map of a block is to be released."""
        self._blocks.note_evicted(name)

    def release_evicted(self) -> None:
        """Release the maps of evicted blocks."""
        self._blocks.drop_evicted()
        self._report_maps()

    def _mapped(self, name: str) -> memoryview | None:
        """Map a block if it exists. Takes 3 µs if it does not, 20 µs if it does."""
        if self._closed:
            return None
        view = self._blocks.map_chunk(self._chunks, name)
        if view is None:
            return None
        # The event of an eviction from now on comes after the map is registered. The event of an
        # earlier one may have come before, so look whether the file is still there.
        if not os.path.lexists(self._chunks / name):
            self._blocks.drop(name)
        self._report_maps()
        return view

    def _report_maps(self) -> None:
        self._blocks.report_changes(self._handle_notice)

    def _handle_notice(self, notice: Message) -> bool:
        match notice:
            case Mapped(names):
                for name in names:
                    self._master.blocks.mapped(name)
            case Unmapped(names):
                for name in names:
                    self._master.blocks.unmapped(name)
        return True
