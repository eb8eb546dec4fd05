"""Recovery of the index from the store alone: every record as it was before."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
import xxhash

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId, ChunkIdGenerator
from chunkstore.chunk_writer import ChunkWriter, SealedChunk
from chunkstore.errors import NotFound
from chunkstore.object_keys import chunk_key, commit_key, commit_prefix, snapshot_prefix
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectInfo, ObjectStore
from dieselfs.assembly import open_index
from dieselfs.dataset.dataset import open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import HistoryDamaged, Refused
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from dieselfs.packing.pack import pack
from dieselfs.packing.put_request import PackProgress, PackRequest
from dieselfs.packing.source_tree import SourceTree
from dieselfs.recovery import AtTime, RecoveryOptions, read_history, recover
from dieselfs.snapshots.lifecycle import build, list_local, publish_snapshot
from metadata import keys
from metadata.dataset_state import indexed_dataset, register_dataset
from metadata.kv.key_value_store import KeyValueStore, MapFields, MapUpdate
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.snapshot import Snapshot
from tests.chunkstore.packed import StoreWrapper
from tests.dieselfs.housekeeping.purge.purged_dataset import NAME, PurgedDataset, random_change
from tests.dieselfs.recovery.random_dataset import (
    Maps,
    all_maps,
    contents,
    copied,
    make_dataset,
)
from tests.forked_programs import run_forked
from tests.metadata.stepped_index import Piecewise, Stopped

NO_HOLES = PurgeRequest(leave=0, grace_s=0)


@pytest.mark.parametrize("seed", range(6))
def test_an_index_made_again_is_the_one_before(seed: int) -> None:
    """Files put, put again and deleted, trees removed, by three writers whose clocks differ; half
    of the time with purges."""
    store, index, again = MemoryObjectStore(), MemoryStore(), MemoryStore()
    dataset, files = make_dataset(
        store, index, seed, rounds=20, skews_s=(0, 3600, -90), purges=0.2 * (seed % 2)
    )
    report = recover(store, again, "pets")
    assert report.was_empty
    assert report.repaired
    assert all_maps(again, dataset) == all_maps(index, dataset)
    assert contents(open_dataset(store, again, "pets")) == files
    assert not recover(store, again, "pets").repaired
    assert not recover(store, index, "pets").repaired


def flip_bits(maps: Maps, draw: random.Random) -> None:
    for fields in maps.values():
        for field in fields:
            if draw.random() < 0.3:
                value = bytearray(fields[field])
                value[draw.randrange(len(value))] ^= 1 << draw.randrange(8)
                fields[field] = bytes(value)


def forget_records(maps: Maps, draw: random.Random) -> None:
    for fields in maps.values():
        for field in list(fields):
            if draw.random() < 0.4:
                del fields[field]


def make_old(maps: Maps, draw: random.Random) -> None:
    """Every record of a version that this release does not read, and sound but for that."""
    for key, fields in maps.items():
        for field, value in fields.items():
            body = bytearray(value[:-8])
            body[70 if key[-1:] in b"fd" and key != keys.DATASETS else 16] ^= 0xFF
            fields[field] = bytes(body) + xxhash.xxh3_64_digest(key + field + body)


def add_strange_records(maps: Maps, draw: random.Random) -> None:
    for key, fields in list(maps.items()):
        if key[-1:] in b"fd" and key != keys.DATASETS and fields:
            fields[b"strange"] = draw.choice(sorted(fields.values()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("harm", [flip_bits, forget_records, make_old, add_strange_records])
def test_a_damaged_index_is_mended(
    seed: int, harm: Callable[[Maps, random.Random], None], tmp_path: Path
) -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, seed, skews_s=(0, 7))
    maps = all_maps(index, dataset)
    damaged: Maps = {key: dict(fields) for key, fields in maps.items()}
    harm(damaged, random.Random(seed))
    lmdb = LmdbFileStore(tmp_path / "index")
    copied(lmdb, damaged)
    checked = recover(store, lmdb, "pets", RecoveryOptions(check=True))
    assert checked.difference_count
    assert not checked.repaired
    there = {key: fields for key, fields in damaged.items() if fields}
    assert all_maps(lmdb, dataset, maps) == there
    assert recover(store, lmdb, "pets").repaired
    assert all_maps(lmdb, dataset, maps) == maps
    assert not recover(store, lmdb, "pets", RecoveryOptions(check=True)).difference_count
    lmdb.close()


def test_an_index_that_knows_another_dataset_of_the_name() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, 1)
    foreign = MemoryStore()
    register_dataset(foreign, DatasetRef("pets", bytes(16)), 1 << 62)  # born later than any
    assert recover(store, foreign, "pets").repaired
    assert indexed_dataset(foreign, "pets") == dataset.ref
    assert all_maps(foreign, dataset) == all_maps(index, dataset)


def test_the_last_commits_put_again_bring_back_what_was_forgotten() -> None:
    for seed in range(6):
        store, index, draw = MemoryObjectStore(), MemoryStore(), random.Random(seed)
        dataset, _ = make_dataset(store, index, seed, rounds=20, skews_s=(0, 5))
        commits = read_history(store, "pets").commits
        after = draw.randrange(1, len(commits))
        earlier = MemoryStore()
        held = RecoveryOptions(until=after)
        recover(store, earlier, "pets", held)
        partly = MemoryStore()
        now, then = all_maps(index, dataset), all_maps(earlier, dataset)
        copied(partly, then)
        partly.remove([MapFields(keys.state_of(dataset.ref.id), [keys.HELD])])
        for key, fields in now.items():  # of what came later each record may be there, or not
            there = [field for field in fields if draw.random() < 0.5]
            partly.put([[MapUpdate(key, there, [fields[field] for field in there])]])
        reads = CountedReads(store)
        report = recover(reads, partly, "pets", RecoveryOptions(since=after))
        assert all_maps(partly, dataset) == now
        assert report.repaired == (then != now)
        assert not recover(store, partly, "pets", RecoveryOptions(since=after)).repaired


class CountedReads(MemoryObjectStore):
    """The objects of another store, and which of its chunks were read."""

    def __init__(self, store: MemoryObjectStore) -> None:
        super().__init__()
        self._objects = store._objects
        self.chunks: set[str] = set()

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        if "/chunks/" in key:
            self.chunks.add(key)
        return super().get_range(key, offset, length)


def test_since_reads_what_came_later_and_nothing_else() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    make_dataset(store, index, 3, rounds=20)
    commits = read_history(store, "pets").commits
    reads = CountedReads(store)
    recover(reads, index, "pets", RecoveryOptions(since=len(commits) - 2))
    later = {chunk_key("pets", ref.id) for commit in commits[-2:] for ref in commit.added}
    assert reads.chunks == later
    reads = CountedReads(store)
    recover(reads, index, "pets", RecoveryOptions(since=AtTime(commits[-2].time_ns)))
    assert later <= reads.chunks


@pytest.mark.parametrize("seed", range(4))
def test_every_generation_can_be_reached(seed: int, tmp_path: Path) -> None:
    """An index held at it, and a snapshot which is the one that was made then."""
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, seed, rounds=8, skews_s=(0, 60))
    followed = MemoryStore()
    commits = read_history(store, "pets").commits
    for commit in commits:
        namespace = Namespace(followed, dataset.ref)
        heads = [store.get(chunk_key("pets", ref.id))[: ref.head_bytes] for ref in commit.added]
        namespace.apply(commit, heads)
        held = MemoryStore()
        recover(store, held, "pets", RecoveryOptions(until=commit.generation))
        found = all_maps(held, dataset)
        assert found[keys.state_of(dataset.ref.id)].pop(keys.HELD)
        assert found.pop(keys.DATASETS)
        assert found == all_maps(followed, dataset)
        assert open_dataset(store, held, "pets").namespace.state().generation == commit.generation
    assert recover(store, held, "pets").repaired, "it follows the store again"
    assert all_maps(held, dataset) == all_maps(index, dataset)
    options = RecoveryOptions(until=len(commits), snapshot_folder=tmp_path / "snapshots")
    report = recover(store, None, "pets", options)
    assert report.snapshot == build(dataset, tmp_path / "snapshots")
    early = RecoveryOptions(until=2, snapshot_folder=tmp_path / "snapshots")
    path = recover(store, None, "pets", early).snapshot
    assert path is not None
    assert [file.name for file in path.parent.iterdir() if file.is_dir()] == []
    with Snapshot.open(path) as snapshot:
        assert snapshot.generation == 2


def test_a_held_index_can_be_held_at_an_earlier_generation() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, 5)
    held, once = MemoryStore(), MemoryStore()
    recover(store, held, "pets", RecoveryOptions(until=6))
    recover(store, held, "pets", RecoveryOptions(until=3))
    recover(store, once, "pets", RecoveryOptions(until=3))
    assert all_maps(held, dataset) == all_maps(once, dataset)


def test_nobody_writes_by_a_held_index(tmp_path: Path) -> None:
    store = MemoryObjectStore()
    make_dataset(store, MemoryStore(), 5)
    newest = read_history(store, "pets").newest
    for generation in (3, newest):
        url = f"memory://{uuid.uuid4().hex}"
        held = open_index(url)
        recover(store, held, "pets", RecoveryOptions(until=generation))
        with pytest.raises(Refused, match=f"stays at generation {generation}"):
            DatasetWriter(open_dataset(store, held, "pets"))
        request = PackRequest([SourceTree(os.fsencode(tmp_path), b"")])
        with pytest.raises(Refused, match=f"stays at generation {generation}"):
            pack("pets", request, lambda: store, partial(open_index, url), PackProgress())
    assert read_history(store, "pets").newest == newest


def test_a_generation_whose_chunk_was_purged_is_refused_with_the_chunk() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    for data in (b"old", b"new"):
        with DatasetWriter(dataset) as writer:
            writer.put(b"a", data)
    [old] = read_history(store, "pets").commits[1].added
    assert dataset.log.append(3, [], [old.id]).generation == 4  # nothing but a hole is left in it
    store.delete(chunk_key("pets", old.id))
    dataset.catch_up()
    history = read_history(store, "pets")
    assert history.reachable == [range(1, 2), range(4, 5)]
    assert not history.lost_chunks()
    assert old.id not in history.stored
    assert not history.uncommitted
    with pytest.raises(Refused) as refused:
        recover(store, MemoryStore(), "pets", RecoveryOptions(until=3))
    assert str(refused.value).partition(": ")[2] == (
        f"1 of its 2 chunks was purged and deleted: {old.id} (retired by generation 4)"
    )
    assert refused.value.hint == "choose one that still has all of its chunks: 1, 4"
    for until in (1, 4):
        recover(store, MemoryStore(), "pets", RecoveryOptions(until=until))
    again = MemoryStore()
    recover(store, again, "pets")
    assert all_maps(again, dataset) == all_maps(index, dataset)
    assert contents(open_dataset(store, again, "pets")) == {b"a": b"new"}
    with pytest.raises(Refused, match="no generation 99"):
        recover(store, MemoryStore(), "pets", RecoveryOptions(until=99))


@pytest.mark.parametrize("seed", range(4))
def test_after_purges_each_generation_whose_chunks_exist_is_reached(
    seed: int, tmp_path: Path
) -> None:
    """Those of published snapshots among them; the others are refused by chunks that are gone."""
    world, draw = PurgedDataset(), random.Random(seed)
    then: dict[int, dict[bytes, bytes]] = {1: {}}
    published = set[int]()
    for step in range(30):
        random_change(world, draw)
        if step % 5 == 4:
            world.purge(NO_HOLES)
        generation = read_history(world.store, NAME).newest
        for since in range(max(then) + 1, generation + 1):  # a purge commits and changes no file
            then[since] = dict(world.files)
        if step % 7 == 3:
            publish_snapshot(world.store, build(world.open(), tmp_path / "snapshots"))
            published.add(generation)
    world.purge(NO_HOLES)
    history = read_history(world.store, NAME)
    reached = {generation for reach in history.reachable for generation in reach}
    assert published <= reached < set(range(1, history.newest + 1))
    assert min(reached) < max(set(then) - reached) < max(reached)
    for generation, files in then.items():
        index, options = MemoryStore(), RecoveryOptions(until=generation)
        if generation in reached:
            recover(world.store, index, NAME, options)
            assert contents(open_dataset(world.store, index, NAME)) == files, generation
        else:
            with pytest.raises(Refused, match="purged and deleted") as refused:
                recover(world.store, index, NAME, options)
            named = re.findall(r"(\S+) \(retired", str(refused.value))
            assert named
            assert not {ChunkId.parse(chunk) for chunk in named} & history.stored.keys()


def test_a_lost_chunk_is_named_and_gone_on_without_when_told() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, files = make_dataset(store, index, 2)
    chunks = {path: bytes(dataset.namespace.stat(path).row["chunk"]) for path in files}
    lost = chunks[min(files)]
    store.delete(chunk_key("pets", ChunkId(lost)))
    with pytest.raises(HistoryDamaged, match=str(ChunkId(lost))):
        recover(store, MemoryStore(), "pets")
    again = MemoryStore()
    report = recover(store, again, "pets", RecoveryOptions(without_chunks=True))
    assert [ref.id.value for ref in report.lost_chunks] == [lost]
    found = contents(open_dataset(store, again, "pets"))
    for path, data in files.items():
        assert (found.get(path) == data) == (chunks[path] != lost)


def test_a_chunk_with_a_damaged_header_is_gone_on_without_when_told() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, files = make_dataset(store, index, 2)
    chunks = {path: bytes(dataset.namespace.stat(path).row["chunk"]) for path in files}
    damaged = chunks[min(files)]
    key = chunk_key("pets", ChunkId(damaged))
    whole = bytes(store.get(key))
    store.delete(key)
    store.create(key, [whole[:100], bytes([whole[100] ^ 1]), whole[101:]])
    again = MemoryStore()
    with pytest.raises(HistoryDamaged, match=str(ChunkId(damaged))) as refused:
        recover(store, again, "pets")
    assert "--without-chunks" in refused.value.hint
    report = recover(store, again, "pets", RecoveryOptions(without_chunks=True))
    assert [ref.id.value for ref in report.lost_chunks] == [damaged]
    found = contents(open_dataset(store, again, "pets"))
    for path, data in files.items():
        assert (found.get(path) == data) == (chunks[path] != damaged)
    store.delete(key)
    store.create(key, [whole])
    assert recover(store, again, "pets").lost_chunks == []
    assert contents(open_dataset(store, again, "pets")) == files


class Interrupting(MemoryObjectStore):
    """The objects of another store; something happens before the first chunk is read, and before
    the last."""

    def __init__(self, store: MemoryObjectStore, chunks: int, happens: Callable[[], None]) -> None:
        super().__init__()
        self._objects = store._objects
        self._moments = {1, chunks}
        self._happens = happens
        self._reads = 0
        self._turn = threading.RLock()

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        with self._turn:  # reads come from several threads
            self._reads += 1
            if self._reads in self._moments:
                self._happens()
        return super().get_range(key, offset, length)


def test_what_is_committed_meanwhile_is_there_in_the_end() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, 1)
    chunks = len(read_history(store, "pets").stored)
    whole = MemoryStore()
    recover(store, whole, "pets")
    writing = open_dataset(store, whole, "pets")
    for key, fields in all_maps(whole, dataset).items():
        if key not in (keys.DATASETS, keys.state_of(dataset.ref.id)):
            whole.remove([MapFields(key, list(fields)[::2])])

    def write() -> None:
        with DatasetWriter(writing) as writer:
            writer.put(b"meanwhile", b"data", 0o644, len(store._objects))

    interrupting = Interrupting(store, chunks, write)
    recover(interrupting, whole, "pets")
    assert interrupting._reads > chunks
    again = MemoryStore()
    recover(store, again, "pets")
    assert all_maps(whole, dataset) == all_maps(again, dataset)
    assert contents(open_dataset(store, whole, "pets"))[b"meanwhile"] == b"data"


@pytest.mark.parametrize("seed", range(2))
def test_killed_between_any_two_records_it_goes_on(seed: int) -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, seed, rounds=4)
    wanted = all_maps(index, dataset)
    calls = 0
    while True:
        half = MemoryStore()
        broken = Piecewise.failing_after(half, calls, seed)
        stopped = broken.stopped(partial(recover, store, broken, "pets"))
        recover(store, half, "pets")
        assert all_maps(half, dataset) == wanted, calls
        if not stopped:
            break
        calls += 1 + calls // 10
    assert calls > 20


_KILLED = """
import os, signal, sys
from metadata.kv.lmdb_file import LmdbFileStore
left, put = [int(sys.argv[1])], LmdbFileStore.put
def killed(self, phases):
    put(self, phases)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
