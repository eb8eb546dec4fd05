from __future__ import annotations

import random
import stat
from collections import Counter
from collections.abc import Iterator

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
    MAX_HEADER_BYTES,
)
from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_reader import verify_files
from chunkstore.chunk_writer import ChunkWriter, SealedChunk, Version, hash_blocks, hash_stream
from chunkstore.errors import InvalidPath, StoreFull
from tests.chunkstore.packed import DATASET, Packed, fewest

TARGET = 64 << 10


def content(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def pack_sizes(sizes: list[int], **options: int) -> Packed:
    packed = Packed()
    writer = packed.writer(**options)
    for number, size in enumerate(sizes):
        writer.add_file(b"f%d" % number, bytes(size), 0o644, number)
    writer.flush()
    return packed


class TestSizes:
    @pytest.mark.parametrize("open_chunks", [1, 4, 64])
    def test_the_target_is_kept(self, open_chunks: int) -> None:
        draw = random.Random(1)
        sizes = [draw.randrange(0, 9000) for _ in range(4000)]
        packed = pack_sizes(sizes, target_bytes=TARGET, open_chunks=open_chunks)
        filled = [chunk.ref.payload_bytes for chunk in packed.chunks]
        assert max(filled) <= TARGET
        assert sum(filled) == sum(sizes)
        assert sum(chunk.file_count for chunk in packed.chunks) == len(sizes)
        # A chunk is closed by a file that does not fit, so it is full but for less than one file.
        assert sum(size < TARGET - 9000 for size in filled) <= 1
        assert len(filled) <= fewest(sum(sizes), TARGET - 4500) + 2

    @pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.6, 0.9, 1.5])
    def test_a_small_dataset_does_not_end_in_many_small_chunks(self, share: float) -> None:
        """64 open chunks, none of which was filled: as few come out as the bytes need."""
        sizes = [1000] * int(share * 64 * TARGET / 1000)
        packed = pack_sizes(sizes, target_bytes=TARGET, open_chunks=64)
        needed = fewest(sum(sizes), TARGET)
        assert needed <= len(packed.chunks) <= needed * 1.05 + 1

    @pytest.mark.parametrize("size", [TARGET, TARGET + 1, 5 * TARGET])
    def test_a_large_file_is_alone_in_its_chunk(self, size: int) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=1)
        writer.add_file(b"before", b"x", 0o644, 0)
        writer.add_file(b"large", content(1, size), 0o644, 0)
        assert [head.entries.paths for head in packed.heads()] == [[b"large"]]
        writer.add_file(b"after", b"y", 0o644, 0)
        writer.flush()
        assert [head.entries.paths for head in packed.heads()] == [
            [b"large"],
            [b"before", b"after"],
        ]
        assert packed.files()[b"large"] == content(1, size)

    def test_one_byte_below_the_target_is_packed_with_others(self) -> None:
        packed = pack_sizes([TARGET - 1, 1, 1], target_bytes=TARGET, open_chunks=1)
        assert [chunk.file_count for chunk in packed.chunks] == [2, 1]

    def test_nothing_comes_of_nothing(self) -> None:
        packed = pack_sizes([])
        assert packed.chunks == []

    def test_the_most_entries(self) -> None:
        packed = Packed()
        writer = packed.writer(open_chunks=1)
        for number in range(MAX_ENTRIES + 10):
            writer.add_file(b"%d" % number, b"", 0o644, 0)
        writer.flush()
        assert [len(head.entries) for head in packed.heads()] == [MAX_ENTRIES, 10]

    def test_the_most_entries_of_several_open_chunks(self) -> None:
        packed = Packed()
        writer = packed.writer(open_chunks=2)
        for number in range(MAX_ENTRIES + 10):
            writer.add_directory(b"%d" % number, 0o755, 0)
        writer.flush()
        assert [len(head.entries) for head in packed.heads()] == [MAX_ENTRIES, 10]

    def test_long_paths_do_not_break_the_header(self) -> None:
        """Empty files with paths of 4,095 bytes: 65,536 of them would need a header of 268 MB."""
        packed = Packed()
        writer = packed.writer(open_chunks=2)
        stem = b"/".join([b"x" * 255] * 15)
        for number in range(3000):
            writer.add_file(b"%s/%0255d" % (stem, number), b"", 0o644, 0)
        writer.flush()
        assert sum(len(head.entries) for head in packed.heads()) == 3000
        assert max(head.head_bytes for head in packed.heads()) < MAX_HEADER_BYTES / 8
        assert len(packed.chunks) == 3

    @pytest.mark.parametrize(
        "options", [{"open_chunks": 3}, {"open_chunks": 0}, {"target_bytes": 1}]
    )
    def test_options_out_of_bounds(self, options: dict[str, int]) -> None:
        with pytest.raises(ValueError):
            Packed().writer(**options)

    def test_memory_is_bounded_by_the_open_chunks(self) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=8)
        most = 0
        for number in range(5000):
            writer.add_file(b"%d" % number, bytes(1000), 0o644, 0)
            most = max(most, writer.pending_bytes)
        assert most <= 8 * TARGET
        written = sum(chunk.ref.payload_bytes for chunk in packed.chunks)
        assert written + writer.pending_bytes == 5_000_000


