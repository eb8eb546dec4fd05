"""Opening, removing and coming back; writers that work at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from chunkstore import removal
from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import Commit, CommitLog
from chunkstore.errors import ChunkStoreError, Corrupt, NotFound
from chunkstore.object_keys import commit_key
from chunkstore.removal import mark_removed
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer, ObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset, remove_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.recovery import RecoveryOptions, recover
from metadata import keys
from metadata.dataset_state import indexed_dataset, list_datasets, register_dataset
from metadata.errors import DatasetNotFound, MetadataError
from metadata.kv.key_value_store import KeyValueStore, MapFields
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from tests.chunkstore.packed import StoreWrapper
from tests.contracts.key_value_store_contract import running
from tests.dieselfs.dataset_content import content_of
from tests.metadata.stepped_index import Piecewise, Stopped


def put(dataset: Dataset, files: dict[bytes, bytes]) -> None:
    with DatasetWriter(dataset) as writer:
        for path, data in files.items():
            writer.put(path, data, 0o644, 5)


def files_of(dataset: Dataset) -> dict[bytes, bytes]:
    return {path: node.data for path, node in content_of(dataset).items() if node.data is not None}


def rebuilt(dataset: Dataset) -> Dataset:
    """The same dataset in an index made from the store alone."""
    return open_dataset(dataset.store, MemoryStore(), dataset.ref.name)


def assert_same_as_rebuilt(dataset: Dataset) -> None:
    again = rebuilt(dataset)
    assert again.namespace.state() == dataset.namespace.state()
    assert again.namespace.chunks() == dataset.namespace.chunks()
    for one, other in zip(again.namespace.walk(), dataset.namespace.walk(), strict=True):
        assert (one.path, one.file_names, one.directory_names) == (
            other.path,
            other.file_names,
            other.directory_names,
        )
        assert (one.files == other.files).all()
        assert (one.directories == other.directories).all()


def test_open_create_and_unknown() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    with pytest.raises(DatasetNotFound, match="dlcmd dataset ls"):
        open_dataset(store, index, "pets")
    with pytest.raises(ValueError, match="illegal dataset name"):
        open_dataset(store, index, "../pets", create=True)
    first = open_dataset(store, index, "pets", create=True)
    again = open_dataset(store, index, "pets", create=True)
    assert (first.born, again.born) == (True, False)
    assert first.ref == again.ref == open_dataset(store, index, "pets").ref
    assert list_datasets(index) == [first.ref]


def test_an_index_that_lost_everything_is_made_again() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    for turn in range(3):
        put(dataset, {b"a/%d" % turn: b"x" * turn, b"same": b"%d" % turn})
    assert_same_as_rebuilt(dataset)
    assert files_of(rebuilt(dataset)) == files_of(dataset)
    assert files_of(dataset)[b"same"] == b"2"


def test_a_removed_and_made_again_dataset_has_nothing_of_the_old() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    old = open_dataset(store, index, "pets", create=True)
    put(old, {b"a/b": b"old", b"c": b"old"})
    remove_dataset(store, index, "pets")
    assert list(store.list("")) == []
    assert index._maps == {}
    with pytest.raises(DatasetNotFound):
        remove_dataset(store, index, "pets")
    new = open_dataset(store, index, "pets", create=True)
    assert new.ref.id != old.ref.id
    assert files_of(new) == {}
    put(new, {b"c": b"new"})
    assert files_of(new) == {b"c": b"new"}
    with pytest.raises((ChunkStoreError, MetadataError)):
        old.catch_up()
    with pytest.raises((ChunkStoreError, MetadataError)):
        put(old, {b"d": b"late"})
    assert files_of(open_dataset(store, index, "pets")) == {b"c": b"new"}


class StoreThatStops(MemoryObjectStore):
    """Ends the process before its nth change from now."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def _step(self) -> None:
        if self.left is not None:
            if not self.left:
                raise Stopped
            self.left -= 1

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        self._step()
        super().create(key, parts)

    def delete(self, key: str) -> None:
        self._step()
        super().delete(key)


def stopped_removals() -> list[tuple[StoreThatStops, MemoryStore, DatasetRef]]:
    """A dataset whose removal ended at each step."""
    found = []
    for in_store in (True, False):
        for calls in range(40):
            store, index = StoreThatStops(), MemoryStore()
            dataset = open_dataset(store, index, "pets", create=True)
            put(dataset, {b"a/b": b"old", b"c": b"old"})
            failing = Piecewise.failing_after(index, 1000 if in_store else calls)
            store.left = calls if in_store else None
            stopped = failing.stopped(lambda: remove_dataset(store, failing, "pets"))  # noqa: B023
            store.left = None
            if not stopped:
                break
            found.append((store, index, dataset.ref))
    assert len(found) > 12
    return found


