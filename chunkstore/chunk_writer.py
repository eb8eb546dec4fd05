"""A packer of files into chunks of about 4 MiB: files in, sealed chunks out; no I/O, no threads.

The order inside the chunks limits how good a chunk-wise shuffle can be. `scatter` puts each file
into one of K open chunks, chosen by a seeded generator, so that a chunk samples a wide span of the
source. A flush merges the open chunks into as few chunks as their bytes need, so that a small
dataset does not end in many small chunks. `sequential` keeps the order of arrival (one open chunk).
A file of the target size or more has a chunk of its own.

Files that are kept together (those of a sample, or of a directory) come one behind the other. The
writer holds them back until a file of another key comes, and then moves all of them to one chunk. A
chunk exceeds the target size only for files of one key that exceed it together, up to twice; more
are cut.

Memory: at most K chunks of the target size, and files of one key up to twice that size. The writer
keeps the very buffers that it was given (payloads are written by gathering).
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
    MAX_TARGET_BYTES,
    DatasetRef,
    Entries,
    encode_head,
    make_versions,
)
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_source import ChunkRef
from chunkstore.keep_together import KEYS, KeepTogether, KeyOf
from chunkstore.paths import check_paths
from chunkstore.stores.object_store import Buffer

DEFAULT_TARGET_BYTES = 4 << 20
"""The default target size of a chunk's payload."""
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 4 << 10, 1 << 30
"""The limits of a target size."""
DEFAULT_OPEN_CHUNKS = 64
"""The default number of open chunks, a power of two.

64 chunks of 4 MiB are 256 MiB at most, and half of that on average.
"""
_LINK_MODE = stat.S_IFLNK | 0o777
_MAX_HEAP_BYTES = 4 << 20
"""The most bytes of paths in one chunk.

The bound keeps a header with the longest paths and the most entries well below its limit.
"""


@dataclass(frozen=True, slots=True)
class Version:
    """The version of a path that an entry carries along, or that a tombstone saw."""

    generation: int
    chunk: bytes
    position: int


@dataclass(frozen=True, slots=True)
class SealedChunk:
    """A chunk ready to be stored: `head`, then `payload`, and what the head describes."""

    ref: ChunkRef
    head: bytes
    payload: Iterable[Buffer]
    file_count: int


