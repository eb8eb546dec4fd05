"""What the store alone tells of a dataset, points in time, and chunks that are adopted."""

from __future__ import annotations

import stat
import time
from datetime import UTC, datetime

import pytest

from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_writer import ChunkWriter, SealedChunk, Version
from chunkstore.commit_log import Commit, CommitLog, create_dataset
from chunkstore.errors import AlreadyExists
from chunkstore.group_commit import DurableChunk, GroupCommit
from chunkstore.object_keys import chunk_key, commit_key
from chunkstore.removal import mark_removed
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import DirectoryNotFound, UsageError
from dieselfs.recovery import (
    AtTime,
    RecoveryOptions,
    generation_before,
    parse_point,
    read_history,
    recover,
)
from dieselfs.recovery import orphan_recovery as adoption_module
from metadata.kv.memory import MemoryStore
from metadata.records import NO_CHUNK
from tests.dieselfs.recovery.random_dataset import contents

ADOPT = RecoveryOptions(adopt=True)


@pytest.fixture
def dataset() -> Dataset:
    dataset = open_dataset(MemoryObjectStore(), MemoryStore(), "pets", create=True)
    with DatasetWriter(dataset) as writer:
        writer.put(b"a", b"committed")
    return dataset


def store_chunk(
    dataset: Dataset, ids: ChunkIdGenerator, data: bytes, *, key_of: str = "pets"
) -> SealedChunk:
    """A chunk with the file `a` that no commit names."""
    sealed: list[SealedChunk] = []
    writer = ChunkWriter(dataset.ref, ids, sealed.append)
    writer.add_file(b"a", data, 0o644, 0)
    writer.flush()
    dataset.store.create(chunk_key(key_of, sealed[0].ref.id), [sealed[0].head, data])
    return sealed[0]


def test_a_sound_dataset(dataset: Dataset) -> None:
    history = read_history(dataset.store, "pets")
    assert history.dataset == dataset.ref
    assert [commit.generation for commit in history.commits] == [1, 2]
    assert history.commits[0] == dataset.log.read(1)
    assert (history.newest, history.lost, history.reachable) == (2, (), [range(1, 3)])
    assert set(history.stored) == set(history.added())
    assert not history.uncommitted


def test_chunks_that_are_not_whole_are_named_with_the_reason(dataset: Dataset) -> None:
    ids, store = ChunkIdGenerator(), dataset.store
    whole = store_chunk(dataset, ids, b"whole")
    other, _ = create_dataset(store, "others")
    foreign = open_dataset(store, MemoryStore(), "others")
    assert foreign.ref == other
    strange = store_chunk(foreign, ids, b"foreign")
    short, flipped, swapped = ids.next(), ids.next(), ids.next()
    data = whole.head + b"whole"
    store.create(chunk_key("pets", short), [data[:30]])
    store.create(chunk_key("pets", flipped), [data[:20] + bytes([data[20] ^ 1]) + data[21:]])
    store.create(chunk_key("pets", swapped), [data])
    found = {chunk.id: chunk for chunk in read_history(store, "pets").uncommitted}
    assert sorted(found) == sorted([whole.ref.id, strange.ref.id, short, flipped, swapped])
    assert [chunk.id for chunk in found.values() if chunk.is_whole] == [whole.ref.id]
    for chunk_id, reason in (
        (strange.ref.id, "another dataset"),
        (short, "at least 64 bytes"),
        (flipped, "checksum"),
        (swapped, "contains chunk"),
    ):
        assert reason in found[chunk_id].flaw, chunk_id


def test_commits_that_are_not_ours(dataset: Dataset) -> None:
    """An end that a former life of the name has left ends nothing; any other foreign commit stands
    where one of ours should."""
    store = dataset.store
    end = Commit(7, bytes(16), 0, removed=True)
    store.create(commit_key("pets", 7), [end.encode()])
    assert read_history(store, "pets").newest == 2
    store.create(commit_key("pets", 3), [Commit(3, bytes(16), 0).encode()])
    history = read_history(store, "pets")
    assert [entry.generation for entry in history.damaged] == [3]
    assert "another dataset" in history.damaged[0].reason


def test_what_is_not_there_or_has_ended_is_not_recovered(dataset: Dataset) -> None:
    with pytest.raises(DirectoryNotFound, match="no dataset 'nobody'"):
        recover(dataset.store, MemoryStore(), "nobody")
    mark_removed(dataset.store, CommitLog(dataset.store, dataset.ref))
    for options in (RecoveryOptions(), RecoveryOptions(without_commits=True)):
        with pytest.raises(DirectoryNotFound, match="half removed"):
            recover(dataset.store, MemoryStore(), "pets", options)
    dataset.store.delete(commit_key("pets", 2))
    with pytest.raises(DirectoryNotFound, match="half removed"):
        recover(dataset.store, MemoryStore(), "pets", RecoveryOptions(without_commits=True))


