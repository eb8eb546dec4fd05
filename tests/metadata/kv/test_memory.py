from __future__ import annotations

import pytest

from metadata.kv.memory import MemoryStore
from tests.contracts.key_value_store_contract import KeyValueStoreContract, OpenStore


class TestMemoryStore(KeyValueStoreContract):
    @pytest.fixture
    def open_store(self) -> OpenStore:
        return MemoryStore
