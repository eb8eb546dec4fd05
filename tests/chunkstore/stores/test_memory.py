from __future__ import annotations

import pytest

from chunkstore.stores.memory import MemoryObjectStore
from tests.contracts.object_store_contract import ObjectStoreContract, OpenStore


class TestMemoryObjectStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return MemoryObjectStore
