"""Recovery of the index from the store alone: every record as it was before."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset import open_dataset
from dieselfs.recovery import RecoveryOptions, recover
from metadata.kv.lmdb_file import LmdbFileStore
from metadata.kv.memory import MemoryStore
from tests.dieselfs.recovery.random_dataset import all_maps, contents, make_dataset


@pytest.mark.parametrize("seed", range(20))
def test_an_index_made_again_is_the_one_before(seed: int) -> None:
    store, index, again = MemoryObjectStore(), MemoryStore(), MemoryStore()
    dataset, files = make_dataset(store, index, seed, skews_s=(0, 3600, -90))
    report = recover(store, again, "pets")
    assert report.was_empty and report.repaired
    assert all_maps(again, dataset) == all_maps(index, dataset)
    assert contents(open_dataset(store, again, "pets")) == files
    assert not recover(store, again, "pets").repaired
    assert not recover(store, index, "pets").repaired
