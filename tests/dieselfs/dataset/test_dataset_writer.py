"""A writer whose calls are interrupted: no flush acknowledges what an interrupt has lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chunkstore.chunk_writer import ChunkWriter
from chunkstore.stores.memory import MemoryObjectStore
from chunkstore.uploader import Uploader
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import Conflict
from metadata.kv.memory import MemoryStore


@pytest.fixture
def dataset() -> Dataset:
    return open_dataset(MemoryObjectStore(), MemoryStore(), "pets", create=True)


class Interrupted:
    """Lets calls of a method of a class pass, but raises `KeyboardInterrupt` in one of them."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, method: str) -> None:
        self.once = False
        former: Callable[..., object] = getattr(owner, method)

        def call(*arguments: object) -> object:
            if self.once:
                self.once = False
                raise KeyboardInterrupt
            return former(*arguments)

        patch.setattr(owner, method, call)


def test_a_flush_after_an_interrupted_put_tells(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Interrupted(monkeypatch, Uploader, "submit")
    writer = DatasetWriter(dataset, target_bytes=4096, open_chunks=1)
    writer.put(b"a", bytes(4000))
    interrupted.once = True
    with pytest.raises(KeyboardInterrupt):
        writer.put(b"b", bytes(4000))  # seals the chunk of the first file
    for call in (writer.flush, lambda: writer.put(b"c", b""), writer.close):
        with pytest.raises(Conflict, match="interrupted"):
            call()
    assert dataset.namespace.state().files == 0


@pytest.mark.parametrize(
    ("owner", "method"), [(Uploader, "submit"), (ChunkWriter, "_encode")], ids=["submit", "encode"]
)
def test_a_flush_after_an_interrupted_flush_tells(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    interrupted = Interrupted(monkeypatch, owner, method)
    writer = DatasetWriter(dataset)
    writer.put(b"a", b"1")
    interrupted.once = True
    with pytest.raises(KeyboardInterrupt):
        writer.flush()
    with pytest.raises(Conflict, match="interrupted"):
        writer.close()


def test_a_flush_after_an_interrupted_wait_acknowledges_all(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted = Interrupted(monkeypatch, Uploader, "wait")
    with DatasetWriter(dataset) as writer:
        writer.put(b"a", b"1")
        interrupted.once = True
        with pytest.raises(KeyboardInterrupt):
            writer.flush()
        writer.flush()
        assert dataset.namespace.state().files == 1


def put_many(writer: DatasetWriter) -> None:
    """Put more than an uploader takes in flight."""
    for number in range(100_000):
        writer.put(b"%d" % number, bytes(4000))


def test_the_error_of_the_store_stays_the_reason(
    dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(store: object, key: str, parts: object) -> None:
        raise OSError("the disk is full")

    writer = DatasetWriter(dataset, target_bytes=4096, open_chunks=1)
    monkeypatch.setattr(MemoryObjectStore, "create", fails)
    with pytest.raises(OSError, match="full"):
        put_many(writer)
    with pytest.raises(OSError, match="full"):
        writer.close()