def test_a_removal_that_was_cut_off_is_repeated() -> None:
    for store, index, _ in stopped_removals():
        if list(store.list("")):
            remove_dataset(store, index, "pets")
        assert list(store.list("")) == []
        assert index._maps == {}


def test_a_finished_removal_spares_the_next_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes it first, and puts into a new dataset of the name."""
    store, index = MemoryObjectStore(), MemoryStore()
    mark_removed(store, open_dataset(store, index, "pets", create=True).log)
    new: list[Dataset] = []

    def is_removed(store: ObjectStore, name: str) -> bool:
        found = removal.is_removed(store, name)
        monkeypatch.undo()
        removal.finish_removal(store, name)
        new.append(open_dataset(store, MemoryStore(), name, create=True))
        put(new[0], {b"b": b"y"})
        return found

    monkeypatch.setattr("dieselfs.dataset.dataset.is_removed", is_removed)
    assert open_dataset(store, MemoryStore(), "pets", create=True).ref == new[0].ref
    assert files_of(rebuilt(new[0])) == {b"b": b"y"}


def test_after_a_removal_that_was_cut_off_the_name_can_be_used() -> None:
    for store, index, old in stopped_removals():
        try:
            survivor = open_dataset(store, index, "pets")
        except DatasetNotFound:
            pass
        else:
            assert survivor.ref == old
            assert files_of(survivor) in ({b"a/b": b"old", b"c": b"old"}, {})
            continue
        new = open_dataset(store, index, "pets", create=True)
        assert new.ref != old
        put(new, {b"c": b"new"})
        assert files_of(new) == {b"c": b"new"}
        assert [ref.id for ref in list_datasets(index)] == [new.ref.id]
        assert_same_as_rebuilt(new)


def test_a_half_removed_dataset_tells_what_finishes_it() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    mark_removed(store, dataset.log)
    for look in (index, MemoryStore()):
        with pytest.raises(DatasetNotFound, match="dlcmd dataset rm pets"):
            open_dataset(store, look, "pets")


def test_a_name_whose_former_life_was_dated_later() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    register_dataset(index, DatasetRef("pets", bytes(16)), 2**62)
    dataset = open_dataset(store, index, "pets", create=True)
    assert indexed_dataset(index, "pets") == dataset.ref


def test_a_writer_whose_dataset_is_removed_is_told() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    writer = DatasetWriter(dataset)
    writer.put(b"a", b"x")
    remove_dataset(store, index, "pets")
    with pytest.raises((ChunkStoreError, MetadataError)):
        writer.flush()
    with pytest.raises((ChunkStoreError, MetadataError)):
        writer.close()
    new = open_dataset(store, index, "pets", create=True)
    put(new, {b"b": b"y"})
    assert files_of(new) == {b"b": b"y"}


def test_a_put_before_the_last_delete_of_a_removal_stays() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    put(open_dataset(store, index, "pets", create=True), {b"a": b"old"})
    objects = len(list(store.list(""))) + 1  # and the end

    class Interrupted(StoreWrapper):
        deletes = 0
        new: Dataset | None = None

        def before(self, call: str, key: str) -> None:
            self.deletes += call == "delete"
            if self.deletes == objects and self.new is None:
                self.new = open_dataset(self.inner, MemoryStore(), "pets", create=True)
                put(self.new, {b"b": b"y"})

    interrupted = Interrupted(store)
    remove_dataset(interrupted, index, "pets")
    assert interrupted.new is not None
    assert files_of(rebuilt(interrupted.new)) == {b"b": b"y"}


def test_a_writer_with_an_index_of_its_own_is_told() -> None:
    """The removal, and the next dataset of the name, are another machine's."""
    store = MemoryObjectStore()
    old = open_dataset(store, MemoryStore(), "pets", create=True)
    for name in (b"a", b"b", b"c"):
        put(old, {name: b"old"})
    writer = DatasetWriter(old)
    writer.put(b"late", b"x")
    elsewhere = MemoryStore()
    remove_dataset(store, elsewhere, "pets")
    new = open_dataset(store, elsewhere, "pets", create=True)
    with pytest.raises(NotFound, match="removed"):
        writer.close()
    for name in (b"a", b"b", b"c", b"d", b"e"):
        put(new, {name: b"new"})
    assert files_of(rebuilt(new)) == dict.fromkeys((b"a", b"b", b"c", b"d", b"e"), b"new")


