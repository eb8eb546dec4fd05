"""The law is docs/chunk-format.md; `chunk_by_hand` was written from it alone."""

from __future__ import annotations

import random
import stat
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkstore.chunk_format import (
    BLOCK_BYTES,
    KIND_DIRECTORY,
    KIND_FILE,
    KIND_TOMBSTONE,
    MAX_ENTRIES,
    ChunkHead,
    DatasetRef,
    Entries,
    are_links,
    block_counts,
    decode_head,
    decode_preamble,
    encode_head,
    make_versions,
)
from chunkstore.chunk_id import ChunkId
from chunkstore.errors import Corrupt
from tests.chunkstore.chunk_by_hand import ChunkByHand, Row, with_preamble

GOLDEN = Path(__file__).parent.parent / "golden"
DIRECTORY, DELETION = 2, 3
DIR_MODE = 0o040755


def directory(path: bytes, **more: int) -> Row:
    return Row(path, kind=DIRECTORY, mode=DIR_MODE, hash=0, **more)


def golden_chunk() -> tuple[ChunkByHand, bytes]:
    """Every feature of the format once, and the payload."""
    small, large = b"hello world", bytes(range(256)) * 1024 + b"one block and five"
    blocks = [xxhash.xxh3_64_intdigest(part) for part in (large[:262144], large[262144:])]
    seen = (7, bytes(range(100, 116)), 3)
    rows = [
        directory(b"", mtime_ns=-1),
        directory(b"cats", mtime_ns=1_700_000_000_123_456_789),
        Row(b"cats/\xff\n.jpg", mode=0o104755, mtime_ns=5, length=11, hash=xxhash.xxh3_64_intdigest(small)),
        Row(b"cats/empty", mode=0o100000, offset=11, version=seen),
        Row(b"large", offset=11, length=len(large), hash=xxhash.xxh3_64_intdigest(large)),
        Row(b"gone", kind=DELETION, hash=0, version=seen),
        Row(b"dogs", kind=DELETION, mode=0o040000, hash=0, version=seen),
        Row(b"large", offset=11 + len(large)),
    ]  # fmt: skip
    chunk = ChunkByHand(rows, payload_bytes=11 + len(large), has_versions=True, block_hashes=blocks)
    return chunk, small + large


def golden_links() -> tuple[ChunkByHand, bytes]:
    """Version 2: links that are new, moved and replaced, beside a file and a deleted link."""
    first, second, data = b"../a/b", b"t" * 4095, b"content"
    seen = (7, bytes(range(100, 116)), 3)
    rows = [
        directory(b"d", mtime_ns=1),
        Row(b"d/link", mode=0o120777, mtime_ns=-5, length=6, hash=xxhash.xxh3_64_intdigest(first)),
        Row(b"long", mode=0o120777, offset=6, length=4095, hash=xxhash.xxh3_64_intdigest(second), version=seen),
        Row(b"gone", kind=DELETION, hash=0, version=seen),
        Row(b"file", offset=4101, length=7, hash=xxhash.xxh3_64_intdigest(data)),
    ]  # fmt: skip
    table = [(7, bytes(range(100, 116)))]
    chunk = ChunkByHand(rows, payload_bytes=4108, version_table=table, format_version=2)
    return chunk, first + second + data


def golden_by_table() -> tuple[ChunkByHand, bytes]:
    """The same, its versions written by a table."""
    chunk, payload = golden_chunk()
    return replace(chunk, has_versions=False, version_table=[(7, bytes(range(100, 116)))]), payload


def small_head() -> bytes:
    return ChunkByHand(
        [directory(b"d"), Row(b"d/file", length=3, hash=7), Row(b"d/\xfe")], payload_bytes=3
    ).head()


def plain(head: ChunkHead) -> list[Row]:
    entries = head.entries
    versions = [(0, bytes(16), 0)] * len(entries)
    if entries.versions is not None:
        versions = [(int(v["generation"]), bytes(v["chunk"]), int(v["position"])) for v in entries.versions]  # fmt: skip
    columns = (entries.kind, entries.mode, entries.mtime_ns, entries.offset, entries.length)
    numbers = zip(*(c.tolist() for c in columns), entries.hash.tolist(), versions, strict=True)
    return [Row(path, *row) for path, row in zip(entries.paths, numbers, strict=True)]


def encoded_again(head: ChunkHead) -> bytes:
    return encode_head(head.chunk_id, head.dataset, head.payload_bytes, head.entries)


