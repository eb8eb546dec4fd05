"""Commits that are gone or damaged: the log made again from what chunks say, and every file is
there that was."""

from __future__ import annotations

import random
import stat
from collections.abc import Iterable
from pathlib import Path

import pytest

from chunkstore.chunk_id import ChunkIdGenerator
from chunkstore.chunk_writer import ChunkWriter, SealedChunk, Version
from chunkstore.commit_log import find_dataset
from chunkstore.object_keys import (
    chunk_key,
    commit_key,
    commit_prefix,
    damaged_commit_key,
    log_plan_key,
)
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import Conflict, HistoryDamaged
from dieselfs.recovery import RecoveryOptions, read_history, recover
from dieselfs.recovery.log_plan import store_plan
from dieselfs.recovery.log_rebuild import plan_log
from dieselfs.snapshots.lifecycle import create
from metadata.kv.memory import MemoryStore
from tests.dieselfs.recovery.random_dataset import contents, make_dataset
from tests.metadata.stepped_index import Stopped

WITHOUT = RecoveryOptions(without_commits=True)


def commits_of(store: MemoryObjectStore) -> list[str]:
    return sorted(info.key for info in store.list(commit_prefix("pets")))


def lose(store: MemoryObjectStore, draw: random.Random, share: float) -> int:
    """Lose some commits: gone, cut short, or with a flipped bit."""
    lost = 0
    for key in commits_of(store):
        if draw.random() < share:
            lost += 1
            data = bytearray(store.get(key))
            store.delete(key)
            match draw.randrange(3):
                case 0:
                    store.create(key, [data[: draw.randrange(len(data))]])
                case 1:
                    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
                    store.create(key, [data])
    return lost


def check_all_there(store: MemoryObjectStore, files: dict[bytes, bytes]) -> Dataset:
    recovered = open_dataset(store, index := MemoryStore(), "pets")
    found = contents(recovered)
    assert sorted(found) == sorted(files)
    assert found == files
    assert not recover(store, index, "pets").repaired
    return recovered


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("skewed", [False, True])
def test_without_any_commit(seed: int, skewed: bool) -> None:
    """With clocks that go right anybody may put again what others have put; with others, what is a
    writer's own."""
    store, index = MemoryObjectStore(), MemoryStore()
    skews = (0, 3600, -90) if skewed else (0, 0, 0)
    dataset, files = make_dataset(store, index, seed, rounds=20, skews_s=skews, shared=not skewed)
    for key in commits_of(store):
        store.delete(key)
    with pytest.raises(HistoryDamaged, match="commit 1 is missing"):
        recover(store, MemoryStore(), "pets")
    report = recover(store, MemoryStore(), "pets", WITHOUT)
    assert report.log is not None
    assert not report.log.unassigned
    assert find_dataset(store, "pets") == dataset.ref
    check_all_there(store, files)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("skewed", [False, True])
def test_without_some_commits(seed: int, skewed: bool) -> None:
    store, index, draw = MemoryObjectStore(), MemoryStore(), random.Random(seed)
    skews = (0, 3600, -90) if skewed else (0, 0, 0)
    _, files = make_dataset(store, index, seed, rounds=20, skews_s=skews, shared=not skewed)
    if not lose(store, draw, draw.choice([0.1, 0.5, 0.9])):
        store.delete(commit_key("pets", 3))
    recover(store, MemoryStore(), "pets", WITHOUT)
    check_all_there(store, files)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.4, 1])
def test_without_commits_of_what_has_been_purged(seed: int, share: float) -> None:
    """Chunks are gone that nobody says were retired, moved files say of which generation they were;
    the clock that purges is years ahead."""
    store = MemoryObjectStore()
    _, files = make_dataset(store, MemoryStore(), seed, rounds=20, skews_s=(0, 0), purges=0.25)
    lose(store, random.Random(seed), share)
    report = recover(store, index := MemoryStore(), "pets", WITHOUT)
    assert report.log is not None
    assert not report.lost_chunks
    assert contents(open_dataset(store, index, "pets")) == files


