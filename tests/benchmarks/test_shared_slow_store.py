"""A disk that processes share: its time is one, and so is its account."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import time
from pathlib import Path

import pytest

from benchmarks.shared_slow_store import SharedSlowStore, state_of
from tests.contracts.object_store_contract import ObjectStoreContract, OpenStore


class TestSharedDisk(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        SharedSlowStore.make(tmp_path, seek_s=1e-5, bytes_per_s=1e9)
        return lambda: SharedSlowStore(tmp_path)


def _read(store: SharedSlowStore) -> None:
    for _ in range(10):
        store.get_range("k", 0, 1000)


def test_one_queue_and_one_account_for_all_processes(tmp_path: Path) -> None:
    SharedSlowStore.make(tmp_path, seek_s=0.005, bytes_per_s=1e6)
    store = SharedSlowStore(tmp_path)
    store.create("k", [bytes(3000)])
    assert state_of(tmp_path).reads == 0
    begin = time.monotonic()
    context = multiprocessing.get_context("fork")
    readers = [context.Process(target=_read, args=(each,)) for each in (store, store)]
    for reader in readers:
        reader.start()
    _read(pickle.loads(pickle.dumps(store)))
    for reader in readers:
        reader.join()
    assert time.monotonic() - begin >= 30 * 0.006
    state = state_of(tmp_path)
    assert (state.reads, state.bytes) == (30, 30_000)
    assert begin <= state.first_read <= state.last_read <= time.monotonic()
    rounding = 30 * math.ulp(state.busy_until)  # of so many sums
    assert state.busy_until - state.first_read >= 30 * 0.006 - rounding
    assert os.stat(tmp_path / "disk.state").st_size == 40