class TestContent:
    def test_all_that_was_put(self) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=1 << 20, open_chunks=2)
        sizes = [
            0,
            1,
            BLOCK_BYTES - 1,
            BLOCK_BYTES,
            BLOCK_BYTES + 1,
            3 * BLOCK_BYTES,
            4096,
            1 << 20,
        ]
        wanted = {b"d/f%d" % number: content(number, size) for number, size in enumerate(sizes)}
        for number, (path, data) in enumerate(wanted.items()):
            writer.add_file(path, data, 0o640 + number, -number)
        writer.add_directory(b"", 0o1777, 5)
        writer.add_directory(b"d", 0o700, 6)
        writer.flush()
        assert packed.files() == wanted
        for chunk, head in zip(packed.chunks, packed.heads(), strict=True):
            verify_files(memoryview(b"".join(chunk.payload)), head.entries, head.chunk_id)
            assert head.dataset == DATASET
            entries = head.entries
            for at, path in enumerate(entries.paths):
                blocks = entries.block_hash[entries.block_range(at)].tolist()
                if path in wanted:
                    number = int(path[3:])
                    assert entries.mode[at] == stat.S_IFREG | (0o640 + number)
                    assert entries.mtime_ns[at] == -number
                    assert blocks == hash_blocks(wanted[path]).blocks
                else:
                    assert (entries.kind[at], blocks) == (KIND_DIRECTORY, [])
                    assert entries.mode[at] == stat.S_IFDIR | (0o1777 if path == b"" else 0o700)

    def test_deletions_carry_what_they_saw(self) -> None:
        """Also those that a flush moves to another place in another chunk."""
        packed = Packed()
        writer = packed.writer(target_bytes=4096, open_chunks=4)
        for number in range(50):
            writer.add_file(b"f%d" % number, bytes(100), 0o644, 0)
            seen = Version(number + 1, bytes([number]) * 16, number)
            writer.add_tombstone(
                b"g%d" % number, stat.S_IFREG if number & 1 else stat.S_IFDIR, 0, seen
            )
        writer.flush()
        found = {}
        for head in packed.heads():
            entries = head.entries
            assert entries.versions is not None
            for at, path in enumerate(entries.paths):
                version = tuple(entries.versions[at].tolist())
                if entries.kind[at] == KIND_FILE:
                    assert version == (0, bytes(16), 0, 0)
                else:
                    assert entries.kind[at] == KIND_TOMBSTONE
                    found[path] = version
        assert found == {b"g%d" % n: (n + 1, bytes([n]) * 16, n, 0) for n in range(50)}

    @settings(max_examples=100)
    @given(
        st.lists(
            st.tuples(st.integers(0, 7), st.integers(0, 5000), st.sampled_from("ffffsdF")),
            max_size=60,
        ),
        st.sampled_from([1, 4]),
    )
    def test_a_path_put_twice_takes_the_later_content(
        self, puts: list[tuple[int, int, str]], open_chunks: int
    ) -> None:
        """In one open chunk, across sealed ones, as a stream, and across flushes."""
        packed, wanted = Packed(), {}
        writer = packed.writer(target_bytes=4096, open_chunks=open_chunks)
        for number, (name, size, how) in enumerate(puts):
            path, data = b"f%d" % name, content(number, size)
            if how == "F":
                writer.flush()
            elif how == "d":
                writer.add_directory(b"d%d" % name, 0o755, number)
            else:
                wanted[path] = data
                if how == "s":
                    writer.add_stream(path, size, hash_blocks(data), [data], 0o644, 0)
                    assert not writer.is_pending(path)
                else:
                    writer.add_file(path, data, 0o644, 0)
                    assert writer.is_pending(path) == (size < 4096)
        writer.flush()
        assert packed.files() == wanted
        ids = [chunk.ref.id for chunk in packed.chunks]
        assert ids == sorted(set(ids))
        assert writer.pending_bytes == 0

    def test_a_stream_is_read_when_it_is_stored(self) -> None:
        read = []

        class Source:
            def __iter__(self) -> Iterator[bytes]:
                read.append("now")
                yield b"x" * TARGET

        packed = Packed()
        hashes = hash_blocks(b"x" * TARGET)
        packed.writer(target_bytes=TARGET).add_stream(b"f", TARGET, hashes, Source(), 0o644, 0)
        assert not read
        assert packed.files() == {b"f": b"x" * TARGET}

    @pytest.mark.parametrize("size", [0, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES, 1_000_000])
    def test_hashing_in_pieces(self, size: int) -> None:
        data = content(size, size)
        pieces = [data[at : at + 2 * BLOCK_BYTES] for at in range(0, size, 2 * BLOCK_BYTES)]
        hashes = hash_stream(pieces, size)
        assert hashes == hash_blocks(data)
        assert hashes.whole == xxhash.xxh3_64_intdigest(data)
        assert len(hashes.blocks) == (-(-size // BLOCK_BYTES) if size > BLOCK_BYTES else 0)


CLASSES = 100


def pack_classes(seed: int, open_chunks: int = 64) -> Packed:
    """Files in directory order, as `put` reads them: one class after the other."""
    packed = Packed()
    writer = packed.writer(target_bytes=TARGET, open_chunks=open_chunks, seed=seed)
    for number in range(20_000):
        writer.add_file(b"%02d/%05d" % (number // 200, number), bytes(1000), 0o644, 0)
    writer.flush()
    return packed


def layout(packed: Packed) -> list[list[bytes]]:
    return [list(head.entries.paths) for head in packed.heads()]


class TestScatter:
    def test_the_seed_decides(self) -> None:
        assert layout(pack_classes(1)) == layout(pack_classes(1))
        assert layout(pack_classes(1)) != layout(pack_classes(2))

    def test_a_chunk_samples_a_wide_span_of_classes(self) -> None:
        """Design §4: "drop each file into one of K open chunks chosen by a seeded generator, so
        that a chunk samples a wide span of classes". In directory order a chunk of 65 files holds
        one or two of the 100 classes."""
        spans = []
        for paths in layout(pack_classes(1)):
            classes = Counter(int(path[:2]) for path in paths)
            if len(paths) > 60:
                spans.append(len(classes))
        # 64 open chunks of 65 files each: about 4,000 files, 20 classes, pass while a chunk fills.
        assert len(spans) > 290
        assert sum(spans) / len(spans) > 15
        assert min(spans) >= 10

    def test_one_open_chunk_keeps_the_order(self) -> None:
        paths = [path for chunk in layout(pack_classes(1, open_chunks=1)) for path in chunk]
        assert paths == sorted(paths)

    def test_a_dataset_smaller_than_the_open_chunks_is_mixed_too(self) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=64)
        for number in range(2000):
            writer.add_file(b"%02d/%05d" % (number // 20, number), bytes(1000), 0o644, 0)
        writer.flush()
        for paths in layout(packed)[:-1]:
            assert len({path[:2] for path in paths}) > 30


def test_ids_grow_in_the_order_of_emission() -> None:
    chunks: list[bytes] = []
    ids = ChunkIdGenerator(lambda: 1000, bytes(6))
    writer = ChunkWriter(DATASET, ids, lambda c: chunks.append(c.ref.id.value), target_bytes=4096)
    for number in range(3000):
        writer.add_file(b"%d" % number, bytes(500), 0o644, 0)
    writer.flush()
    assert chunks == sorted(set(chunks))


class TestWhatCannotBeStored:
    def test_a_chunk_that_cannot_be_encoded_is_not_passed_over(self) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=1)
        writer.add_file(b"a", bytes(TARGET - 1), 0o644, 1 << 70)
        for _ in range(2):
            with pytest.raises(OverflowError):
                writer.add_file(b"b", bytes(TARGET - 1), 0o644, 0)
        for _ in range(2):
            with pytest.raises(OverflowError):
                writer.flush()
        assert packed.chunks == []

    @pytest.mark.parametrize("path", [b"../x", b"/x", b"a//b", b"", b"a\0b", b"x" * 256])
    def test_illegal_paths_are_refused(self, path: bytes) -> None:
        """A chunk with one could be stored, but no reader would take it."""
        packed = Packed()
        writer = packed.writer()
        writer.add_directory(b"", 0o755, 0)
        writer.add_file(b"legal", b"x", 0o644, 0)
        writer.add_file(path, b"x", 0o644, 0)
        with pytest.raises(InvalidPath):
            writer.flush()
        with pytest.raises(InvalidPath):
            writer.add_stream(path, 1, hash_blocks(b"x"), [b"x"], 0o644, 0)
        assert packed.chunks == []

    def test_a_flush_that_failed_emits_nothing_twice(self) -> None:
        emitted: list[SealedChunk] = []

        def emit(chunk: SealedChunk) -> None:
            emitted.append(chunk)
            if len(emitted) == 1:
                raise StoreFull("no space left")

        writer = ChunkWriter(DATASET, ChunkIdGenerator(), emit, target_bytes=TARGET, open_chunks=4)
        for number in range(20):
            writer.add_file(b"%d" % number, bytes(TARGET // 10), 0o644, 0)
        with pytest.raises(StoreFull):
            writer.flush()
        writer.flush()
        assert sum(chunk.file_count for chunk in emitted) == 20


class TestCarried:
    def test_versions_stay_with_their_entries_wherever_they_come_to_lie(self) -> None:
        """Also when chunks are merged at a flush, and when a file is as large as a chunk."""
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=4)
        wanted = {}
        for number in range(200):
            path = b"d/%d" % number
            version = Version(number + 1, bytes([number]) * 16, number)
            if number % 10 == 1:
                writer.add_directory(path, 0o750, number, version)
            elif number % 10 == 2:
                writer.add_file(path, content(number, 50), 0o644, number)
                version = Version(0, bytes(16), 0)
            else:
                data = content(number, 300_000 if number % 50 == 0 else 900)
                writer.add_file(path, data, 0o640, number, hash_blocks(data), version)
            wanted[path] = version
        writer.flush()
        found = {}
        for head, payload in zip(packed.heads(), packed.payloads(), strict=True):
            entries = head.entries
            verify_files(memoryview(payload), entries, head.chunk_id)
            assert entries.versions is not None
            for path, row in zip(entries.paths, entries.versions, strict=True):
                found[path] = Version(
                    int(row["generation"]), bytes(row["chunk"]), int(row["position"])
                )
        assert found == wanted
