"""The table at the beginning of a region's file, which describes the region. Pure: bytes to bytes.

    slot (twice, written in turn), all little-endian:
        magic 8 · generation 8 · turn 8 · dataset 16 · number of entries 4 · born 4 ·
        entries of 60 bytes · zero · xxh3_64 of all before 8
    entry:
        chunk 16 · number 4 · offset 4 · length 4 · checksums 32

If both slots are valid and of one generation, the one of the later turn counts; a torn write leaves
the other slot. The generation is a random number, drawn again for each reuse of a region, so that a
table never describes segments of an earlier generation.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import xxhash

from chunkstore.ssd.segments import CHECKSUMS_BYTES, Placed, Segment

MAGIC: Final = b"DFSSDRG1"
_HEADER: Final = np.dtype(
    [
        ("magic", "S8"),
        ("generation", "<u8"),
        ("turn", "<u8"),
        ("dataset", "V16"),
        ("count", "<u4"),
        ("born", "<u4"),
    ]
)
_ENTRY: Final = np.dtype(
    [
        ("chunk", "V16"),
        ("number", "<u4"),
        ("offset", "<u4"),
        ("length", "<u4"),
        ("checksums", f"V{CHECKSUMS_BYTES}"),
    ]
)
_ROW: Final = struct.Struct(f"<16sIII{CHECKSUMS_BYTES}s")
_CHECKSUM_BYTES: Final = 8
PAGE_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class RegionTable:
    """The decoded table of a region."""

    generation: int
    turn: int
    dataset: bytes
    """The dataset whose segments the region holds: 16 bytes."""
    born: int
    """The position of the region in the order in which all regions were begun: a counter."""
    entries: tuple[tuple[Segment, Placed], ...]


def slot_bytes(max_entries: int) -> int:
    """Return the size of a slot for a table of at most `max_entries` entries, in whole pages."""
    wanted = _HEADER.itemsize + max_entries * _ENTRY.itemsize + _CHECKSUM_BYTES
    return -(-wanted // PAGE_BYTES) * PAGE_BYTES


def encode_table(table: RegionTable, size: int) -> bytes:
    """Return the table as a slot of `size` bytes."""
    header = np.zeros(1, _HEADER)
    header["magic"], header["generation"], header["turn"] = MAGIC, table.generation, table.turn
    header["dataset"] = np.frombuffer(table.dataset, "V16")
    header["count"], header["born"] = len(table.entries), table.born
    rows = b"".join(
        _ROW.pack(segment.chunk, segment.number, placed.offset, placed.length, placed.checksums)
        for segment, placed in table.entries
    )
    body = (header.tobytes() + rows).ljust(size - _CHECKSUM_BYTES, b"\0")
    return body + int(xxhash.xxh3_64_intdigest(body)).to_bytes(_CHECKSUM_BYTES, "little")


def decode_table(region: int, slots: bytes, size: int, region_bytes: int) -> RegionTable | None:
    """Return the valid table of the two slots, or None if neither is valid.

    Takes about 2 µs an entry.
    """
    found = [slot for at in (0, size) if _is_sound(slot := slots[at : at + size], region_bytes)]
    newest = max(found, key=_turn, default=None)
    return None if newest is None else _decode(region, newest)


def _turn(slot: bytes) -> int:
    return int(np.frombuffer(slot, _HEADER, 1)[0]["turn"])


def _is_sound(slot: bytes, region_bytes: int) -> bool:
    if len(slot) < _HEADER.itemsize + _CHECKSUM_BYTES or slot[: len(MAGIC)] != MAGIC:
        return False
    body, checksum = slot[:-_CHECKSUM_BYTES], slot[-_CHECKSUM_BYTES:]
    if int(xxhash.xxh3_64_intdigest(body)).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        return False
    count = int(np.frombuffer(body, _HEADER, 1)[0]["count"])
    if _HEADER.itemsize + count * _ENTRY.itemsize > len(body):
        return False
    rows = np.frombuffer(body, _ENTRY, count, _HEADER.itemsize)
    ends = rows["offset"].astype(np.uint64) + rows["length"]
    return not count or int(ends.max()) <= region_bytes


def _decode(region: int, slot: bytes) -> RegionTable:
    header = np.frombuffer(slot, _HEADER, 1)[0]
    end = _HEADER.itemsize + int(header["count"]) * _ENTRY.itemsize
    entries = tuple(
        (Segment(chunk, number), Placed(region, offset, length, checksums))
        for chunk, number, offset, length, checksums in _ROW.iter_unpack(
            slot[_HEADER.itemsize : end]
        )
    )
    return RegionTable(
        int(header["generation"]),
        int(header["turn"]),
        header["dataset"].tobytes(),
        int(header["born"]),
        entries,
    )
