"""A mount that begins beside a purge sees whether its chunks are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from chunkstore.commit_log import CommitLog
from chunkstore.object_keys import chunk_key, snapshot_key
from dieselfs.errors import Conflict
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from dieselfs.snapshots.lifecycle import build, publish_snapshot
from dieselfs.snapshots.put_snapshots import publish_put
from dieselfs.snapshots.replacement import check_not_replaced, is_replaced
from metadata.snapshot import Snapshot
from tests.dieselfs.housekeeping.purge.purged_dataset import NAME, PurgedDataset

AT_ONCE = PurgeRequest(leave=0, grace_s=0)


@pytest.fixture
def world() -> PurgedDataset:
    """Two files, one of which has been put again."""
    world = PurgedDataset()
    world.put({b"a": b"1", b"b": b"1"})
    world.put({b"b": b"2"})
    return world


def test_a_snapshot_of_a_put_that_a_purge_replaces(world: PurgedDataset, tmp_path: Path) -> None:
    shown = publish_put(world.open(), tmp_path)
    file = next(tmp_path.glob(f"*{shown.snapshot_id}*"))
    with Snapshot.open(file) as snapshot:
        assert not is_replaced(world.store, snapshot)
        assert world.purge(AT_ONCE).chunks_deleted
        with pytest.raises(Conflict, match="a purge has deleted"):
            check_not_replaced(world.store, snapshot)


def test_a_published_snapshot_is_safe(world: PurgedDataset, tmp_path: Path) -> None:
    path = build(world.open(), tmp_path)
    publish_snapshot(world.store, path)
    world.purge(AT_ONCE)
    with Snapshot.open(path) as snapshot:
        assert not is_replaced(world.store, snapshot)


def test_a_snapshot_that_lies_in_a_file_is_safe_while_its_chunks_are(
    world: PurgedDataset, tmp_path: Path
) -> None:
    path = build(world.open(), tmp_path)
    log = CommitLog(world.store, world.open().ref)
    chunk = log.read(2).added[0].id
    with Snapshot.open(path) as snapshot:
        log.append(3, [], [chunk])
        assert not is_replaced(world.store, snapshot)
        world.store.delete(chunk_key(NAME, chunk))
        assert is_replaced(world.store, snapshot)
        world.store.create(snapshot_key(NAME, snapshot.id), [b"published again"])
        assert not is_replaced(world.store, snapshot)