@dataclass(slots=True)
class _OpenChunk:
    """The columns of an unfinished chunk, one list each."""

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
    """The total length of all paths."""

    def take_from(self, other: _OpenChunk, count: int) -> None:
        """Move the first entries of `other` to the end of this chunk."""
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

    def room_for(self, other: _OpenChunk, target_bytes: int, key_of: KeyOf | None = None) -> int:
        """Return how many of the first entries of `other` fit into this chunk.

        Entries of one key are counted whole or not at all.
        """
        payload, heap = target_bytes - self.payload_bytes, _MAX_HEAP_BYTES - self.heap_bytes
        count = 0
        for path, size in zip(
            other.paths[: MAX_ENTRIES - len(self.paths)], other.length, strict=False
        ):
            payload, heap = payload - size, heap - len(path)
            if payload < 0 or heap < 0:
                break
            count += 1
        if key_of is not None and count < len(other.paths):
            while count and key_of(other.paths[count - 1]) == key_of(other.paths[count]):
                count -= 1
        return count

    def exceeds(self, payload_bytes: int, more: int = 0, path: bytes = b"") -> bool:
        """Return True if with one more entry the chunk would exceed a size, or another limit."""
        return (
            self.payload_bytes + more > payload_bytes
            or len(self.paths) == MAX_ENTRIES
            or self.heap_bytes + len(path) > _MAX_HEAP_BYTES
        )

    def entries(self) -> Entries:
        """Return the columns as arrays."""
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
    """A writer that passes each full chunk to `emit`; `flush` emits the rest. For one thread.

    Times fit in an int64. Paths follow the rules of `chunkstore.paths`: a chunk with any other
    path, which no reader would accept, is refused with `InvalidPath` and stays in the writer. The
    later content of a path that is put twice wins, because chunk ids, and positions in a chunk,
    grow in the order of the puts.
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
        keep_together: KeepTogether = "none",
    ) -> None:
        if open_chunks < 1 or open_chunks & (open_chunks - 1):
            raise ValueError(f"the number of open chunks must be a power of two, not {open_chunks}")
        if not MIN_CHUNK_BYTES <= target_bytes <= MAX_CHUNK_BYTES:
            raise ValueError(
                f"the target size of a chunk must be 4 KiB to 1 GiB, not {target_bytes}"
            )
        self.dataset = dataset
        self.target_bytes = target_bytes
        self._ids = ids
        self._emit = emit
        self._draw = random.Random(seed).getrandbits
        self._bits = open_chunks.bit_length() - 1
        self._open = [_OpenChunk() for _ in range(open_chunks)]
        self._where: dict[bytes, _OpenChunk] = {}
        self._key_of = KEYS[keep_together]
        self._held = _OpenChunk()
        """Files of one key, which are not in an open chunk yet."""
        self._held_key = b""
        self._held_after: _OpenChunk | None = None
        """The open chunk that has an earlier put of one of these files."""

    def add_file(
        self,
        path: bytes,
        data: Buffer,
        mode: int,
        mtime_ns: int,
        hashes: BlockHashes | None = None,
        version: Version | None = None,
    ) -> None:
        """Add one file whose content is in memory.

        `mode` holds the permission bits; the method sets the file type. A file that is moved from
        another chunk keeps its `version`, and its content was verified against its `hashes`.
        """
        size = len(data)
        if hashes is None and size > BLOCK_BYTES:
            hashes = hash_blocks(data)
        if size >= self.target_bytes:
            hashes = hashes or hash_blocks(data)
            self.add_stream(path, size, hashes, [data], mode, mtime_ns, version)
            return
        chunk = self._choose_for_file(path, size)
        if hashes is None:
            digest = xxhash.xxh3_64_intdigest(data)
        else:
            digest = hashes.whole
            chunk.blocks.extend(hashes.blocks)
        chunk.payload.append(data)
        mode = stat.S_IFREG | (mode & 0o7777)
        self._append(chunk, path, KIND_FILE, mode, mtime_ns, version, size, digest)

    def add_link(
        self, path: bytes, target: Buffer, mtime_ns: int, version: Version | None = None
    ) -> None:
        """Add a symbolic link of 1 to 4095 bytes; its mode is 0777, as on every file system.

        A link that is moved from another chunk keeps its `version`.
        """
        assert 1 <= len(target) <= MAX_TARGET_BYTES
        chunk = self._choose_for_file(path, len(target))
        chunk.payload.append(target)
        digest = xxhash.xxh3_64_intdigest(target)
        self._append(chunk, path, KIND_FILE, _LINK_MODE, mtime_ns, version, len(target), digest)

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
        """Add one large file, hashed before, and seal its chunk at once.

        The content is read only when the chunk is stored. A file that is moved from another chunk
        carries its `version`.
        """
        self._place_if_held(path)
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
        """Add a directory's attributes; the empty path is the root.

        A directory entry that a purge writes again carries its version.
        """
        mode = stat.S_IFDIR | (mode & 0o7777)
        self._append(self._choose(path, 0), path, KIND_DIRECTORY, mode, mtime_ns, carried)

    def add_tombstone(self, path: bytes, file_type: int, mtime_ns: int, seen: Version) -> None:
        """Add a tombstone that deletes the version that was `seen` and all before it.

        `file_type` is S_IFREG or S_IFDIR, as that of the deleted entry. A tombstone that is moved
        from another chunk is added again unchanged.
        """
        self._append(self._choose(path, 0), path, KIND_TOMBSTONE, file_type, mtime_ns, seen)

    def flush(self) -> None:
        """Emit all open chunks, merged into as few chunks as the bytes need."""
        self._place(len(self._held.paths))
        left = sorted(
            (chunk for chunk in self._open if chunk.paths), key=lambda chunk: -chunk.payload_bytes
        )
        try:
            while left:
                filled = left.pop(0)
                while left:
                    # The later entries of a path stay in the chunk that is emitted later.
                    filled.take_from(
                        left[-1], filled.room_for(left[-1], self.target_bytes, self._key_of)
                    )
                    if left[-1].paths:
                        break
                    left.pop()
                self._seal(filled)
        finally:
            self._where = {path: chunk for chunk in self._open for path in chunk.paths}

    @property
    def pending_bytes(self) -> int:
        """Payload bytes in the open chunks, and of files that are held back."""
        return sum(chunk.payload_bytes for chunk in self._open) + self._held.payload_bytes

    def is_pending(self, path: bytes) -> bool:
        """Return whether `path` was put and is still in an open chunk."""
        return path in self._where

    def _append(
        self,
        chunk: _OpenChunk,
        path: bytes,
        kind: int,
        mode: int,
        mtime_ns: int,
        version: Version | None,
        size: int = 0,
        digest: int = 0,
    ) -> None:
        if version is not None:
            chunk.versions[len(chunk.paths)] = version
        chunk.payload_bytes += size
        chunk.length.append(size)
        chunk.hash.append(digest)
        chunk.kind.append(kind)
        chunk.mode.append(mode)
        chunk.mtime_ns.append(mtime_ns)
        chunk.paths.append(path)
        chunk.heap_bytes += len(path)
        self._where[path] = chunk

    def _choose(self, path: bytes, size: int) -> _OpenChunk:
        """Return the chunk for the next entry, with room for it.

        This is the chunk that holds an earlier put of the path (so that the later position wins),
        or else any chunk.
        """
        if self._key_of is not None:  # else nothing is held back: a call less for each file
            self._place_if_held(path)
        chunk = self._where.get(path) or self._any_open()
        return self._seal(chunk) if chunk.exceeds(self.target_bytes, size, path) else chunk

    def _any_open(self) -> _OpenChunk:
        return self._open[self._draw(self._bits) if self._bits else 0]

    def _choose_for_file(self, path: bytes, size: int) -> _OpenChunk:
        """Return the chunk for a file: an open one, or the one of files that are held back."""
        if self._key_of is None:
            return self._choose(path, size)
        key = self._key_of(path)
        if key != self._held_key:
            self._place(len(self._held.paths))
            self._held_key = key
        while self._held.exceeds(2 * self.target_bytes, size, path):  # they cannot be whole
            self._place(_OpenChunk().room_for(self._held, self.target_bytes))
        earlier = self._where.get(path)
        if earlier is not None and earlier is not self._held:
            if self._held_after is None:
                self._held_after = earlier
            elif self._held_after is not earlier:
                self._seal(earlier)  # the files come later than either
        return self._held

    def _place_if_held(self, path: bytes) -> None:
        if self._where.get(path) is self._held:
            self._place(len(self._held.paths))

    def _place(self, count: int) -> None:
        """Move the first files that are held back to one chunk: an open one, or one of their own.

        They have a chunk of their own if they do not fit and fill at least half of it, so that few
        open chunks are sealed half empty.
        """
        if not count:
            return
        held, chunk = self._held, self._held_after or self._any_open()
        fits = chunk.room_for(held, self.target_bytes) >= count
        alone = not fits and 2 * sum(held.length[:count]) >= self.target_bytes
        if alone:
            if self._held_after is not None:
                self._seal(self._held_after)
            chunk = _OpenChunk()
            self._open.append(chunk)
        elif not fits:
            chunk = self._seal(chunk)
        chunk.take_from(held, count)
        moved, left = chunk.paths[-count:], set(held.paths)
        self._where.update((path, chunk) for path in moved if path not in left)
        if not left:
            self._held_after = None
        elif not left.isdisjoint(moved):
            self._held_after = chunk  # unless it is sealed below
        if alone:
            self._seal(chunk)
            self._open.pop()

    def _seal(self, chunk: _OpenChunk) -> _OpenChunk:
        """Emit an open chunk and open another in its place.

        A chunk that cannot be encoded stays open, so that no flush skips it.
        """
        sealed = self._encode(chunk, chunk.payload)
        fresh = _OpenChunk()
        self._open[
            next(index for index, candidate in enumerate(self._open) if candidate is chunk)
        ] = fresh
        for path in chunk.paths:
            if self._where.get(path) is chunk:
                del self._where[path]
        if chunk is self._held_after:
            self._held_after = None
        self._emit(sealed)
        return fresh

    def _encode(self, chunk: _OpenChunk, payload: Iterable[Buffer]) -> SealedChunk:
        _check_paths(chunk)
        chunk_id = self._ids.next()
        head = encode_head(chunk_id, self.dataset, chunk.payload_bytes, chunk.entries())
        ref = ChunkRef(chunk_id, len(head), chunk.payload_bytes)
        return SealedChunk(ref, head, payload, chunk.kind.count(KIND_FILE))


def _check_paths(chunk: _OpenChunk) -> None:
    """Check the chunk's paths; only a directory may have the empty path, the root."""
    paths = chunk.paths
    if b"" in paths:
        named = zip(paths, chunk.kind, strict=True)
        paths = [path for path, kind in named if path or kind != KIND_DIRECTORY]
    check_paths(paths)


@dataclass(frozen=True, slots=True)
class BlockHashes:
    """The xxh3_64 of a whole file and of each of its 256 KiB blocks.

    A file of up to one block has no block hashes.
    """

    whole: int
    blocks: list[int]


def hash_blocks(data: Buffer) -> BlockHashes:
    """Hash a file whose content is in memory."""
    return hash_stream([data], len(data))


def hash_stream(parts: Iterable[Buffer], size: int) -> BlockHashes:
    """Hash a file given in parts; the lengths of all but the last are multiples of 256 KiB."""
    whole = xxhash.xxh3_64()
    blocks: list[int] = []
    for part in parts:
        whole.update(part)
        if size > BLOCK_BYTES:
            view = memoryview(part)
            blocks.extend(
                xxhash.xxh3_64_intdigest(view[at : at + BLOCK_BYTES])
                for at in range(0, len(view), BLOCK_BYTES)
            )
    return BlockHashes(whole.intdigest(), blocks)
