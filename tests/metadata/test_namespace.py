"""Looking up, listing and catching up; what commits mean is in test_application."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.chunk_reader import ChunkReader
from chunkstore.commit_log import CommitLog
from chunkstore.errors import Corrupt, NotFound
from chunkstore.object_keys import chunk_key
from chunkstore.stores.memory import MemoryObjectStore
from metadata import keys
from metadata.dataset_state import mark_rebuilding
from metadata.errors import (
    DatasetNotFound,
    IndexBehind,
    PathConflict,
    PathNotFound,
    RecordCorrupt,
    RecordsLost,
)
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.memory import MemoryStore
from metadata.namespace import Namespace
from metadata.records import DatasetState
from tests.metadata.commit_histories import (
    DATASET,
    History,
    chunk_id,
    delete,
    dump,
    history,
    make_directory,
    put,
    random_purged_history,
    stored,
)
from tests.metadata.stepped_index import Piecewise

TALE = history(
    [
        [[put(b"cat/1.jpg", 5), put(b"cat/2.jpg", 6), put(b"cat/old/3.jpg"), put(b"readme")]],
        [[put(b"dog/\xff\n"), make_directory(b"empty", 0o700), delete(b"cat/2.jpg", 2)]],
    ]
)


@pytest.fixture
def index() -> MemoryStore:
    index = MemoryStore()
    TALE.apply_to(index)
    return index


@pytest.fixture
def namespace(index: MemoryStore) -> Namespace:
    return Namespace(index, DATASET)


def test_stat(namespace: Namespace) -> None:
    entry = namespace.stat(b"cat/1.jpg")
    assert (entry.path, entry.is_directory, entry.generation) == (b"cat/1.jpg", False, 2)
    assert int(entry.row["length"]) == 5
    assert namespace.stat(b"cat").is_directory
    assert namespace.stat(b"").is_directory
    for path in [b"none", b"cat/2.jpg", b"cat/1.jpg/x", b"cat/", b"/cat", b"none/none"]:
        with pytest.raises(PathNotFound):
            namespace.stat(path)


def test_stat_files(namespace: Namespace) -> None:
    found = namespace.stat_files(b"cat", [b"none", b"2.jpg", b"1.jpg", b"old"])
    assert [row is None for row in found] == [True, True, False, True]
    assert found[2] == namespace.stat(b"cat/1.jpg").row
    assert namespace.stat_files(b"none", [b"x"]) == [None]
    assert namespace.stat_files(b"cat", []) == []


def test_list(namespace: Namespace) -> None:
    listing = namespace.list(b"")
    assert list(listing.directory_names) == [b"cat", b"dog", b"empty"]
    assert list(listing.file_names) == [b"readme"]
    assert [int(mode) for mode in listing.directories["mode"]] == [0o40755, 0o40755, 0o40700]
    assert list(namespace.list(b"empty").file_names) == []
    assert namespace.directory_names(b"cat") == [b"old"]
    assert list(namespace.directory_names(b"none")) == []
    with pytest.raises(PathNotFound):
        namespace.list(b"none")
    with pytest.raises(PathConflict):
        namespace.list(b"readme")


def test_walk(namespace: Namespace) -> None:
    assert [listing.path for listing in namespace.walk()] == [
        b"",
        b"cat",
        b"cat/old",
        b"dog",
        b"empty",
    ]
    assert [listing.path for listing in namespace.walk(b"cat")] == [b"cat", b"cat/old"]
    with pytest.raises(PathNotFound):
        next(namespace.walk(b"none"))


def test_an_unknown_chunk_is_a_damaged_index(namespace: Namespace) -> None:
    with pytest.raises(RecordCorrupt, match="dlcmd recover"):
        namespace.chunk(bytes(16))


def test_a_damaged_record_is_never_believed(index: MemoryStore, namespace: Namespace) -> None:
    key = keys.files_of(DATASET.id, b"cat")
    [[value]] = index.get_many([MapFields(key, [b"1.jpg"])])
    assert value is not None
    index.remove([MapFields(key, [b"1.jpg"])])
    index.put([[MapUpdate(key, [b"1.jpg"], [value[:20] + bytes([value[20] ^ 1]) + value[21:]])]])
    for look in (
        lambda: namespace.stat(b"cat/1.jpg"),
        lambda: namespace.list(b"cat"),
        lambda: namespace.stat_files(b"cat", [b"1.jpg"]),
        lambda: TALE.apply_to(index, 1),
    ):
        with pytest.raises(RecordCorrupt):
            look()


def test_catching_up_is_rebuilding(index: MemoryStore) -> None:
    store, rebuilt = stored(TALE), MemoryStore()
    log, reader = CommitLog(store, DATASET), ChunkReader(store, DATASET)
    state = Namespace(rebuilt, DATASET).catch_up(log, reader)
    assert state == Namespace(index, DATASET).state()
    assert dump(rebuilt, TALE) == dump(index, TALE)
    assert Namespace(rebuilt, DATASET).catch_up(log, reader) == state


def test_a_missing_or_foreign_chunk_stops_catching_up_before_its_commit() -> None:
    store = stored(TALE)
    lost = TALE.commits[2].added[0].id
    data = store.get(chunk_key("pets", lost))
    store.delete(chunk_key("pets", lost))
    namespace = Namespace(MemoryStore(), DATASET)
    log, reader = CommitLog(store, DATASET), ChunkReader(store, DATASET)
    with pytest.raises(NotFound):
        namespace.catch_up(log, reader)
    assert namespace.state().generation == 2
    other = store.get(chunk_key("pets", TALE.commits[1].added[0].id))
    store.create(chunk_key("pets", lost), [other])
    with pytest.raises(Corrupt):
        namespace.catch_up(log, reader)
    assert namespace.state().generation == 2
    store.delete(chunk_key("pets", lost))
    store.create(chunk_key("pets", lost), [data])
    reader = ChunkReader(store, DATASET)  # the other one knows for a second that it was foreign
    assert namespace.catch_up(log, reader).generation == 3


def test_a_dataset_without_a_birth_has_been_removed() -> None:
    store = MemoryObjectStore()
    namespace = Namespace(MemoryStore(), DATASET)
    with pytest.raises(DatasetNotFound):
        namespace.catch_up(CommitLog(store, DATASET), ChunkReader(store, DATASET))


def test_another_dataset_sees_nothing(index: MemoryStore) -> None:
    other = Namespace(index, DatasetRef("pets", bytes(16)))
    assert other.state().generation == 0
    assert [listing.path for listing in other.walk()] == [b""]
    Namespace(index, DatasetRef("pets", bytes(16))).forget()
    assert Namespace(index, DATASET).stat(b"readme").path == b"readme"


PURGED = history(
    [
        [[put(b"a/x", 3), put(b"b")]],
        [[delete(b"a/x", 2), delete(b"a", 2, directory=True)]],
        [[replace(put(b"b"), carried=2)]],
        [[put(b"c")]],
        [],
    ],
    {4: [1], 6: [2]},
)
"""A tree comes, is deleted, and when its chunk is gone the chunk with the deletions goes."""


def expected_of(tale: History) -> dict[bytes, dict[bytes, bytes]]:
    index = MemoryStore()
    tale.apply_to(index)
    return dump(index, tale)


@pytest.mark.parametrize("applied", range(7))
@pytest.mark.parametrize("lost", [set(), {1}, {2}, {1, 2}])
def test_an_index_far_behind_ends_as_one_that_followed(
    applied: int, lost: set[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Chunks that were retired meanwhile may be gone: the tree must not come back, nor its
    deletions stay."""
    index = MemoryStore()
    PURGED.until(applied).apply_to(index)
    log, reader = CommitLog(store := stored(PURGED), DATASET), ChunkReader(store, DATASET)
    for number in lost:
        store.delete(chunk_key("pets", chunk_id(number)))
    state = Namespace(index, DATASET).catch_up(log, reader)
    assert dump(index, PURGED) == expected_of(PURGED)
    assert state == Namespace(index, DATASET).state()
    assert (state.chunks, state.files) == (2, 2)
    if not lost or applied == 6:
        assert not caplog.records