LmdbFileStore.put = killed
from dieselfs.cli import main
main(sys.argv[2:])
"""


def dlcmd_killed(puts: int, *arguments: str) -> int:
    command = [sys.executable, "-c", _KILLED, str(puts), *arguments]
    return run_forked(command, env=os.environ, timeout=120).returncode


def test_a_command_killed_half_way_is_finished_by_the_next(tmp_path: Path) -> None:
    store, index = LocalDirectory(tmp_path / "store"), MemoryStore()
    dataset, files = make_dataset(store, index, 7, rounds=6)
    folder = tmp_path / "new/index"  # neither it nor its parent is there
    places = ["--store", f"file://{tmp_path}/store", "--index", f"lmdb://{folder}"]
    assert dlcmd_killed(2, *places, "recover", "pets") == -signal.SIGKILL
    again = LmdbFileStore(folder)
    assert all_maps(again, dataset) != all_maps(index, dataset)
    again.close()
    assert dlcmd_killed(1000, *places, "recover", "pets") == 0
    again = LmdbFileStore(folder)
    assert all_maps(again, dataset) == all_maps(index, dataset)
    assert contents(open_dataset(store, again, "pets")) == files
    again.close()


def test_into_redis(redis_url: str) -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, 4, skews_s=(0, 7))
    redis: KeyValueStore = open_index(redis_url)
    recover(store, redis, "pets")
    assert all_maps(redis, dataset) == all_maps(index, dataset)
    lost = keys.files_of(dataset.ref.id, b"")
    redis.drop([lost, keys.chunks_of(dataset.ref.id)])
    assert recover(store, redis, "pets").changed
    assert all_maps(redis, dataset) == all_maps(index, dataset)
    redis.close()


class Overtaken(StoreWrapper):
    """Something happens once, right after the commits have been listed."""

    def __init__(self, inner: ObjectStore, happens: Callable[[], None]) -> None:
        super().__init__(inner)
        self._happens: Callable[[], None] | None = happens

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        found = list(super().list(prefix))
        if prefix == commit_prefix("pets") and self._happens is not None:
            happens, self._happens = self._happens, None
            happens()
        return iter(found)


def test_a_commit_that_came_while_the_log_was_read_is_not_taken_for_lost() -> None:
    """The index knows of it before the log is looked at again."""
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, files = make_dataset(store, index, 1, rounds=2)

    def write() -> None:
        with DatasetWriter(dataset) as writer:
            writer.put(b"meanwhile", b"data")

    recover(Overtaken(store, write), index, "pets")
    assert contents(open_dataset(store, index, "pets")) == {**files, b"meanwhile": b"data"}
    assert not recover(store, index, "pets").repaired


def store_orphan(store: ObjectStore, dataset: DatasetRef) -> str:
    """A whole chunk of 1970 that no commit names."""
    found: list[SealedChunk] = []
    writer = ChunkWriter(dataset, ChunkIdGenerator(lambda: 1000), found.append)
    writer.add_file(b"orphan", b"o", 0o644, 5)
    writer.flush()
    key = chunk_key(dataset.name, found[0].ref.id)
    store.create(key, [found[0].head, *found[0].payload])
    return key


class Collecting(StoreWrapper):
    """Before one call gc deletes an orphan."""

    def __init__(self, inner: ObjectStore, orphan: str, call: str, key: str) -> None:
        super().__init__(inner)
        self.orphan, self.at = orphan, (call, key)

    def before(self, call: str, key: str) -> None:
        if (call, key) == self.at:
            self.inner.delete(self.orphan)


def test_an_orphan_that_gc_deletes_before_its_commit_is_not_committed() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    orphan = store_orphan(store, dataset.ref)
    collecting = Collecting(store, orphan, "stat", orphan)
    with pytest.raises(NotFound, match="gc"):
        recover(collecting, index, "pets", RecoveryOptions(adopt=True))
    assert [commit.generation for commit in dataset.log.since(0)] == [1]


def test_an_orphan_that_gc_deletes_beside_its_commit_is_told() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    orphan = store_orphan(store, dataset.ref)
    collecting = Collecting(store, orphan, "create", commit_key("pets", 2))
    with pytest.raises(HistoryDamaged, match="1 chunk of pets is not in the store"):
        recover(collecting, index, "pets", RecoveryOptions(adopt=True))


def test_what_an_interrupted_purge_had_stored_is_not_adopted() -> None:
    """A file that was deleted since, and whose deletion was dropped, would be there again."""
    world = PurgedDataset()
    world.put({b"a": b"1" * 900, b"b": b"2" * 900})
    world.put({b"b": b"3" * 900})
    before = world.objects()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dieselfs.housekeeping.purge.purge.retire", Mock(side_effect=Stopped))
        with pytest.raises(Stopped):
            world.purge()
    left = world.objects() - before
    assert left
    world.delete(b"a")
    while world.purge().changed:
        pass
    assert b"a" not in world.entries()
    assert left <= world.objects()
    report = recover(world.store, world.index, NAME, RecoveryOptions(adopt=True))
    assert not report.adopted
    world.check()


def test_a_snapshot_of_the_past_whose_chunks_are_deleted_meanwhile_is_not_published(
    tmp_path: Path,
) -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    for data in (b"old", b"new"):
        with DatasetWriter(dataset) as writer:
            writer.put(b"a", data)
    old = dataset.log.read(2).added[0]
    assert dataset.log.append(3, [], [old.id]).generation == 4

    class Collected(StoreWrapper):
        def before(self, call: str, key: str) -> None:
            if call == "create" and key.startswith(snapshot_prefix("pets")):
                store.delete(chunk_key("pets", old.id))

    with pytest.raises(Refused, match="during the recovery"):
        recover(Collected(store), None, "pets", RecoveryOptions(until=2, snapshot_folder=tmp_path))
    assert not list(store.list(snapshot_prefix("pets")))
    assert not list_local(tmp_path, "pets")


class Overheard(Piecewise):
    """Others do something at a scan, right before totals are replaced, and once the mark of the
    rebuild is gone."""

    def __init__(self, inner: KeyValueStore, scans: int, happens: Callable[[], None]) -> None:
        super().__init__(inner, lambda: None)
        self._scans = scans
        self._happens = happens

    def scan(self, key: bytes) -> Iterator[list[tuple[bytes, bytes]]]:
        self._scans -= 1
        if not self._scans:
            self._happens()
        return super().scan(key)

    def remove_exactly(self, removals: Sequence[MapUpdate]) -> None:
        if any(keys.TOTALS in fields for _, fields, _ in removals):
            self._happens()
        super().remove_exactly(removals)

    def remove(self, removals: Sequence[MapFields]) -> None:
        super().remove(removals)
        if any(keys.REBUILDING in fields for _, fields in removals):
            self._happens()


@pytest.mark.parametrize("scans", range(2, 16, 2))
def test_a_commit_of_which_half_was_taken_for_wrong_is_whole_before_anybody_goes_on(
    scans: int,
) -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, files = make_dataset(store, index, 1, rounds=4)
    harmed = keys.files_of(dataset.ref.id, b"")
    index.put([[MapUpdate(harmed, [b"strange"], [bytes(88)])]])

    def write() -> None:
        with DatasetWriter(dataset) as writer:
            for path in (b"new", b"c/new", b"e/new", b"e/f/new", *sorted(files)[:3]):
                files[path] = b"%d" % len(store._objects)
                writer.put(path, files[path])

    recover(store, Overheard(index, scans, write), "pets")
    again = MemoryStore()
    recover(store, again, "pets")
    assert all_maps(index, dataset) == all_maps(again, dataset)
    assert contents(open_dataset(store, index, "pets")) == files