class TestTheLaw:
    def test_a_chunk_made_by_hand_is_read(self) -> None:
        chunk, payload = golden_chunk()
        data = chunk.head()
        head = decode_head(data + payload, ChunkId(chunk.chunk_id))
        assert head.chunk_id.value == chunk.chunk_id
        assert head.dataset == DatasetRef("hand-made", chunk.dataset_id)
        assert (head.head_bytes, head.payload_bytes) == (len(data), len(payload))
        assert plain(head) == chunk.rows
        assert head.entries.block_hash.tolist() == chunk.block_hashes
        assert head.entries.block_range(4) == slice(0, 2)
        assert head.entries.block_range(3) == head.entries.block_range(2) == slice(0, 0)
        assert head.entries.block_range(7) == slice(2, 2)

    def test_and_written_the_same(self) -> None:
        for chunk in (golden_by_table()[0], ChunkByHand([]), ChunkByHand([Row(b"a")])):
            assert encoded_again(decode_head(chunk.head())) == chunk.head()

    def test_golden_bytes(self) -> None:
        """Changed? Then bump FORMAT_VERSION, keep reading version 1, and add golden bytes of the
        new one."""
        in_full = (GOLDEN / "chunk_v1.chunk").read_bytes()
        by_table = (GOLDEN / "chunk_v1_version_table.chunk").read_bytes()
        for golden, (chunk, payload) in ((in_full, golden_chunk()), (by_table, golden_by_table())):
            assert golden == chunk.head() + payload
            assert plain(decode_head(golden)) == golden_chunk()[0].rows
            assert encoded_again(decode_head(golden)) + payload == by_table

    def test_golden_bytes_of_links(self) -> None:
        """Changed? Then bump LINK_FORMAT_VERSION, keep reading version 2, and add golden bytes."""
        golden = (GOLDEN / "chunk_v2.chunk").read_bytes()
        chunk, payload = golden_links()
        assert golden == chunk.head() + payload
        assert plain(decode_head(golden)) == chunk.rows
        assert decode_preamble(golden).version == 2
        assert encoded_again(decode_head(golden)) + payload == golden

    def test_a_chunk_without_links_stays_in_version_1(self) -> None:
        """Releases that know no links read it. A reader takes it in either version."""
        chunk = replace(golden_by_table()[0], format_version=2)
        again = encoded_again(decode_head(chunk.head()))
        assert decode_preamble(again).version == 1
        assert plain(decode_head(again)) == chunk.rows

    def test_versions_by_table_take_six_bytes_an_entry(self) -> None:
        rows = [Row(b"%03d" % n, version=(5 + n % 3, bytes([n % 3]) * 16, n)) for n in range(300)]
        moved, fresh = (ChunkByHand(rows, has_versions=True), ChunkByHand(rows))
        written = encoded_again(decode_head(moved.head()))
        assert plain(decode_head(written)) == rows
        assert len(written) == len(fresh.head()) + 8 + 3 * 24 + 6 * 300

    def test_too_many_versions_for_a_table(self) -> None:
        rows = [
            Row(b"%d" % n, version=(1 + n, n.to_bytes(16, "big"), 0)) for n in range(MAX_ENTRIES)
        ]
        in_full = ChunkByHand(rows, has_versions=True).head()
        assert encoded_again(decode_head(in_full)) == in_full
        rows[0].version = rows[1].version
        assert len(encoded_again(decode_head(ChunkByHand(rows, has_versions=True).head()))) < len(
            in_full
        )

    def test_offsets_of_the_table(self) -> None:
        """Field by field where the document says it stands, in the golden chunk."""
        golden = (GOLDEN / "chunk_v1.chunk").read_bytes()
        n, b, m, h = 8, 2, 9, sum(len(row.path) for row in golden_chunk()[0].rows)
        header_bytes = 40 + 39 * n + 32 * n + 8 * b + m + h
        assert golden[:8] == b"DIESELCK"
        assert struct.unpack_from("<HHI", golden, 8) == (1, 0, header_bytes)
        assert golden[16:32] == bytes(range(16))
        header, payload = golden[64 : 64 + header_bytes], golden[64 + header_bytes :]
        assert struct.unpack_from("<QQ", golden, 32) == (len(payload), xxhash.xxh3_64_intdigest(header))  # fmt: skip
        assert golden[48:56] == bytes(8)
        assert golden[56:64] == xxhash.xxh3_64_digest(golden[:56])
        assert header[:16] == b"dataset id 16 by"
        assert struct.unpack_from("<IIIHHQ", header, 16) == (n, 1, b, m, 0, h)
        assert struct.unpack_from(f"<{n}Q", header, 40)[4] == 11
        assert struct.unpack_from(f"<{n}Q", header, 40 + 8 * n)[2] == 11
        assert struct.unpack_from(f"<{n}Q", header, 40 + 16 * n)[3] == 0x2D06800538D394C2
        assert struct.unpack_from(f"<{n}q", header, 40 + 24 * n)[0] == -1
        v = 40 + 32 * n
        assert struct.unpack_from("<Q16sII", header, v + 32 * 5) == (7, bytes(range(100, 116)), 3, 0)  # fmt: skip
        after = v + 32 * n + 8 * b
        assert struct.unpack_from("<I", header, after + 4)[0] == len(b"cats")
        assert struct.unpack_from("<H", header, after + 4 * n + 2 * 2)[0] == 0o104755
        assert list(header[after + 6 * n : after + 7 * n]) == [2, 2, 1, 1, 1, 3, 3, 1]
        assert header[after + 7 * n : after + 7 * n + m] == b"hand-made"
        assert header[after + 7 * n + m :].startswith(b"catscats/\xff\n.jpg")


