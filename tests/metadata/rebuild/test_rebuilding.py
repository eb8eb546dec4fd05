"""Rebuilding, case by case: what is large, deep, or goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from chunkstore.chunk_format import ChunkHead
from chunkstore.chunk_source import ChunkRef
from chunkstore.errors import Corrupt
from metadata import keys
from metadata.errors import IndexUnavailable
from metadata.kv.memory import MemoryStore
from metadata.rebuild import rebuild, spill
from metadata.rebuild.empty_index import EmptyIndex
from metadata.rebuild.map_sink import IndexMapPart
from metadata.rebuild.memory_limits import MemoryLimits
from tests.metadata.commit_histories import DATASET, delete, history, put
from tests.metadata.rebuild.histories import followed, head_reader, maps_of, rebuild_into

MANY = history(
    [
        [[put(b"d/%03d" % n) for n in range(0, 300, 2)]],
        [[put(b"d/%03d" % n) for n in range(300)], [put(b"e/f%d" % n) for n in range(9)]],
        [[delete(b"d/%03d" % n, 3) for n in range(0, 300, 7)]],
    ]
)


class Recorded(EmptyIndex):
    """Keeps the parts."""

    def __init__(self, index: MemoryStore) -> None:
        super().__init__(index)
        self.parts: list[IndexMapPart] = []

    def put(self, parts: Sequence[IndexMapPart]) -> None:
        self.parts += parts
        super().put(parts)


def test_one_large_directory_comes_in_pieces_that_cover_it_once() -> None:
    sink = Recorded(index := MemoryStore())
    rebuild_into(sink, MANY, MemoryLimits(part_entries=16, waiting_bytes=500))
    assert maps_of(index) == maps_of(followed(MANY))
    pieces = [part for part in sink.parts if part.key == keys.files_of(DATASET.id, b"d")]
    assert len(pieces) > 10
    assert max(len(part.fields) for part in pieces) < 100
    for name in (b"", b"0", b"123", b"123x", b"\xff"):
        assert sum(part.covers(name) for part in pieces) == 1
    for part in pieces:
        assert all(part.covers(field) for field in part.fields)


def test_maps_come_in_the_order_of_keys_and_empty_ones_too() -> None:
    sink = Recorded(MemoryStore())
    rebuild_into(sink, MANY, MemoryLimits(part_entries=16, waiting_bytes=500))
    found = [part.key for part in sink.parts if part.key[-1:] in b"fd"]
    assert found == sorted(found)
    wanted = {
        key_of(DATASET.id, directory)
        for directory in (b"", b"d", b"e")
        for key_of in (keys.files_of, keys.directories_of)
    }
    assert set(found) == wanted


def test_paths_of_more_than_a_thousand_components() -> None:
    deep = history([[[put(b"/".join([b"a"] * 1200))]], [[put(b"/".join([b"a"] * 1190))]]])
    index = MemoryStore()
    rebuild_into(EmptyIndex(index), deep)
    assert maps_of(index) == maps_of(followed(deep))


def test_a_head_that_cannot_be_read_ends_it_without_a_state(tmp_path: Path) -> None:
    def read(ref: ChunkRef) -> ChunkHead:
        if int.from_bytes(ref.id.value, "big") == 3:
            raise Corrupt("chunk 3 is damaged")
        return head_reader(MANY)(ref)

    index, threads = MemoryStore(), set(threading.enumerate())
    with pytest.raises(Corrupt, match="chunk 3"):
        rebuild(
            DATASET,
            MANY.commits,
            read,
            EmptyIndex(index),
            spill_folder=tmp_path,
            limits=MemoryLimits(1, 1),
        )
    assert keys.APPLIED not in index._maps[keys.state_of(DATASET.id)]
    assert set(threading.enumerate()) <= threads
    assert list(tmp_path.iterdir()) == []


def test_an_index_that_fails_ends_it(tmp_path: Path) -> None:
    class Failing(EmptyIndex):
        def put(self, parts: Sequence[IndexMapPart]) -> None:
            raise IndexUnavailable("the database is gone")

    threads = set(threading.enumerate())
    with pytest.raises(IndexUnavailable):
        rebuild_into(Failing(MemoryStore()), MANY, MemoryLimits(16, 500))
    assert set(threading.enumerate()) <= threads


def test_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = open("/dev/full", "w+b")  # noqa: SIM115 - the rebuild closes it
    monkeypatch.setattr(spill.tempfile, "TemporaryFile", lambda **_: full)
    with pytest.raises(IndexUnavailable, match=r"No space left.*free space"):
        rebuild_into(EmptyIndex(MemoryStore()), MANY, MemoryLimits(16, 500))


def test_progress_ends_with_all_files() -> None:
    told: list[int] = []
    rebuild(
        DATASET,
        MANY.commits,
        head_reader(MANY),
        EmptyIndex(MemoryStore()),
        progress=told.append,
        limits=MemoryLimits(16, 500),
    )
    assert told == sorted(told)
    assert told[-1] == 309


def test_retired_chunks_are_not_read() -> None:
    purged = history([[[put(b"a")]], [[put(b"b")]]], retired={3: [1]})
    index = MemoryStore()
    rebuild_into(EmptyIndex(index), purged)  # the reader would refuse
    assert len(index._maps[keys.chunks_of(DATASET.id)]) == 2
