"""Commits that are gone or damaged: the log made again from what chunks say, and every file is there that was."""

from __future__ import annotations

import random

import pytest

from chunkstore.commit_log import find_dataset
from chunkstore.object_keys import commit_key, commit_prefix
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset import Dataset, open_dataset
from dieselfs.errors import HistoryDamaged
from dieselfs.recovery import RecoveryOptions, read_history, recover
from metadata.kv.memory import MemoryStore
from tests.dieselfs.recovery.random_dataset import contents, make_dataset

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


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("skewed", [False, True])
def test_without_any_commit(seed: int, skewed: bool) -> None:
    """With clocks that go right anybody may put again what others have put; with others, what is a writer's own."""
    store, index = MemoryObjectStore(), MemoryStore()
    skews = (0, 3600, -90) if skewed else (0, 0, 0)
    dataset, files = make_dataset(store, index, seed, rounds=20, skews_s=skews, shared=not skewed)
    for key in commits_of(store):
        store.delete(key)
    with pytest.raises(HistoryDamaged, match="commit 1 is missing"):
        recover(store, MemoryStore(), "pets")
    report = recover(store, MemoryStore(), "pets", WITHOUT)
    assert report.log is not None and not report.log.left
    assert find_dataset(store, "pets") == dataset.ref
    check_all_there(store, files)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("skewed", [False, True])
def test_without_some_commits(seed: int, skewed: bool) -> None:
    store, index, draw = MemoryObjectStore(), MemoryStore(), random.Random(seed)
    skews = (0, 3600, -90) if skewed else (0, 0, 0)
    _, files = make_dataset(store, index, seed, rounds=20, skews_s=skews, shared=not skewed)
    if not lose(store, draw, draw.choice([0.1, 0.5, 0.9])):
        store.delete(commit_key("pets", 3))
    before = read_history(store, "pets").known_to_reach(len(commits_of(store)))
    recover(store, MemoryStore(), "pets", WITHOUT)
    check_all_there(store, files)
