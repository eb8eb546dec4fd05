"""The check of one chunk object against its commit.

`check_head` reads the head alone, `check_whole` every byte that an entry names. A chunk is damaged
as a whole if its head is damaged, or is another chunk's. Otherwise only those files are damaged
that do not have their checksums, or that lie beyond the end of the object. Bytes of the payload
that no entry names have no meaning and are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np
import xxhash

from chunkstore.byte_ranges import merge_ranges
from chunkstore.chunk_format import (
    BLOCK_BYTES,
    KIND_FILE,
    MAX_HEADER_BYTES,
    PREAMBLE_BYTES,
    ChunkHead,
    DatasetRef,
    Entries,
    decode_head,
    decode_preamble,
)
from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkRef
from chunkstore.counted import agreed, counted
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import chunk_key
from chunkstore.stores.object_store import Buffer, ObjectStore
from dieselfs.checking.findings import FindingKind

READ_BYTES: Final = 8 << 20
"""The bytes in memory at a time of a chunk above 16 MiB.

It is a multiple of the hash blocks.
"""
assert READ_BYTES % BLOCK_BYTES == 0
_UNCACHED_BYTES: Final = 1 << 20
"""The least size of a read that leaves nothing in a local store's page cache.

See `chunkstore/stores/local_directory.py`.
"""

Content: TypeAlias = tuple[int, int, int]
"""The offset in the payload, length and checksum of one file.

