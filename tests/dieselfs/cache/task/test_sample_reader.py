"""Files of a snapshot read from maps of whole chunks."""

from __future__ import annotations

import os
import pickle
import random
from pathlib import Path

import numpy as np
import pytest

from chunkstore.errors import Corrupt
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.cache.ports.block import CacheBlock
from dieselfs.cache.task.sample_reader import SampleReader
from dieselfs.client import Client
from metadata.errors import PathConflict, PathNotFound, SnapshotRefused
from metadata.kv.memory import MemoryStore
from metadata.snapshot import ROOT, Snapshot
from tests.contracts.key_value_store_contract import fork
from tests.dieselfs.cache.task.mapped_files import MappedFiles

MIB = 1 << 20


class Packed:
    """Files in chunks, their snapshot, and a reader of it."""

    def __init__(self, folder: Path, files: dict[str, bytes], target_bytes: int = 8192) -> None:
        self.files = files
        self.folder = folder
        client = Client.connect(
            "pets", store=MemoryObjectStore(), index=MemoryStore(), snapshot_folder=folder,
            create=True, target_bytes=target_bytes, open_chunks=4,
        )  # fmt: skip
        for path, data in files.items():
            client.put(data, path)
        self.source = client.dataset.reader
        self.snapshot = Snapshot.open(client.save_meta())
        client.close()
        self.memory = MappedFiles(folder / "memory", self.source)
        self.reader = SampleReader(self.snapshot, self.memory)

    def inode(self, path: str) -> int:
        inode = self.snapshot.resolve(path)
        assert inode is not None
        return inode

    def damaged(self, column: str, row: int, value: int) -> SampleReader:
        """A reader of the same snapshot with one number changed."""
        data = bytearray(self.snapshot.path.read_bytes())
        start, _ = self.snapshot.header.sections[column]
        width = getattr(self.snapshot.columns, column).itemsize
        at = start + row * width
        data[at : at + width] = value.to_bytes(width, "little")
        path = self.folder / "damaged.snapshot"
        path.write_bytes(data)
        return SampleReader(Snapshot.open(path), self.memory)


@pytest.fixture
def packed(tmp_path: Path) -> Packed:
    draw = random.Random(1)
    files = {
        f"{n % 7}/{'ö' * (n % 3)}{n}": draw.randbytes(draw.choice((0, 1, 200, 900)))
        for n in range(300)
    }
    return Packed(tmp_path, files)


@pytest.fixture
def with_large(tmp_path: Path) -> Packed:
    draw = random.Random(2)
    files = {"large": draw.randbytes(17 * MIB), "small": draw.randbytes(100), "empty": b""}
    return Packed(tmp_path, files)


def test_every_way_to_read_gives_the_files(packed: Packed) -> None:
    reader, snapshot = packed.reader, packed.snapshot
    contents = list(packed.files.values())
    inodes = [packed.inode(path) for path in packed.files]
    for _ in range(2):  # unmapped, mapped
        assert [reader.read(inode) for inode in inodes] == contents
        assert [reader.read_path(path) for path in packed.files] == contents
        assert [reader.read_path(path.encode()) for path in packed.files] == contents
        assert reader.read_many(inodes) == contents
        assert reader.read_many(np.array(inodes, np.uint32)) == contents
    assert reader.read_many([]) == []
    assert all(type(data) is bytes for data in reader.read_many(inodes))
    assert snapshot.chunk_count > 5
    assert sorted(packed.memory.mapped) == sorted(set(packed.memory.mapped))  # each chunk once
    assert packed.memory.ranges == 0


def test_paths_are_taken_with_slashes_at_their_ends(packed: Packed) -> None:
    path = next(iter(packed.files))
    for written in (f"/{path}", f"{path}/", f"//{path}//".encode()):
        assert packed.reader.read_path(written) == packed.files[path]


@pytest.mark.parametrize("path", ["none", b"none", "0/none", "\udcff", "", "/", "0", b"0/"])
def test_what_is_no_file_is_told(packed: Packed, path: str | bytes) -> None:
    expected = PathConflict if path in ("", "/", "0", b"0/") else PathNotFound
    with pytest.raises(expected):
        packed.reader.read_path(path)