def test_what_is_committed_and_gone_is_taken_for_purged_if_a_lost_commit_can_have_done_it() -> None:
    store = MemoryObjectStore()
    make_dataset(store, MemoryStore(), 1, rounds=6)
    history = read_history(store, "pets")
    first, last = history.commits[1].added[0], history.commits[-1].added[0]
    store.delete(commit_key("pets", 3))
    store.delete(chunk_key("pets", first.id))
    report = recover(store, MemoryStore(), "pets", WITHOUT)
    assert report.log is not None
    assert report.log.presumed_purged == 1
    assert any(
        "1 chunk that is not in the store was purged" in line for line in report.log.unknowable
    )
    store.delete(commit_key("pets", 4))
    store.delete(chunk_key("pets", last.id))
    with pytest.raises(HistoryDamaged, match=str(last.id)):
        recover(store, MemoryStore(), "pets", WITHOUT)


class Dying(MemoryObjectStore):
    """A store whose caller is killed before the call of this number that changes anything."""

    def __init__(self, objects: dict[str, bytes], calls: int) -> None:
        super().__init__()
        self._objects = objects
        self._left = calls

    def _step(self) -> None:
        if not self._left:
            raise Stopped
        self._left -= 1

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        self._step()
        super().create(key, parts)

    def delete(self, key: str) -> None:
        self._step()
        super().delete(key)


def copy_of(store: MemoryObjectStore) -> MemoryObjectStore:
    copy = MemoryObjectStore()
    copy._objects = dict(store._objects)
    return copy


@pytest.mark.parametrize("seed", range(3))
def test_killed_before_any_change_of_the_store_the_next_ends_with_the_same(seed: int) -> None:
    store = MemoryObjectStore()
    _, files = make_dataset(store, MemoryStore(), seed, rounds=8)
    lose(store, random.Random(seed), 0.7)
    whole = copy_of(store)
    recover(whole, MemoryStore(), "pets", WITHOUT)
    check_all_there(whole, files)
    calls = 0
    while True:
        half = copy_of(store)
        try:
            recover(Dying(half._objects, calls), MemoryStore(), "pets", WITHOUT)
            break
        except Stopped:
            # Once it is decided what the commits were, nobody has to ask for it again.
            planned = log_plan_key("pets") in half._objects
            options = RecoveryOptions() if planned else WITHOUT
            if planned:
                with pytest.raises(Conflict, match="interrupted"):
                    recover(half, MemoryStore(), "pets", RecoveryOptions(check=True))
            recover(half, MemoryStore(), "pets", options)
            assert half._objects == whole._objects, calls
        calls += 1
    assert calls > 5


def test_damaged_commits_are_kept_aside() -> None:
    store = MemoryObjectStore()
    make_dataset(store, MemoryStore(), 1, rounds=6)
    damaged = b"DIESELCM" + bytes(70)
    for generation in (1, 3):
        store.delete(commit_key("pets", generation))
        store.create(commit_key("pets", generation), [damaged])
    history = read_history(store, "pets")
    assert history.lost == (1, 3)
    assert [entry.reason for entry in history.damaged] == [
        f"the checksum of commit {generation} is wrong" for generation in (1, 3)
    ]
    with pytest.raises(HistoryDamaged, match="checksum of commit 1 is wrong"):
        recover(store, MemoryStore(), "pets")
    report = recover(store, MemoryStore(), "pets", WITHOUT)
    assert report.moved_aside == 2
    for generation in (1, 3):
        assert store.get(damaged_commit_key("pets", generation)) == damaged
    assert not read_history(store, "pets").lost