An entry, the index and a snapshot all hold these three.
"""


@dataclass(frozen=True, slots=True)
class ChunkDamage:
    """The damage of one chunk."""

    chunk: ChunkRef
    kind: FindingKind
    what: str
    contents: frozenset[Content] | None = None
    """The files that are hit; None means every file that lies in the chunk."""


@dataclass(frozen=True, slots=True)
class WholeCheck:
    """The result of reading one chunk."""

    damage: ChunkDamage | None
    files: int = 0
    """The verified files."""
    size_bytes: int = 0
    """The bytes read, each counted once."""
    read_again: bool = False
    """True if the chunk was damaged at the first reading and is sound now.

    Then the damage is not in the store, but on the way from it.
    """


class _Unsound(Exception):
    """The chunk as a whole is not what it should be."""

    def __init__(self, kind: FindingKind, what: str) -> None:
        super().__init__(what)
        self.kind = kind


def check_length(chunk: ChunkRef, size_bytes: int | None) -> ChunkDamage | None:
    """Return the damage that a listing shows; `size_bytes` is None if it lacks the object.

    The head shows which files a wrong length hits.
    """
    if size_bytes is None:
        return ChunkDamage(chunk, FindingKind.CHUNK_MISSING, "the object is not in the store")
    expected = chunk.object_bytes
    if size_bytes == expected:
        return None
    compared = "shorter" if size_bytes < expected else "longer"
    what = f"the object has {size_bytes:,} bytes, {compared} than the {expected:,} of its commit"
    return ChunkDamage(chunk, FindingKind.CHUNK_LENGTH, what)


def check_head(
    store: ObjectStore, dataset: DatasetRef, chunk: ChunkRef, size_bytes: int | None
) -> tuple[ChunkHead | None, ChunkDamage | None]:
    """Return the chunk's head if it is sound, and the damage of the chunk.

    The damage is what listing (`size_bytes`) and head show. One ranged read.
    """
    damage = check_length(chunk, size_bytes)
    if size_bytes is None:
        return None, damage
    try:
        _check_bounds(chunk)
        data = store.get_range(chunk_key(dataset.name, chunk.id), 0, chunk.head_bytes)
        head = _sound_head(data, dataset, chunk)
    except NotFound:
        return None, check_length(chunk, None)
    except _Unsound as error:
        return None, _unsound(chunk, error, damage)
    if damage is None:
        return head, None
    beyond = _files_beyond(head.entries, size_bytes - head.head_bytes)
    return head, replace(damage, contents=beyond)


def check_whole(
    store: ObjectStore,
    dataset: DatasetRef,
    chunk: ChunkRef,
    size_bytes: int | None,
    throttle: Callable[[int], None],
) -> WholeCheck:
    """Read the whole chunk and verify every file and hash block in it.

    `size_bytes` is the object's size in a listing, None if it is missing. `throttle` is called with
    the bytes of each read before it is made.

    Memory: the chunk, or 8 MiB of one above 16 MiB. A chunk that fails is read twice more: the
    first reading makes a local store drop what it had cached, the second one counts. Raises
    `Unavailable` or `Denied`, which do not mean that the chunk is damaged.
    """
    if size_bytes is None:
        return WholeCheck(check_length(chunk, None))
    first = _check_once(store, dataset, chunk, size_bytes, throttle)
    if first.damage is None or first.damage.kind is FindingKind.CHUNK_MISSING:
        return first
    _drop_cached(store, chunk_key(dataset.name, chunk.id), chunk, throttle)
    again = _check_once(store, dataset, chunk, size_bytes, throttle)
    return replace(again, read_again=again.damage is None)


def _check_once(
    store: ObjectStore,
    dataset: DatasetRef,
    chunk: ChunkRef,
    size_bytes: int,
    throttle: Callable[[int], None],
) -> WholeCheck:
    length = check_length(chunk, size_bytes)
    check = _check_in_memory if chunk.object_bytes <= MAX_WHOLE_BYTES else _check_in_parts

    def read(start: int, length: int) -> memoryview:
        throttle(length)
        return memoryview(store.get_range(chunk_key(dataset.name, chunk.id), start, length))

    try:
        _check_bounds(chunk)
        entries, bad = check(dataset, chunk, read)
    except NotFound:
        return WholeCheck(check_length(chunk, None))
    except _Unsound as error:
        return WholeCheck(_unsound(chunk, error, length), size_bytes=size_bytes)
    files = int(np.count_nonzero(entries.kind == KIND_FILE))
    return WholeCheck(_judged(chunk, entries, bad, length), files, size_bytes)


def _check_in_memory(
    dataset: DatasetRef, chunk: ChunkRef, read: Callable[[int, int], memoryview]
) -> tuple[Entries, set[int]]:
    """Return the entries, and the numbers of the files that do not have their checksums."""
    data = read(0, chunk.object_bytes)
    entries = _sound_head(data, dataset, chunk).entries
    return entries, _bad_files(data[chunk.head_bytes :], entries)


def _bad_files(payload: memoryview, entries: Entries) -> set[int]:
    """Return the numbers of the files that do not have their checksums.

    The cost is about 0.7 µs a file of 4 KiB; half of it is hashing.
    """
    files = entries.kind == KIND_FILE
    offset, length = entries.offset[files], entries.length[files]
    digest, ends = xxhash.xxh3_64_intdigest, (offset + length).tolist()
    extents = zip(offset.tolist(), ends, strict=True)
    found = np.array([digest(payload[start:end]) for start, end in extents], np.uint64)
    wrong = (found != entries.hash[files]) | (offset + length > len(payload))
    return {*np.flatnonzero(wrong).tolist(), *_bad_blocks(payload, entries)}


def _is_sound(data: memoryview, content: Content) -> bool:
    return len(data) == content[1] and xxhash.xxh3_64_intdigest(data) == content[2]


def _bad_blocks(payload: memoryview, entries: Entries) -> set[int]:
    """Return the files that have a hash block with a wrong checksum.

    In a head that was written wrong, the checksum of the file itself may still be right.
    """
    if not len(entries.block_hash):
        return set()
    hashes = iter(entries.block_hash.tolist())
    return {
        number
        for number, (offset, length, _) in enumerate(_contents(entries))
        if length > BLOCK_BYTES
        and not _blocks_sound(payload[offset : offset + length], length, hashes)
    }


def _blocks_sound(data: memoryview, length: int, hashes: Iterator[int]) -> bool:
    """Return whether each block of `data` has the next one of `hashes`.

    `data` should have `length` bytes. It takes as many of the hashes as `data` should have blocks.
    """
    sound = True
    for at in range(0, length, BLOCK_BYTES):
        sound &= xxhash.xxh3_64_intdigest(data[at : at + BLOCK_BYTES]) == next(hashes)
    return sound


def _check_in_parts(
    dataset: DatasetRef, chunk: ChunkRef, read: Callable[[int, int], memoryview]
) -> tuple[Entries, set[int]]:
    """Return the same as `_check_in_memory`, for a chunk that is never in memory as a whole."""
    entries = _sound_head(read(0, chunk.head_bytes), dataset, chunk).entries
    contents = list(_contents(entries))
    small = [number for number, content in enumerate(contents) if content[1] <= BLOCK_BYTES]
    bad = set()
    for merged in merge_ranges([contents[number][:2] for number in small], max_gap_bytes=0):
        data = read(chunk.head_bytes + merged.start, merged.length)
        for number in (small[member] for member in merged.members):
            at = contents[number][0] - merged.start
            if not _is_sound(data[at : at + contents[number][1]], contents[number]):
                bad.add(number)
    hashes = iter(entries.block_hash.tolist())
    for number, (offset, length, expected) in enumerate(contents):
        if length <= BLOCK_BYTES:
            continue
        whole, sound = xxhash.xxh3_64(), True
        for at in range(0, length, READ_BYTES):
            size = min(READ_BYTES, length - at)
            part = read(chunk.head_bytes + offset + at, size)
            whole.update(part)
            sound &= _blocks_sound(part, size, hashes)
        if not sound or whole.intdigest() != expected:
            bad.add(number)
    return entries, bad


def _judged(
    chunk: ChunkRef, entries: Entries, bad: set[int], length: ChunkDamage | None
) -> ChunkDamage | None:
    """Return the damage of the chunk.

    `bad` are numbers among the files; `length` is the damage of the object's length.
    """
    if not bad:
        return None if length is None else replace(length, contents=frozenset())
    contents = list(_contents(entries))
    files = np.flatnonzero(entries.kind == KIND_FILE)
    first = entries.paths[int(files[min(bad)])].decode(errors="backslashreplace")
    what = (
        f"{len(bad):,} of its {counted(len(files), 'file')} (deleted ones included) "
        f"{agreed(len(bad), 'have')} a wrong checksum, the first is {first!r}"
    )
    found = frozenset(contents[number] for number in bad)
    if length is not None:
        return replace(length, what=f"{length.what}; {what}", contents=found)
    return ChunkDamage(chunk, FindingKind.CHUNK_PAYLOAD, what, found)


def _unsound(chunk: ChunkRef, error: _Unsound, length: ChunkDamage | None) -> ChunkDamage:
    if length is None or error.kind is FindingKind.CHUNK_FOREIGN:
        return ChunkDamage(chunk, error.kind, str(error))
    return replace(length, what=f"{length.what}; {error}")


def _check_bounds(chunk: ChunkRef) -> None:
    """Raise if the head is longer than any head, before anything is read.

    A forged commit may name any length.
    """
    if chunk.head_bytes > PREAMBLE_BYTES + MAX_HEADER_BYTES:
        what = f"the commit names a head of {chunk.head_bytes:,} bytes, more than any chunk has"
        raise _Unsound(FindingKind.CHUNK_HEAD, what)


def _sound_head(data: Buffer, dataset: DatasetRef, chunk: ChunkRef) -> ChunkHead:
    """Return the head in `data`; raise `_Unsound` unless it is the head of this very chunk."""
    try:
        found = decode_preamble(data)
        if found.chunk_id != chunk.id:
            raise _Unsound(
                FindingKind.CHUNK_FOREIGN, f"the object holds another chunk, {found.chunk_id}"
            )
        if (found.head_bytes, found.payload_bytes) != (chunk.head_bytes, chunk.payload_bytes):
            raise _Unsound(
                FindingKind.CHUNK_HEAD,
                f"the head names {found.head_bytes:,} + {found.payload_bytes:,} bytes, "
                f"the commit {chunk.head_bytes:,} + {chunk.payload_bytes:,}",
            )
        head = decode_head(data, chunk.id)
    except Corrupt as error:
        raise _Unsound(FindingKind.CHUNK_HEAD, str(error)) from error
    if head.dataset != dataset:
        what = f"the object holds a chunk of another dataset ({head.dataset.name})"
        raise _Unsound(FindingKind.CHUNK_FOREIGN, what)
    return head


def _contents(entries: Entries) -> Iterator[Content]:
    """Return the contents of the files, in the order of entries."""
    files = entries.kind == KIND_FILE
    columns = (entries.offset[files], entries.length[files], entries.hash[files])
    return zip(*(column.tolist() for column in columns), strict=True)


def _files_beyond(entries: Entries, payload_bytes: int) -> frozenset[Content]:
    """Return the files that do not lie wholly in the first `payload_bytes` of the payload."""
    return frozenset(
        content for content in _contents(entries) if content[0] + content[1] > payload_bytes
    )


def _drop_cached(
    store: ObjectStore, key: str, chunk: ChunkRef, throttle: Callable[[int], None]
) -> None:
    """Make the store drop what it has cached of the object."""
    total = chunk.object_bytes
    for at in range(0, total, READ_BYTES):
        length = min(READ_BYTES, total - at)
        throttle(length)
        try:
            store.get_range(key, at, max(length, _UNCACHED_BYTES))
        except NotFound:
            return
