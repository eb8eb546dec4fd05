from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_id import ChunkId
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import (
    Commit,
    CommitLog,
    create_dataset,
    find_dataset,
    newest_generation,
)
from chunkstore.errors import Corrupt, NotFound, Unavailable
from chunkstore.object_keys import chunk_key, commit_key, dataset_prefix, snapshot_key
from chunkstore.removal import finish_removal, is_removed, mark_removed
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.tags import resolve, tag
from tests.chunkstore.packed import DATASET, Packed, StoreWrapper

NAME = DATASET.name


def full_dataset(store: ObjectStore) -> tuple[CommitLog, list[ChunkId]]:
    """Six chunks in three commits, a snapshot, and a chunk that was never committed."""
    dataset, _ = create_dataset(store, NAME)
    log, packed = CommitLog(store, dataset), Packed()
    writer = packed.writer(target_bytes=4096, open_chunks=1)
    writer.dataset = dataset
    for number in range(7):
        writer.add_file(b"f%d" % number, bytes(5000), 0o644, 0)
    packed.store_in(store)
    refs = [chunk.ref for chunk in packed.chunks]
    for at in range(0, 6, 2):
        log.append(1, refs[at : at + 2])
    store.create(snapshot_key(NAME, "4-abc"), [b"snapshot"])
    return log, [found.id for found in refs]


class CrashesAfter(StoreWrapper):
    """Changes the store `count` times, then never again."""

    def __init__(self, inner: ObjectStore, count: int) -> None:
        super().__init__(inner)
        self.left = count

    def before(self, call: str, key: str) -> None:
        taken = any(info.key == key for info in self.inner.list(""))
        if call == "delete" or (call == "create" and not taken):
            if not self.left:
                raise Unavailable("killed")
            self.left -= 1


def remove(store: ObjectStore, dataset: DatasetRef) -> None:
    if not is_removed(store, dataset.name):
        mark_removed(store, CommitLog(store, dataset))
    finish_removal(store, dataset.name)


STEPS = 1 + 7 + 3 + 1 + 2  # mark · chunks · commits 2-4 · snapshot · the birth, the end


def test_everything_goes_and_the_name_is_free() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    other, _ = create_dataset(store, NAME + "2")
    counting = CrashesAfter(store, STEPS)
    remove(counting, log.dataset)
    assert counting.left == 0
    assert list(store.list(dataset_prefix(NAME))) == []
    assert find_dataset(store, NAME) is None
    assert not is_removed(store, NAME)
    assert find_dataset(store, NAME + "2") == other
    again, born = create_dataset(store, NAME)
    assert born
    assert again.id != log.dataset.id


@pytest.mark.parametrize("steps", range(STEPS))
def test_a_crash_at_every_step_is_finished_later(steps: int) -> None:
    store = MemoryObjectStore()
    log, chunks = full_dataset(store)
    with pytest.raises(Unavailable):
        remove(CrashesAfter(store, steps), log.dataset)
    if 0 < steps < STEPS - 1:
        assert is_removed(store, NAME)
        assert find_dataset(store, NAME) == log.dataset, "the name is not free yet"
        assert finish_removal(store, NAME)
    elif steps:  # nothing is left but the end
        assert is_removed(store, NAME)
        assert find_dataset(store, NAME) is None
        assert finish_removal(store, NAME)
    else:  # nothing happened yet
        assert not finish_removal(store, NAME)
        remove(store, log.dataset)
    assert list(store.list(dataset_prefix(NAME))) == []
    again, born = create_dataset(store, NAME)
    assert born
    assert list(CommitLog(store, again).since(1)) == []
    with pytest.raises(NotFound):
        ChunkReader(store, again).head(chunks[0])


@pytest.mark.parametrize("steps", range(STEPS))
def test_whoever_uses_the_name_next_adopts_no_old_chunk(steps: int) -> None:
    """Also one who does not look whether the removal was finished."""
    store = MemoryObjectStore()
    log, chunks = full_dataset(store)
    with pytest.raises(Unavailable):
        remove(CrashesAfter(store, steps), log.dataset)
    finish_removal(store, NAME)
    found, _ = create_dataset(store, NAME)
    live = [chunk.id for commit in CommitLog(store, found).since(1) for chunk in commit.added]
    assert live == (chunks[:6] if steps == 0 else [])


@pytest.mark.parametrize("steps", range(1, STEPS))
def test_a_removed_dataset_never_looks_alive(steps: int) -> None:
    """A writer that opened it now would lose what it is told is durable."""
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    with pytest.raises(Unavailable):
        remove(CrashesAfter(store, steps), log.dataset)
    assert find_dataset(store, NAME) is None or is_removed(store, NAME)


def test_an_end_left_behind_does_not_end_the_next_life() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    with pytest.raises(Unavailable):
        remove(CrashesAfter(store, STEPS - 1), log.dataset)
    again, born = create_dataset(store, NAME)
    assert born
    assert not is_removed(store, NAME)
    assert not finish_removal(store, NAME)
    assert find_dataset(store, NAME) == again
    remove(store, again)
    assert list(store.list(dataset_prefix(NAME))) == []


