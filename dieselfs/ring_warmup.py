"""The chunks of a dataset brought onto the SSDs of a ring's cache nodes, by one who keeps nothing: each chunk is asked of its owner, which reads it from the store, once.

For a chunk of at most 16 MiB its smallest file is asked for: of what it does not hold, a node brings the whole chunk. A large one is asked for by its
pieces of 4 MiB, of which a node brings what it is asked for. A node does not say which chunks it had already, nor whether its SSD keeps what it was asked for
(`dlcmd ring` shows how full the SSDs are); but all of them tell how much they have read from the store.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from chunkstore.call_threads import CallThreads
from chunkstore.chunk_reader import ChunkReader
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import ChunkStoreError
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer, ObjectStore
from chunkstore.stores.read import Read
from chunkstore.stores.read_wrapper import ReadWrapper
from dieselfs.cachenodes.ring_peers import RingPeers
from dieselfs.cachenodes.ring_settings import RingSettings
from dieselfs.cachenodes.ring_status import ring_nodes
from dieselfs.node_memory.piece import PIECE_BYTES, is_whole
from dieselfs.peercache.peer_source import PeerSource
from dieselfs.ssd_warmup import Advance
from metadata.snapshot import Snapshot

JOBS: Final = 8
_ROUNDS: Final = 3
_AGAIN_S: Final = 1.5
"""Until those are asked for again that no node has given: longer than it takes to find out who answers."""


@dataclass(frozen=True, slots=True)
class RingWarmUpReport:
    chunks: int
    """Wanted."""
    bytes: int
    given: int
    """Of the chunks, those that their owners had, or brought."""
    given_bytes: int
    from_store_bytes: int
    """What the nodes have read from the store meanwhile, for whomever."""
    seconds: float


class RingWarmUp:
    """Of one dataset; for one thread, which `run` uses others beside."""

    def __init__(
        self,
        store: ObjectStore,
        snapshot: Snapshot,
        chunks: Sequence[ChunkRef],
        ring: RingSettings,
    ) -> None:
        """`chunks` are the snapshot's."""
        dataset = snapshot.dataset
        heads = {chunk_key(dataset.name, chunk.id): chunk.head_bytes for chunk in chunks}
        self._ring = ring
        self._peers = RingPeers(ring, dataset)
        self._source = PeerSource(ChunkReader(_HeadsOnly(store, heads), dataset), self._peers)
        numbers = {id_.tobytes(): number for number, id_ in enumerate(snapshot.columns.chunk_id)}
        self._files = deque(
            (chunk, _asked_for(snapshot, numbers[chunk.id.value])) for chunk in chunks
        )
        self.chunks = len(chunks)
        self.bytes = sum(map(_size, chunks))
        self._given = self._given_bytes = 0
        self._counting = threading.Lock()
        self._stopped = False

    def run(self, advance: Advance, jobs: int = JOBS, rounds: int = _ROUNDS) -> RingWarmUpReport:
        """Ask for all, and again for what no node gave, `rounds` times in all. Raises what a store does that has not even the heads of large chunks, and `DirectoryUnavailable`."""
        before = self._read_from_store()
        began = time.monotonic()
        threads = CallThreads("ring-warm-up", jobs)
        try:
            for round_ in range(rounds):
                if round_ and self._files:
                    time.sleep(_AGAIN_S)
                refused: deque[tuple[ChunkRef, FileExtent | None]] = deque()
                threads.run_all([partial(self._ask_all, advance, refused)] * jobs, jobs)
                self._files = refused
        finally:
            self._stopped = True
            self._peers.close()
        seconds, after = time.monotonic() - began, self._read_from_store()
        read = sum(max(0, after[node] - before.get(node, 0)) for node in after)
        return RingWarmUpReport(
            self.chunks, self.bytes, self._given, self._given_bytes, read, seconds
        )

    def _read_from_store(self) -> dict[str, int]:
        """Bytes, by node, of those that answer."""
        return {
            node.member.id: node.status.from_store_bytes
            for node in ring_nodes(self._ring)
            if node.status is not None
        }

    def _ask_all(
        self, advance: Advance, refused: deque[tuple[ChunkRef, FileExtent | None]]
    ) -> None:
        while self._files and not self._stopped:
            try:
                chunk, file = self._files.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                self._ask(chunk, file)
            except _NotFromRing:
                refused.append((chunk, file))
                continue
            with self._counting:
                self._given += 1
                self._given_bytes += _size(chunk)
            advance(1, _size(chunk))

    def _ask(self, chunk: ChunkRef, file: FileExtent | None) -> None:
        if file is None:
            return
        unit = file.length if is_whole(chunk) else PIECE_BYTES
        for start in range(0, file.length, unit):
            self._source.read(file, start, min(unit, file.length - start))


class _NotFromRing(ChunkStoreError):
    """No node gave it."""


class _HeadsOnly(ReadWrapper):
    """The store, for what is needed to verify pieces of large files, and for nothing else."""

    def __init__(self, store: ObjectStore, heads: Mapping[str, int]) -> None:
        super().__init__(store)
        self._heads = heads

    def _read(self, read: Read) -> Buffer:
        if (read.offset, read.length) != (0, self._heads.get(read.key)):
            raise _NotFromRing(f"no node of the ring gave {read}")
        return read.of(self._wrapped)


def _asked_for(snapshot: Snapshot, number: int) -> FileExtent | None:
    """The smallest file of a chunk that has bytes; None if none has."""
    files = snapshot.files_in_chunk(number)
    lengths = {inode: snapshot.size(inode) for inode in files}
    smallest = min(
        (inode for inode in files if lengths[inode]), key=lengths.__getitem__, default=None
    )
    return None if smallest is None else snapshot.extent(smallest)


def _size(chunk: ChunkRef) -> int:
    return chunk.head_bytes + chunk.payload_bytes
