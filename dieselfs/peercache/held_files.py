"""What a node's server serves from: the files of the master's folder, mapped here once and let go of when they are evicted."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeAlias

from chunkstore.chunk_id import ChunkId
from dieselfs.node_memory.mapped_pieces import MappedBlocks
from dieselfs.node_memory.master import Master
from dieselfs.node_memory.messages import Mapped, Message, Unmapped
from dieselfs.node_memory.piece import CacheBlock
from dieselfs.node_memory.task_folder import TaskFolder
from dieselfs.peercache.held_chunks import NodeStatus

_Completed: TypeAlias = Callable[[NodeStatus], NodeStatus]


class CachedFiles:
    """Implements `CachedChunks` and `CacheObserver`. Thread-safe. In the master's process, until `close`.

    A piece is mapped when it is first asked for, and stays so until the master evicts it. What is still being sent then keeps its bytes, and
    the master's books count them until it is sent.
    """

    def __init__(
        self, folder: TaskFolder, master: Master, completed: _Completed = lambda status: status
    ) -> None:
        """`completed` puts into a status what is not the master's: of the share, and where bytes came from. Called once a ping."""
        self._chunks, self._heads = folder.chunks, folder.heads
        self._master = master
        self._completed = completed
        self._blocks = MappedBlocks()
        self._whole = self._blocks.whole
        self._closed = False
        master.listen(self)

    def payload(self, chunk: ChunkId) -> memoryview | None:
        view = self._whole(chunk.value)
        return self._mapped(str(chunk)) if view is None else view

    def head(self, chunk: ChunkId) -> memoryview | None:
        """Read anew each time, in 20 µs: it is sent with a whole chunk only, and a map each would be as many again of those that a process may have."""
        if self.payload(chunk) is None:
            return None
        try:
            return memoryview((self._heads / str(chunk)).read_bytes())
        except OSError:  # evicted meanwhile
            return None

    def block(self, block: CacheBlock) -> memoryview | None:
        view = self._blocks.get(block)
        return self._mapped(block.name) if view is None else view

    def is_loading(self, block: CacheBlock) -> bool:
        """Whether it is being read from the store: who waits for that waits for no other node."""
        return self._master.is_loading(block)

    def load(self, block: CacheBlock) -> None:
        """Raises `CacheFull` too where a reader of this node is getting it from another one."""
        self._master.fetch(block, as_owner=True)

    def status(self) -> NodeStatus:
        self._tell()
        node = self._master.statistics()
        return self._completed(
            NodeStatus(
                budget_bytes=node.budget_bytes, cached_bytes=node.cached_bytes, blocks=node.blocks
            )
        )

    def close(self) -> None:
        """Let go of everything. What is still being sent stays valid."""
        self._closed = True
        self._master.ignore(self)
        self._blocks.clear()
        self._tell()

    def arrived(self, name: str) -> None:
        """It is mapped when a peer asks for it."""

    def evicted(self, name: str) -> None:
        self._blocks.drop(name)
        self._tell()

    def _mapped(self, name: str) -> memoryview | None:
        """Map it, if it is there. 3 µs if not, 20 if it is."""
        if self._closed:
            return None
        view = self._blocks.map_chunk(self._chunks, name)
        if view is None:
            return None
        # Whoever evicts it from now on says so after we have it. Who did it before may have said so before.
        if not os.path.lexists(self._chunks / name):
            self._blocks.drop(name)
        self._tell()
        return view

    def _tell(self) -> None:
        self._blocks.tell(self._told)

    def _told(self, notice: Message) -> bool:
        match notice:
            case Mapped(names):
                for name in names:
                    self._master.mapped(name)
            case Unmapped(names):
                for name in names:
                    self._master.unmapped(name)
        return True