@pytest.mark.parametrize("calls", range(0, 60, 3))
def test_a_commit_cut_off_and_gone_on_with_when_its_chunk_has_been_purged(calls: int) -> None:
    """Its totals counted entries that were never put and can't be read any more."""
    index = MemoryStore()
    failing = Piecewise.failing_after(index, calls, seed=calls)
    failing.stopped(lambda: PURGED.until(3).catch_up(failing))
    store = stored(PURGED)
    store.delete(chunk_key("pets", chunk_id(1)))
    store.delete(chunk_key("pets", chunk_id(2)))
    namespace = Namespace(index, DATASET)
    namespace.catch_up(CommitLog(store, DATASET), ChunkReader(store, DATASET))
    content, expected = dump(index, PURGED), expected_of(PURGED)
    # A file put before the directory above it is found by nobody, so nobody takes it away.
    unfound = keys.files_of(DATASET.id, b"a")
    assert {key: fields for key, fields in content.items() if key != unfound} == expected
    assert b"a" not in namespace.directory_names(b"")


def test_random_indexes_far_behind() -> None:
    for seed in range(25):
        draw = random.Random(seed)
        tale = random_purged_history(draw, sane=True)
        index, store = MemoryStore(), stored(tale)
        tale.until(draw.randint(0, len(tale.commits))).apply_to(index)
        for number in tale.gone:
            store.delete(chunk_key("pets", chunk_id(number)))
        namespace = Namespace(index, DATASET)
        namespace.catch_up(CommitLog(store, DATASET), ChunkReader(store, DATASET))
        assert dump(index, tale) == expected_of(tale), seed


