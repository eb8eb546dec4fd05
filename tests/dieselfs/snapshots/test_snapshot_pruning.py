"""Which snapshots are given up: the rule over all small cases, then real snapshots with tags and
leases."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from chunkstore import tags
from chunkstore.leases import Lease, new_lease_id, write_lease
from chunkstore.object_keys import snapshot_key, tag_key
from chunkstore.stores.memory import MemoryObjectStore
from dieselfs.dataset.dataset import Dataset, open_dataset
from dieselfs.dataset.dataset_writer import DatasetWriter
from dieselfs.errors import Refused, SnapshotNotFound, UsageError
from dieselfs.snapshots import lifecycle
from dieselfs.snapshots.snapshot_pruning import (
    SnapshotVersion,
    SnapshotVersions,
    check_free,
    delete_snapshots,
    list_versions,
    prunable,
)
from dieselfs.snapshots.tagging import resolved, tag_snapshot, untag_snapshot
from metadata.errors import DatasetNotFound, SnapshotStale
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.chunkstore.packed import StoreWrapper

NS = 1_000_000_000
DAY_NS = 86_400 * NS
NOW_NS = 1_700_000_000 * NS


def version(generation: int, age_days: float | None = 0, **cached: object) -> SnapshotVersion:
    time_ns = None if age_days is None else NOW_NS - int(age_days * DAY_NS)
    made = SnapshotVersion(f"{generation}-{generation:032x}", time_ns, 1000, published=True)
    return replace(made, **cached)  # type: ignore[arg-type]


def pruned(
    versions: list[SnapshotVersion], last: int | None, within_days: float | None
) -> list[int]:
    within_s = None if within_days is None else within_days * 86_400
    found = prunable(versions, keep_last=last, keep_within_s=within_s, now_ns=NOW_NS)
    return [version.generation for version in found]


def test_the_rule_over_all_small_cases() -> None:
    ages = [40.0, 30.0, 20.0, 10.0, 1.0]
    for cached, last, within in product(range(1 << 5), [None, 1, 2, 9], [None, 0.0, 15.0, 99.0]):
        versions = [
            version(n + 1, age, tags=("t",) if cached >> n & 1 else ())
            for n, age in enumerate(ages)
        ]
        want = [
            n + 1
            for n, age in enumerate(ages)
            if (last, within) != (None, None)
            and n != 4
            and not cached >> n & 1
            and (last is None or n < 5 - last)
            and (within is None or age > within)
        ]
        assert pruned(versions, last, within) == want, (cached, last, within)


def test_what_holds_or_is_not_known_stays() -> None:
    versions = [
        version(1, tags=("v1",)),
        version(2, leased=True),
        version(3, None),
        version(4),
        version(5),
    ]
    assert pruned(versions, 1, None) == [4]


def test_the_order_of_the_list_does_not_matter() -> None:
    versions = [version(n) for n in (10, 9, 2, 1)]
    assert pruned(versions, 2, None) == [1, 2]


@pytest.fixture
def store() -> MemoryObjectStore:
    return MemoryObjectStore()


@pytest.fixture
def dataset(store: MemoryObjectStore) -> Dataset:
    return open_dataset(store, MemoryStore(), "pets", create=True)


def snapshot_of(dataset: Dataset, folder: Path, content: bytes, publish: bool = True) -> str:
    with DatasetWriter(dataset) as writer:
        writer.put(b"file", content)
    with Snapshot.open(lifecycle.create(dataset, folder, publish=publish)) as made:
        return made.id


def versions_of(dataset: Dataset, folder: Path) -> SnapshotVersions:
    return list_versions(dataset.store, dataset.ref, folder, time.time_ns())


def lease(dataset: Dataset, generation: int) -> None:
    made = Lease(new_lease_id(), 1, dataset.ref.id, (generation,), "node-1", 7, time.time_ns())
    write_lease(dataset.store, "pets", made)


def test_versions_wherever_they_are(dataset: Dataset, tmp_path: Path) -> None:
    both = snapshot_of(dataset, tmp_path, b"1")
    local = snapshot_of(dataset, tmp_path, b"2", publish=False)
    published = snapshot_of(dataset, tmp_path, b"3")
    (tmp_path / f"pets-{published}.snapshot").unlink()
    tag_snapshot(dataset.store, "pets", both, "v1", tmp_path)
    tag_snapshot(dataset.store, "pets", "v1", "best", tmp_path)
    lease(dataset, 4)
    found = versions_of(dataset, tmp_path).versions
    assert [v.snapshot_id for v in found] == [both, local, published]
    assert [(v.published, v.file is not None) for v in found] == [
        (True, True),
        (False, True),
        (True, False),
    ]
    assert [v.tags for v in found] == [("best", "v1"), (), ()]
    assert [v.leased for v in found] == [False, False, True]
    assert all(v.time_ns and abs(v.time_ns - time.time_ns()) < DAY_NS for v in found)


def test_a_damaged_one_has_no_time(dataset: Dataset, tmp_path: Path) -> None:
    made = snapshot_of(dataset, tmp_path, b"1")
    dataset.store.delete(snapshot_key("pets", made))
    dataset.store.create(snapshot_key("pets", made), [b"damaged"])
    [found] = versions_of(dataset, tmp_path).versions
    assert (found.time_ns, found.size_bytes) == (None, 7)


def test_given_up_here_and_in_the_store(dataset: Dataset, tmp_path: Path) -> None:
    ids = [snapshot_of(dataset, tmp_path, b"%d" % n) for n in range(3)]
    versions = versions_of(dataset, tmp_path).versions
    chosen = prunable(versions, keep_last=1, keep_within_s=None, now_ns=time.time_ns())
    gone = delete_snapshots(dataset.store, dataset.ref, tmp_path, chosen, now_ns=time.time_ns())
    assert [v.snapshot_id for v in gone] == ids[:2]
    assert [p.snapshot_id for p in lifecycle.list_published(dataset.store, "pets")] == ids[2:]
    assert [path.name for path in tmp_path.iterdir()] == [f"pets-{ids[2]}.snapshot"]
    again = delete_snapshots(dataset.store, dataset.ref, tmp_path, chosen, now_ns=time.time_ns())
    assert again == []


@pytest.mark.parametrize("holder", ["tag", "lease", "damaged tag"])
def test_what_is_held_since_it_was_listed_stays(
    dataset: Dataset, tmp_path: Path, holder: str
) -> None:
    first = snapshot_of(dataset, tmp_path, b"1")
    snapshot_of(dataset, tmp_path, b"2")
    chosen = versions_of(dataset, tmp_path).versions[:1]
    if holder == "tag":
        tags.tag(dataset.store, "pets", "v1", first)
    elif holder == "lease":
        lease(dataset, 2)
    else:
        dataset.store.create(tag_key("pets", "v1", 1), [b"?"])
    with pytest.raises(Refused):
        delete_snapshots(dataset.store, dataset.ref, tmp_path, chosen, now_ns=time.time_ns())
    assert len(versions_of(dataset, tmp_path).versions) == 2
    if holder == "lease":
        now_ns = time.time_ns()
        delete_snapshots(dataset.store, dataset.ref, tmp_path, chosen, now_ns=now_ns, force=True)
        assert len(versions_of(dataset, tmp_path).versions) == 1


def test_force_is_not_for_tags(dataset: Dataset, tmp_path: Path) -> None:
    tags.tag(dataset.store, "pets", "v1", snapshot_of(dataset, tmp_path, b"1"))
    found = versions_of(dataset, tmp_path)
    with pytest.raises(Refused, match="tagged v1"):
        check_free(found, found.versions[0], force=True)


class TestTagging:
    def test_the_newest_must_be_fresh(self, dataset: Dataset, tmp_path: Path) -> None:
        made = snapshot_of(dataset, tmp_path, b"1")
        assert tag_snapshot(dataset.store, "pets", None, "v1", tmp_path).snapshot_id == made
        with DatasetWriter(dataset) as writer:
            writer.put(b"file", b"2")
        with pytest.raises(SnapshotStale, match="snapshot create"):
            tag_snapshot(dataset.store, "pets", None, "v2", tmp_path)
        assert tag_snapshot(dataset.store, "pets", "2", "v2", tmp_path).snapshot_id == made

    def test_a_local_snapshot_is_published(self, dataset: Dataset, tmp_path: Path) -> None:
        made = snapshot_of(dataset, tmp_path, b"1", publish=False)
        tag_snapshot(dataset.store, "pets", None, "v1", tmp_path)
        assert [p.snapshot_id for p in lifecycle.list_published(dataset.store, "pets")] == [made]

    @pytest.mark.parametrize("local", [True, False])
    def test_pruned_in_the_middle(self, dataset: Dataset, tmp_path: Path, local: bool) -> None:
        made = snapshot_of(dataset, tmp_path, b"1")
        if not local:
            (tmp_path / f"pets-{made}.snapshot").unlink()

        class Pruning(StoreWrapper):
            def after(self, call: str, key: str) -> None:
                if call == "create" and "/tags/" in key:
                    dataset.store.delete(snapshot_key("pets", made))

        if local:
            tag_snapshot(Pruning(dataset.store), "pets", None, "v1", tmp_path)
            assert len(lifecycle.list_published(dataset.store, "pets")) == 1
        else:
            with pytest.raises(SnapshotNotFound, match="meanwhile"):
                tag_snapshot(Pruning(dataset.store), "pets", None, "v1", tmp_path)

    def test_what_is_refused(self, dataset: Dataset, tmp_path: Path) -> None:
        with pytest.raises(SnapshotNotFound, match="no snapshot of pets"):
            tag_snapshot(dataset.store, "pets", None, "v1", tmp_path)
        with pytest.raises(UsageError, match="illegal tag"):
            tag_snapshot(dataset.store, "pets", None, "12", tmp_path)
        with pytest.raises(DatasetNotFound):
            tag_snapshot(dataset.store, "cats", None, "v1", tmp_path)
        with pytest.raises(SnapshotNotFound):
            untag_snapshot(dataset.store, "pets", "v1")
        with pytest.raises(UsageError):
            untag_snapshot(dataset.store, "pets", "12")

    def test_what_words_mean(self, dataset: Dataset, tmp_path: Path) -> None:
        made = snapshot_of(dataset, tmp_path, b"1")
        tag_snapshot(dataset.store, "pets", None, "v1", tmp_path)
        assert resolved("v1", "pets", dataset.store) == made
        for spelled in ("2", made, made[:6], "8d3f01"):
            assert resolved(spelled, "pets", dataset.store) == spelled
        for unknown in ("v2", "no such", "x/y"):
            with pytest.raises(SnapshotNotFound, match="no snapshot or tag"):
                resolved(unknown, "pets", dataset.store)
