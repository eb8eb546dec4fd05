"""Files of one key: which they are, that they come together, and that one chunk has them all."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chunkstore.chunk_format import KIND_FILE, MAX_ENTRIES
from chunkstore.chunk_writer import hash_blocks
from chunkstore.keep_together import KEYS, gathered, sample_key, split_sample, whole_parts
from tests.chunkstore.packed import Packed

TARGET = 4096


@pytest.mark.parametrize(
    ("path", "key", "extension"),
    [
        (b"cat/0001.jpg", b"cat/0001", b"jpg"),
        (b"cat/0001.seg.png", b"cat/0001", b"seg.png"),
        (b"v1.2/0001.jpg", b"v1.2/0001", b"jpg"),
        (b"cat/README", b"cat/README", b""),
        (b"cat/._0001.jpg", b"cat/._0001", b"jpg"),
        (b".hidden", b".hidden", b""),
        (b"a..b", b"a", b".b"),
        (b"", b"", b""),
    ],
)
def test_the_key_of_a_sample(path: bytes, key: bytes, extension: bytes) -> None:
    assert split_sample(path) == (key, extension)


paths = st.lists(st.text("ab.", min_size=1, max_size=4).map(str.encode), unique=True)


@given(paths)
def test_gathering_keeps_the_order_of_the_first(found: list[bytes]) -> None:
    result = gathered(found, sample_key)
    assert sorted(result) == sorted(found)
    firsts = list(dict.fromkeys(map(sample_key, found)))
    keys = [sample_key(path) for path in result]
    assert keys == [key for key in firsts for _ in range(keys.count(key))]


@given(paths, st.integers(1, 4))
def test_no_part_ends_within_a_sample(found: list[bytes], at_least: int) -> None:
    together = gathered(found, sample_key)
    parts = list(whole_parts(together, at_least, 1000, sample_key))
    assert [path for part in parts for path in part] == together
    assert all(len(part) >= at_least for part in parts[:-1])
    for before, after in pairwise(parts):
        assert sample_key(before[-1]) != sample_key(after[0])


def test_parts_have_a_bound() -> None:
    together = [b"a.%d" % number for number in range(10)]
    assert [len(part) for part in whole_parts(together, 2, 4, sample_key)] == [4, 4, 2]
    assert [len(part) for part in whole_parts(together, 4, 4, None)] == [4, 4, 2]
    assert list(whole_parts([], 4, 4, sample_key)) == [[]]


def chunk_of_files(packed: Packed) -> dict[bytes, int]:
    return {
        path: number
        for number, head in enumerate(packed.heads())
        for path, kind in zip(head.entries.paths, head.entries.kind.tolist(), strict=True)
        if kind == KIND_FILE
    }


sample_sizes = st.lists(
    st.lists(st.integers(0, TARGET - 1) | st.integers(0, 300), min_size=1, max_size=5), max_size=60
)


class TestChunks:
    @settings(max_examples=200)
    @given(sample_sizes, st.sampled_from([1, 4, 32]))
    def test_a_sample_is_whole_in_one_chunk(
        self, samples: list[list[int]], open_chunks: int
    ) -> None:
        packed, wanted = Packed(), {}
        writer = packed.writer(target_bytes=TARGET, open_chunks=open_chunks, keep_together="sample")
        for sample, sizes in enumerate(samples):
            writer.add_directory(b"d%d" % sample, 0o755, 0)
            for part, size in enumerate(sizes):
                path = b"d%d/s.%d" % (sample, part)
                wanted[path] = random.Random(size).randbytes(size)
                writer.add_file(path, wanted[path], 0o644, 0)
        writer.flush()
        assert packed.files() == wanted
        assert writer.pending_bytes == 0
        where = chunk_of_files(packed)
        for sample, sizes in enumerate(samples):
            chunks = {where[b"d%d/s.%d" % (sample, part)] for part in range(len(sizes))}
            assert len(chunks) == 1 or sum(sizes) > 2 * TARGET
        for number, chunk in enumerate(packed.chunks):
            keys = {sample_key(path) for path, at in where.items() if at == number}
            most = TARGET if len(keys) > 1 else 2 * TARGET
            assert chunk.ref.payload_bytes <= most

    @pytest.mark.parametrize("open_chunks", [1, 32])
    def test_chunks_are_about_as_full_as_without(self, open_chunks: int) -> None:
        """Pairs of 200 to 600 bytes in chunks of 4 KiB: no open chunk is sealed half empty."""
        draw = random.Random(1)
        counts = []
        for kept in ("none", "sample"):
            packed = Packed()
            writer = packed.writer(target_bytes=TARGET, open_chunks=open_chunks, keep_together=kept)
            for number in range(2000):
                for part in (b"jpg", b"json"):
                    writer.add_file(b"%d.%b" % (number, part), bytes(draw.randrange(300)), 0, 0)
            writer.flush()
            counts.append(len(packed.chunks))
        assert counts[1] <= 1.1 * counts[0]

    def test_scatter_deals_whole_samples(self) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=8, keep_together="sample")
        for number in range(400):
            for part in (b"jpg", b"json"):
                writer.add_file(b"%03d.%b" % (number, part), bytes(100), 0, 0)
        writer.flush()
        spans = [[int(path[:3]) for path in head.entries.paths] for head in packed.heads()[:8]]
        assert all(max(span) - min(span) > 60 for span in spans)

    @pytest.mark.parametrize("count", [500, MAX_ENTRIES + 10])
    def test_a_directory_larger_than_a_chunk_is_cut(self, count: int) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=4, keep_together="directory")
        size = 100 if count < 1000 else 0
        for number in range(count):
            writer.add_file(b"d/%d" % number, bytes(size), 0, 0)
        writer.flush()
        assert len(packed.files()) == count
        assert max(chunk.ref.payload_bytes for chunk in packed.chunks) <= 2 * TARGET
        assert len(packed.chunks) <= max(2, -(-count * size // TARGET) + 1)

    def test_a_large_part_has_a_chunk_of_its_own_and_the_others_stay_together(self) -> None:
        packed = Packed()
        writer = packed.writer(target_bytes=TARGET, open_chunks=4, keep_together="sample")
        for part, size in ((b"cls", 1), (b"mp4", 5 * TARGET), (b"txt", 9)):
            writer.add_file(b"a.%b" % part, bytes(size), 0, 0)
        writer.flush()
        assert [head.entries.paths for head in packed.heads()] == [[b"a.mp4"], [b"a.cls", b"a.txt"]]

    @settings(max_examples=200)
    @given(
        st.lists(
            st.tuples(st.integers(0, 7), st.integers(0, 5000), st.sampled_from("ffffsdtF")),
            max_size=60,
        ),
        st.sampled_from([1, 4]),
        st.sampled_from(["sample", "directory"]),
    )
    @example([(5, 2, "f"), (4, 4095, "f"), (5, 1, "f"), (4, 4095, "f")], 1, "sample")
    def test_a_path_put_twice_takes_the_later_content(
        self, puts: list[tuple[int, int, str]], open_chunks: int, kept: str
    ) -> None:
        packed, wanted = Packed(), {}
        writer = packed.writer(target_bytes=4096, open_chunks=open_chunks, keep_together=kept)
        for number, (name, size, how) in enumerate(puts):
            path, data = b"%d/%d.%d" % (name // 4, name // 2, name), bytes([number]) * size
            if how == "F":
                writer.flush()
            elif how == "d":
                writer.add_directory(b"%d" % (name // 4), 0o755, number)
            elif how == "t" and 0 < size < 4096:
                wanted[path] = data
                writer.add_link(path, data[:4095], 0)
            elif how == "s":
                wanted[path] = data
                writer.add_stream(path, size, hash_blocks(data), [data], 0o644, 0)
                assert not writer.is_pending(path)
            else:
                wanted[path] = data
                writer.add_file(path, data, 0o644, 0)
                assert writer.is_pending(path) == (size < 4096)
        writer.flush()
        assert packed.files() == wanted
        ids = [chunk.ref.id for chunk in packed.chunks]
        assert ids == sorted(set(ids))
        assert writer.pending_bytes == 0


def test_every_choice_has_a_key() -> None:
    assert {kept: key is None for kept, key in KEYS.items()} == {
        "none": True,
        "sample": False,
        "directory": False,
    }