def test_adopted_in_the_order_of_ids_and_each_once(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_module, "_CHUNKS_A_COMMIT", 1)
    ids, store = ChunkIdGenerator(), dataset.store
    chunks = [store_chunk(dataset, ids, b"version %d" % number) for number in range(3)]
    damaged = store_chunk(dataset, ids, b"damaged")
    key = chunk_key("pets", damaged.ref.id)
    store.delete(key)
    store.create(key, [damaged.head, b"Damaged"])
    # As if one had been killed after the first.
    assert dataset.log.append(2, [chunks[0].ref]).generation == 3
    report = recover(store, dataset.index, "pets", ADOPT)
    assert list(report.adopted) == [chunk.ref for chunk in chunks[1:]]
    assert [commit.added for commit in report.history.commits[2:]] == [
        (chunk.ref,) for chunk in chunks
    ]
    assert [chunk.id for chunk in report.history.uncommitted] == [damaged.ref.id]
    assert contents(dataset) == {b"a": b"version 2"}
    assert not recover(store, dataset.index, "pets", ADOPT).repaired


def test_an_adopted_chunk_of_more_than_is_read_at_once(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adoption_module, "MAX_WHOLE_BYTES", 1000)
    ids, store = ChunkIdGenerator(), dataset.store
    large = store_chunk(dataset, ids, b"l" * 300_000)
    flipped = store_chunk(dataset, ids, b"f" * 300_000)
    key = chunk_key("pets", flipped.ref.id)
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.delete(key)
    store.create(key, [data])
    assert [ref.id for ref in recover(store, MemoryStore(), "pets", ADOPT).adopted] == [
        large.ref.id
    ]


def test_the_generation_before_a_time_ends_at_the_first_commit_that_is_not_older() -> None:
    commits = [Commit(g, bytes(16), at) for g, at in ((1, 10), (2, 20), (3, 15), (4, 40))]
    assert [generation_before(commits, at) for at in (10, 11, 15, 20, 21, 40, 41)] == [
        0, 1, 1, 1, 3, 3, 4,
    ]  # fmt: skip
    assert generation_before([], 10) == 0


def test_points_in_time_as_users_write_them() -> None:
    now = time.time_ns()
    assert parse_point("12", now) == 12
    assert parse_point("2h", now) == AtTime(now - 7200 * 10**9)
    assert parse_point("1.5d ago", now) == AtTime(now - 36 * 3600 * 10**9)
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    assert parse_point("2026-01-31T12:00Z", now) == AtTime(int(noon) * 10**9)
    assert parse_point("2026-01-31T13:00+01:00", now) == AtTime(int(noon) * 10**9)
    local = datetime(2026, 1, 31).timestamp()
    assert parse_point("2026-01-31", now) == AtTime(int(local) * 10**9)
    for text in ("yesterday", "2x", "", "-3", "2026-13-01"):
        with pytest.raises(UsageError, match="neither a generation nor a time"):
            parse_point(text, now)


def test_a_put_whose_chunk_is_adopted_before_it_commits_fails_and_may_be_repeated(
    dataset: Dataset,
) -> None:
    ids = ChunkIdGenerator()
    chunks = [store_chunk(dataset, ids, data) for data in (b"first", b"adopted")]
    commits = GroupCommit(dataset.log, 2, dataset.publish)
    assert len(recover(dataset.store, dataset.index, "pets", ADOPT).adopted) == 2
    with commits:
        commits.add(DurableChunk(chunks[0].ref, chunks[0].head))
        with pytest.raises(AlreadyExists, match="run the same command again"):
            commits.flush()
    assert contents(dataset) == {b"a": b"adopted"}
    assert not recover(dataset.store, dataset.index, "pets").repaired


def test_deletions_of_a_killed_writer_are_adopted(dataset: Dataset) -> None:
    """Also of a directory that no entry describes, whose record lies in no chunk."""
    with DatasetWriter(dataset) as writer:
        writer.put(b"d/x", b"")
    sealed: list[SealedChunk] = []
    packer = ChunkWriter(dataset.ref, ChunkIdGenerator(), sealed.append)
    packer.add_tombstone(b"d", stat.S_IFDIR, 0, Version(3, NO_CHUNK, 0))
    packer.flush()
    dataset.store.create(chunk_key("pets", sealed[0].ref.id), [sealed[0].head])
    assert len(recover(dataset.store, dataset.index, "pets", ADOPT).adopted) == 1
    assert b"d/x" not in contents(dataset)
