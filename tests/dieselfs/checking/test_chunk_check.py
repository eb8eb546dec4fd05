"""One chunk against its commit: every bit of its head, files that share a chunk, large ones by
blocks and pieces."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import xxhash

from chunkstore.chunk_format import BLOCK_BYTES, DatasetRef, decode_head
from chunkstore.chunk_source import ChunkRef
from chunkstore.object_keys import chunk_key
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from dieselfs.checking.chunk_check import WholeCheck, check_head, check_whole
from dieselfs.checking.findings import FindingKind
from tests.chunkstore.chunk_by_hand import ChunkByHand, Row
from tests.chunkstore.packed import DATASET, CountingStore, Packed, StoreWrapper


def packed(
    files: dict[bytes, bytes], target_bytes: int = 1 << 20
) -> tuple[MemoryObjectStore, list[ChunkRef]]:
    made = Packed()
    writer = made.writer(target_bytes=target_bytes)
    for path, data in files.items():
        writer.add_file(path, data, 0o100644, 0)
    writer.flush()
    store = MemoryObjectStore()
    made.store_in(store)
    return store, [chunk.ref for chunk in made.chunks]


def size(store: ObjectStore, chunk: ChunkRef) -> int:
    return store.stat(chunk_key(DATASET.name, chunk.id)).size_bytes


def whole(store: ObjectStore, chunk: ChunkRef) -> WholeCheck:
    return check_whole(store, DATASET, chunk, size(store, chunk), lambda size_bytes: None)


def replaced(store: MemoryObjectStore, chunk: ChunkRef, data: bytes) -> MemoryObjectStore:
    other = MemoryObjectStore()
    other.create(chunk_key(DATASET.name, chunk.id), [data])
    return other


def content(store: ObjectStore, chunk: ChunkRef) -> bytes:
    return store.get(chunk_key(DATASET.name, chunk.id))


def hit_paths(store: MemoryObjectStore, chunk: ChunkRef, check: WholeCheck) -> list[bytes]:
    """The files of a sound chunk that `check` of a damaged one says are hit."""
    assert check.damage is not None
    entries = decode_head(content(store, chunk)).entries
    contents = zip(
        entries.offset.tolist(), entries.length.tolist(), entries.hash.tolist(), strict=True
    )
    hit = check.damage.contents
    return [p for p, c in zip(entries.paths, contents, strict=True) if hit is None or c in hit]


def test_a_sound_chunk() -> None:
    store, [chunk] = packed({b"a": b"1" * 100, b"b": b"", b"c": b"3" * 300_000})
    head, damage = check_head(store, DATASET, chunk, size(store, chunk))
    assert (damage, head is not None) == (None, True)
    check = whole(store, chunk)
    assert (check.damage, check.files, check.size_bytes) == (None, 3, size(store, chunk))


def test_every_bit_of_a_head_is_found_by_the_head_alone() -> None:
    store, [chunk] = packed({b"a/%d" % n: b"x" * n for n in range(4)})
    sound = content(store, chunk)
    for at in range(chunk.head_bytes):
        for bit in range(8):
            data = bytearray(sound)
            data[at] ^= 1 << bit
            damaged = replaced(store, chunk, bytes(data))
            head, damage = check_head(damaged, DATASET, chunk, len(data))
            assert head is None
            assert damage is not None, f"bit {bit} of byte {at} was not found"
            assert damage.kind in (FindingKind.CHUNK_HEAD, FindingKind.CHUNK_FOREIGN)
            assert damage.contents is None


def test_a_flip_in_the_payload_hits_one_file() -> None:
    made = random.Random(3)
    files = {b"f/%02d" % n: made.randbytes(made.randint(1, 400)) for n in range(20)}
    store, [chunk] = packed(files)
    sound = content(store, chunk)
    entries = decode_head(sound).entries
    for position, path in enumerate(entries.paths):
        start, length = int(entries.offset[position]), int(entries.length[position])
        data = bytearray(sound)
        data[chunk.head_bytes + made.randrange(start, start + length)] ^= 1 << made.randrange(8)
        check = whole(replaced(store, chunk, bytes(data)), chunk)
        assert check.damage is not None
        assert check.damage.kind is FindingKind.CHUNK_PAYLOAD
        assert hit_paths(store, chunk, check) == [path]


def test_a_truncated_chunk_hits_what_lies_beyond_its_end() -> None:
    store, [chunk] = packed({b"a": b"1" * 100, b"b": b"2" * 100, b"c": b"3" * 100})
    data = content(store, chunk)[: chunk.head_bytes + 150]
    damaged = replaced(store, chunk, data)
    _, damage = check_head(damaged, DATASET, chunk, len(data))
    check = whole(damaged, chunk)
    assert damage is not None
    assert check.damage is not None
    assert damage.kind is check.damage.kind is FindingKind.CHUNK_LENGTH
    assert damage.contents == check.damage.contents
    order = decode_head(content(store, chunk)).entries.paths
    assert hit_paths(store, chunk, check) == list(order[1:])


@pytest.mark.parametrize("length", [0, 1, 63, 64, 100])
def test_a_chunk_that_ends_in_its_head_is_wholly_lost(length: int) -> None:
    store, [chunk] = packed({b"a": b"1" * 100})
    damaged = replaced(store, chunk, content(store, chunk)[:length])
    head, damage = check_head(damaged, DATASET, chunk, length)
    assert head is None
    assert damage is not None
    assert (damage.kind, damage.contents) == (FindingKind.CHUNK_LENGTH, None)
    check = whole(damaged, chunk)
    assert check.damage is not None
    assert (check.damage.kind, check.damage.contents) == (FindingKind.CHUNK_LENGTH, None)


def test_a_longer_chunk_is_damaged_but_hits_no_file() -> None:
    store, [chunk] = packed({b"a": b"1" * 100})
    damaged = replaced(store, chunk, content(store, chunk) + b"?")
    check = whole(damaged, chunk)
    assert check.damage is not None
    assert (check.damage.kind, check.damage.contents) == (FindingKind.CHUNK_LENGTH, frozenset())


def test_another_chunk_and_one_of_another_dataset_are_foreign() -> None:
    store, [one, two] = packed({b"a": b"1" * 5000, b"b": b"2" * 5000}, target_bytes=4096)
    swapped = replaced(store, one, content(store, two))
    for damage in (
        check_head(swapped, DATASET, one, size(swapped, one))[1],
        whole(swapped, one).damage,
        check_head(store, DatasetRef(DATASET.name, bytes(16)), one, size(store, one))[1],
    ):
        assert damage is not None
        assert (damage.kind, damage.contents) == (FindingKind.CHUNK_FOREIGN, None)


def test_a_missing_chunk() -> None:
    store, [chunk] = packed({b"a": b"1" * 100})
    gone = MemoryObjectStore()
    for damage in (
        check_head(store, DATASET, chunk, None)[1],
        check_head(gone, DATASET, chunk, size(store, chunk))[1],
        check_whole(gone, DATASET, chunk, size(store, chunk), lambda size_bytes: None).damage,
    ):
        assert damage is not None
        assert (damage.kind, damage.contents) == (FindingKind.CHUNK_MISSING, None)


def test_a_commit_that_names_an_impossible_head_is_not_believed() -> None:
    store, [chunk] = packed({b"a": b"1" * 100})
    hostile = replace(chunk, head_bytes=(1 << 32) - 1)
    total = hostile.head_bytes + hostile.payload_bytes
    counted = CountingStore(store)
    _, damage = check_head(counted, DATASET, hostile, total)
    assert damage is not None
    assert (damage.kind, counted.calls) == (FindingKind.CHUNK_HEAD, [])


def test_bytes_that_no_entry_names_mean_nothing() -> None:
    made = ChunkByHand([Row(b"a", length=0)], payload_bytes=50)
    store = MemoryObjectStore()
    dataset = DatasetRef(made.name.decode(), made.dataset_id)
    head = made.head()
    chunk = ChunkRef(decode_head(head).chunk_id, len(head), 50)
    for payload in (bytes(50), b"?" * 50):
        key = chunk_key(dataset.name, chunk.id)
        store.delete(key)
        store.create(key, [head, payload])
        total = len(head) + 50
        assert check_whole(store, dataset, chunk, total, lambda size_bytes: None).damage is None


Large = tuple[MemoryObjectStore, ChunkRef, bytes]


@pytest.fixture(scope="module")
def large() -> Large:
    """A chunk above 16 MiB, which is checked by pieces, and its bytes."""
    pattern = random.Random(5).randbytes(1 << 20)
    files = {b"small": b"s" * 100, b"large": pattern * 17 + b"rest", b"other": b"o" * 300}
    store, [chunk] = packed(files, target_bytes=18 << 20)
    return store, chunk, content(store, chunk)


def test_no_piece_is_above_8_mib(large: Large) -> None:
    store, chunk, data = large
    paid: list[int] = []
    check = check_whole(store, DATASET, chunk, len(data), paid.append)
    assert (check.damage, check.files) == (None, 3)
    assert max(paid) <= 8 << 20
    assert sum(paid) == len(data)


@pytest.mark.parametrize(
    ("path", "at"),
    [
        *((b"small", at) for at in (0, 99)),
        *((b"large", at) for at in (0, 9 << 20, (17 << 20) + 3)),
        *((b"other", at) for at in (0, 299)),
    ],
)
def test_a_flip_in_a_large_chunk_is_found(large: Large, path: bytes, at: int) -> None:
    store, chunk, data = large
    entries = decode_head(data).entries
    damaged = bytearray(data)
    damaged[chunk.head_bytes + int(entries.offset[entries.paths.index(path)]) + at] ^= 16
    check = whole(replaced(store, chunk, bytes(damaged)), chunk)
    assert hit_paths(store, chunk, check) == [path]


def test_a_truncated_large_chunk(large: Large) -> None:
    store, chunk, data = large
    kept = chunk.head_bytes + (10 << 20)
    entries = decode_head(data).entries
    ends = (entries.offset + entries.length).tolist()
    check = whole(replaced(store, chunk, data[:kept]), chunk)
    beyond = [p for p, end in zip(entries.paths, ends, strict=True) if end > 10 << 20]
    assert hit_paths(store, chunk, check) == beyond
    assert b"large" in beyond


def test_a_block_checksum_that_was_written_wrong_is_found_though_the_file_is_right() -> None:
    """No reader of a whole file would notice; one of a part would get EIO."""
    data = b"0" * (2 * BLOCK_BYTES + 1)
    blocks = [data[at : at + BLOCK_BYTES] for at in range(0, len(data), BLOCK_BYTES)]
    hashes = [xxhash.xxh3_64_intdigest(block) for block in blocks]
    row = Row(b"a", length=len(data), hash=xxhash.xxh3_64_intdigest(data))
    for wrong in range(3):
        written = [number ^ (position == wrong) for position, number in enumerate(hashes)]
        made = ChunkByHand([row], payload_bytes=len(data), block_hashes=written)
        store, head = MemoryObjectStore(), made.head()
        dataset = DatasetRef(made.name.decode(), made.dataset_id)
        chunk = ChunkRef(decode_head(head).chunk_id, len(head), len(data))
        store.create(chunk_key(dataset.name, chunk.id), [head, data])
        total = len(head) + len(data)
        check = check_whole(store, dataset, chunk, total, lambda size_bytes: None)
        assert check.damage is not None
        assert check.damage.kind is FindingKind.CHUNK_PAYLOAD


class FlippedAtFirst(StoreWrapper):
    """The first `times` reads have a flipped bit in their last byte, as a bad cable or cache would
    do."""

    def __init__(self, inner: ObjectStore, times: int) -> None:
        super().__init__(inner)
        self.left = times
        self.asked: list[int] = []

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.asked.append(length)
        data = super().get_range(key, offset, length)
        if not self.left:
            return data
        self.left -= 1
        return data[:-1] + bytes([data[-1] ^ 1])


def test_what_is_sound_when_it_is_read_past_caches_is_not_damaged() -> None:
    store, [chunk] = packed({b"a": b"1" * 100})
    flipped = FlippedAtFirst(store, 1)
    check = whole(flipped, chunk)
    assert (check.damage, check.read_again, check.files) == (None, True, 1)
    assert max(flipped.asked) >= 1 << 20  # a local store drops its cached pages after such a read


def test_what_stays_damaged_is() -> None:
    store, [chunk] = packed({b"a": b"1" * 100})
    check = whole(FlippedAtFirst(store, 3), chunk)
    assert check.damage is not None
    assert not check.read_again
