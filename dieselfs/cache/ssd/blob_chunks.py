"""One chunk of a snapshot in the blob: the bytes of its payload to write, and a check of them.

The files of a chunk fill one range of the blob (`metadata.blob_layout`). Each begins at a block,
with zeros up to the next block. A *run* is a stretch of that range that is also one stretch of the
payload; 1,024 files of 4 KiB that follow each other are one run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import xxhash

from chunkstore.chunk_reader import MAX_WHOLE_BYTES
from chunkstore.chunk_source import ChunkSource
from chunkstore.stores.object_store import Buffer
from metadata.blob_layout import BLOCK_BYTES, BlobLayout
from metadata.errors import SnapshotRefused
from metadata.snapshot import Snapshot

Inodes = npt.NDArray[np.int64]
_STEP_BYTES: Final = 4 << 20
"""Bytes of a step, in a file of a chunk that is too large to be read whole."""
_ZEROS: Final = bytes(BLOCK_BYTES)


@dataclass(frozen=True, slots=True)
class BlobWrite:
    """Bytes that lie side by side in a device of the blob."""

    device: int
    start: int
    parts: Sequence[Buffer]

    @property
    def length(self) -> int:
        return sum(map(len, self.parts))


def chunk_writes(
    snapshot: Snapshot, layout: BlobLayout, number: int, source: ChunkSource
) -> Iterator[BlobWrite]:
    """Yield the writes of chunk `number`: one a device, or one for every 4 MiB of large files.

    Raises the errors of `source`, and `SnapshotRefused` if a file reaches beyond its chunk.
    """
    inodes = _filled(snapshot, number)
    if not len(inodes):
        return
    chunk = snapshot.chunk(number)
    if chunk.payload_bytes <= MAX_WHOLE_BYTES:
        payload = source.payload(chunk)
        for some in _by_device(layout, inodes):
            first = int(some[0])
            yield BlobWrite(
                layout.device_of(first),
                layout.start_byte(first),
                _gathered(snapshot, some, payload),
            )
        return
    for inode in inodes.tolist():
        file = snapshot.extent(inode)
        device, start = layout.device_of(inode), layout.start_byte(inode)
        for at in range(0, file.length, _STEP_BYTES):
            part = source.read(file, at, min(_STEP_BYTES, file.length - at))
            yield BlobWrite(device, start + at, [part])


def damaged_files(
    snapshot: Snapshot, layout: BlobLayout, number: int, devices: Sequence[int]
) -> list[int]:
    """Return the inodes of the files of chunk `number` that are damaged or unreadable in the blob.

    Every byte is read from the disk, not from memory. Files are checked by their hashes; the bytes
    between them must be zeros.
    """
    damaged = []
    for some in _by_device(layout, _filled(snapshot, number)):
        fd = devices[layout.device_of(int(some[0]))]
        start = layout.start_byte(int(some[0]))
        end = layout.start_byte(int(some[-1])) + _padded(snapshot.size(int(some[-1])))
        os.posix_fadvise(fd, start, end - start, os.POSIX_FADV_DONTNEED)
        whole = _read(fd, start, end - start) if end - start <= 2 * MAX_WHOLE_BYTES else None
        for inode in some.tolist():
            at, length = layout.start_byte(inode), _padded(snapshot.size(inode))
            parts: Iterator[memoryview | None]
            if whole is not None:
                parts = iter([whole[at - start : at - start + length]])
            else:  # a large file, or a bad sector: its neighbours may be sound
                parts = _parts_of(fd, at, length)
            if not _is_sound(snapshot, inode, parts):
                damaged.append(inode)
    return damaged


def _is_sound(snapshot: Snapshot, inode: int, parts: Iterator[memoryview | None]) -> bool:
    """Return True if these are a file's bytes, and zeros up to the end of its last block."""
    digest, left = xxhash.xxh3_64(), snapshot.size(inode)
    for part in parts:
        if part is None:
            return False
        digest.update(part[:left])
        padding = part[left:] if left < len(part) else b""
        if padding != _ZEROS[: len(padding)]:
            return False
        left -= min(left, len(part))
    return bool(digest.intdigest() == snapshot.extent(inode).hash)


def _parts_of(fd: int, start: int, length: int) -> Iterator[memoryview | None]:
    for at in range(0, length, _STEP_BYTES):
        yield _read(fd, start + at, min(_STEP_BYTES, length - at))


def _read(fd: int, start: int, length: int) -> memoryview | None:
    """Return the bytes; None if the disk does not give all of them."""
    try:
        data = os.pread(fd, length, start)
    except OSError:
        return None
    return memoryview(data) if len(data) == length else None


def _filled(snapshot: Snapshot, number: int) -> Inodes:
    """Return the files of a chunk that have content, by inode."""
    files = snapshot.files_in_chunk(number)
    return np.flatnonzero(snapshot.columns.length[files.start : files.stop]) + files.start


def _by_device(layout: BlobLayout, inodes: Inodes) -> list[Inodes]:
    if not len(inodes):
        return []
    device = layout.first_block[inodes] // layout.device_blocks
    return np.split(inodes, np.flatnonzero(np.diff(device)) + 1)


def _gathered(snapshot: Snapshot, inodes: Inodes, payload: memoryview) -> list[Buffer]:
    """Return the runs of the files in one device, with the zeros between them.

    Costs at most 0.4 µs a file.
    """
    columns = snapshot.columns
    length = columns.length[inodes].astype(np.int64)
    offset = columns.offset[inodes].astype(np.int64)
    if int((offset + length).max()) > len(payload):
        raise SnapshotRefused(
            f"{snapshot.path} is damaged: a file ends behind the end of its chunk"
        )
    snapshot.check_unchanged()
    begins = np.ones(len(inodes), np.bool_)
    begins[1:] = (length[:-1] % BLOCK_BYTES != 0) | (offset[1:] != offset[:-1] + length[:-1])
    at = np.flatnonzero(begins)
    span_bytes = np.add.reduceat(length, at)
    parts: list[Buffer] = []
    for start, size in zip(offset[at].tolist(), span_bytes.tolist(), strict=True):
        parts.append(payload[start : start + size])
        if size % BLOCK_BYTES:
            parts.append(_ZEROS[size % BLOCK_BYTES :])
    return parts


def _padded(length: int) -> int:
    return -(-length // BLOCK_BYTES) * BLOCK_BYTES
