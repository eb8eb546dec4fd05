"""The snapshots that puts publish: one for each generation, and the older ones deleted."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from chunkstore import tags
from chunkstore.errors import Denied
from chunkstore.leases import Lease, new_lease_id, write_lease
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.snapshots import lifecycle
from dieselfs.snapshots.put_snapshots import publish_put, replace_put_snapshots, replaceable
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.chunkstore.packed import StoreWrapper


class Careful(StoreWrapper):
    """Denies what it is told to, and lets others go first."""

    denied = ""
    others: tuple[Callable[[], object], ...] = ()
    stored = ""
    """The calls that come before the next object with such a key is stored, as other puts do."""

    def before(self, call: str, key: str) -> None:
        if call == "create" and self.stored in key:
            others, self.others = self.others, ()
            for act in others:
                act()
        if self.denied and call == "delete" and self.denied in key:
            raise Denied(key)


@pytest.fixture
def store() -> Careful:
    return Careful(MemoryObjectStore())


@pytest.fixture
def dataset(store: Careful) -> Dataset:
    return open_dataset(store, MemoryStore(), "pets", create=True)


def put(dataset: Dataset, name: str) -> int:
    with DatasetWriter(dataset) as writer:
        writer.put(name.encode(), b"x")
        return writer.flush()


def published(dataset: Dataset) -> list[int]:
    return [each.generation for each in lifecycle.list_published(dataset.store, "pets")]


def test_a_put_publishes_what_the_dataset_is_now(dataset: Dataset, tmp_path: Path) -> None:
    put(dataset, "a")
    found = publish_put(dataset, tmp_path)
    path = lifecycle.pull(dataset.store, "pets", None, tmp_path / "elsewhere")
    with Snapshot.open(path) as snapshot:
        assert (str(snapshot.id), snapshot.file_count) == (found.snapshot_id, 1)
    assert (found.is_new, found.size_bytes) == (True, path.stat().st_size)
    again = publish_put(dataset, tmp_path)
    assert (again.is_new, again.snapshot_id) == (False, found.snapshot_id)


def test_a_local_snapshot_of_this_generation_is_published(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(dataset, "a")
    path = lifecycle.build(dataset, tmp_path)
    monkeypatch.setattr("dieselfs.snapshots.put_snapshots.build", pytest.fail)
    assert publish_put(dataset, tmp_path).snapshot_id == lifecycle.id_of(path)


def test_two_snapshots_of_puts_stay_and_the_rest_is_deleted(
    dataset: Dataset, tmp_path: Path
) -> None:
    for name in "abcd":
        put(dataset, name)
        publish_put(dataset, tmp_path)
    assert published(dataset) == [4, 5]
    assert [lifecycle.generation_of(each) for each in replaceable(dataset.store, "pets")] == [4, 5]
    assert len(list(tmp_path.glob("*.snapshot"))) == 2


def test_what_is_used_or_was_asked_for_stays(dataset: Dataset, tmp_path: Path) -> None:
    ids = []
    for name in "abcde":
        put(dataset, name)
        if name == "d":
            lifecycle.create(dataset, tmp_path)  # nobody's but a person's
        ids.append(publish_put(dataset, tmp_path).snapshot_id)
        if name == "a":
            tags.tag(dataset.store, "pets", "v1", ids[0])
        if name == "b":
            lease = Lease(new_lease_id(), 1, dataset.ref.id, (3,), "node", 1, time.time_ns())
            write_lease(dataset.store, "pets", lease)
        if name == "c":
            lifecycle.create(dataset, tmp_path)  # asked for: it is not a put's any more
    for name in "fgh":
        put(dataset, name)
        publish_put(dataset, tmp_path)
    assert published(dataset) == [2, 3, 4, 5, 8, 9]


def test_a_damaged_tag_keeps_everything(dataset: Dataset, tmp_path: Path) -> None:
    dataset.store.create("datasets/pets/tags/v1/0000000000000001", [b"damaged"])
    for name in "abcd":
        put(dataset, name)
        publish_put(dataset, tmp_path)
    assert published(dataset) == [2, 3, 4, 5]


def test_a_deletion_that_fails_is_tried_again(
    dataset: Dataset, store: Careful, tmp_path: Path
) -> None:
    store.denied = "/snapshots/"
    for name in "abc":
        put(dataset, name)
        assert publish_put(dataset, tmp_path).is_new
    assert published(dataset) == [2, 3, 4]
    store.denied = ""
    put(dataset, "d")
    publish_put(dataset, tmp_path)
    assert published(dataset) == [4, 5]


@pytest.mark.parametrize("stored", ["/put-snapshots/", "/snapshots/"])
def test_a_snapshot_that_is_published_after_those_of_later_puts_is_deleted_too(
    dataset: Dataset, store: Careful, tmp_path: Path, stored: str
) -> None:
    """They are of other nodes, and may have deleted its mark before it was there."""

    def put_and_publish(name: str) -> None:
        put(dataset, name)
        publish_put(dataset, tmp_path / name)

    put(dataset, "a")
    store.stored = stored
    store.others = tuple(partial(put_and_publish, name) for name in "bc")
    assert publish_put(dataset, tmp_path).is_new
    assert published(dataset)[-2:] == [3, 4]
    put_and_publish("d")
    assert published(dataset) == [4, 5]


@pytest.mark.parametrize("asked_for", [False, True])
def test_replacing_leaves_the_newest_alone(
    dataset: Dataset, tmp_path: Path, asked_for: bool
) -> None:
    for name in "ab":
        put(dataset, name)
        publish_put(dataset, tmp_path)
    put(dataset, "c")
    if asked_for:
        lifecycle.create(dataset, tmp_path)
    replace_put_snapshots(dataset, tmp_path)
    assert published(dataset) == [4]