def test_an_old_chunk_that_a_slow_writer_stores_is_not_adopted() -> None:
    store = MemoryObjectStore()
    log, chunks = full_dataset(store)
    late = store.get(chunk_key(NAME, chunks[0]))
    remove(store, log.dataset)
    again, _ = create_dataset(store, NAME)
    store.create(chunk_key(NAME, chunks[0]), [late])
    with pytest.raises(Corrupt, match="another dataset"):
        ChunkReader(store, again).head(chunks[0])


def test_a_writer_that_comes_late_is_told() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    mark_removed(store, log)
    with pytest.raises(NotFound, match="removed"):
        log.append(2, [])
    assert is_removed(store, NAME)


def test_a_live_dataset_is_left_alone() -> None:
    store = MemoryObjectStore()
    full_dataset(store)
    before = sorted(info.key for info in store.list(""))
    assert not is_removed(store, NAME)
    assert not finish_removal(store, NAME)
    assert not finish_removal(store, "absent")
    assert sorted(info.key for info in store.list("")) == before


def test_marking_twice_ends_it_once() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    mark_removed(store, log)
    mark_removed(store, log)
    assert newest_generation(store, NAME) == 5
    finish_removal(store, NAME)
    with pytest.raises(NotFound):
        mark_removed(store, log)
    assert list(store.list("")) == []


def test_a_finisher_that_is_overtaken_spares_the_next_life() -> None:
    """Another one finishes, and the name is taken again, just before this one would delete the
    birth."""
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    mark_removed(store, log)
    lives: list[DatasetRef] = []

    class Overtaken(StoreWrapper):
        def before(self, call: str, key: str) -> None:
            if call == "delete" and key.endswith("commits/0000000000000005") and not lives:
                finish_removal(store, NAME)
                lives.append(create_dataset(store, NAME)[0])

    finish_removal(Overtaken(store), NAME)
    assert find_dataset(store, NAME) == lives[0]


class Overtaken(StoreWrapper):
    """After some deletes another process finishes, and the name is taken again."""

    def __init__(self, inner: ObjectStore, delete: int) -> None:
        super().__init__(inner)
        self.left = delete
        self.next: CommitLog | None = None

    def before(self, call: str, key: str) -> None:
        if call in ("get", "delete") and self.left <= 0 and self.next is None:
            finish_removal(self.inner, NAME)
            self.next, _ = full_dataset(self.inner)
            tag(self.inner, NAME, "best", "4-" + 32 * "0")
        self.left -= call == "delete"


@pytest.mark.parametrize("delete", range(STEPS))
def test_a_finisher_that_is_paused_deletes_nothing_of_the_next_life(delete: int) -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    tag(store, NAME, "best", "4-" + 32 * "0")
    mark_removed(store, log)
    paused = Overtaken(store, delete)
    finish_removal(paused, NAME)
    assert paused.next is not None
    assert [commit.generation for commit in paused.next.since(0)] == [1, 2, 3, 4]
    assert resolve(store, NAME, "best").dataset_id == paused.next.dataset.id


class Late(StoreWrapper):
    """A writer of the dataset commits just before one key is deleted."""

    def __init__(self, inner: ObjectStore, key: str, commit: Callable[[], object]) -> None:
        super().__init__(inner)
        self.key, self.commit = key, commit

    def before(self, call: str, key: str) -> None:
        if (call, key) == ("delete", self.key):
            self.key = ""
            self.commit()


@pytest.mark.parametrize("after", [1, 2, 3])
@pytest.mark.parametrize("deleted", [1, 3, 4, 5])
def test_a_commit_during_a_removal_is_refused(after: int, deleted: int) -> None:
    """The generation may be free again, and the birth still be there."""
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    mark_removed(store, log)
    refused: list[BaseException] = []

    def commit() -> None:
        with pytest.raises(NotFound, match="removed") as found:
            log.append(after, [])
        refused.append(found.value)

    finish_removal(Late(store, commit_key(NAME, deleted), commit), NAME)
    assert refused
    assert list(store.list("")) == []


def test_a_late_commit_of_a_killed_writer_goes_with_the_dataset() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    mark_removed(store, log)
    late = [Commit(3, log.dataset.id, 5).encode()]
    key = commit_key(NAME, 3)
    finish_removal(Late(store, commit_key(NAME, 1), lambda: store.create(key, late)), NAME)
    assert list(store.list("")) == []


def test_a_late_end_does_not_reach_the_next_life() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    remove(store, log.dataset)
    again = CommitLog(store, create_dataset(store, NAME)[0])
    with pytest.raises(NotFound, match="removed"):
        mark_removed(store, log)
    assert [commit.generation for commit in again.since(0)] == [1]


def test_a_commit_that_a_former_dataset_left_keeps_no_dataset() -> None:
    """Its writer was killed before it could take it back."""
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    store.create(commit_key(NAME, 9), [Commit(9, bytes(16), 5).encode()])
    assert not is_removed(store, NAME)
    mark_removed(store, log)
    assert is_removed(store, NAME)
    assert finish_removal(store, NAME)
    assert find_dataset(store, NAME) is None
    assert not is_removed(store, NAME)


def test_an_end_is_found_below_a_late_commit() -> None:
    store = MemoryObjectStore()
    log, _ = full_dataset(store)
    with pytest.raises(Unavailable):
        remove(CrashesAfter(store, STEPS - 1), log.dataset)
    store.create(commit_key(NAME, 9), [Commit(9, log.dataset.id, 5).encode()])
    assert is_removed(store, NAME)
    assert finish_removal(store, NAME)
    assert list(store.list("")) == []