components = st.one_of(
    st.binary(min_size=1, max_size=6),
    st.binary(min_size=255, max_size=255),
    st.sampled_from([b"a", b"b", b"...", "ü".encode(), b"\xff\xfe", b"\n"]),
).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_").replace(b".", b","))
paths = st.lists(components, min_size=1, max_size=4).map(b"/".join)
around_blocks = st.builds(
    lambda count, more: max(0, count * BLOCK_BYTES + more), st.integers(0, 4), st.integers(-1, 1)
)
lengths = st.one_of(st.integers(0, 5000), around_blocks)
u64 = st.integers(0, (1 << 64) - 1)
NEW_HERE = (0, bytes(16), 0)
versions = st.just(NEW_HERE) | st.tuples(
    st.integers(1, (1 << 64) - 1),
    st.binary(min_size=16, max_size=16),
    st.integers(0, (1 << 32) - 1),
)
times = st.integers(-(1 << 63), (1 << 63) - 1)
permissions = st.integers(0, 0o7777)


@st.composite
def rows(draw: st.DrawFn) -> list[Row]:
    found, at = [], 0
    for _ in range(draw(st.integers(0, 12))):
        kind = draw(st.sampled_from([KIND_FILE, KIND_DIRECTORY, KIND_TOMBSTONE]))
        path, version, mtime = draw(paths), draw(versions), draw(times)
        mode = draw(permissions) | (stat.S_IFDIR if kind == KIND_DIRECTORY else stat.S_IFREG)
        row = Row(path, kind, mode, mtime, 0, 0, 0, version)
        if kind == KIND_FILE:
            row.offset, row.length, row.hash = at, draw(lengths), draw(u64)
            if draw(st.booleans()):
                row.mode, row.length = 0o120777, draw(st.integers(1, 4095))
            at += row.length
        elif kind == KIND_DIRECTORY and draw(st.booleans()):
            row.path = b""
        elif kind == KIND_TOMBSTONE and draw(st.booleans()):
            row.mode = stat.S_IFDIR
        found.append(row)
    return found