@pytest.mark.parametrize("inode", [-1, 300, 1 << 40, ROOT])
def test_numbers_that_are_no_files(packed: Packed, inode: int) -> None:
    packed.reader.read_many(range(300))
    with pytest.raises(IndexError):
        packed.reader.read(inode)
    with pytest.raises(IndexError):
        packed.reader.read_many([0, inode])


def test_read_many_fetches_what_is_missing_together(packed: Packed) -> None:
    packed.reader.read(0)
    packed.reader.read_many(range(300))
    first, *others = [
        str(packed.snapshot.chunk(number).id) for number in range(packed.snapshot.chunk_count)
    ]
    assert packed.memory.prefetched == others
    assert packed.memory.mapped[0] == first


def test_prefetch_asks_for_whole_chunks_that_are_not_mapped(with_large: Packed) -> None:
    reader, snapshot = with_large.reader, with_large.snapshot
    reader.prefetch(range(snapshot.chunk_count))
    small = str(snapshot.chunk(snapshot.chunk_number(with_large.inode("small"))).id)
    assert with_large.memory.prefetched == [small]
    reader.read_path("small")
    reader.prefetch(range(snapshot.chunk_count))
    assert with_large.memory.prefetched == [small]


def test_large_files_and_empty_ones_beside_others(with_large: Packed) -> None:
    reader = with_large.reader
    for path, data in with_large.files.items():
        assert reader.read_path(path) == data
    order = [with_large.inode(path) for path in ("large", "empty", "small", "large")]
    assert reader.read_many(order) == [
        with_large.files[path] for path in ("large", "empty", "small", "large")
    ]
    assert with_large.memory.ranges == 3


def test_a_dataset_of_empty_files_maps_nothing(tmp_path: Path) -> None:
    packed = Packed(tmp_path, {"a": b"", "b/c": b""})
    assert packed.reader.read_many([0, 1]) == [b"", b""]
    assert packed.reader.read_path("b/c") == b""
    assert packed.memory.mapped == []


def test_an_evicted_chunk_is_let_go_and_mapped_again(packed: Packed) -> None:
    chunk = packed.snapshot.chunk(packed.snapshot.chunk_number(0))
    expected = packed.reader.read(0)
    name = CacheBlock(chunk).name
    mapped_file = str(packed.memory.folder / name)
    assert mapped_file in Path("/proc/self/maps").read_text()
    packed.memory.evict(name)
    assert mapped_file not in Path("/proc/self/maps").read_text()
    assert packed.reader.read(0) == expected
    assert packed.memory.mapped == [name, name]
    packed.memory.evict(name)
    assert packed.reader.read_many([0]) == [expected]
    assert packed.memory.mapped == [name] * 3


