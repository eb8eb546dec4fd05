"""The chunks of a task as one process of a node reads them: from their owners, or from the store.

The class also serves clients of a cache cluster, whose nodes are its peers. Sources can be chained:
chunks that the task's peers don't have are then asked of the cache cluster.

Data from a peer passes the same checks as data from the store. Whole chunks come with their heads.
A file comes whole or, if it has more than 4 MiB, in cache blocks of 4 MiB. The hashes of its hash
blocks verify those; they are in the chunk's head, which is read from the store once a process.
`routing` decides which peer is asked, `peer_requests` interprets the answers
(docs/decisions/0011).
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from chunkstore.after_fork import renew_now_and_after_fork
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import Expected, verified_file, verify_blocks
from chunkstore.chunk_source import ChunkRef, FileExtent, FileExtents
from chunkstore.errors import Corrupt
from chunkstore.stores.object_store import Buffer
from dieselfs.cache.membership.breakers import Breakers, BreakerState
from dieselfs.cache.node.task_folder import TaskFolder
from dieselfs.cache.peers.peer_requests import PeerRequests
from dieselfs.cache.peers.recent_ranges import RecentRanges
from dieselfs.cache.peers.routing import Role
from dieselfs.cache.peers.task_peers import KnownPeers, Peers, TaskPeers
from dieselfs.cache.ports.block import CACHE_BLOCK_BYTES, CacheBlock, is_whole
from dieselfs.cache.ports.members import MemberId, ViewBoard
from dieselfs.cache.ports.runtime import Runtime
from dieselfs.cache.ports.shared_source import OwnNode
from dieselfs.cache.ports.verified_source import VerifiedSource
from dieselfs.cache.wire.messages import ReadBlock, ReadChunk, ReadFile, Request
from dieselfs.cache.wire.peer_client import PeerClient


@dataclass(frozen=True, slots=True)
class PeerSourceStatistics:
    """Statistics of one process, since it began or was forked."""

    files_from_peers: int = 0
    """Files, and parts of files that were read as such."""
    chunks_from_peers: int = 0
    """Whole chunks, and blocks of large files."""
    bytes_from_peers: int = 0
    files_from_store: int = 0
    chunks_from_store: int = 0
    bytes_from_store: int = 0
    cached_requests: int = 0
    """Requests to peers for a chunk of this node's own share, answered only if it is cached there.
    """
    second_hits: int = 0
    """Those requests that a peer answered with the data."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Requests that a peer did not answer with the data asked for, by reason.

    The reasons are `silent`, `refused`, `not held`, `failed` and `corrupt`.
    """
    breakers: Mapping[MemberId, BreakerState] = field(default_factory=dict)
    """The breakers of those peers whose failures are remembered."""


class PeerSource:
    """A `VerifiedSource` that asks peers before the store.

    Thread-safe. It stays usable in a forked child, and pickles to its arguments. Without peers to
    ask, such as without a view in the folder, it is the reader itself.
    """

    def __init__(self, reader: VerifiedSource, peers: TaskFolder | KnownPeers) -> None:
        """`peers` is a task's folder, in which its view lies, or the known peers themselves."""
        self._reader, self._found_by = reader, peers
        self._peers = TaskPeers(peers) if isinstance(peers, TaskFolder) else peers
        self._current = self._peers.current
        self._node: Callable[[], OwnNode | None] = lambda: None
        self._requests: PeerRequests
        self._recent: RecentRanges | None
        self._lock: Lock
        self._from_store: Counter[str]
        renew_now_and_after_fork(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return PeerSource, (self._reader, self._found_by)

    def renew(self) -> None:
        """Start without requests, ranges and counts in a forked child."""
        self._requests = PeerRequests()
        self._recent = None
        self._lock = Lock()
        self._from_store = Counter()
        # All threads count without a lock: see `PeerRequests`.
        self._peer_files = self._peer_chunks = self._peer_bytes = self._second_hits = 0
        self._store_files = self._store_chunks = self._store_bytes = 0

    @property
    def dataset(self) -> DatasetRef:
        """See `VerifiedSource`."""
        return self._reader.dataset

    def owner(self, chunk: ChunkId) -> MemberId | None:
        """Return the member to ask first for a chunk; None without peers."""
        peers = self._current()
        owner = None if peers is None else peers.owner(chunk)
        return None if owner is None else owner.id

    @property
    def expected(self) -> Expected | None:
        """See `VerifiedSource`."""
        return self._reader.expected

    def verified(self, data: memoryview, chunk: ChunkRef) -> memoryview:
        """See `VerifiedSource`."""
        return self._reader.verified(data, chunk)

    def block_hashes(self, file: FileExtent) -> npt.NDArray[np.uint64]:
        """See `VerifiedSource`."""
        return self._reader.block_hashes(file)

    def attach(
        self, runtime: Runtime, client: PeerClient, board: ViewBoard, breakers: Breakers
    ) -> None:
        """Use these instead of the contents of the folder. They stay the caller's.

        The master, which has them, and a simulation call this.
        """
        assert isinstance(self._peers, TaskPeers)
        self._peers.attach(runtime, client, board, breakers)
        self._recent = None

    def serve(self, node: OwnNode) -> None:
        """See `SharedSource`."""
        self._node = found = weakref.ref(node)
        if isinstance(self._peers, TaskPeers):

            def report(peer: MemberId) -> None:
                own_node = found()
                if own_node is not None:
                    own_node.suspect(peer)

            self._peers.report_failed(report)

    def payload(self, chunk: ChunkRef) -> memoryview:
        """Return the payload of `whole`. See `ChunkSource`."""
        return self.whole(chunk)[1]

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """Return (head, payload) of a chunk of at most 16 MiB, verified.

        They come from the chunk's owner or from the store.
        """
        peers = self._current()
        if peers is not None:
            owner = peers.owner(chunk.id)
            if owner is not None and owner.id == peers.view.me.id:
                return self.whole_as_owner(chunk)
            found = self._whole_from_peers(peers, chunk, "reader")
            if found is not None:
                return found
        with self._reading_store(str(chunk.id)):
            return self._whole_from_store(chunk)

    def whole_as_owner(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """Return the same for this node as the owner, or as the node asked in the owner's place.

        The chunk comes from the best-ranked other peer if that has it cached, else from the store.
        """
        peers = self._current()
        found = None if peers is None else self._whole_from_peers(peers, chunk, "owner")
        if found is not None:
            return found
        with self._reading_store(str(chunk.id)):
            return self._whole_from_store(chunk)

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return a range of a file. See `ChunkSource`.

        A whole file of 4 KiB from a peer takes some µs of this process's time, and the exchange.
        """
        peers = self._current()
        if not length:
            return memoryview(b"")
        if peers is None:
            return self._read_from_store(file, start, length)
        block = None if is_whole(file.chunk) else _as_block(file, start, length)
        if block is None:
            found = self._part_from_peers(peers, file, start, length)
            if found is None:
                whole = self._taken_over(peers, file.chunk)
                if whole is not None:
                    begin = file.offset + start
                    return whole[begin : begin + length]
            return self._read_from_store(file, start, length) if found is None else found
        found = self._unit_from_peers(peers, file, start, length, "reader")
        if found is not None:
            return found
        with self._reading_store(block.name):
            return self._read_from_store(file, start, length)

    def read_as_owner(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return a cache block of a large file, in the way of `whole_as_owner`."""
        block = _as_block(file, start, length)
        assert block is not None
        peers = self._current()
        if peers is not None:
            found = self._unit_from_peers(peers, file, start, length, "owner")
            if found is not None:
                return found
        with self._reading_store(block.name):
            return self._read_from_store(file, start, length)

    def read_many(self, files: Sequence[FileExtent]) -> list[bytes]:
        """Return whole files, in order.

        Each peer gets one message, and all are sent before the first answer is awaited. Missing
        files are then read from the store together.
        """
        peers = self._current()
        if peers is None:
            return self._many_from_store(files)
        columns = FileExtents.of(files)
        if not all(map(is_whole, columns.chunks)):
            return self._many_of_all_sizes(files)
        found = self._requests.ask_many(peers, columns)
        missing = [at for at, content in enumerate(found) if content is None]
        self._peer_files += len(found) - len(missing)
        asked_bytes = sum(columns.length)  # a call within the addition would let other threads in
        self._peer_bytes += asked_bytes
        if missing:
            missing_bytes = sum(columns.length[at] for at in missing)
            self._peer_bytes -= missing_bytes
            missing = self._many_taken_over(peers, columns, missing, found)
        if missing:
            contents = self._many_from_store([columns[at] for at in missing])
            for at, content in zip(missing, contents, strict=True):
                found[at] = content
        return found  # type: ignore[return-value]  # nothing is missing any more

    def range(
        self, chunk: ChunkRef, start: int, length: int, from_store: Callable[[], Buffer]
    ) -> Buffer:
        """Return at most 4 MiB of a small chunk's payload; the caller verifies them.

        `from_store` reads them where no peer sends them.
        """
        peers = self._current()
        if peers is not None and not self._requests.is_not_cached(peers, chunk):
            found = self._range_from_peers(peers, chunk, start, length)
            if found is not None:
                self._peer_files += 1
                self._peer_bytes += length
                return found
        data = from_store()
        self._store_files += 1
        self._store_bytes += len(data)
        return data

    def owner_is_elsewhere(self, chunk: ChunkId) -> bool:
        """Return whether another node that can be asked owns the chunk. Takes about 1 µs."""
        peers = self._current()
        if peers is None:
            return False
        owner = peers.owner(chunk)
        return owner is not None and owner.id != peers.view.me.id

    def is_reading_store(self, chunk: ChunkId, block: CacheBlock | None = None) -> bool:
        """Return whether a chunk, or a block of a large file, is now being read from the store.

        A thread that waits for such a read waits for no peer. The read of an owner that asks
        another node whether it has the chunk cached does not count: that node may be asking this
        one for the same chunk, and no circle of nodes may wait.
        """
        return (str(chunk) if block is None else block.name) in self._from_store

    def nodes(self) -> Mapping[MemberId, bool]:
        """Return the known members that have a share, and whether each may be asked just now.

        Never waits: before the first read no member is known.
        """
        peers = None if self._peers.breakers() is None else self._current()
        if peers is None:
            return {}
        up = {member.id for member in peers.placement.members if peers.is_up(member.id)}
        return {member.id: member.id in up for member in peers.view.members if member.weight}

    def statistics(self) -> PeerSourceStatistics:
        """Return the statistics of this process."""
        breakers, requests = self._peers.breakers(), self._requests
        return PeerSourceStatistics(
            self._peer_files,
            self._peer_chunks,
            self._peer_bytes,
            self._store_files,
            self._store_chunks,
            self._store_bytes,
            requests.cached_requests,
            self._second_hits,
            {**requests.fallbacks},
            {} if breakers is None else breakers.states(),
        )

    # Reads from peers; None means that the store must be asked.

    def _whole_from_peers(
        self, peers: Peers, chunk: ChunkRef, role: Role
    ) -> tuple[memoryview, memoryview] | None:
        def request(may_fetch: bool) -> Request:
            return ReadChunk(chunk, may_fetch)

        def verified(bulk: memoryview) -> tuple[memoryview, memoryview]:
            return bulk[: chunk.head_bytes], self._reader.verified(bulk, chunk)

        found = self._requests.ask(peers, chunk, role, request, verified)
        if found is not None:
            self._peer_chunks += 1
            self._peer_bytes += chunk.head_bytes + chunk.payload_bytes
            self._second_hits += role == "owner"
        return found

    def _part_from_peers(
        self, peers: Peers, file: FileExtent, start: int, length: int
    ) -> memoryview | None:
        """Return a part of a file that is not cached here, or None.

        The whole file is fetched, or the blocks that the part touches.
        """
        if self._requests.is_not_cached(peers, file.chunk):
            return None
        if length == file.length <= CACHE_BLOCK_BYTES:
            found = self._unit_from_peers(peers, file, 0, length, "reader")
            self._peer_files += found is not None
            return found
        unit = min(CACHE_BLOCK_BYTES, file.length)
        recent = self._recent or self._new_recent(peers.runtime)
        parts = []
        for begin in range(start // unit * unit, start + length, unit):
            size = min(unit, file.length - begin)
            fetch = partial(self._unit_from_peers, peers, file, begin, size, "reader")
            data = recent.obtain((file.chunk.id.value, file.offset, begin), fetch)
            if data is None:
                return None
            parts.append(data[max(0, start - begin) : start + length - begin])
        self._peer_files += 1
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))

    def _new_recent(self, runtime: Runtime) -> RecentRanges:
        """Return the ranges that all readers share from now on."""
        with self._lock:
            self._recent = self._recent or RecentRanges(runtime)
            return self._recent

    def _unit_from_peers(
        self, peers: Peers, file: FileExtent, begin: int, size: int, role: Role
    ) -> memoryview | None:
        """Return a whole file, or one of its blocks, or None."""
        chunk = file.chunk
        # Read the hashes before a peer is asked: a store that fails is not the peer's fault.
        hashes = None if size == file.length else self._reader.block_hashes(file)

        def request(may_fetch: bool) -> Request:
            if is_whole(chunk):
                return ReadFile(chunk, file.offset + begin, size, may_fetch)
            return ReadBlock(CacheBlock(chunk, file, begin // CACHE_BLOCK_BYTES), may_fetch)

        def verified(bulk: memoryview) -> memoryview:
            _of_length(bulk, size, chunk)
            if hashes is None:
                return verified_file(bulk, file)
            verify_blocks(bulk, file, begin, hashes)
            return bulk

        found = self._requests.ask(peers, chunk, role, request, verified)
        if found is not None:
            self._peer_bytes += size
            self._peer_chunks += not is_whole(chunk)
            self._second_hits += role == "owner"
        return found

    def _range_from_peers(
        self, peers: Peers, chunk: ChunkRef, start: int, length: int
    ) -> memoryview | None:
        def request(may_fetch: bool) -> Request:
            return ReadFile(chunk, start, length, may_fetch)

        def complete(bulk: memoryview) -> memoryview:
            return _of_length(bulk, length, chunk)

        return self._requests.ask(peers, chunk, "reader", request, complete)

    def _many_of_all_sizes(self, files: Sequence[FileExtent]) -> list[bytes]:
        """Return whole files, those of large chunks one after another, since each is large."""
        whole = [at for at, file in enumerate(files) if is_whole(file.chunk)]
        contents = dict(zip(whole, self.read_many([files[at] for at in whole]), strict=True))
        return [
            contents[at] if at in contents else bytes(self.read(file, 0, file.length))
            for at, file in enumerate(files)
        ]

    # Reads from this node's memory: an owner has failed, and this node is the next owner. Its
    # master fetches the chunk once for all readers.

    def _taken_over(self, peers: Peers, chunk: ChunkRef) -> memoryview | None:
        node = self._node()
        if node is None or not is_whole(chunk):
            return None
        owner = peers.owner(chunk.id)
        if owner is None or owner.id != peers.view.me.id:
            return None
        return node.take_over(chunk)

    def _many_taken_over(
        self,
        peers: Peers,
        files: FileExtents,
        missing: Sequence[int],
        found: list[bytes | None],
    ) -> list[int]:
        """Put the files that this node takes over into `found`; return the other positions."""
        taken: dict[int, memoryview | None] = {}
        left = []
        for at in missing:
            number, begin = files.which[at], files.offset[at]
            if number not in taken:
                taken[number] = self._taken_over(peers, files.chunks[number])
            whole = taken[number]
            if whole is None:
                left.append(at)
            else:
                found[at] = bytes(whole[begin : begin + files.length[at]])
        return left

    # Reads from the store.

    def _whole_from_store(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        found = self._reader.whole(chunk)
        self._store_chunks += 1
        self._store_bytes += chunk.head_bytes + chunk.payload_bytes
        return found

    def _read_from_store(self, file: FileExtent, start: int, length: int) -> memoryview:
        found = self._reader.read(file, start, length)
        self._store_files += 1
        self._store_bytes += length
        return found

    def _many_from_store(self, files: Sequence[FileExtent]) -> list[bytes]:
        found = [bytes(content) for content in self._reader.read_many(files)]
        self._store_files += len(found)
        found_bytes = sum(map(len, found))
        self._store_bytes += found_bytes
        return found

    @contextmanager
    def _reading_store(self, name: str) -> Iterator[None]:
        with self._lock:
            self._from_store[name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._from_store[name] -= 1
                if not self._from_store[name]:
                    del self._from_store[name]


def _of_length(bulk: memoryview, length: int, chunk: ChunkRef) -> memoryview:
    if len(bulk) != length:
        raise Corrupt(f"{len(bulk)} bytes of chunk {chunk.id} arrived instead of {length}")
    return bulk


def _as_block(file: FileExtent, start: int, length: int) -> CacheBlock | None:
    """Return the cache block of a large chunk if a range is exactly one, else None."""
    block = CacheBlock(file.chunk, file, start // CACHE_BLOCK_BYTES)
    return block if start % CACHE_BLOCK_BYTES == 0 and length == block.length else None
