"""Who would lose the files of a dataset that is removed: mounts by their leases, tags, and what
cannot be read."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from chunkstore import tags
from chunkstore.leases import Lease, delete_lease, new_lease_id, write_lease
from chunkstore.object_keys import tag_key
from chunkstore.removal import mark_removed
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.client import Client
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.errors import Refused
from dieselfs.housekeeping.dataset_users import dataset_users, lasting_users
from metadata.errors import DatasetNotFound
from metadata.kv.memory import MemoryStore

HOUR_NS = 3600 * 10**9
SNAPSHOT = f"1-{1:032x}"


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def dataset(store: MemoryObjectStore) -> Dataset:
    return open_dataset(store, MemoryStore(), "pets", create=True)


def lease(dataset: Dataset, host: str = "node-1", written_ns: int | None = None) -> Lease:
    made = Lease(
        new_lease_id(), 1, dataset.ref.id, (1,), host, os.getpid(), written_ns or time.time_ns()
    )
    write_lease(dataset.store, "pets", made)
    return made


def test_mounts_and_tags_are_users(store: MemoryObjectStore, dataset: Dataset) -> None:
    dataset_users(store, "pets", time.time_ns()).check_none()
    held = lease(dataset)
    tags.tag(store, "pets", "v1", SNAPSHOT)
    users = dataset_users(store, "pets", time.time_ns())
    assert (users.mounts, [tag.name for tag in users.tags]) == ((held,), ["v1"])
    with pytest.raises(Refused, match=r"a mount on node-1 \(process \d+\) and tag v1"):
        users.check_none()


def test_who_is_gone_is_no_user(store: MemoryObjectStore, dataset: Dataset) -> None:
    lease(dataset, written_ns=time.time_ns() - 3 * HOUR_NS)
    tags.tag(store, "pets", "v1", SNAPSHOT)
    tags.untag(store, "pets", "v1")
    dataset_users(store, "pets", time.time_ns()).check_none()
    assert dataset_users(store, "cows", time.time_ns()).described() == []


def test_many_users_are_counted(store: MemoryObjectStore, dataset: Dataset) -> None:
    for number in range(6):
        lease(dataset, f"node-{number}")
    with pytest.raises(Refused, match=" and 2 more") as refused:
        dataset_users(store, "pets", time.time_ns()).check_none()
    assert "untag" not in str(refused.value.hint)


def test_what_cannot_be_read_counts(store: MemoryObjectStore, dataset: Dataset) -> None:
    store.create(tag_key("pets", "v1", 1), [b"damaged"])
    with pytest.raises(Refused, match=r"cannot tell if dataset pets is in use: .*not a tag"):
        dataset_users(store, "pets", time.time_ns()).check_none()


def test_a_removal_that_was_begun_is_finished(store: MemoryObjectStore, dataset: Dataset) -> None:
    lease(dataset)
    mark_removed(store, dataset.log)
    dataset_users(store, "pets", time.time_ns()).check_none()


def test_a_mount_that_is_ending_here_is_waited_for(
    store: MemoryObjectStore, dataset: Dataset
) -> None:
    held = lease(dataset, socket.gethostname())
    deleted = threading.Timer(0.2, delete_lease, [store, "pets", held.lease_id, held.number])
    deleted.start()
    lasting_users(store, "pets", wait_s=60).check_none()
    deleted.join()
    lease(dataset, socket.gethostname())
    assert len(lasting_users(store, "pets", wait_s=0).mounts) == 1
    lease(dataset, "node-1")
    tags.tag(store, "pets", "v1", SNAPSHOT)
    assert len(lasting_users(store, "pets", wait_s=1e9).mounts) == 2  # a tag does not end by itself


def test_a_client_removes_no_dataset_in_use(
    store: MemoryObjectStore, dataset: Dataset, tmp_path: Path
) -> None:
    lease(dataset)
    client = Client.connect("pets", store=store, index=dataset.index, snapshot_folder=tmp_path)
    client.put(b"x", "file")
    with pytest.raises(Refused, match="node-1"):
        client.delete_dataset()
    client.flush()
    assert client.get("file") == b"x"  # what was put before is kept
    client.delete_dataset(force=True)
    client.close()
    with pytest.raises(DatasetNotFound):
        open_dataset(store, dataset.index, "pets")
