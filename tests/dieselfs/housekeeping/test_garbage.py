"""gc: every kind of garbage is found once it is old enough, nothing that is needed ever goes, and
it may be killed anywhere."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chunkstore import tags
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId, ChunkIdGenerator
from chunkstore.chunk_source import ChunkRef
from chunkstore.chunk_writer import ChunkWriter, SealedChunk
from chunkstore.commit_log import CommitLog
from chunkstore.errors import NotFound, Unavailable
from chunkstore.group_commit import DurableChunk, GroupCommit
from chunkstore.leases import Lease, new_lease_id, write_lease
from chunkstore.object_keys import (
    chunk_key,
    chunk_prefix,
    commit_key,
    lease_key,
    put_lease_key,
    snapshot_key,
    tag_key,
)
from chunkstore.put_leases import PutLease, PutState, write_put_lease
from chunkstore.removal import mark_removed
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.resilient import ResilientStore
from dieselfs.dataset.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import Conflict, HistoryDamaged
from dieselfs.housekeeping.garbage import (
    PINNED,
    YOUNG,
    Garbage,
    GarbageItem,
    GarbageKind,
    find_garbage,
    former_snapshots,
    incomplete_snapshots,
    temporary_files,
)
from dieselfs.housekeeping.garbage_deletion import delete_garbage, delete_outside
from dieselfs.housekeeping.retention import GRACE_S
from dieselfs.snapshots import lifecycle
from metadata.errors import DatasetNotFound
from metadata.kv.memory import MemoryStore
from tests.chunkstore.packed import StoreWrapper
from tests.dieselfs.dataset_content import content_of

NS = 1_000_000_000


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def dataset(store: MemoryObjectStore) -> Dataset:
    made = open_dataset(store, MemoryStore(), "pets", create=True)
    put(made, {b"cat": b"meow", b"dog": b"woof"})
    return made


def put(dataset: Dataset, files: dict[bytes, bytes]) -> int:
    """The generation."""
    with DatasetWriter(dataset, open_chunks=1) as writer:
        for path, data in files.items():
            writer.put(path, data)
        return writer.flush()


def retire_first_chunk(dataset: Dataset) -> ChunkRef:
    """As a purge does: what was put first is put again, and its chunk retired."""
    first = next(dataset.log.since(1)).added[0]
    generation = put(dataset, {b"cat": b"meow", b"dog": b"woof"})
    dataset.log.append(generation, [], [first.id])
    dataset.catch_up()
    return first


def later(days: float = GRACE_S / 86400 + 1) -> int:
    return time.time_ns() + int(days * 86400 * NS)


def find(store: ObjectStore, now_ns: int | None = None, **options: int) -> Garbage:
    return find_garbage(store, "pets", now_ns=later() if now_ns is None else now_ns, **options)


def delete(store: ObjectStore, garbage: Garbage) -> list[GarbageItem]:
    return delete_garbage(store, garbage, clock_ns=later)


def keys_of(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def kinds(items: tuple[GarbageItem, ...]) -> list[tuple[GarbageKind, str]]:
    return sorted((entry.kind, entry.kept) for entry in items)


def orphan(store: ObjectStore, age_s: float = 0) -> str:
    ids = ChunkIdGenerator(lambda: time.time() - age_s)
    key = chunk_key("pets", ids.next())
    store.create(key, [bytes(100)])
    return key


def lease_of(dataset: Dataset, *generations: int) -> Lease:
    return Lease(new_lease_id(), 1, dataset.ref.id, generations, "node-1", 7, time.time_ns())


def test_a_sound_dataset_has_none(
    store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
) -> None:
    lifecycle.create(dataset, tmp_path)
    tags.tag(store, "pets", "v1", lifecycle.list_published(store, "pets")[0].snapshot_id)
    found = find(store)
    assert (found.removable, found.waiting, found.notes) == ((), (), ())
    assert found.generation == 2


class TestEveryKind:
    """Kept while young, garbage later, deleted alone, and then nothing is found."""

    def check(self, store: ObjectStore, kind: GarbageKind, key: str) -> None:
        before = keys_of(store)
        young = find(store, time.time_ns())
        assert (young.removable, kinds(young.waiting)) == ((), [(kind, YOUNG)])
        found = find(store)
        [entry] = found.removable
        assert (entry.kind, entry.key, entry.kept) == (kind, key, "")
        assert entry.size_bytes == store.stat(key).size_bytes
        assert delete(store, found) == [entry]
        assert before - keys_of(store) == {key}
        assert find(store).removable == ()

    def test_uncommitted_chunk(self, store: MemoryObjectStore, dataset: Dataset) -> None:
        self.check(store, GarbageKind.UNCOMMITTED, orphan(store))

    def test_retired_chunk(self, store: MemoryObjectStore, dataset: Dataset) -> None:
        first = retire_first_chunk(dataset)
        self.check(store, GarbageKind.RETIRED, chunk_key("pets", first.id))
        fresh = open_dataset(store, MemoryStore(), "pets")
        assert [content_of(fresh)[p].data for p in (b"cat", b"dog")] == [b"meow", b"woof"]

    def test_lease_that_is_over(self, store: MemoryObjectStore, dataset: Dataset) -> None:
        lease = replace(lease_of(dataset, 2), written_ns=time.time_ns() - 3 * 3600 * NS)
        write_lease(store, "pets", lease)
        self.check(store, GarbageKind.LEASE, lease_key("pets", lease.lease_id, 1))

    def test_lease_of_a_put_that_was_killed(
        self, store: MemoryObjectStore, dataset: Dataset
    ) -> None:
        written_ns = time.time_ns() - 3 * 3600 * NS
        lease = PutLease(
            "ab" * 16,
            5,
            dataset.ref.id,
            PutState.RUNNING,
            "node",
            1,
            1,
            b"machin",
            (),
            written_ns,
            written_ns,
            (b"",),
        )
        write_put_lease(store, "pets", lease)
        self.check(store, GarbageKind.LEASE, put_lease_key("pets", lease.lease_id, 5))

    def test_superseded_numbers(self, store: MemoryObjectStore, dataset: Dataset) -> None:
        made = tags.tag(store, "pets", "v1", f"2-{'ab' * 16}")
        store.create(tag_key("pets", "v1", 2), [replace(made, number=2).encode()])
        self.check(store, GarbageKind.SUPERSEDED, tag_key("pets", "v1", 1))

    def test_a_tag_that_is_gone(self, store: MemoryObjectStore, dataset: Dataset) -> None:
        tags.tag(store, "pets", "v1", f"2-{'ab' * 16}")
        tags.untag(store, "pets", "v1")
        self.check(store, GarbageKind.SUPERSEDED, tag_key("pets", "v1", 2))

    def test_a_tag_that_is_gone_goes_after_what_it_meant(
        self, store: MemoryObjectStore, dataset: Dataset
    ) -> None:
        """Else whoever is killed in between would bring the tag back."""
        meant = tags.tag(store, "pets", "v1", f"2-{'ab' * 16}")
        tags.untag(store, "pets", "v1")
        store.create(tag_key("pets", "v1", 1), [meant.encode()])  # as if one had been killed
        found = find(store)
        assert [entry.key for entry in found.removable] == [tag_key("pets", "v1", 1)]
        delete(store, found)
        assert tags.current(tags.read_tags(store, dataset.ref), dataset.ref) == []
        self.check(store, GarbageKind.SUPERSEDED, tag_key("pets", "v1", 2))

    def test_snapshot_of_a_former_life(
        self, store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
    ) -> None:
        lifecycle.create(dataset, tmp_path)
        [published] = lifecycle.list_published(store, "pets")
        key = snapshot_key("pets", published.snapshot_id)
        data = store.get(key)
        remove_dataset(store, dataset.index, "pets")
        put(open_dataset(store, dataset.index, "pets", create=True), {b"new": b"life"})
        store.create(key, [data])  # its publisher was late
        self.check(store, GarbageKind.FORMER_SNAPSHOT, key)

    def test_snapshot_without_its_chunks(
        self, store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
    ) -> None:
        lifecycle.create(dataset, tmp_path)
        [published] = lifecycle.list_published(store, "pets")
        store.delete(chunk_key("pets", retire_first_chunk(dataset).id))
        key = snapshot_key("pets", published.snapshot_id)
        self.check(store, GarbageKind.DANGLING_SNAPSHOT, key)


@pytest.mark.parametrize("pin", ["snapshot", "tag", "lease"])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_pinned_stays(
    store: MemoryObjectStore, dataset: Dataset, tmp_path: Path, pin: str, when: str
) -> None:
    key = chunk_key("pets", retire_first_chunk(dataset).id)
    found = find(store)
    assert [entry.key for entry in found.removable] == [key]
    if pin == "snapshot":
        store.create(snapshot_key("pets", f"2-{'ab' * 16}"), [b""])
    elif pin == "tag":
        tags.tag(store, "pets", "v1", f"2-{'ab' * 16}")
    else:
        write_lease(store, "pets", replace(lease_of(dataset, 2), written_ns=later()))
    if when == "before":
        found = find(store)
        assert kinds(found.waiting) == [(GarbageKind.RETIRED, PINNED)]
    assert delete(store, found) == []
    assert key in keys_of(store)


def test_a_pin_of_a_generation_without_the_chunk_does_not_keep_it(
    store: MemoryObjectStore, dataset: Dataset
) -> None:
    retire_first_chunk(dataset)
    tags.tag(store, "pets", "v1", f"4-{'ab' * 16}")
    assert len(find(store).removable) == 1


@pytest.mark.parametrize("key", [tag_key("pets", "v1", 1), lease_key("pets", "ab" * 16, 1)])
def test_what_cannot_be_read_keeps_every_retired_chunk(
    store: MemoryObjectStore, dataset: Dataset, key: str
) -> None:
    retire_first_chunk(dataset)
    store.create(key, [b"damaged"])
    found = find(store)
    assert (found.removable, kinds(found.waiting)) == ((), [(GarbageKind.RETIRED, PINNED)])
    assert len(found.notes) == 1


def test_unreadable_leases_go_when_told(store: MemoryObjectStore, dataset: Dataset) -> None:
    key = lease_key("pets", "ab" * 16, 1)
    store.create(key, [b"damaged"])
    found = find(store, unreadable_leases=True)
    assert [entry.key for entry in delete(store, found)] == [key]
    assert find(store).notes == ()


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_where_a_commit_is_lost_nothing_is_waste(
    store: MemoryObjectStore, dataset: Dataset, lost: int, how: str
) -> None:
    put(dataset, {b"bird": b"tweet"})
    put(dataset, {b"fish": b""})
    orphan(store)
    key = commit_key("pets", lost)
    data = store.get(key)
    store.delete(key)
    if how == "damaged":
        store.create(key, [data[:-1]])
    with pytest.raises(HistoryDamaged):
        find(store)


@pytest.mark.parametrize("witness", ["index", "tag", "lease"])
def test_a_lost_last_commit_is_noticed_if_anybody_knows_of_it(
    store: MemoryObjectStore, dataset: Dataset, witness: str
) -> None:
    put(dataset, {b"bird": b"tweet"})
    store.delete(commit_key("pets", 3))
    if witness == "tag":
        tags.tag(store, "pets", "v1", f"3-{'ab' * 16}")
    elif witness == "lease":
        write_lease(store, "pets", lease_of(dataset, 3))
    with pytest.raises(HistoryDamaged):
        find(store, known_generation=3 if witness == "index" else 0)


def test_a_commit_that_comes_meanwhile_keeps_its_chunk(
    store: MemoryObjectStore, dataset: Dataset
) -> None:
    key = orphan(store)
    chunk = ChunkRef(ChunkId.parse(key.rpartition("/")[2]), 50, 50)
    found = find(store)
    assert [entry.key for entry in found.removable] == [key]
    dataset.log.append(2, [chunk])
    assert delete(store, found) == []
    assert key in keys_of(store)


def test_a_writer_that_is_late_notices_that_its_chunk_is_gone(
    store: MemoryObjectStore, dataset: Dataset
) -> None:
    key = orphan(store, age_s=8 * 86400)
    chunk = ChunkRef(ChunkId.parse(key.rpartition("/")[2]), 50, 50)
    assert len(delete(store, find(store, time.time_ns() + 60 * 86400 * NS))) == 1
    commits = GroupCommit(CommitLog(store, dataset.ref), 2, lambda commit, heads: None)
    with commits:
        commits.add(DurableChunk(chunk, b""))
        with pytest.raises(NotFound, match="run the same command again"):
            commits.flush()
    assert list(dataset.log.since(2)) == []


def test_beside_running_puts_nothing_is_lost(store: MemoryObjectStore, dataset: Dataset) -> None:
    """With a grace period of an hour, which every chunk under way is younger than; garbage is
    deleted meanwhile."""
    orphans = {orphan(store, age_s=2 * 3600) for _ in range(20)}
    stop = threading.Event()
    errors: list[BaseException] = []
    turns = [0, 0, 0]
    """The puts that each writer has made."""

    def write(number: int) -> None:
        try:
            while not stop.is_set():
                put(dataset, {b"%d/%d" % (number, turns[number]): b"x" * 1000})
                turns[number] += 1
        except BaseException as error:
            errors.append(error)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(3)]
    for writer in writers:
        writer.start()
    try:
        looks = 0
        while not errors and (looks < 10 or min(turns) < 2):  # a writer may begin late
            found = find(store, time.time_ns(), grace_s=3600)
            delete_garbage(store, found)
            looks += 1
    finally:
        stop.set()
        for writer in writers:
            writer.join()
    assert not errors
    assert not orphans & keys_of(store)
    committed = {ref.id for commit in dataset.log.since(0) for ref in commit.added}
    assert {chunk_key("pets", chunk) for chunk in committed} <= keys_of(store)
    assert len(content_of(dataset)) > 5


@pytest.mark.parametrize("own", [True, False])
def test_a_chunk_whose_writer_had_a_wrong_clock_stays(
    store: MemoryObjectStore, dataset: Dataset, own: bool
) -> None:
    """Its id tells of a time before the birth of the dataset that it belongs to. One of a former
    life may well be so old."""
    ref = dataset.ref if own else DatasetRef("pets", b"some former life")
    ids = ChunkIdGenerator(lambda: time.time() - 365 * 86400)
    sealed: list[SealedChunk] = []
    writer = ChunkWriter(ref, ids, sealed.append, open_chunks=1)
    writer.add_file(b"new", b"data", 0o644, 0)
    writer.flush()
    [chunk] = sealed
    store.create(chunk_key("pets", chunk.ref.id), [chunk.head, *chunk.payload])
    found = find(store)
    assert len(found.waiting if own else found.removable) == 1
    assert ["clock" in entry.kept for entry in found.waiting] == [True] * own


def test_without_a_dataset(store: MemoryObjectStore) -> None:
    with pytest.raises(DatasetNotFound, match="no dataset"):
        find(store)
    key = orphan(store)  # nobody can tell whether a commit named it
    with pytest.raises(HistoryDamaged):
        find(store)
    assert keys_of(store) == {key}


def test_half_removed(store: MemoryObjectStore, dataset: Dataset) -> None:
    mark_removed(store, dataset.log)
    with pytest.raises(DatasetNotFound, match="dataset rm pets"):
        find(store)


def test_removed_meanwhile(store: MemoryObjectStore, dataset: Dataset) -> None:
    orphan(store)
    found = find(store)
    remove_dataset(store, dataset.index, "pets")
    open_dataset(store, dataset.index, "pets", create=True)
    key = orphan(store)
    with pytest.raises(Conflict):
        delete(store, found)
    assert key in keys_of(store)


def test_a_snapshot_that_misses_what_nobody_retired_is_damage_and_no_waste(
    store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
) -> None:
    lifecycle.create(dataset, tmp_path)
    [info] = store.list(chunk_prefix("pets"))
    store.delete(info.key)
    found = find(store)
    assert (found.removable, found.waiting) == ((), ())
    assert ["lost" in note for note in found.notes] == [True]


def test_a_snapshot_that_misses_a_part_is_no_waste(
    store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
) -> None:
    """A chunk was lost, its files put again and the chunk retired: the rest of the snapshot can be
    read, and what it holds stays."""
    put(dataset, {b"bird": b"tweet"})
    lifecycle.create(dataset, tmp_path)
    store.delete(chunk_key("pets", retire_first_chunk(dataset).id))
    bird = next(dataset.log.since(2)).added[0]
    dataset.log.append(dataset.namespace.state().generation, [], [bird.id])
    found = find(store)
    assert (found.removable, kinds(found.waiting)) == ((), [(GarbageKind.RETIRED, PINNED)])
    assert ["1 of the 2 chunks" in note for note in found.notes] == [True]


@pytest.mark.parametrize("holder", ["tag", "lease"])
def test_a_snapshot_without_chunks_stays_while_it_is_held(
    store: MemoryObjectStore, dataset: Dataset, tmp_path: Path, holder: str
) -> None:
    lifecycle.create(dataset, tmp_path)
    [published] = lifecycle.list_published(store, "pets")
    store.delete(chunk_key("pets", retire_first_chunk(dataset).id))
    found = find(store)
    assert [entry.kind for entry in found.removable] == [GarbageKind.DANGLING_SNAPSHOT]
    if holder == "tag":
        tags.tag(store, "pets", "v1", published.snapshot_id)
    else:
        write_lease(store, "pets", replace(lease_of(dataset, 2), written_ns=later()))
    assert delete(store, found) == []
    assert kinds(find(store).waiting) == [(GarbageKind.DANGLING_SNAPSHOT, PINNED)]


def test_killed_at_any_call_it_is_simply_run_again(tmp_path: Path) -> None:
    class Dies(StoreWrapper):
        left = 0

        def before(self, call: str, key: str) -> None:
            if self.left <= 0:
                raise Unavailable("killed")
            self.left -= 1

    for calls in range(200):
        store = MemoryObjectStore()
        dataset = open_dataset(store, MemoryStore(), "pets", create=True)
        put(dataset, {b"cat": b"meow", b"dog": b"woof"})
        retire_first_chunk(dataset)
        for _ in range(5):
            orphan(store)
        dying = Dies(store)
        dying.left = calls
        try:
            done = delete(dying, find(dying))
        except Unavailable:
            delete(store, find(store))
        else:
            assert len(done) == 6
            break
    assert calls > 10
    assert find(store).removable == ()
    fresh = open_dataset(store, MemoryStore(), "pets")
    assert content_of(fresh)[b"cat"].data == b"meow"


class TestOutsideOfDatasets:
    def test_temporary_files_of_a_local_store(self, tmp_path: Path) -> None:
        store = ResilientStore(LocalDirectory(tmp_path / "store"))
        assert temporary_files(store, 0) == []
        put(open_dataset(store, MemoryStore(), "pets", create=True), {b"cat": b"meow"})
        folder = tmp_path / "store/.temporary"
        for name, age_s in (("old", 8 * 86400), ("young", 0)):
            (folder / name).write_bytes(b"half")
            os.utime(folder / name, (time.time() - age_s,) * 2)
        [entry] = temporary_files(store, GRACE_S)
        assert (entry.kind, entry.key, entry.size_bytes) == (GarbageKind.TEMPORARY, "old", 4)
        delete_outside(store, entry)
        delete_outside(store, entry)
        assert [path.name for path in folder.iterdir()] == ["young"]

    def test_a_store_without_any(self, store: MemoryObjectStore) -> None:
        assert temporary_files(store, 0) == []

    def test_local_snapshots_of_former_lives(
        self, store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
    ) -> None:
        former = lifecycle.create(dataset, tmp_path)
        remove_dataset(store, dataset.index, "pets")
        again = open_dataset(store, dataset.index, "pets", create=True)
        put(again, {b"new": b"life"})
        present = lifecycle.create(again, tmp_path)
        (tmp_path / ".incomplete-x").write_bytes(b"half")
        now_s = time.time()
        asked = (tmp_path, "pets", again.ref.id, GRACE_S)
        assert [entry.kept for entry in former_snapshots(*asked, now_s)] == [YOUNG]
        found = former_snapshots(*asked, now_s + GRACE_S + 60)
        found += incomplete_snapshots(tmp_path, GRACE_S, now_s + GRACE_S + 60)
        assert [(entry.key, entry.kept) for entry in found] == [
            (str(former), ""),
            (str(tmp_path / ".incomplete-x"), ""),
        ]
        for entry in found:
            delete_outside(store, entry)
        assert list(tmp_path.iterdir()) == [present]
