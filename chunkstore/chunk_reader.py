"""A reader of chunks in an object store that trusts only what it has verified.

The reader checks bytes where they enter: that the chunk is the one its key names and belongs to the
dataset, its lengths, the header's checksum, and the xxh3 of every file (or of every touched 256 KiB
block, for ranges of large files).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.byte_ranges import MergedRange, merge_ranges
from chunkstore.call_threads import CallThreads
from chunkstore.chunk_damage import Damage, KnownDamage
from chunkstore.chunk_format import (
    BLOCK_BYTES,
    KIND_FILE,
    AnotherChunk,
    ChunkHead,
    DatasetRef,
    Entries,
    decode_head,
    decode_preamble,
)
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer, ObjectReader, forget_copy
from chunkstore.stores.read_turn import in_this_turn

T = TypeVar("T")
HEAD_GUESS_BYTES = 128 << 10
"""Bytes read when the length of a head is unknown.

They hold the head of 1,024 files with names of 70 bytes.
"""
MAX_WHOLE_BYTES = 16 << 20
"""The largest payload that is read as a whole; larger chunks are read by ranges only."""
_KEPT_BLOCK_HASHES = 1 << 20
"""Hash blocks whose hashes are kept: 8 MiB of hashes, for 256 GiB of large files."""
_KEPT_HEADS = 4096
_RANGES_AT_ONCE = 16
_NOTHING = frozenset[int]()


@dataclass(frozen=True, slots=True)
class FileColumns:
    """Files of one chunk, as columns of equal length."""

    offset: npt.NDArray[np.unsignedinteger]
    length: npt.NDArray[np.uint64]
    hash: npt.NDArray[np.uint64]


class Expected(Protocol):
    """The files that a dataset's metadata expects in its chunks."""

    def of(self, chunk: ChunkId) -> FileColumns | None:
        """Return the files that a chunk must hold, or None if nothing is known."""
        ...


_LargeFiles = dict[tuple[int, int, int], npt.NDArray[np.uint64]]
"""The large files of one chunk: (offset, length, hash) -> the hashes of the file's hash blocks.

A file is large if it has more than one block.
"""