class TestRoundTrip:
    @settings(max_examples=150)
    @given(rows(), st.booleans(), st.data())
    def test_whatever_is_legal(self, rows: list[Row], carried: bool, data: st.DataObject) -> None:
        blocks = [-(-row.length // BLOCK_BYTES) for row in rows if row.length > BLOCK_BYTES]
        hashes = data.draw(st.lists(u64, min_size=sum(blocks), max_size=sum(blocks)))
        column = None
        if carried:
            column = make_versions(len(rows))
            for at, row in enumerate(rows):
                column[at] = (*row.version, 0)
        else:
            for row in rows:
                row.version = NEW_HERE
        entries = Entries(
            [row.path for row in rows],
            np.array([row.kind for row in rows], np.uint8),
            np.array([row.mode for row in rows], np.uint16),
            np.array([row.mtime_ns for row in rows], np.int64),
            np.array([row.offset for row in rows], np.uint64),
            np.array([row.length for row in rows], np.uint64),
            np.array([row.hash for row in rows], np.uint64),
            np.array(hashes, np.uint64),
            column,
        )
        size = sum(row.length for row in rows)
        chunk_id, dataset = ChunkId(bytes(16)), DatasetRef("d", bytes(16))
        data_bytes = encode_head(chunk_id, dataset, size, entries)
        head = decode_head(data_bytes, chunk_id)
        assert plain(head) == rows
        assert head.entries.block_hash.tolist() == hashes
        table = list(dict.fromkeys(row.version[:2] for row in rows if row.version[0]))
        by_hand = ChunkByHand(
            rows,
            bytes(16),
            bytes(16),
            b"d",
            size,
            version_table=table if carried else None,
            block_hashes=hashes,
            format_version=2 if any(stat.S_ISLNK(row.mode) for row in rows) else 1,
        )
        assert by_hand.head() == data_bytes
        ranges = [head.entries.block_range(at) for at in range(len(rows))]
        assert [found.stop - found.start for found in ranges if found.stop > found.start] == blocks

    @pytest.mark.parametrize(
        ("length", "blocks"),
        [(0, 0), (1, 0), (262_143, 0), (262_144, 0), (262_145, 2), (524_288, 2), (524_289, 3),
         ((1 << 64) - 1, 1 << 46), ((1 << 64) - (1 << 18), (1 << 46) - 1)],
    )  # fmt: skip
    def test_blocks_of_a_file(self, length: int, blocks: int) -> None:
        assert block_counts(np.array([length], np.uint64)).tolist() == [blocks]

    def test_the_most_entries(self) -> None:
        chunk = ChunkByHand([Row(b"%d" % number) for number in range(1000)])
        assert len(decode_head(chunk.head()).entries) == 1000
        most = [Row(b"x")] * MAX_ENTRIES
        chunk.ends = list(range(1, MAX_ENTRIES + 1))
        chunk.rows = most
        assert len(decode_head(chunk.head()).entries) == MAX_ENTRIES
        chunk.rows, chunk.ends = [*most, Row(b"x")], list(range(1, MAX_ENTRIES + 2))
        with pytest.raises(Corrupt, match="65537 entries"):
            decode_head(chunk.head())


class TestDamage:
    def test_every_flipped_bit_is_found(self) -> None:
        whole = small_head()
        decode_head(whole)
        for at in range(len(whole)):
            for bit in range(8):
                damaged = bytearray(whole)
                damaged[at] ^= 1 << bit
                with pytest.raises(Corrupt):
                    decode_head(bytes(damaged))

    def test_every_truncation_is_found(self) -> None:
        whole = small_head()
        for length in range(len(whole)):
            with pytest.raises(Corrupt):
                decode_head(whole[:length])
            with pytest.raises(Corrupt):
                decode_head(memoryview(whole)[:length])
        assert decode_head(whole + b"payload and more").head_bytes == len(whole)

    def test_another_chunk(self) -> None:
        with pytest.raises(Corrupt, match="contains chunk"):
            decode_head(small_head(), ChunkId(bytes(16)))

    def test_another_kind_of_file(self) -> None:
        with pytest.raises(Corrupt, match="not a chunk"):
            decode_preamble(b"\x89PNG\r\n\x1a\n" + bytes(100))


def hostile(**fields: object) -> ChunkByHand:
    fields = {
        "rows": [Row(b"a", length=5), Row(b"b", offset=5, length=5)],
        "payload_bytes": 10,
    } | fields
    return ChunkByHand(**fields)  # type: ignore[arg-type]


def hostile_row(**fields: object) -> ChunkByHand:
    fields = {"path": b"a", "length": 5} | fields
    return hostile(rows=[Row(**fields)])  # type: ignore[arg-type]


def hostile_link(**fields: object) -> ChunkByHand:
    fields = {"path": b"a", "length": 5, "mode": 0o120777} | fields
    rows = [Row(**fields), Row(b"b")]  # type: ignore[arg-type]
    return ChunkByHand(rows, payload_bytes=8192, format_version=2)


HUGE = (1 << 64) - 1
HOSTILE: dict[str, Callable[[], ChunkByHand]] = {
    "another format": lambda: hostile(format_version=3),
    "format 0": lambda: hostile(format_version=0),
    "header over 64 MiB": lambda: hostile(header_bytes=(64 << 20) + 1),
    "header of 4 GiB": lambda: hostile(header_bytes=(1 << 32) - 1),
    "header longer than there is": lambda: hostile(header_bytes=10_000),
    "payload of 2^64": lambda: hostile(payload_bytes=HUGE),
    "payload over 2^48": lambda: hostile(payload_bytes=(1 << 48) + 1),
    "unknown flag": lambda: hostile(flags=4),
    "versions that are not there": lambda: hostile(flags=1),
    "versions that no flag tells of": lambda: hostile(has_versions=True, flags=0),
    "versions in full and by a table": lambda: hostile(has_versions=True, version_table=[]),
    "a table that no flag tells of": lambda: hostile(version_table=[(1, bytes(16))], flags=0),
    "a version beyond its table": lambda: hostile(
        version_table=[(1, bytes(16))], version_rows=[0, 2]
    ),
    "more entries than there are": lambda: hostile(count=3),
    "fewer entries than there are": lambda: hostile(count=1),
    "no entries": lambda: hostile(count=0),
    "2^32 entries": lambda: hostile(count=(1 << 32) - 1),
    "more blocks than there are": lambda: hostile(blocks=1),
    "2^32 blocks": lambda: hostile(blocks=(1 << 32) - 1),
    "a block hash too many": lambda: hostile(block_hashes=[1]),
    "block hashes missing": lambda: hostile(rows=[Row(b"a", length=1 << 20)], payload_bytes=1 << 20),
    "blocks that wrap round": lambda: hostile(rows=[Row(b"a", length=HUGE)], payload_bytes=HUGE),
    "blocks of 65,536 huge files": lambda: hostile(
        rows=[Row(b"a", length=1 << 48)] * 1024, payload_bytes=1 << 48
    ),
    "long name": lambda: hostile(name_bytes=65_535),
    "no name": lambda: hostile(name=b""),
    "name that is not UTF-8": lambda: hostile(name=b"\xff\xfe"),
    "name that climbs": lambda: hostile(name=b"../../etc"),
    "name with a newline": lambda: hostile(name=b"name\n"),
    "paths longer than told": lambda: hostile(heap_bytes=1),
    "paths shorter than told": lambda: hostile(heap_bytes=3),
    "paths of 2^64": lambda: hostile(heap_bytes=HUGE),
    "bytes after the paths": lambda: hostile(extra=b"x"),
    "ends out of order": lambda: hostile(rows=[Row(b"aa")] * 3, ends=[4, 2, 6]),
    "an end beyond the paths": lambda: hostile(ends=[1, 3]),
    "ends that stop early": lambda: hostile(ends=[0, 1]),
    "a middle end beyond the paths": lambda: hostile(ends=[9, 2]),
    "kind 0": lambda: hostile_row(kind=0),
    "kind 4": lambda: hostile_row(kind=4),
    "kind 255": lambda: hostile_row(kind=255),
    "a file reaching beyond": lambda: hostile_row(offset=6),
    "a file longer than the payload": lambda: hostile_row(length=11),
    "an offset that wraps round": lambda: hostile_row(offset=HUGE),
    "a length that wraps round": lambda: hostile_row(offset=5, length=HUGE),
    "an offset beyond": lambda: hostile_row(offset=11, length=0),
    "a directory with content": lambda: hostile_row(kind=DIRECTORY, mode=DIR_MODE, hash=0),
    "a directory with an offset": lambda: hostile(rows=[directory(b"d", offset=1)]),
    "a directory with a hash": lambda: hostile_row(kind=DIRECTORY, mode=DIR_MODE, length=0, hash=1),
    "a deletion with content": lambda: hostile_row(kind=DELETION, hash=0),
    "a file that is a directory": lambda: hostile_row(mode=DIR_MODE),
    "a directory that is a file": lambda: hostile_row(kind=DIRECTORY, length=0, hash=0),
    "a device": lambda: hostile_row(mode=0o020666),
    "a symbolic link in version 1": lambda: hostile_row(mode=0o120777),
    "a link of no bytes": lambda: hostile_link(length=0),
    "a link of 4,096 bytes": lambda: hostile_link(length=4096),
    "a link of 2^64 bytes": lambda: hostile_link(length=HUGE),
    "a link that reaches beyond": lambda: hostile_link(offset=8191, length=2),
    "a directory that is a link": lambda: hostile_link(kind=DIRECTORY, length=0, hash=0),
    "a deleted link": lambda: hostile_link(kind=DELETION, length=0, hash=0),
    "a link without a name": lambda: hostile_link(path=b""),
    "a device beside a link": lambda: hostile_link(mode=0o020666),
    "a mode without a type": lambda: hostile_row(mode=0o644),
    "a deleted device": lambda: hostile_row(kind=DELETION, mode=0o060600, length=0, hash=0),
    "a file without a name": lambda: hostile_row(path=b""),
    "a deleted root": lambda: hostile_row(path=b"", kind=DELETION, length=0, hash=0),
    "a path of 4,096 bytes": lambda: hostile_row(path=b"x" * 255 + (b"/" + b"x" * 255) * 15 + b"/"),
} | {
    f"path {path[:20]!r}": lambda path=path: hostile_row(path=path)  # type: ignore[misc]
    for path in [b"..", b".", b"a/../b", b"/a", b"a/", b"a//b", b"a\0b", b"\0", b"x" * 256]
}  # fmt: skip


class TestHostile:
    """Every checksum is right, and the content is not."""

    def test_the_harmless_one_is_read(self) -> None:
        assert len(decode_head(hostile().head()).entries) == 2
        assert len(decode_head(hostile_link().head()).entries) == 2

    @pytest.mark.parametrize("what", HOSTILE)
    def test_is_corrupt(self, what: str) -> None:
        data = HOSTILE[what]().head()
        with pytest.raises(Corrupt):
            decode_head(data)

    def test_overlapping_paths_do_not_fill_the_memory(self) -> None:
        """60,000 paths of 4 MB each, by ends that go back and forth, would be 240 GB."""
        count, heap = 60_000, 4 << 20
        chunk = ChunkByHand([Row(b"")] * count, ends=[heap - 1, 0] * (count // 2 - 1) + [1, heap])
        chunk.extra, chunk.heap_bytes = b"x" * heap, heap
        data = chunk.head()
        tracemalloc.start()
        try:
            with pytest.raises(Corrupt, match="out of order"):
                decode_head(data)
            assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
        finally:
            tracemalloc.stop()

    def test_a_huge_promise_allocates_nothing(self) -> None:
        data = [hostile(**{field: (1 << 32) - 1}).head() for field in ("count", "blocks")]
        data += [hostile(header_bytes=64 << 20).head(), hostile(heap_bytes=HUGE).head()]
        tracemalloc.start()
        try:
            for head in data:
                with pytest.raises(Corrupt):
                    decode_head(head)
            assert tracemalloc.get_traced_memory()[1] < 1 << 20
        finally:
            tracemalloc.stop()

    @pytest.mark.parametrize("seed", range(4))
    def test_random_changes_with_right_checksums(self, seed: int) -> None:
        """Either read in full or Corrupt; and what is read keeps every promise that the columns
        make."""
        draw = random.Random(seed)
        originals = [
            golden_chunk()[0],
            golden_links()[0],
            hostile(),
            ChunkByHand([Row(b"d/%d" % n) for n in range(9)]),
        ]
        read = 0
        for _ in range(4000):
            chunk = draw.choice(originals)
            header = bytearray(chunk.header())
            for _ in range(draw.choice([1, 1, 2, 8])):
                at = draw.randrange(len(header) if draw.random() < 0.5 else 40)
                match draw.randrange(4):
                    case 0:
                        header[at] ^= 1 << draw.randrange(8)
                    case 1:
                        header[at] = draw.choice([0, 1, 0x2E, 0x2F, 0x7F, 0xFF])
                    case 2:
                        header[at : at + 8] = draw.choice([bytes(8), b"\xff" * 8])
                    case 3:
                        del header[at : at + draw.randrange(1, 9)]
            try:
                head = decode_head(
                    with_preamble(
                        bytes(header),
                        bytes(16),
                        chunk.payload_bytes,
                        format_version=chunk.format_version,
                    )
                )
            except Corrupt:
                continue
            read += 1
            entries = head.entries
            ends = entries.offset.astype(object) + entries.length.astype(object)
            assert all(end <= head.payload_bytes for end in ends)
            lengths_of_links = entries.length[are_links(entries.mode)].tolist()
            assert all(1 <= length <= 4095 for length in lengths_of_links)
            assert len(entries.paths) == len(entries.kind) == len(entries.mode)
            assert entries.block_range(len(entries) - 1).stop == len(entries.block_hash)
        assert read > 100