def test_a_chunk_that_is_evicted_before_its_map_is_noted_is_let_go(
    packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if another thread has asked for it again, for which there was no room."""
    memory, number = packed.memory, packed.snapshot.chunk_number(0)
    name, map = CacheBlock(packed.snapshot.chunk(number)).name, memory.map
    found: list[bytes] = []

    def map_and_be_late(block: CacheBlock) -> memoryview:
        view = map(block)
        memory.evict(name)
        with monkeypatch.context() as patched:
            patched.setattr(memory, "map", map)
            patched.setattr(memory, "full", True)
            found.append(packed.reader.read(0))
        return view

    with monkeypatch.context() as patched:
        patched.setattr(memory, "map", map_and_be_late)
        assert [packed.reader.read(0)] == found
    assert str(memory.folder / name) not in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("known", [False, True])
def test_without_room_files_are_read_past_node_memory(packed: Packed, known: bool) -> None:
    packed.memory.full, packed.memory.known_full = True, known
    inodes = [packed.inode(path) for path in packed.files]
    filled = sum(1 for data in packed.files.values() if data)
    assert packed.reader.read_many(inodes) == list(packed.files.values())
    assert (packed.memory.batches, packed.memory.ranges) == ([filled], 0), "together"
    assert len(packed.memory.prefetched) == (0 if known else packed.snapshot.chunk_count)
    for path, data in packed.files.items():
        assert packed.reader.read_path(path) == data
    assert packed.memory.ranges == 0, (
        "the master that has refused a chunk is not asked for its file"
    )
    assert packed.memory.batches == [filled] + [1] * filled
    assert packed.memory.mapped == []
    packed.memory.full = packed.memory.known_full = False
    assert packed.reader.read_many(inodes) == list(packed.files.values())
    assert len(packed.memory.mapped) == packed.snapshot.chunk_count


def test_a_batch_of_files_with_and_without_room(packed: Packed) -> None:
    inodes = [packed.inode(path) for path in packed.files]
    mapped = [inode for inode in inodes if packed.snapshot.chunk_number(inode) % 2]
    packed.reader.read_many(mapped)
    packed.memory.full = True
    assert packed.reader.read_many(inodes) == list(packed.files.values())
    mapped_files = set(mapped)
    past = [
        data
        for inode, data in zip(inodes, packed.files.values(), strict=True)
        if inode not in mapped_files and data
    ]
    assert packed.memory.batches == [len(past)]
    assert packed.memory.ranges == 0


def longest_first_file(packed: Packed) -> int:
    """A file that is not empty, and not the last of its chunk."""
    columns = packed.snapshot.columns
    return int(np.flatnonzero((columns.length > 0) & (columns.chunk == 0))[0])


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("offset", 8192), ("offset", (1 << 32) - 1),
        ("length", 9000), ("length", (1 << 64) - 1), ("length", (1 << 63) - 1),
        ("chunk", 1 << 31),
    ],
)  # fmt: skip
def test_a_damaged_snapshot_is_refused(
    packed: Packed, column: str, value: int, mapped: bool
) -> None:
    inode = longest_first_file(packed)
    reader = packed.damaged(column, inode, value)
    if mapped:
        reader.read_many([other for other in range(300) if other != inode])
    path = packed.snapshot.path_of(inode)
    for read in (
        lambda: reader.read(inode),
        lambda: reader.read_many([inode]),
        lambda: reader.read_path(path),
    ):
        with pytest.raises(SnapshotRefused):
            read()


def test_a_piece_of_another_length_is_refused(packed: Packed) -> None:
    name = CacheBlock(packed.snapshot.chunk(packed.snapshot.chunk_number(0))).name
    (packed.memory.folder / name).write_bytes(b"short")
    with pytest.raises(Corrupt, match="5 bytes"):
        packed.reader.read(0)


def test_a_forked_child_reads_on(packed: Packed) -> None:
    expected = packed.reader.read_many(range(100))

    def child() -> None:
        assert packed.reader.read_many(range(100)) == expected
        assert packed.reader.read_many(range(300))[:100] == expected

    assert os.waitpid(fork(child), 0)[1] == 0


def test_it_pickles(packed: Packed) -> None:
    reader = SampleReader(packed.snapshot, MappedFiles(packed.memory.folder, _NoSource()))
    expected = packed.reader.read_many(range(300))
    assert pickle.loads(pickle.dumps(reader)).read_many(range(300)) == expected


class _NoSource:
    """What is in the folder already needs none."""


def test_a_batch_maps_each_chunk_once_where_each_evicts_the_one_before(packed: Packed) -> None:
    map_block = packed.memory.map

    def map_and_evict(piece: CacheBlock) -> memoryview:
        if packed.memory.mapped:
            packed.memory.evict(packed.memory.mapped[-1])
        return map_block(piece)

    packed.memory.map = map_and_evict  # type: ignore[method-assign]
    inodes = [packed.inode(path) for path in packed.files]
    random.Random(5).shuffle(inodes)
    paths = {packed.inode(path): data for path, data in packed.files.items()}
    assert packed.reader.read_many(inodes) == [paths[inode] for inode in inodes]
    assert len(packed.memory.mapped) == packed.snapshot.chunk_count
