"""Packs files into chunks of about 4 MiB. No I/O and no threads: files go in, sealed chunks come out.

The order inside decides how good a chunk-wise shuffle can be. `scatter` drops each file into one of K open chunks chosen by a seeded generator, so
that a chunk samples a wide span of the source; what is left open at a flush is moved together into as few chunks as its bytes
need, so a small dataset does not end in many small chunks. `sequential` keeps the order of arrival (one open chunk). A file of the target
size or more lies alone in its chunk.

Memory: at most K chunks of the target size, held as the very buffers that were given (payloads are written out by gathering).
"""

from __future__ import annotations

import random
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_format import (
    BLOCK_BYTES,
    KIND_DIRECTORY,
    KIND_FILE,
    KIND_TOMBSTONE,
    MAX_ENTRIES,
    DatasetRef,
    Entries,
    encode_head,
    make_versions,
)
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_source import ChunkRef
from chunkstore.paths import check_paths
from chunkstore.stores.object_store import Buffer

DEFAULT_TARGET_BYTES = 4 << 20
DEFAULT_OPEN_CHUNKS = 64
"""A power of two; 64 chunks of 4 MiB are 256 MiB at the most, half of it on average."""
_MAX_HEAP_BYTES = 4 << 20
"""Of paths in one chunk: keeps a header of the longest paths and most entries well below its limit."""


@dataclass(frozen=True, slots=True)
class Version:
    """Which version of a path an entry carries along, or a deletion saw."""

    generation: int
    chunk: bytes
    position: int


@dataclass(frozen=True, slots=True)
class SealedChunk:
    """A chunk ready to be stored: `head` then `payload`, and what its head says."""

    ref: ChunkRef
    head: bytes
    payload: Iterable[Buffer]
    file_count: int


