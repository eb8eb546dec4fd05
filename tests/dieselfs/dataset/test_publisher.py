"""A writer whose index forgets: what it commits afterwards is in the index, and so is what was
forgotten."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from metadata import keys
from metadata.dataset_state import list_datasets, mark_rebuilding, unmark_rebuilding
from metadata.errors import IndexForgot, RecordCorrupt
from metadata.kv.key_value_store import MapFields, MapUpdate
from metadata.kv.lost_writes import LostWrites
from metadata.kv.memory import MemoryStore
from tests.faults.kept_dataset import files_of, index_differences


class Forgetful(MemoryStore):
    """Loses what the test says in the middle of a put, and knows of it."""

    def __init__(self) -> None:
        super().__init__()
        self.known = LostWrites(0, 0, True)
        self.left: list[LostWrites] = []
        """What it will say of itself after each of the coming losses."""
        self.lost: list[MapFields] | None = []
        """What it loses; None: everything."""

    def lost_writes(self) -> LostWrites:
        return self.known

    def put(self, phases: Sequence[Sequence[MapUpdate]]) -> None:
        if self.left:
            self.known = self.left.pop(0)
            if self.lost is None:
                self._maps.clear()
            else:
                self.remove(self.lost)
            raise IndexForgot("a server has forgotten recent records")
        super().put(phases)


@pytest.fixture
def index() -> Forgetful:
    return Forgetful()


@pytest.fixture
def dataset(index: Forgetful) -> Dataset:
    return open_dataset(MemoryObjectStore(), index, "d", create=True)


def check(dataset: Dataset, count: int) -> None:
    assert files_of(dataset) == {b"x/%d" % n: b"%d" % n for n in range(count)}
    assert index_differences(dataset) == []


def put_some(writer: DatasetWriter, start: int, end: int) -> None:
    for number in range(start, end):
        writer.put(b"x/%d" % number, b"%d" % number)
        writer.flush()


def test_recent_records_forgotten(index: Forgetful, dataset: Dataset) -> None:
    with DatasetWriter(dataset) as writer:
        put_some(writer, 0, 3)
        index.known = LostWrites(0, 0, is_confirmed=False)
        put_some(writer, 3, 6)
        index.lost = [MapFields(keys.files_of(dataset.ref.id, b"x"), [b"3", b"4"])]
        index.left = [LostWrites(1, 0, True)]
        put_some(writer, 6, 8)
    check(dataset, 8)


@pytest.mark.parametrize("at_once", [1, 3])
def test_everything_forgotten(index: Forgetful, dataset: Dataset, at_once: int) -> None:
    with DatasetWriter(dataset) as writer:
        put_some(writer, 0, 4)
        index.lost = None
        index.left = [LostWrites(n + 1, n + 1, True) for n in range(at_once)]
        put_some(writer, 4, 6)
    check(dataset, 6)
    assert list_datasets(index) == [dataset.ref]


def test_an_index_that_does_not_know_of_its_loss(dataset: Dataset, index: Forgetful) -> None:
    with DatasetWriter(dataset) as writer:
        put_some(writer, 0, 4)
        index._maps.clear()
        put_some(writer, 4, 6)
    check(dataset, 6)


def test_an_index_that_forgets_all_the_time(index: Forgetful, dataset: Dataset) -> None:
    writer = DatasetWriter(dataset)
    put_some(writer, 0, 2)
    index.left = [LostWrites(n, n, True) for n in range(1, 50)]
    with pytest.raises(IndexForgot, match="dlcmd recover"):
        put_some(writer, 2, 3)
    with pytest.raises(IndexForgot):
        writer.close()
    index.left = []
    dataset.namespace.reapply(dataset.log, dataset.reader, 0)
    check(dataset, 3)  # it was acknowledged


def test_a_damaged_record_is_not_a_loss(index: Forgetful, dataset: Dataset) -> None:
    writer = DatasetWriter(dataset)
    put_some(writer, 0, 2)
    index._maps[keys.state_of(dataset.ref.id)][keys.TOTALS] = bytes(80)
    with pytest.raises(RecordCorrupt, match="damaged"):
        put_some(writer, 2, 3)
    with pytest.raises(RecordCorrupt):
        writer.close()


def test_a_put_goes_on_beside_a_recovery(
    dataset: Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """What it commits is durable, and whoever recovers looks for it in the end."""
    with DatasetWriter(dataset) as writer:
        writer.put(b"x/0", b"0")
        writer.flush()
        mark_rebuilding(dataset.index, dataset.ref.id, 2)
        writer.put(b"x/1", b"1")
        assert writer.flush() == 3
        assert "is durable" in caplog.text
        assert files_of(dataset) == {b"x/0": b"0"}
        unmark_rebuilding(dataset.index, dataset.ref.id)
        writer.put(b"x/2", b"2")
    check(dataset, 3)
