"""Objects that are read back: the port's contract, and what a store makes of them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from chunkstore.errors import Untrusted
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.stores.object_store import Buffer
from chunkstore.stores.read_back import ReadBackStore


class Changing(MemoryObjectStore):
    """Stores what `change` makes of an object."""

    def create(self, key: str, parts: Iterable[Buffer]) -> None:
        data = b"".join(parts)
        super().create(key, [self.change(data)])

    def change(self, data: bytes) -> bytes:
        return data


@pytest.mark.parametrize("one_shot", [False, True])
def test_what_is_stored_comes_back(one_shot: bool) -> None:
    store = ReadBackStore(MemoryObjectStore())
    parts = [b"a" * 5, b"b" * (9 << 20)]
    store.create("key", iter(parts) if one_shot else parts)
    assert store.get("key") == b"".join(parts)


@pytest.mark.parametrize(
    "change",
    [lambda data: data[:-1], lambda data: data + b"x", lambda data: b"x" * len(data)],
    ids=["shorter", "longer", "other"],
)
def test_what_is_changed_is_refused(change: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changing, "change", staticmethod(change))
    with pytest.raises(Untrusted, match="acknowledged key"):
        ReadBackStore(Changing()).create("key", [b"some", b"data"])


def test_what_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryObjectStore, "create", lambda *_: None)
    with pytest.raises(Untrusted):
        ReadBackStore(MemoryObjectStore()).create("key", [b"data"])