@dataclass(slots=True)
class _OpenChunk:
    """Columns in the making, one list each."""

    paths: list[bytes] = field(default_factory=list)
    payload: list[Buffer] = field(default_factory=list)
    kind: list[int] = field(default_factory=list)
    mode: list[int] = field(default_factory=list)
    mtime_ns: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    hash: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    versions: dict[int, Version] = field(default_factory=dict)
    payload_bytes: int = 0
    heap_bytes: int = 0
    """Length of all paths together."""

    def take_from(self, other: _OpenChunk, target_bytes: int) -> None:
        """Move the first entries of `other` to the end of this chunk, as many as there is room for."""
        count = self._room_for(other, target_bytes)
        shift = len(self.paths)
        for position, version in other.versions.items():
            if position < count:
                self.versions[shift + position] = version
        other.versions = {at - count: v for at, v in other.versions.items() if at >= count}
        size, heap = sum(other.length[:count]), sum(map(len, other.paths[:count]))
        self.payload_bytes, other.payload_bytes = (
            self.payload_bytes + size,
            other.payload_bytes - size,
        )
        self.heap_bytes, other.heap_bytes = self.heap_bytes + heap, other.heap_bytes - heap
        shorter = {
            "payload": other.kind[:count].count(KIND_FILE),
            "blocks": sum(-(-n // BLOCK_BYTES) for n in other.length[:count] if n > BLOCK_BYTES),
        }
        for name in ("payload", "blocks", "paths", "kind", "mode", "mtime_ns", "length", "hash"):
            column, end = getattr(other, name), shorter.get(name, count)
            getattr(self, name).extend(column[:end])
            del column[:end]

    def _room_for(self, other: _OpenChunk, target_bytes: int) -> int:
        """How many of the first entries of `other` would fit in here."""
        payload, heap = target_bytes - self.payload_bytes, _MAX_HEAP_BYTES - self.heap_bytes
        count = 0
        for path, size in zip(
            other.paths[: MAX_ENTRIES - len(self.paths)], other.length, strict=False
        ):
            payload, heap = payload - size, heap - len(path)
            if payload < 0 or heap < 0:
                break
            count += 1
        return count

    def entries(self) -> Entries:
        length = np.array(self.length, np.uint64)
        offset = np.zeros(len(length), np.uint64)
        np.cumsum(length[:-1], out=offset[1:])
        kind = np.array(self.kind, np.uint8)
        offset[kind != KIND_FILE] = 0
        return Entries(
            paths=self.paths,
            kind=kind,
            mode=np.array(self.mode, np.uint16),
            mtime_ns=np.array(self.mtime_ns, np.int64),
            offset=offset,
            length=length,
            hash=np.array(self.hash, np.uint64),
            block_hash=np.array(self.blocks, np.uint64),
            versions=self._version_column(),
        )

    def _version_column(self) -> npt.NDArray[np.void] | None:
        if not self.versions:
            return None
        column = make_versions(len(self.paths))
        for position, version in self.versions.items():
            column[position] = (version.generation, version.chunk, version.position, 0)
        return column


class ChunkWriter:
    """Hands each chunk to `emit` as soon as it is full; `flush` emits the rest. For one thread.

    Times fit in an int64. Paths are those of `chunkstore.paths` (a chunk with another one, which no reader would take, is refused with
    `InvalidPath` and stays here). A path put twice takes the later content: chunk ids, and positions in a chunk, grow in the order of
    the puts.
    """

    def __init__(
        self,
        dataset: DatasetRef,
        ids: ChunkIdGenerator,
        emit: Callable[[SealedChunk], None],
        *,
        target_bytes: int = DEFAULT_TARGET_BYTES,
        open_chunks: int = DEFAULT_OPEN_CHUNKS,
        seed: int = 0,
    ) -> None:
        if open_chunks < 1 or open_chunks & (open_chunks - 1):
            raise ValueError(f"the number of open chunks is a power of two, not {open_chunks}")
        if not 4096 <= target_bytes <= 1 << 30:
            raise ValueError(f"the target size of a chunk is 4 KiB to 1 GiB, not {target_bytes}")
        self.dataset = dataset
        self.target_bytes = target_bytes
        self._ids = ids
        self._emit = emit
        self._draw = random.Random(seed).getrandbits
        self._bits = open_chunks.bit_length() - 1
        self._open = [_OpenChunk() for _ in range(open_chunks)]
        self._where: dict[bytes, _OpenChunk] = {}

    def add_file(self, path: bytes, data: Buffer, mode: int, mtime_ns: int) -> None:
        """Take one file whose content is in memory. `mode` is its permission bits; its type is set here."""
        size = len(data)
        if size >= self.target_bytes:
            self.add_stream(path, size, hash_blocks(data), [data], mode, mtime_ns)
            return
        chunk = self._choose(path, size)
        if size > BLOCK_BYTES:
            hashes = hash_blocks(data)
            chunk.blocks.extend(hashes.blocks)
            digest = hashes.whole
        else:
            digest = xxhash.xxh3_64_intdigest(data)
        self._put_file(chunk, path, data, digest, mode, mtime_ns)

    def add_carried(
        self,
        path: bytes,
        data: Buffer,
        hashes: BlockHashes,
        mode: int,
        mtime_ns: int,
        version: Version,
    ) -> None:
        """Take a file that is moved from another chunk: `data` was verified against `hashes`, and `version` is the one that it keeps."""
        if len(data) >= self.target_bytes:
            self.add_stream(path, len(data), hashes, [data], mode, mtime_ns, version)
            return
        chunk = self._choose(path, len(data))
        chunk.versions[len(chunk.paths)] = version
        chunk.blocks.extend(hashes.blocks)
        self._put_file(chunk, path, data, hashes.whole, mode, mtime_ns)

    def add_stream(
        self,
        path: bytes,
        size: int,
        hashes: BlockHashes,
        payload: Iterable[Buffer],
        mode: int,
        mtime_ns: int,
        version: Version | None = None,
    ) -> None:
        """Take one large file, hashed before, whose content is read only when its chunk is stored. It is sealed at once.

        A file that is moved from another chunk carries its `version`."""
        if (other := self._where.get(path)) is not None:
            self._seal(other)
        chunk = _OpenChunk(
            [path],
            [],
            [KIND_FILE],
            [stat.S_IFREG | (mode & 0o7777)],
            [mtime_ns],
            [size],
            [hashes.whole],
            hashes.blocks,
            {} if version is None else {0: version},
            payload_bytes=size,
            heap_bytes=len(path),
        )
        self._emit(self._encode(chunk, payload))

    def add_directory(
        self, path: bytes, mode: int, mtime_ns: int, carried: Version | None = None
    ) -> None:
        """Take a directory's attributes; the empty path is the root. One that is restated carries its version."""
        self._add_bare(path, KIND_DIRECTORY, stat.S_IFDIR | (mode & 0o7777), mtime_ns, carried)

    def add_tombstone(self, path: bytes, file_type: int, mtime_ns: int, seen: Version) -> None:
        """Delete the version that was `seen` and all before it. `file_type`: S_IFREG or S_IFDIR, as of what is deleted.

        A deletion that is moved from another chunk is put again as it was."""
        self._add_bare(path, KIND_TOMBSTONE, file_type, mtime_ns, seen)

    def flush(self) -> None:
        """Emit all that is open, merged into as few chunks as the bytes need."""
        left = sorted(
            (chunk for chunk in self._open if chunk.paths), key=lambda chunk: -chunk.payload_bytes
        )
        try:
            while left:
                filled = left.pop(0)
                while left:
                    # The later entries of a path stay in the chunk that is emitted later.
                    filled.take_from(left[-1], self.target_bytes)
                    if left[-1].paths:
                        break
                    left.pop()
                self._seal(filled)
        finally:
            self._where = {path: chunk for chunk in self._open for path in chunk.paths}

    @property
    def pending_bytes(self) -> int:
        return sum(chunk.payload_bytes for chunk in self._open)

    def is_pending(self, path: bytes) -> bool:
        """Whether `path` was put and lies in an open chunk."""
        return path in self._where

    def _put_file(
        self,
        chunk: _OpenChunk,
        path: bytes,
        data: Buffer,
        digest: int,
        mode: int,
        mtime_ns: int,
    ) -> None:
        chunk.payload.append(data)
        chunk.payload_bytes += len(data)
        chunk.length.append(len(data))
        chunk.hash.append(digest)
        chunk.kind.append(KIND_FILE)
        chunk.mode.append(stat.S_IFREG | (mode & 0o7777))
        chunk.mtime_ns.append(mtime_ns)
        chunk.paths.append(path)
        chunk.heap_bytes += len(path)
        self._where[path] = chunk

    def _add_bare(
        self, path: bytes, kind: int, mode: int, mtime_ns: int, version: Version | None
    ) -> None:
        chunk = self._choose(path, 0)
        if version is not None:
            chunk.versions[len(chunk.paths)] = version
        chunk.length.append(0)
        chunk.hash.append(0)
        chunk.kind.append(kind)
        chunk.mode.append(mode)
        chunk.mtime_ns.append(mtime_ns)
        chunk.paths.append(path)
        chunk.heap_bytes += len(path)
        self._where[path] = chunk

    def _choose(self, path: bytes, size: int) -> _OpenChunk:
        """The chunk for the next entry, with room for it.

        The one that holds an earlier put of the path (so that the later position wins), else any.
        """
        chunk = self._where.get(path)
        if chunk is None:
            chunk = self._open[self._draw(self._bits) if self._bits else 0]
        if (
            chunk.payload_bytes + size > self.target_bytes
            or len(chunk.paths) == MAX_ENTRIES
            or chunk.heap_bytes + len(path) > _MAX_HEAP_BYTES
        ):
            return self._seal(chunk)
        return chunk

    def _seal(self, chunk: _OpenChunk) -> _OpenChunk:
        """Emit an open chunk and open another in its place; a chunk that can't be encoded stays, so that no flush passes it over."""
        sealed = self._encode(chunk, chunk.payload)
        fresh = _OpenChunk()
        self._open[
            next(index for index, candidate in enumerate(self._open) if candidate is chunk)
        ] = fresh
        for path in chunk.paths:
            self._where.pop(path, None)
        self._emit(sealed)
        return fresh

    def _encode(self, chunk: _OpenChunk, payload: Iterable[Buffer]) -> SealedChunk:
        _check_paths(chunk)
        chunk_id = self._ids.next()
        head = encode_head(chunk_id, self.dataset, chunk.payload_bytes, chunk.entries())
        ref = ChunkRef(chunk_id, len(head), chunk.payload_bytes)
        return SealedChunk(ref, head, payload, chunk.kind.count(KIND_FILE))


def _check_paths(chunk: _OpenChunk) -> None:
    """The empty path is the root, a directory."""
    paths = chunk.paths
    if b"" in paths:
        named = zip(paths, chunk.kind, strict=True)
        paths = [path for path, kind in named if path or kind != KIND_DIRECTORY]
    check_paths(paths)


@dataclass(frozen=True, slots=True)
class BlockHashes:
    """xxh3_64 of a whole file and of each of its 256 KiB blocks (none for files up to one block)."""

    whole: int
    blocks: list[int]


def hash_blocks(data: Buffer) -> BlockHashes:
    return hash_stream([data], len(data))


def hash_stream(pieces: Iterable[Buffer], size: int) -> BlockHashes:
    """Hash a file given in pieces; all but the last are multiples of 256 KiB."""
    whole = xxhash.xxh3_64()
    blocks: list[int] = []
    for piece in pieces:
        whole.update(piece)
        if size > BLOCK_BYTES:
            view = memoryview(piece)
            blocks.extend(
                xxhash.xxh3_64_intdigest(view[at : at + BLOCK_BYTES])
                for at in range(0, len(view), BLOCK_BYTES)
            )
    return BlockHashes(whole.intdigest(), blocks)