def test_a_held_index_goes_no_further() -> None:
    store = stored(PURGED)
    log, reader = CommitLog(store, DATASET), ChunkReader(store, DATASET)
    index = MemoryStore()
    namespace = Namespace(index, DATASET)
    assert namespace.held() is None
    namespace.hold(3)
    assert namespace.held() == 3
    assert namespace.catch_up(log, reader).generation == 3
    assert namespace.catch_up(log, reader).generation == 3
    content = dump(index, PURGED)
    assert content[keys.state_of(DATASET.id)].pop(keys.HELD)
    assert content == expected_of(PURGED.until(3))
    assert namespace.reapply(log, reader, 1).generation == 3
    assert namespace.stat(b"b").generation == 2


def test_an_index_that_is_being_rebuilt_is_no_index() -> None:
    store, index = stored(TALE), MemoryStore()
    log, reader = CommitLog(store, DATASET), ChunkReader(store, DATASET)
    TALE.until(2).apply_to(index)
    mark_rebuilding(index, DATASET.id, 3)
    with pytest.raises(IndexBehind, match="dlcmd recover pets"):
        Namespace(index, DATASET).catch_up(log, reader)
    Namespace(index, DATASET).reapply(log, reader, 2)
    assert dump(index, TALE) == expected_of(TALE)


def test_totals_that_are_lost_are_not_counted_on(index: MemoryStore) -> None:
    index.remove([MapFields(keys.state_of(DATASET.id), [keys.TOTALS])])
    tale = history([*TALE.entries[1:], [[put(b"new")]]])
    with pytest.raises(RecordCorrupt, match="dlcmd recover"):
        tale.apply_one(index, 3)


def test_totals_that_do_not_add_up_are_not_counted_on(index: MemoryStore) -> None:
    """A commit that replaces more than they count: they are of an index that was put right."""
    key = keys.state_of(DATASET.id)
    index.remove([MapFields(key, [keys.TOTALS])])
    few = DatasetState(3, 0, files=0, bytes=0, directories=5, chunks=5)
    index.put([[MapUpdate(key, [keys.TOTALS], [few.encode(key, keys.TOTALS)])]])
    tale = history([*TALE.entries[1:], [[delete(b"readme", 2)]]])
    with pytest.raises(RecordsLost, match="dlcmd recover"):
        tale.apply_one(index, 3)
