"""The store's newest generation, and a mount that says once that it is older."""

from __future__ import annotations

import logging

import pytest

from chunkstore.chunk_format import DatasetRef
from chunkstore.commit_log import CommitLog, create_dataset, newest_generation
from chunkstore.errors import Unavailable
from chunkstore.removal import finish_removal, mark_removed
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.snapshots.freshness import Freshness, FreshnessWatch, newest_since
from tests.chunkstore.packed import StoreWrapper


class Counting(StoreWrapper):
    """Counts calls, and fails when told to."""

    def __init__(self, inner: MemoryObjectStore) -> None:
        super().__init__(inner)
        self.calls: list[str] = []
        self.is_out = False

    def before(self, call: str, key: str) -> None:
        self.calls.append(call)
        if self.is_out:
            raise Unavailable("out")


@pytest.fixture
def store() -> Counting:
    return Counting(MemoryObjectStore())


@pytest.fixture
def dataset(store: Counting) -> DatasetRef:
    return create_dataset(store.inner, "pets")[0]


def commit(store: Counting, dataset: DatasetRef, count: int) -> None:
    log = CommitLog(store.inner, dataset)
    for _ in range(count):
        log.append(newest_generation(store.inner, "pets"), [])


@pytest.mark.parametrize("newest", range(1, 20))
def test_the_newest_generation_is_found_from_any_older_one(
    store: Counting, dataset: DatasetRef, newest: int
) -> None:
    commit(store, dataset, newest - 1)
    assert {newest_since(store, dataset, known) for known in range(1, newest + 1)} == {newest}


def test_nothing_newer_costs_one_stat(store: Counting, dataset: DatasetRef) -> None:
    newest_since(store, dataset, 1)
    assert store.calls == ["stat"]


def test_another_dataset_of_the_name_is_not_newer(store: Counting, dataset: DatasetRef) -> None:
    mark_removed(store.inner, CommitLog(store.inner, dataset))
    finish_removal(store.inner, "pets")
    other, _ = create_dataset(store.inner, "pets")
    commit(store, other, 5)
    assert newest_since(store, dataset, 3) == 3


def test_a_mount_that_is_older_says_so_once(
    store: Counting, dataset: DatasetRef, caplog: pytest.LogCaptureFixture
) -> None:
    now = [10.0]
    watch = FreshnessWatch(store, dataset, 1, "/mnt/pets", clock_s=lambda: now[0])
    assert watch.freshness() == Freshness(1)
    store.is_out = True
    watch.look()
    assert watch.freshness() == Freshness(1)
    store.is_out = False
    watch.look()
    now[0] += 7
    assert watch.freshness() == Freshness(1, 1, 0, 7.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            commit(store, dataset, 2)
            watch.look()
    assert watch.freshness() == Freshness(1, 5, 4, 0.0)
    [line] = [record.message for record in caplog.records]
    assert line.startswith("/mnt/pets shows generation 1 of pets, but the store is at 3")
    assert "`dlcmd mount --refresh pets /mnt/pets`" in line
