"""Segments: fixed-size parts of a chunk's object and the SSD tier's unit (Tectonic-Shift §5.2).

The last segment of an object is shorter. Each segment has a checksum for each of its eighths (a
*block*), seeded with the segment's identity. So bytes that lie in the place of others are found
like damage, and a reader of a part verifies the blocks that it touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

BLOCKS: Final = 8
"""The number of blocks in a whole segment."""
CHECKSUMS_BYTES: Final = 4 * BLOCKS
DEFAULT_SEGMENT_BYTES: Final = 256 << 10
USUAL_CHUNK_BYTES: Final = 4 << 20
"""The usual size of a chunk."""
_MASK: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """The identity of a segment. Chunk ids are unique over all datasets."""

    chunk: bytes
    """The chunk's id, 16 bytes."""
    number: int
    """The position in the object: the segment begins at byte `number` × segment size."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The place of a segment, and the checksums of its blocks."""

    region: int
    offset: int
    """Bytes from the beginning of the region's file."""
    length: int
    checksums: bytes
    """`CHECKSUMS_BYTES` bytes, little-endian; 0 for blocks that a short segment lacks."""


def checksums_of(segment: Segment, data: memoryview, block_bytes: int) -> bytes:
    """Return the checksums of a segment's blocks. Takes about 0.1 ms a MiB."""
    found = np.zeros(BLOCKS, "<u4")
    for block, at in enumerate(range(0, len(data), block_bytes)):
        found[block] = _checksum(segment, block, data[at : at + block_bytes])
    return found.tobytes()


def is_sound(
    segment: Segment, first_block: int, data: memoryview, checksums: bytes, block_bytes: int
) -> bool:
    """Return whether `data` matches the segment's checksums from block `first_block` on.

    `data` consists of whole blocks, or extends to the segment's end.
    """
    wanted = np.frombuffer(checksums, "<u4")
    return all(
        _checksum(segment, first_block + n, data[at : at + block_bytes]) == wanted[first_block + n]
        for n, at in enumerate(range(0, len(data), block_bytes))
    )


def _checksum(segment: Segment, block: int, data: memoryview) -> int:
    identity = segment.chunk + (segment.number * BLOCKS + block).to_bytes(8, "little")
    seed: int = xxhash.xxh3_64_intdigest(identity)
    return xxhash.xxh3_64_intdigest(data, seed) & _MASK
