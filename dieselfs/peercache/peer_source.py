"""The chunks of a task as one node reads them: from the peer whose share they are, or else from the store (docs/decisions/0011-peer-cache.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from dieselfs.node_memory.task_folder import TaskFolder
from dieselfs.peercache.members import MemberId, ViewBoard
from dieselfs.peercache.runtime import Runtime

if TYPE_CHECKING:
    from dieselfs.peercache.breakers import Breakers, BreakerState
    from dieselfs.peercache.peer_client import PeerClient


@dataclass(frozen=True, slots=True)
class PeerSourceStatistics:
    """Of one process, since it began or was forked."""

    files_from_peers: int = 0
    chunks_from_peers: int = 0
    """Whole chunks, and pieces of large files."""
    bytes_from_peers: int = 0
    files_from_store: int = 0
    chunks_from_store: int = 0
    bytes_from_store: int = 0
    held_questions: int = 0
    """Peers asked whether they hold a chunk that is this node's share."""
    held_hits: int = 0
    """Of these, those that did."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Questions that a peer did not answer by what was asked for, by reason: `silent`, `refused`, `not held`, `failed`, `corrupt`."""
    breakers: Mapping[MemberId, BreakerState] = field(default_factory=dict)
    """As of now."""


class PeerSource:
    """Implements `ChunkSource`. Thread-safe; lives on in a forked child; pickles to its reader and its folder.

    Without a view in the folder it is the reader itself.
    """

    def __init__(self, reader: ChunkReader, folder: TaskFolder) -> None:
        self._reader = reader
        self._folder = folder

    def __reduce__(self) -> tuple[type[PeerSource], tuple[ChunkReader, TaskFolder]]:
        return type(self), (self._reader, self._folder)

    def attach(
        self, runtime: Runtime, client: PeerClient, board: ViewBoard, breakers: Breakers
    ) -> None:
        """Use these instead of what the folder says: of the leader, which has them, and of a simulation. They stay the caller's."""

    def payload(self, chunk: ChunkRef) -> memoryview:
        """See `ChunkSource`; the payload of `whole`."""
        return self.whole(chunk)[1]

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """See `ChunkSource`."""
        return self._reader.read(file, start, length)

    def read_many(self, files: Sequence[FileExtent]) -> list[bytes]:
        """Whole files, in order: one message a peer, all sent before the first answer is awaited; what is missing from the store together."""
        return [bytes(data) for data in self._reader.read_many(files)]

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """(head, payload) of a chunk of at most 16 MiB, verified: from its owner, or from the store."""
        return self._reader.whole(chunk)

    def whole_as_owner(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """The same for who was asked for it, or owns it: from the best other peer that holds it, or from the store."""
        return self._reader.whole(chunk)

    def read_as_owner(self, file: FileExtent, start: int, length: int) -> memoryview:
        """A piece of a large file, likewise."""
        return self._reader.read(file, start, length)

    def owner_is_elsewhere(self, chunk: ChunkId) -> bool:
        """Whether another node that answers is the one to ask. About 0.5 µs."""
        return False

    def is_reading_store(self, chunk: ChunkId) -> bool:
        """Whether a whole chunk, or a piece of it, is being read from the store just now: who waits for that waits for no peer."""
        return False

    def statistics(self) -> PeerSourceStatistics:
        return PeerSourceStatistics()
