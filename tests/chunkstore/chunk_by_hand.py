"""Chunks written from docs/chunk-format.md alone: `struct`, a hash, and nothing of ours.

What is to be broken in a test can be said one by one; the checksums are then right all the same.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from itertools import accumulate

import xxhash


@dataclass
class Row:
    path: bytes
    kind: int = 1
    mode: int = 0o100644
    mtime_ns: int = 0
    offset: int = 0
    length: int = 0
    hash: int = 0x2D06800538D394C2
    """Of no bytes."""
    version: tuple[int, bytes, int] = (0, bytes(16), 0)


@dataclass
class ChunkByHand:
    rows: list[Row]
    chunk_id: bytes = bytes(range(16))
    dataset_id: bytes = b"dataset id 16 by"
    name: bytes = b"hand-made"
    payload_bytes: int = 0
    has_versions: bool = False
    version_table: list[tuple[int, bytes]] | None = None
    """(generation, chunk id): the versions are written by this table."""
    version_rows: list[int] | None = None
    block_hashes: list[int] = field(default_factory=list)
    magic: bytes = b"DIESELCK"
    format_version: int = 1
    # None: what the rows say.
    flags: int | None = None
    count: int | None = None
    blocks: int | None = None
    name_bytes: int | None = None
    heap_bytes: int | None = None
    header_bytes: int | None = None
    ends: list[int] | None = None
    extra: bytes = b""

    def header(self) -> bytes:
        rows, n = self.rows, len(self.rows)
        heap = b"".join(row.path for row in rows)
        ends = self.ends
        if ends is None:
            ends = list(accumulate(len(row.path) for row in rows))
        fixed = struct.pack(
            "<16sIIIHHQ",
            self.dataset_id,
            n if self.count is None else self.count,
            self._flags() if self.flags is None else self.flags,
            len(self.block_hashes) if self.blocks is None else self.blocks,
            len(self.name) if self.name_bytes is None else self.name_bytes,
            0,
            len(heap) if self.heap_bytes is None else self.heap_bytes,
        )
        columns = [
            struct.pack(f"<{n}Q", *(row.offset for row in rows)),
            struct.pack(f"<{n}Q", *(row.length for row in rows)),
            struct.pack(f"<{n}Q", *(row.hash for row in rows)),
            struct.pack(f"<{n}q", *(row.mtime_ns for row in rows)),
        ]
        if self.has_versions:
            columns += [struct.pack("<Q16sII", *row.version, 0) for row in rows]
        table, positions, table_rows = self._by_table()
        columns += [
            table,
            struct.pack(f"<{len(self.block_hashes)}Q", *self.block_hashes),
            struct.pack(f"<{n}I", *ends),
            positions,
            struct.pack(f"<{n}H", *(row.mode for row in rows)),
            table_rows,
            struct.pack(f"<{n}B", *(row.kind for row in rows)),
        ]
        return b"".join([fixed, *columns, self.name, heap, self.extra])

    def _flags(self) -> int:
        return int(self.has_versions) + 2 * (self.version_table is not None)

    def _by_table(self) -> tuple[bytes, bytes, bytes]:
        if self.version_table is None:
            return b"", b"", b""
        numbers = {row: number for number, row in enumerate(self.version_table, start=1)}
        rows = self.version_rows
        if rows is None:
            rows = [numbers[row.version[:2]] if row.version[0] else 0 for row in self.rows]
        return (
            struct.pack("<II", len(self.version_table), 0)
            + b"".join(struct.pack("<Q16s", *row) for row in self.version_table),
            struct.pack(f"<{len(self.rows)}I", *(row.version[2] for row in self.rows)),
            struct.pack(f"<{len(rows)}H", *rows),
        )

    def head(self) -> bytes:
        return with_preamble(
            self.header(),
            self.chunk_id,
            self.payload_bytes,
            magic=self.magic,
            format_version=self.format_version,
            header_bytes=self.header_bytes,
        )


def with_preamble(
    header: bytes,
    chunk_id: bytes,
    payload_bytes: int,
    *,
    magic: bytes = b"DIESELCK",
    format_version: int = 1,
    header_bytes: int | None = None,
) -> bytes:
    body = struct.pack(
        "<8sHHI16sQQ8x",
        magic,
        format_version,
        0,
        len(header) if header_bytes is None else header_bytes,
        chunk_id,
        payload_bytes,
        xxhash.xxh3_64_intdigest(header),
    )
    return body + struct.pack(">Q", xxhash.xxh3_64_intdigest(body)) + header