def test_a_late_commit_that_is_left_hides_nothing_and_is_moved_aside() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    old = open_dataset(store, index, "pets", create=True)
    remove_dataset(store, index, "pets")
    new = open_dataset(store, index, "pets", create=True)
    late_commit(store, old.ref)
    assert rebuilt(new).namespace.state().generation == 1
    with pytest.raises(Corrupt, match="recover pets --without-commits"):
        put(new, {b"a": b"x"})
    recover(store, index, "pets", RecoveryOptions(without_commits=True))
    put(new, {b"a": b"x"})
    assert files_of(rebuilt(new)) == {b"a": b"x"}


def test_a_reader_of_a_dataset_whose_name_is_used_again_is_told() -> None:
    store = MemoryObjectStore()
    old = open_dataset(store, MemoryStore(), "pets", create=True)
    elsewhere = MemoryStore()
    remove_dataset(store, elsewhere, "pets")
    put(open_dataset(store, elsewhere, "pets", create=True), {b"b": b"y"})
    with pytest.raises(DatasetNotFound, match="has been removed"):
        old.catch_up()


def test_no_writer_fills_a_gap_of_lost_commits() -> None:
    """Else the lost ones could never be missed, and later ones would be older than theirs."""
    store = MemoryObjectStore()
    dataset = open_dataset(store, MemoryStore(), "pets", create=True)
    for number in range(5):
        put(dataset, {b"%d" % number: b"x"})
    for generation in (3, 4):
        store.delete(commit_key("pets", generation))
    with pytest.raises(Corrupt, match="commit 3 of dataset pets is missing"):
        open_dataset(store, MemoryStore(), "pets", create=True)


def late_commit(store: ObjectStore, removed: DatasetRef) -> str:
    """A commit of a removed dataset, whose writer was killed before it saw that it was late."""
    key = commit_key(removed.name, 2)
    store.create(key, [Commit(2, removed.id, 5).encode()])
    return key


def test_a_late_commit_of_a_former_life_is_swept() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    old = open_dataset(store, index, "pets", create=True)
    remove_dataset(store, index, "pets")
    late_commit(store, old.ref)
    new = open_dataset(store, index, "pets", create=True)
    put(new, {b"b": b"y"})
    assert files_of(rebuilt(new)) == {b"b": b"y"}


def test_a_late_commit_that_its_writer_deletes_while_it_is_swept() -> None:
    class Deleting(StoreWrapper):
        late = ""

        def before(self, call: str, key: str) -> None:
            if (call, key) == ("get", self.late):
                self.late = ""
                self.inner.delete(key)

    store, index = Deleting(MemoryObjectStore()), MemoryStore()
    old = open_dataset(store, index, "pets", create=True)
    remove_dataset(store, index, "pets")
    store.late = late_commit(store, old.ref)
    new = open_dataset(store, index, "pets", create=True)
    assert new.born
    put(new, {b"b": b"y"})
    assert files_of(rebuilt(new)) == {b"b": b"y"}


# Writers at the same time

WRITERS = 4
ROUNDS = 8


def work(dataset: Dataset, number: int) -> None:
    """Names of its own, names of all, and every round one commit."""
    with DatasetWriter(dataset, target_bytes=4096) as writer:
        for turn in range(ROUNDS):
            for at in range(10):
                writer.put(b"own/%d/%d-%d" % (number, turn, at), b"%d %d" % (number, at) * 50)
                writer.put(b"all/%d" % at, b"writer %d round %d" % (number, turn))
            writer.flush()


def check_after_writers(dataset: Dataset) -> None:
    found = files_of(dataset)
    own = {path for path in found if path.startswith(b"own/")}
    assert own == {
        b"own/%d/%d-%d" % (number, turn, at)
        for number in range(WRITERS)
        for turn in range(ROUNDS)
        for at in range(10)
    }
    winners: dict[bytes, bytes] = {}
    for commit in dataset.log.since(1):
        for ref in sorted(commit.added, key=lambda ref: ref.id):
            head = dataset.reader.head(ref.id, ref.head_bytes)
            payload = dataset.reader.payload(ref)
            for path, start, size in zip(
                head.entries.paths,
                head.entries.offset.tolist(),
                head.entries.length.tolist(),
                strict=True,
            ):
                winners[path] = bytes(payload[start : start + size])
    assert found == winners
    assert_same_as_rebuilt(dataset)