def test_a_dry_run_says_what_would_be_made_and_makes_nothing() -> None:
    store = MemoryObjectStore()
    make_dataset(store, MemoryStore(), 1, rounds=6)
    for key in commits_of(store):
        store.delete(key)
    before = dict(store._objects)
    options = RecoveryOptions(without_commits=True, dry_run=True)
    report = recover(store, MemoryStore(), "pets", options)
    assert report.log is not None
    assert report.log.assigned == len(read_history(store, "pets").uncommitted)
    assert any("never acknowledged" in line for line in report.log.unknowable)
    assert store._objects == before


def test_a_writer_that_commits_in_between_is_noticed() -> None:
    store = MemoryObjectStore()
    dataset, _ = make_dataset(store, MemoryStore(), 1, rounds=6)
    store.delete(commit_key("pets", 3))
    plan = plan_log(store, read_history(store, "pets")).plan
    store_plan(store, plan)
    assert dataset.log.append(2, []).generation == 3
    with pytest.raises(Conflict, match="committed generation 3"):
        recover(store, MemoryStore(), "pets")
    assert recover(store, MemoryStore(), "pets", WITHOUT).log is None, "nothing is missing now"


def test_of_several_lives_of_a_name_the_one_with_most_chunks_or_the_one_asked_for() -> None:
    store, other = MemoryObjectStore(), MemoryObjectStore()
    dataset, files = make_dataset(store, MemoryStore(), 1, rounds=12)
    smaller, few = make_dataset(other, MemoryStore(), 2, rounds=3)
    store._objects.update(
        {key: data for key, data in other._objects.items() if key not in store._objects}
    )
    for key in commits_of(store):
        store.delete(key)
    chosen = copy_of(store)
    report = recover(store, MemoryStore(), "pets", WITHOUT)
    assert report.log is not None
    assert report.log.foreign
    assert find_dataset(store, "pets") == dataset.ref
    check_all_there(store, files)
    asked = RecoveryOptions(without_commits=True, dataset_id=smaller.ref.id)
    recover(chosen, MemoryStore(), "pets", asked)
    assert find_dataset(chosen, "pets") == smaller.ref
    check_all_there(chosen, few)


def test_generations_that_only_others_know_of_are_missed(tmp_path: Path) -> None:
    """The last commits leave no gap: an index, a snapshot and later chunks know that they have
    been."""
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, 1, rounds=8)
    last = len(commits_of(store))
    create(dataset, tmp_path)
    store.delete(commit_key("pets", last))
    assert list(read_history(store, "pets").missing) == [last], "the snapshot tells"
    [snapshot] = store.list("datasets/pets/snapshots/")
    store.delete(snapshot.key)
    assert not read_history(store, "pets").lost
    with pytest.raises(HistoryDamaged, match=f"commit {last} is missing"):
        recover(store, index, "pets")
    with DatasetWriter(dataset) as writer:
        writer.put(b"fresh", b"data")
    with DatasetWriter(dataset) as writer:
        writer.delete(dataset.namespace.stat(b"fresh"))
    for key in commits_of(store)[last - 1 :]:
        store.delete(key)
    assert last in read_history(store, "pets").missing, "a deletion names what it saw"


def test_what_no_commit_of_ours_wrote_fills_no_store() -> None:
    """A chunk that speaks of an impossible generation is shown as such, and no log is made up to
    there."""
    store, index = MemoryObjectStore(), MemoryStore()
    dataset, _ = make_dataset(store, index, 1, rounds=4)
    sealed: list[SealedChunk] = []
    writer = ChunkWriter(dataset.ref, ChunkIdGenerator(), sealed.append)
    writer.add_tombstone(b"x", stat.S_IFREG, 0, Version(1 << 60, bytes(16), 0))
    writer.flush()
    [chunk] = sealed
    store.create(chunk_key("pets", chunk.ref.id), [chunk.head])
    history = read_history(store, "pets")
    assert not history.lost
    [found] = history.uncommitted
    assert ", which cannot exist" in found.flaw
    assert not recover(store, index, "pets").repaired
