from __future__ import annotations

import pickle
import random
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

from chunkstore.chunk_damage import DAMAGED_S
from chunkstore.chunk_format import BLOCK_BYTES, PREAMBLE_BYTES, DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import HEAD_GUESS_BYTES, ChunkReader, FileColumns
from chunkstore.chunk_source import ChunkRef, FileExtent
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import chunk_key
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.resilient import ResilientStore
from tests.chunkstore.packed import DATASET, CountingStore, Packed
from tests.eventually import PATIENCE_S

LARGE = 3 * BLOCK_BYTES + 1000
FILES = {
    b"empty": b"",
    b"small": b"some bytes",
    b"large": random.Random(1).randbytes(LARGE),
    b"block": random.Random(2).randbytes(BLOCK_BYTES),
    b"another": random.Random(3).randbytes(5000),
}


def pack(files: dict[bytes, bytes], target_bytes: int = 4 << 20) -> Packed:
    packed = Packed()
    writer = packed.writer(target_bytes=target_bytes, open_chunks=1)
    for path, data in files.items():
        writer.add_file(path, data, 0o644, 0)
    writer.flush()
    return packed


@pytest.fixture(scope="module")
def packed() -> Packed:
    return pack(FILES)


@pytest.fixture
def store(packed: Packed) -> CountingStore:
    store = CountingStore(MemoryObjectStore())
    packed.store_in(store)
    store.calls.clear()
    return store


@pytest.fixture
def reader(store: CountingStore) -> ChunkReader:
    return ChunkReader(store, DATASET)


class InChunk:
    """The files of the first chunk, as a dataset's metadata has them."""

    def __init__(self, packed: Packed) -> None:
        entries = packed.heads()[0].entries
        self._files = FileColumns(entries.offset, entries.length, entries.hash)

    def of(self, chunk: ChunkId) -> FileColumns:
        return self._files


def key_of(packed: Packed) -> str:
    return chunk_key(DATASET.name, packed.chunks[0].ref.id)


def change(store: CountingStore, packed: Packed, content: bytes) -> None:
    store.delete(key_of(packed))
    store.create(key_of(packed), [content])
    store.calls.clear()


def test_a_head_by_one_ranged_read(
    reader: ChunkReader, store: CountingStore, packed: Packed
) -> None:
    ref = packed.chunks[0].ref
    for head in (reader.head(ref.id), reader.head(ref.id, ref.head_bytes)):
        assert head.entries.paths == list(FILES)
        assert (head.head_bytes, head.payload_bytes) == (ref.head_bytes, ref.payload_bytes)
    assert store.calls == ["get_range"] * 2


def test_a_head_longer_than_the_guess() -> None:
    packed = pack({b"%0200d" % number: b"" for number in range(1000)})
    store = CountingStore(MemoryObjectStore())
    packed.store_in(store)
    store.calls.clear()
    ref = packed.chunks[0].ref
    assert ref.head_bytes > HEAD_GUESS_BYTES
    reader = ChunkReader(store, DATASET)
    assert len(reader.head(ref.id).entries) == 1000
    assert store.calls == ["get_range"] * 2
    assert len(reader.head(ref.id, ref.head_bytes).entries) == 1000
    assert store.calls == ["get_range"] * 3


def test_a_whole_payload_by_one_get(
    reader: ChunkReader, store: CountingStore, packed: Packed
) -> None:
    assert bytes(reader.payload(packed.chunks[0].ref)) == b"".join(FILES.values())
    assert store.calls == ["get"]


def test_a_small_file_by_one_range(
    reader: ChunkReader, store: CountingStore, packed: Packed
) -> None:
    for path in (b"small", b"block", b"another"):
        store.calls.clear()
        file = packed.extents()[path]
        assert bytes(reader.read(file, 0, file.length)) == FILES[path]
        assert bytes(reader.read(file, 3, 5)) == FILES[path][3:8]
        assert store.calls == ["get_range"] * 2
    assert bytes(reader.read(packed.extents()[b"empty"], 0, 0)) == b""


EDGES = sorted(
    {
        at
        for block in range(5)
        for at in range(block * BLOCK_BYTES - 1, block * BLOCK_BYTES + 2)
        if 0 <= at <= LARGE
    }
    | {LARGE - 1, LARGE}
)


def test_ranges_of_a_large_file_at_all_boundaries(reader: ChunkReader, packed: Packed) -> None:
    file, data = packed.extents()[b"large"], FILES[b"large"]
    for start in EDGES:
        for end in EDGES:
            if start <= end:
                assert reader.read(file, start, end - start) == data[start:end]