def test_writers_in_threads() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    failures: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(open_dataset(store, index, "pets", create=True), number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    check_after_writers(open_dataset(store, index, "pets"))


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
def test_writers_in_processes(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    open_index: Callable[[], KeyValueStore]
    if kind == "lmdb":
        open_index = lambda: LmdbFileStore(tmp_path / "index")  # noqa: E731
    else:
        from metadata.kv.redis_server import RedisServerStore

        url = request.getfixturevalue("redis_url")
        open_index = lambda: RedisServerStore(url)  # noqa: E731

    def process(number: int) -> Callable[[], None]:
        def run() -> None:
            index = open_index()
            work(
                open_dataset(LocalDirectory(tmp_path / "store"), index, "pets", create=True), number
            )
            index.close()

        return run

    with running([process(number) for number in range(WRITERS)]):
        pass
    index = open_index()
    check_after_writers(open_dataset(LocalDirectory(tmp_path / "store"), index, "pets"))
    index.close()


def test_a_deletion_of_a_tree_spares_what_comes_meanwhile() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    put(dataset, {b"a/b/old": b"1", b"a/old": b"2"})
    state = dataset.namespace.state().generation
    seen = [dataset.namespace.stat(path) for path in (b"a/b/old", b"a/old", b"a/b", b"a")]
    other = open_dataset(store, index, "pets")
    put(other, {b"a/b/new": b"3", b"a/old": b"again"})
    with DatasetWriter(dataset) as writer:
        for entry in seen:
            writer.delete(entry, state)
    assert files_of(dataset) == {b"a/b/new": b"3", b"a/old": b"again"}
    assert_same_as_rebuilt(dataset)


def test_a_directory_touched_by_a_commit_that_is_half_applied_is_not_hidden() -> None:
    """Its new file can't be seen yet: whoever finds the directory empty must not hide the file with
    it."""
    store = MemoryObjectStore()
    for calls in range(60):
        index = MemoryStore()
        dataset = open_dataset(store, index, f"pets{calls}", create=True)
        with DatasetWriter(dataset) as writer:
            writer.put_directory(b"a", 0o755, 1)
        before = dataset.namespace.state().generation
        slow = Piecewise.failing_after(index, calls, seed=calls)
        other = Dataset(
            dataset.ref, store, slow, dataset.log, dataset.reader, Namespace(slow, dataset.ref)
        )
        writer = DatasetWriter(dataset)
        with DatasetWriter(dataset) as putting:  # durable in the store, applied only in part
            putting._dataset = other
            putting._commits._publish = lambda commit, heads: None
            putting.put(b"a/new", b"x")
        assert dataset.log.read(before + 1).added
        stopped = slow.stopped(other.catch_up)
        entry = dataset.namespace.stat(b"a")
        empty = not dataset.namespace.list(b"a").file_names
        writer.delete(entry, before)
        writer.close()
        assert files_of(dataset) == {b"a/new": b"x"}, (calls, empty)
        if not stopped:
            break
    else:
        raise AssertionError("the limit was never reached")


def test_readers_of_another_dataset_are_refused() -> None:
    store, index = MemoryObjectStore(), MemoryStore()
    dataset = open_dataset(store, index, "pets", create=True)
    put(dataset, {b"a": b"x"})
    foreign = DatasetRef("pets", bytes(16))
    with pytest.raises(DatasetNotFound):
        Namespace(MemoryStore(), foreign).catch_up(
            CommitLog(store, foreign), ChunkReader(store, foreign)
        )


def test_a_commit_that_retires_chunks_is_published_with_what_their_heads_say() -> None:
    """The deletions in them are forgotten, which the commit itself does not tell."""
    dataset = open_dataset(MemoryObjectStore(), MemoryStore(), "d", create=True)
    put(dataset, {b"old": b"1", b"kept": b"2"})
    with DatasetWriter(dataset) as writer:
        writer.delete(dataset.namespace.stat(b"old"))
    [deleting] = dataset.log.read(3).added
    # As purge does when the chunk with the file is gone from the store; here only the index is
    # looked at.
    commit = dataset.log.append_exactly(4, (), (deleting.id,))
    dataset.publish(commit, [])
    key = keys.files_of(dataset.ref.id, b"")
    assert dataset.index.get_many([MapFields(key, [b"old"])]) == [[None]]
    assert dataset.namespace.state().chunks == 1
    assert deleting.id.value not in dataset.namespace.chunks()
