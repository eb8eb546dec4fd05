"""What a node's server serves from: the files of the master's folder, mapped here once and let go of when they are evicted."""

from __future__ import annotations

from chunkstore.chunk_id import ChunkId
from dieselfs.node_memory.master import Master
from dieselfs.node_memory.piece import Piece
from dieselfs.node_memory.task_folder import TaskFolder
from dieselfs.peercache.held_chunks import NodeStatus


class HeldFiles:
    """Implements `HeldChunks`. Thread-safe. A member of the master until `close`."""

    def __init__(self, folder: TaskFolder, master: Master) -> None:
        raise NotImplementedError

    def payload(self, chunk: ChunkId) -> memoryview | None:
        raise NotImplementedError

    def head(self, chunk: ChunkId) -> memoryview | None:
        raise NotImplementedError

    def piece(self, piece: Piece) -> memoryview | None:
        raise NotImplementedError

    def is_coming(self, piece: Piece) -> bool:
        raise NotImplementedError

    def bring(self, piece: Piece) -> None:
        raise NotImplementedError

    def status(self) -> NodeStatus:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
