"""The whole stack, and each wrapper, do what every store must."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from chunkstore.errors import NotFound
from chunkstore.stores.adaptive_limit import LimitedStore
from chunkstore.stores.deadline import DeadlineStore
from chunkstore.stores.hedging import HedgingStore
from chunkstore.stores.local_directory import LocalDirectory
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import ObjectStore
from chunkstore.stores.resilient import ResilientStore
from chunkstore.stores.retrying import RetryingStore
from tests.contracts.object_store_contract import (
    ObjectStoreContract,
    OpenStore,
    SharedObjectStoreContract,
)

WRAPPERS: dict[str, Callable[[ObjectStore], ObjectStore]] = {
    "retrying": RetryingStore,
    "limited": LimitedStore,
    "deadline": DeadlineStore,
    "hedging": lambda store: HedgingStore(DeadlineStore(store)),
    "all": ResilientStore,
}


class TestOverMemory(ObjectStoreContract):
    @pytest.fixture(params=WRAPPERS)
    def open_store(self, request: pytest.FixtureRequest) -> OpenStore:
        return lambda: WRAPPERS[request.param](MemoryObjectStore())


class TestOverADirectory(SharedObjectStoreContract):
    """With processes that fork while the wrappers' threads are there."""

    @pytest.fixture
    def open_store(self, tmp_path: Path) -> OpenStore:
        return lambda: ResilientStore(LocalDirectory(tmp_path / "store"))