def test_a_range_reads_only_the_blocks_it_touches(packed: Packed) -> None:
    asked: list[tuple[int, int]] = []

    class Store(CountingStore):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            asked.append((offset - ref.head_bytes - file.offset, length))
            return super().get_range(key, offset, length)

    store, ref, file = Store(MemoryObjectStore()), packed.chunks[0].ref, packed.extents()[b"large"]
    packed.store_in(store)
    reader = ChunkReader(store, DATASET)
    reader.read(file, BLOCK_BYTES + 5, 10)
    reader.read(file, 3 * BLOCK_BYTES - 1, 2)
    assert asked[1:] == [(BLOCK_BYTES, BLOCK_BYTES), (2 * BLOCK_BYTES, BLOCK_BYTES + 1000)]


def test_the_block_hashes_of_a_chunk_are_read_once() -> None:
    draw = random.Random(9)
    files = {b"%d" % number: draw.randbytes(2 * BLOCK_BYTES + number) for number in range(3)}
    packed = pack(files)
    store = CountingStore(MemoryObjectStore())
    packed.store_in(store)
    store.calls.clear()
    reader, extents = ChunkReader(store, DATASET), packed.extents()
    for path, data in files.items():
        assert reader.read(extents[path], BLOCK_BYTES, 10) == data[BLOCK_BYTES : BLOCK_BYTES + 10]
        hashes = [
            xxhash.xxh3_64_intdigest(data[at : at + BLOCK_BYTES])
            for at in range(0, len(data), BLOCK_BYTES)
        ]
        assert reader.block_hashes(extents[path]).tolist() == hashes
    assert len(store.calls) == 1 + len(files)
    with pytest.raises(Corrupt):
        reader.block_hashes(replace(extents[b"1"], hash=1))


def test_kept_block_hashes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chunkstore.chunk_reader._KEPT_HEADS", 2)
    files = {
        b"%d" % number: random.Random(number).randbytes(BLOCK_BYTES + 1) for number in range(4)
    }
    packed = pack(files, target_bytes=4096)
    store = CountingStore(MemoryObjectStore())
    packed.store_in(store)
    reader, extents = ChunkReader(store, DATASET), packed.extents()
    for path in (b"0", b"1", b"2", b"3"):
        reader.block_hashes(extents[path])
    store.calls.clear()
    reader.block_hashes(extents[b"3"])
    assert store.calls == []
    reader.block_hashes(extents[b"0"])
    assert store.calls == ["get_range"]


