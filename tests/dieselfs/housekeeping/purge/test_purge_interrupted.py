"""A purge that ends at any call to the store or the index loses nothing, and the next one finishes
the work."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkId
from chunkstore.object_keys import chunk_prefix
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import open_dataset
from dieselfs.housekeeping.purge.purge import purge
from metadata.kv.key_value_store import MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from tests.contracts.key_value_store_contract import fork
from tests.dieselfs.housekeeping.purge.interrupted_calls import EndOfProcess, stepped
from tests.dieselfs.housekeeping.purge.purged_dataset import (
    NAME,
    SMALL_ROUNDS,
    PurgedDataset,
    caught_up,
    maps_of,
    rebuilt,
)
from tests.metadata.stepped_index import Stopped


def tale() -> PurgedDataset:
    """Overwrites, deletions, a directory that came back, chunks that are wholly dead, and one with
    a large file."""
    world = PurgedDataset()
    world.put({b"a/x": b"1" * 900, b"a/y": b"2" * 900, b"b/z": b"3" * 1500, b"c": b"4" * 9000})
    world.make_directory(b"a", 0o700, 5)
    world.put({b"a/x": b"5" * 800, b"d/e/f": b"6" * 700})
    world.delete_tree(b"d")
    world.delete(b"b/z")
    world.put({b"d/g": b"7" * 100})
    return world


def copy_of(world: PurgedDataset) -> PurgedDataset:
    store, index = MemoryObjectStore(), MemoryStore()
    for info in world.store.list(""):
        store.create(info.key, [world.store.get(info.key)])
    assert isinstance(world.index, MemoryStore)
    index.put(
        [[MapUpdate(k, list(m), list(m.values())) for k, m in world.index._maps.items() if m]]
    )
    return PurgedDataset(store, index, dict(world.files), set(world.directories))


def check_after_an_end(world: PurgedDataset) -> None:
    """Nothing is lost, and what no commit names is garbage; then another purge ends well."""
    dataset = world.open()
    world.check_content(dataset)
    assert maps_of(world.index) == maps_of(rebuilt(dataset))
    named = {str(ref.id) for commit in dataset.log.since(0) for ref in commit.added}
    orphans = world.objects() - named
    world.purge()
    dataset = world.open()
    world.check_content(dataset)
    present = {str(chunk_id) for chunk_id in map(_printed, dataset.namespace.chunks())}
    assert world.objects() == present | orphans
    assert maps_of(world.index) == maps_of(rebuilt(dataset))


def _printed(chunk_id: bytes) -> str:
    return str(ChunkId(chunk_id))


@pytest.mark.parametrize("part", range(4))
def test_ended_at_any_call(part: int) -> None:
    original = tale()
    counting = EndOfProcess()
    store, index = stepped(*_places(copy_of(original)), counting)
    purge(open_dataset(store, index, NAME), SMALL_ROUNDS)
    opened = EndOfProcess()
    open_dataset(*stepped(*_places(copy_of(original)), opened), NAME)
    assert counting.taken > 100
    ended, points = 0, range(opened.taken + part, counting.taken, 4)
    for steps in points:
        world = copy_of(original)
        store, index = stepped(world.store, world.index, EndOfProcess(steps))
        try:
            purge(open_dataset(store, index, NAME), SMALL_ROUNDS)
        except Stopped:
            ended += 1
        check_after_an_end(world)
    # How many heads are read depends on threads: a purge may do with some calls less.
    assert ended > 0.9 * len(points)


def test_ended_again_and_again() -> None:
    """Each next purge comes some way."""
    for seed in range(6):
        draw = random.Random(seed)
        world = copy_of(tale())
        for _ in range(20):
            store, index = stepped(world.store, world.index, EndOfProcess(draw.randint(20, 150)))
            try:
                purge(open_dataset(store, index, NAME), SMALL_ROUNDS)
            except Stopped:
                continue
            break
        check_after_an_end(world)
        assert maps_of(world.index) == maps_of(caught_up(world.open()))


def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A process, a folder and LMDB: SIGKILL when it has told of so many steps."""
    draw = random.Random(0)
    for number in range(4):
        folder = tmp_path / str(number)
        world = PurgedDataset(LocalDirectory(folder / "store"), LmdbFileStore(folder / "index"))
        told = tale()
        for info in told.store.list(""):
            world.store.create(info.key, [told.store.get(info.key)])
        world.index.close()
        _purge_killed_after(draw.randint(30, 200), folder)
        world.index = LmdbFileStore(folder / "index")
        world.files, world.directories = told.files, told.directories
        world.purge()
        dataset = world.open()
        world.check_content(dataset)
        chunks = {_printed(chunk_id) for chunk_id in dataset.namespace.chunks()}
        named = {str(ref.id) for commit in dataset.log.since(0) for ref in commit.added}
        assert world.objects() & named == chunks
        again = PurgedDataset(world.store, MemoryStore(), told.files, told.directories)
        again.check()
        world.index.close()
        assert list(world.store.list(chunk_prefix(NAME)))


def _purge_killed_after(steps: int, folder: Path) -> None:
    reading, writing = os.pipe()

    def step() -> None:
        assert os.write(writing, b".") == 1

    def child() -> None:
        os.close(reading)
        store, index = stepped(
            LocalDirectory(folder / "store"), LmdbFileStore(folder / "index"), step
        )
        purge(open_dataset(store, index, NAME), SMALL_ROUNDS)
        signal.pause()

    process = fork(child)
    os.close(writing)
    try:
        told = 0
        while told < steps and (data := os.read(reading, steps - told)):
            told += len(data)
        assert told == steps, "the child ended before its time"
    finally:
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reading)


def _places(world: PurgedDataset) -> tuple[MemoryObjectStore, MemoryStore]:
    assert isinstance(world.store, MemoryObjectStore)
    assert isinstance(world.index, MemoryStore)
    return world.store, world.index