class ChunkReader:
    """The chunks of one dataset in an object store. Implements `ChunkSource`; thread-safe."""

    def __init__(
        self, store: ObjectReader, dataset: DatasetRef, expected: Expected | None = None
    ) -> None:
        """Verify whole chunks against `expected`; reads of single files carry their own hash."""
        self.dataset = dataset
        self._store = store
        self.expected = expected
        self._large: dict[ChunkId, _LargeFiles] = {}
        """The cached heads, oldest first.

        A list of its values is one step for other threads. That of an ordered dictionary is not: it
        hashes each key, in Python.
        """
        self._threads = CallThreads("chunk-read")
        self._damage = KnownDamage()

    def head(self, chunk_id: ChunkId, head_bytes: int | None = None) -> ChunkHead:
        """Return preamble and header, by one ranged read.

        A second read follows if the length is not given and the guess was short.
        """
        return self._sound(
            chunk_id, lambda: self._head(chunk_id, head_bytes), lambda damage: not damage.has_head
        )

    def _head(self, chunk_id: ChunkId, head_bytes: int | None) -> ChunkHead:
        key = chunk_key(self.dataset.name, chunk_id)
        data = memoryview(self._store.get_range(key, 0, head_bytes or HEAD_GUESS_BYTES))
        try:
            wanted = decode_preamble(data, chunk_id).head_bytes
            if len(data) < wanted:
                rest = self._store.get_range(key, len(data), wanted - len(data))
                data = memoryview(b"".join((data, rest)))
            return self._checked(decode_head(data, chunk_id))
        except Corrupt as error:
            intact = _NOTHING if isinstance(error, AnotherChunk) else None
            raise _Damaged(Damage(str(error), False, intact)) from None

    def payload(self, chunk: ChunkRef) -> memoryview:
        """Return the whole payload by one get, each file verified against the chunk's header."""
        return self.whole(chunk)[1]

    def whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        """Return (head, payload), by one get, verified as in `payload`."""
        return self._sound(chunk.id, lambda: self._whole(chunk), lambda _: True)

    def _whole(self, chunk: ChunkRef) -> tuple[memoryview, memoryview]:
        data = memoryview(self._store.get(chunk_key(self.dataset.name, chunk.id)))
        try:
            return data[: chunk.head_bytes], self.verified(data, chunk)
        except Corrupt as error:
            raise _Damaged(self._damage_of(data, chunk, error)) from None

    def _damage_of(self, data: memoryview, chunk: ChunkRef, error: Corrupt) -> Damage:
        """Return the damage of an object, by the hashes that the dataset's metadata names.

        Takes as long as `verified`.
        """
        try:
            self._checked(decode_head(data, chunk.id))
            has_head = True
        except Corrupt:
            has_head = False
        expected = None if self.expected is None else self.expected.of(chunk.id)
        intact = None
        if len(data) <= chunk.head_bytes or isinstance(error, AnotherChunk):
            intact = _NOTHING
        elif expected is not None:
            intact = _intact_files(data[chunk.head_bytes :], expected)
        return Damage(str(error), has_head, intact)

    def _sound(self, chunk: ChunkId, read: Callable[[], T], is_lost: Callable[[Damage], bool]) -> T:
        """Return the result of `read`, and try again once if it finds damage.

        If both tries read the head or the whole chunk, what they lack is known from then on: each
        read of it fails at once for a while.

        If the store may have answered from a copy, the copy is dropped first, so that the second
        try reads the store itself. Without copies, the bytes may have been damaged on the way.
        """
        was_lost = self._damage.check(chunk, is_lost)
        try:
            found = read()
        except Corrupt:
            forget_copy(self._store, chunk_key(self.dataset.name, chunk))
            try:
                found = read()
            except _Damaged as error:
                self._damage.note(chunk, error.damage)
                raise Corrupt(error.damage.message) from None
        if was_lost:
            self._damage.repaired(chunk)
        return found

    def verified(self, data: memoryview, chunk: ChunkRef) -> memoryview:
        """Return the payload of a chunk's object that came from any source.

        Raise `Corrupt` unless the object is that chunk, belongs to this dataset and has the lengths
        of `chunk`; the header and every file match their checksums; and the chunk holds the files
        that are expected of it. Takes about 0.25 µs a file and 0.1 ms a MiB.
        """
        head = self._checked(decode_head(data, chunk.id))
        _check_lengths(head, chunk)
        payload = data[head.head_bytes :]
        if len(payload) != head.payload_bytes:
            raise Corrupt(
                f"the payload of chunk {chunk.id} has {len(payload)} bytes "
                f"instead of {head.payload_bytes}"
            )
        verify_files(payload, head.entries, chunk.id)
        expected = None if self.expected is None else self.expected.of(chunk.id)
        if expected is not None:
            verify_expected(expected, head.entries, chunk.id)
        return payload

    def read(self, file: FileExtent, start: int, length: int) -> memoryview:
        """Return a part of one file.

        A file of up to 256 KiB is read whole by one ranged get. A larger file is read by the 256
        KiB blocks that the range touches.
        """
        return self._sound(
            file.chunk.id,
            lambda: self._read(file, start, length),
            lambda damage: damage.loses(file.offset, file.length),
        )

    def _read(self, file: FileExtent, start: int, length: int) -> memoryview:
        if file.length > BLOCK_BYTES:
            return self._read_blocks(file, start, length)
        data = memoryview(self._range(file.chunk, file.offset, file.length))
        return verified_file(data, file)[start : start + length]

    def read_many(self, files: Sequence[FileExtent]) -> list[memoryview]:
        """Return whole files of one chunk or of several, in the given order.

        Files that lie close together are read as one range. Up to 16 ranges are read at once. A
        returned view keeps its whole range in memory, up to 4 MiB: copy what you keep for long.
        """
        small: dict[ChunkRef, list[int]] = {}
        large = []
        for position, file in enumerate(files):
            if file.length > BLOCK_BYTES:
                large.append(position)
            else:
                small.setdefault(file.chunk, []).append(position)
        reads: list[Callable[[], list[tuple[int, memoryview]]]] = [
            partial(self._read_merged, files, positions, merged)
            for positions in small.values()
            for merged in merge_ranges([(files[at].offset, files[at].length) for at in positions])
        ]
        reads += [partial(self._read_large, files, position) for position in large]
        contents = [memoryview(b"")] * len(files)
        for found in self._threads.run_all([*map(in_this_turn, reads)], _RANGES_AT_ONCE):
            for position, content in found:
                contents[position] = content
        return contents

    def _read_merged(
        self, files: Sequence[FileExtent], positions: Sequence[int], merged: MergedRange
    ) -> list[tuple[int, memoryview]]:
        wanted = [files[positions[member]] for member in merged.members]
        return self._sound(
            wanted[0].chunk.id,
            lambda: self._merged(files, positions, merged),
            lambda damage: any(damage.loses(file.offset, file.length) for file in wanted),
        )

    def _merged(
        self, files: Sequence[FileExtent], positions: Sequence[int], merged: MergedRange
    ) -> list[tuple[int, memoryview]]:
        chunk = files[positions[0]].chunk
        data = memoryview(self._range(chunk, merged.start, merged.length))
        found = []
        for position in (positions[member] for member in merged.members):
            file = files[position]
            begin = file.offset - merged.start
            found.append((position, verified_file(data[begin : begin + file.length], file)))
        return found

    def _read_large(
        self, files: Sequence[FileExtent], position: int
    ) -> list[tuple[int, memoryview]]:
        file = files[position]
        return [(position, self.read(file, 0, file.length))]

    def _read_blocks(self, file: FileExtent, start: int, length: int) -> memoryview:
        if not length:
            return memoryview(b"")
        hashes = self._block_hashes(file)
        begin = start // BLOCK_BYTES * BLOCK_BYTES
        end = min(-(-(start + length) // BLOCK_BYTES) * BLOCK_BYTES, file.length)
        data = memoryview(self._range(file.chunk, file.offset + begin, end - begin))
        verify_blocks(data, file, begin, hashes)
        return data[start - begin : start - begin + length]

    def _range(self, chunk: ChunkRef, start: int, length: int) -> Buffer:
        """Return bytes of the payload.

        Each request covers at most 16 MiB, so that its deadline does not depend on `length`.
        """
        get_range = partial(self._store.get_range, chunk_key(self.dataset.name, chunk.id))
        begin, end = chunk.head_bytes + start, chunk.head_bytes + start + length
        if length <= MAX_WHOLE_BYTES:
            data: Buffer = get_range(begin, length)
        else:
            starts = range(begin, end, MAX_WHOLE_BYTES)
            parts = [partial(get_range, at, min(MAX_WHOLE_BYTES, end - at)) for at in starts]
            turned = [in_this_turn(part) for part in parts]
            data = b"".join(self._threads.run_all(turned, _RANGES_AT_ONCE))
        _check_range(data, chunk, length)
        return data

    def block_hashes(self, file: FileExtent) -> npt.NDArray[np.uint64]:
        """Return the hash of each 256 KiB of a large file.

        The chunk's head is read from the store once for all files of the chunk, as long as it stays
        cached. Raises what `head` raises, and `Corrupt` if the chunk does not hold the file.
        """
        return self._sound(
            file.chunk.id, lambda: self._block_hashes(file), lambda damage: not damage.has_head
        )

    def _block_hashes(self, file: FileExtent) -> npt.NDArray[np.uint64]:
        large, key = self._large.get(file.chunk.id), (file.offset, file.length, file.hash)
        if large is None:
            large = _large_files(self._head(file.chunk.id, file.chunk.head_bytes).entries)
            self._large[file.chunk.id] = large
            for oldest in list(self._large)[:-1]:
                if not self._keeps_too_much():
                    break
                self._large.pop(oldest, None)
        if key not in large:
            raise Corrupt(
                f"chunk {file.chunk.id} does not contain the file that its dataset's metadata names"
            )
        return large[key]

    def _keeps_too_much(self) -> bool:
        """Return whether the cached heads exceed a limit.

        Takes about 0.2 ms if many are cached, once for each head that is read.
        """
        hashes = sum(
            len(blocks) for large in list(self._large.values()) for blocks in large.values()
        )
        return len(self._large) > _KEPT_HEADS or hashes > _KEPT_BLOCK_HASHES

    def _checked(self, head: ChunkHead) -> ChunkHead:
        if head.dataset != self.dataset:
            raise Corrupt(f"chunk {head.chunk_id} belongs to another dataset ({head.dataset.name})")
        return head


class _Damaged(Corrupt):
    """A read of a chunk, or of its head, has shown what can be read of the chunk."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(damage.message)
        self.damage = damage


def _intact_files(payload: memoryview, files: FileColumns) -> frozenset[int]:
    """Return the offsets of the files of up to 256 KiB whose bytes have the expected hash."""
    digest = xxhash.xxh3_64_intdigest
    columns = zip(files.offset.tolist(), files.length.tolist(), files.hash.tolist(), strict=True)
    return frozenset(
        offset
        for offset, length, expected in columns
        if 0 < length <= BLOCK_BYTES and digest(payload[offset : offset + length]) == expected
    )


def _check_lengths(head: ChunkHead, chunk: ChunkRef) -> None:
    if (head.head_bytes, head.payload_bytes) != (chunk.head_bytes, chunk.payload_bytes):
        raise Corrupt(f"the lengths of chunk {chunk.id} differ from its dataset's metadata")


def _check_range(data: Buffer, chunk: ChunkRef, length: int) -> None:
    if len(data) != length:
        raise Corrupt(f"chunk {chunk.id} ends inside a file")


def verified_file(data: memoryview, file: FileExtent) -> memoryview:
    """Return `data` if it is the whole content of `file`; raise `Corrupt` if not."""
    if xxhash.xxh3_64_intdigest(data) != file.hash:
        raise Corrupt(
            f"the checksum of the file at offset {file.offset} of chunk {file.chunk.id} is wrong"
        )
    return data


def verify_blocks(
    data: memoryview, file: FileExtent, start: int, hashes: npt.NDArray[np.uint64]
) -> None:
    """Raise `Corrupt` unless `data` is the file's content from byte `start` on.

    `start` and the end of `data` lie between two blocks of the file, or at its end.
    """
    first = start // BLOCK_BYTES
    for number in range(-(-len(data) // BLOCK_BYTES)):
        at = number * BLOCK_BYTES
        digest = xxhash.xxh3_64_intdigest(data[at : at + BLOCK_BYTES])
        if digest != int(hashes[first + number]):
            raise Corrupt(
                f"the checksum of block {first + number} of a file "
                f"in chunk {file.chunk.id} is wrong"
            )


def _large_files(entries: Entries) -> _LargeFiles:
    found = {}
    for at in np.flatnonzero(entries.length > BLOCK_BYTES).tolist():
        key = int(entries.offset[at]), int(entries.length[at]), int(entries.hash[at])
        found[key] = entries.block_hash[entries.block_range(at)].astype(np.uint64)  # a copy
    return found


def verify_files(payload: memoryview, entries: Entries, chunk_id: ChunkId) -> None:
    """Raise `Corrupt` unless every file's content has its hash.

    Takes about 0.25 µs a file and 0.1 ms a MiB.
    """
    digest = xxhash.xxh3_64_intdigest
    columns = zip(
        entries.offset.tolist(),
        entries.length.tolist(),
        entries.hash.tolist(),
        entries.kind.tolist(),
        strict=True,
    )
    for position, (offset, length, expected, kind) in enumerate(columns):
        if kind == KIND_FILE and digest(payload[offset : offset + length]) != expected:
            raise Corrupt(
                f"the checksum of {entries.paths[position]!r} in chunk {chunk_id} is wrong"
            )


def verify_expected(expected: FileColumns, entries: Entries, chunk_id: ChunkId) -> None:
    """Raise `Corrupt` unless each expected file is among the entries, with its hash.

    Takes about 50 µs for 1,000 files.
    """
    filled = np.flatnonzero(entries.length)  # files do not overlap, so an offset identifies one
    filled = filled[np.argsort(entries.offset[filled])]
    wanted = expected.length > 0
    offset, length = expected.offset[wanted].astype(np.uint64), expected.length[wanted]
    at = np.searchsorted(entries.offset[filled], offset)
    found = at < len(filled)
    at = filled[at[found]]
    found[found] = (
        (entries.offset[at] == offset[found])
        & (entries.length[at] == length[found])
        & (entries.hash[at] == expected.hash[wanted][found])
    )
    if not found.all():
        raise Corrupt(
            f"chunk {chunk_id} lacks {np.count_nonzero(~found)} files "
            "that its dataset's metadata names, or has others in their place"
        )