def test_heads_are_cached_while_other_threads_cache_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is hashed in Python, so another thread may run at each hash."""
    draw = random.Random(1)
    files = {b"%02d" % number: draw.randbytes(BLOCK_BYTES + 1) for number in range(40)}
    packed = pack(files, target_bytes=4096)
    store = CountingStore(MemoryObjectStore())
    packed.store_in(store)
    reader, extents = ChunkReader(store, DATASET), packed.extents()
    reader.block_hashes(extents[b"00"])
    others = [extents[path] for path in files if path > b"01"]
    hash_of, is_other = ChunkId.__hash__, False

    def hashed(chunk: ChunkId) -> int:
        nonlocal is_other
        if others and not is_other:
            is_other = True
            reader.block_hashes(others.pop())
            is_other = False
        return hash_of(chunk)

    monkeypatch.setattr(ChunkId, "__hash__", hashed)
    assert len(reader.block_hashes(extents[b"01"])) == 2


def test_a_chunk_from_anywhere_is_verified_as_one_from_the_store(
    reader: ChunkReader, store: CountingStore, packed: Packed
) -> None:
    ref = packed.chunks[0].ref
    data = store.get(key_of(packed))
    store.calls.clear()
    assert reader.verified(memoryview(data), ref) == b"".join(FILES.values())
    for at in (5, 70, ref.head_bytes, len(data) - 1):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(Corrupt):
            reader.verified(memoryview(damaged), ref)
    for short in (data[:-1], data[: ref.head_bytes], data[: ref.head_bytes - 1], b""):
        with pytest.raises(Corrupt):
            reader.verified(memoryview(short), ref)
    with pytest.raises(Corrupt):
        reader.verified(memoryview(data), replace(ref, id=ChunkId(bytes(16))))
    assert store.calls == []
    head, payload = reader.whole(ref)
    assert (bytes(head), bytes(payload)) == (data[: ref.head_bytes], data[ref.head_bytes :])


def test_a_large_file_alone_reads_its_block_hashes_once() -> None:
    data = random.Random(4).randbytes(5 * BLOCK_BYTES)
    packed = pack({b"alone": data}, target_bytes=4096)
    store = CountingStore(MemoryObjectStore())
    packed.store_in(store)
    store.calls.clear()
    reader = ChunkReader(store, DATASET)
    file = packed.extents()[b"alone"]
    for start in range(0, len(data), 100_000):
        assert reader.read(file, start, 10) == data[start : start + 10]
    assert len(store.calls) == 1 + len(range(0, len(data), 100_000))


def test_a_file_in_a_full_size_chunk_among_equal_ones() -> None:
    """The blocks are those of the entry, also when an equal file precedes it."""
    data = random.Random(5).randbytes(BLOCK_BYTES + 7)
    packed = pack({b"a": b"x", b"b": data, b"c": data, b"d": data[::-1]})
    store = MemoryObjectStore()
    packed.store_in(store)
    reader = ChunkReader(store, DATASET)
    for path, wanted in ((b"b", data), (b"c", data), (b"d", data[::-1])):
        assert reader.read(packed.extents()[path], BLOCK_BYTES - 3, 10) == wanted[BLOCK_BYTES - 3 :]


class TestDamage:
    @pytest.mark.parametrize("part", ["preamble", "header", "end of the head"])
    def test_in_the_head(
        self, reader: ChunkReader, store: CountingStore, packed: Packed, part: str
    ) -> None:
        ref = packed.chunks[0].ref
        at = {"preamble": 20, "header": 70, "end of the head": ref.head_bytes - 1}[part]
        data = bytearray(store.get(key_of(packed)))
        data[at] ^= 1
        change(store, packed, bytes(data))
        large = packed.extents()[b"large"]
        for call in (
            lambda: reader.head(ref.id),
            lambda: reader.head(ref.id, ref.head_bytes),
            lambda: reader.payload(ref),
            lambda: reader.read(large, 0, 1),
        ):
            with pytest.raises(Corrupt):
                call()

    @pytest.mark.parametrize("path", [b"small", b"large", b"block", b"another"])
    def test_in_a_file(
        self, reader: ChunkReader, store: CountingStore, packed: Packed, path: bytes
    ) -> None:
        """It is found, and files beside it are read."""
        file = packed.extents()[path]
        data = bytearray(store.get(key_of(packed)))
        data[file.chunk.head_bytes + file.offset + file.length - 1] ^= 0x80
        change(store, packed, bytes(data))
        assert reader.head(file.chunk.id).entries.paths == list(FILES)
        with pytest.raises(Corrupt):
            reader.payload(file.chunk)
        for other, extent in packed.extents().items():
            if other == path:
                with pytest.raises(Corrupt):
                    reader.read(extent, extent.length - 1, 1)
            else:
                assert reader.read(extent, 0, extent.length) == FILES[other]
        if path == b"large":  # only the block that is touched
            assert reader.read(file, 0, 3 * BLOCK_BYTES) == FILES[path][: 3 * BLOCK_BYTES]

    @pytest.mark.parametrize("missing", [1, 5000, 5001, 200_000])
    def test_a_short_object(
        self, reader: ChunkReader, store: CountingStore, packed: Packed, missing: int
    ) -> None:
        change(store, packed, store.get(key_of(packed))[:-missing])
        with pytest.raises(Corrupt):
            reader.payload(packed.chunks[0].ref)
        last = packed.extents()[b"another"]
        with pytest.raises(Corrupt, match="ends inside"):
            reader.read(last, 0, last.length)

    @pytest.mark.parametrize("length", [0, 1, 63, 64, 100])
    def test_a_very_short_object(
        self, reader: ChunkReader, store: CountingStore, packed: Packed, length: int
    ) -> None:
        change(store, packed, store.get(key_of(packed))[:length])
        ref = packed.chunks[0].ref
        large = packed.extents()[b"large"]
        for call in (
            lambda: reader.head(ref.id),
            lambda: reader.head(ref.id, ref.head_bytes),
            lambda: reader.payload(ref),
            lambda: reader.read(large, 0, 1),
        ):
            with pytest.raises(Corrupt):
                call()

    def test_a_long_object(self, reader: ChunkReader, store: CountingStore, packed: Packed) -> None:
        change(store, packed, store.get(key_of(packed)) + b"x")
        with pytest.raises(Corrupt):
            reader.payload(packed.chunks[0].ref)

    def test_another_chunk_under_the_key(
        self, reader: ChunkReader, store: CountingStore, packed: Packed
    ) -> None:
        other = ChunkId(b"\xff" * 16)
        store.create(chunk_key(DATASET.name, other), [store.get(key_of(packed))])
        ref = replace(packed.chunks[0].ref, id=other)
        for call in (lambda: reader.head(other), lambda: reader.payload(ref)):
            with pytest.raises(Corrupt, match="contains chunk"):
                call()

    def test_another_chunk_is_read_twice_and_known_for_a_second(
        self,
        reader: ChunkReader,
        store: CountingStore,
        packed: Packed,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        now = 100.0
        monkeypatch.setattr("chunkstore.chunk_damage.time.monotonic", lambda: now)
        ref, file = packed.chunks[0].ref, packed.extents()[b"small"]
        other = pack({b"x": bytes(2000)})
        sound = bytes(store.get(key_of(packed)))
        counted = CountingStore(MemoryObjectStore())
        other.store_in(counted)
        change(store, packed, bytes(counted.get(key_of(other))))
        with pytest.raises(Corrupt, match="contains chunk"):
            reader.payload(ref)
        assert len(store.calls) == 2
        with pytest.raises(Corrupt, match="contains chunk"):
            reader.read(file, 0, file.length)
        assert len(store.calls) == 2
        change(store, packed, sound)
        now += DAMAGED_S
        assert reader.read(file, 0, file.length) == FILES[b"small"]

    def test_what_a_damaged_chunk_lost_is_not_asked_for_until_it_is_back(
        self, store: CountingStore, packed: Packed, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = 100.0
        monkeypatch.setattr("chunkstore.chunk_damage.time.monotonic", lambda: now)
        ref, files = packed.chunks[0].ref, packed.extents()
        reader = ChunkReader(store, DATASET, InChunk(packed))
        lost, large = files[b"small"], files[b"large"]
        kept = next(
            file for file in files.values() if 0 < file.length <= BLOCK_BYTES and file != lost
        )
        sound = bytes(store.get(key_of(packed)))
        damaged = bytearray(sound)
        damaged[PREAMBLE_BYTES] ^= 1  # the header
        damaged[ref.head_bytes + lost.offset] ^= 1
        change(store, packed, bytes(damaged))
        with pytest.raises(Corrupt):
            reader.payload(ref)
        assert store.calls == ["get"] * 2
        for file in (lost, large):
            with pytest.raises(Corrupt):
                reader.read(file, 0, file.length)
        with pytest.raises(Corrupt):
            reader.read_many([kept, lost])
        assert len(store.calls) == 2
        assert len(reader.read(kept, 0, kept.length)) == kept.length
        assert len(store.calls) == 3
        now += DAMAGED_S
        for _ in range(3):  # the first of these tries again, twice
            with pytest.raises(Corrupt):
                reader.read(lost, 0, lost.length)
        assert len(store.calls) == 5
        change(store, packed, sound)
        now += DAMAGED_S
        assert len(reader.read(large, 0, 9)) == 9
        assert reader.read(lost, 0, lost.length) == FILES[b"small"]

    @pytest.mark.parametrize(
        "dataset",
        [DatasetRef(DATASET.name, bytes(16)), DatasetRef("other", DATASET.id)],
        ids=["an earlier life of the name", "another name"],
    )
    def test_another_dataset(
        self, store: CountingStore, packed: Packed, dataset: DatasetRef
    ) -> None:
        ref = packed.chunks[0].ref
        store.create(chunk_key("other", ref.id), [store.get(key_of(packed))])
        reader = ChunkReader(store, dataset)
        for call in (lambda: reader.head(ref.id), lambda: reader.payload(ref)):
            with pytest.raises(Corrupt, match="another dataset"):
                call()

    def test_metadata_that_does_not_fit(self, reader: ChunkReader, packed: Packed) -> None:
        ref, file = packed.chunks[0].ref, packed.extents()[b"large"]
        with pytest.raises(Corrupt):
            reader.payload(replace(ref, payload_bytes=ref.payload_bytes - 1))
        with pytest.raises(Corrupt):
            reader.payload(replace(ref, head_bytes=ref.head_bytes + 1))
        for wrong in (
            replace(file, offset=file.offset + 1),
            replace(file, length=file.length - 1),
            replace(file, hash=file.hash ^ 1),
        ):
            with pytest.raises(Corrupt, match="does not contain the file"):
                reader.read(wrong, 0, 1)

    def test_an_absent_chunk(self, reader: ChunkReader) -> None:
        ref = ChunkRef(ChunkId(bytes(16)), 100, 100)
        file = FileExtent(ref, 0, 5, xxhash.xxh3_64_intdigest(b"hello"))
        for call in (
            lambda: reader.head(ref.id),
            lambda: reader.payload(ref),
            lambda: reader.read(file, 0, 5),
        ):
            with pytest.raises(NotFound):
                call()


class TestReadMany:
    @staticmethod
    def several_chunks() -> tuple[Packed, dict[bytes, bytes]]:
        draw = random.Random(6)
        files = {b"f%04d" % n: draw.randbytes(draw.randrange(9000)) for n in range(600)}
        files[b"f0007"] = b""
        files[b"large"] = draw.randbytes(BLOCK_BYTES + 5)
        files[b"alone"] = draw.randbytes(4 * BLOCK_BYTES + 5)
        return pack(files, target_bytes=1 << 20), files

    def test_any_files_in_the_order_asked_for(self) -> None:
        packed, files = self.several_chunks()
        assert len(packed.chunks) >= 3
        store, extents = MemoryObjectStore(), packed.extents()
        packed.store_in(store)
        reader = ChunkReader(store, DATASET)
        draw = random.Random(7)
        for count in (0, 1, 2, 50, 700):
            wanted = draw.choices(list(files), k=count)  # some of them twice
            found = reader.read_many([extents[path] for path in wanted])
            assert found == [files[path] for path in wanted]

    def test_files_side_by_side_are_one_range(
        self, reader: ChunkReader, store: CountingStore, packed: Packed
    ) -> None:
        extents = packed.extents()
        wanted = [b"another", b"block", b"small", b"empty"]  # the large one lies between
        assert reader.read_many([extents[path] for path in wanted]) == [FILES[p] for p in wanted]
        assert store.calls == ["get_range"]
        store.calls.clear()
        assert reader.read_many([extents[b"large"], extents[b"small"]])[0] == FILES[b"large"]
        assert store.calls == ["get_range"] * 3  # the large one's block hashes, too

    def test_chunks_are_read_at_the_same_time(self) -> None:
        packed, files = self.several_chunks()
        extents = packed.extents()
        of_each_chunk = {extent.chunk: path for path, extent in extents.items() if path != b"alone"}
        wanted = [path for path in of_each_chunk.values() if path != b"large"]
        together = threading.Barrier(len(wanted))

        class Store(CountingStore):
            def before(self, call: str, key: str) -> None:
                if call == "get_range":
                    together.wait(PATIENCE_S)

        store = Store(MemoryObjectStore())
        packed.store_in(store)
        found = ChunkReader(store, DATASET).read_many([extents[path] for path in wanted])
        assert found == [files[path] for path in wanted]

    @pytest.mark.parametrize("path", [b"small", b"another", b"large", b"block"])
    def test_damage_is_found(
        self, reader: ChunkReader, store: CountingStore, packed: Packed, path: bytes
    ) -> None:
        extents = packed.extents()
        file = extents[path]
        data = bytearray(store.get(key_of(packed)))
        data[file.chunk.head_bytes + file.offset] ^= 1
        change(store, packed, bytes(data))
        with pytest.raises(Corrupt):
            reader.read_many(list(extents.values()))
        others = [other for other in FILES if other != path]
        assert reader.read_many([extents[p] for p in others]) == [FILES[p] for p in others]

    def test_a_short_object_and_an_absent_one(
        self, reader: ChunkReader, store: CountingStore, packed: Packed
    ) -> None:
        files = list(packed.extents().values())
        change(store, packed, store.get(key_of(packed))[:-1])
        with pytest.raises(Corrupt, match="ends inside"):
            reader.read_many(files)
        store.delete(key_of(packed))
        with pytest.raises(NotFound):
            reader.read_many(files)


def test_no_request_is_for_more_than_16_mib() -> None:
    asked: list[int] = []

    class Store(CountingStore):
        def get_range(self, key: str, offset: int, length: int) -> bytes:
            asked.append(length)
            return super().get_range(key, offset, length)

    data = random.Random(8).randbytes((40 << 20) + 7)
    packed = pack({b"alone": data})
    store = Store(MemoryObjectStore())
    packed.store_in(store)
    reader = ChunkReader(store, DATASET)
    file = packed.extents()[b"alone"]
    assert reader.read(file, 5, len(data) - 6) == data[5:-1]
    assert max(asked) <= 16 << 20
    assert reader.read_many([file])[0] == data


def test_a_reader_is_pickled_with_its_store(tmp_path: Path) -> None:
    packed = pack(FILES)
    store = ResilientStore(LocalDirectory(tmp_path / "store"))
    packed.store_in(store)
    files = packed.extents()
    reader = ChunkReader(store, DATASET)
    reader.read(files[b"large"], 0, 1)
    copy = pickle.loads(pickle.dumps(reader))
    assert copy.read_many([files[path] for path in FILES]) == list(FILES.values())
    assert bytes(copy.payload(packed.chunks[0].ref)) == b"".join(FILES.values())
