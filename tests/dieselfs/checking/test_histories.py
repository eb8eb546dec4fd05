"""Datasets that have lived: after puts, deletions, overwrites and purges fsck and scrub find
nothing, and of a lost chunk exactly what can't be read."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from chunkstore.errors import ChunkStoreError
from dieselfs.checking import Verdict, fsck, scrub
from dieselfs.client import Client
from dieselfs.housekeeping.purge.purge import purge
from dieselfs.housekeeping.purge.purge_request import PurgeRequest
from dieselfs.snapshots import lifecycle
from metadata.snapshot import Snapshot
from tests.dieselfs.checking.made_dataset import NAME, MadeDataset
from tests.dieselfs.dataset_content import content_of

SEEDS = range(6)


def lived(seed: int, folder: Path) -> MadeDataset:
    """Puts, deletions, overwrites, purges and snapshots at random."""
    chosen, made = random.Random(seed), MadeDataset()
    paths = [f"{chosen.choice('abc')}/{chosen.choice('xyz')}/{number}" for number in range(40)]
    made.put({paths[0]: b"first"})
    for _ in range(10):
        match chosen.randrange(6):
            case 0 | 1 | 2:
                some = chosen.sample(paths, chosen.randint(1, 15))
                made.put({path: chosen.randbytes(chosen.randint(0, 1500)) for path in some})
            case 3:
                with Client(made.open(), snapshot_folder=folder) as client:
                    listed = [e.path for e in client.walk("") if e.kind == "file"]
                    for path in chosen.sample(listed, len(listed) // 2):
                        client.delete(path)
            case 4:
                grace_s = chosen.choice([0, 1e6])
                purge(made.open(), PurgeRequest(leave=0, grace_s=grace_s, target_bytes=4096))
            case 5:
                lifecycle.create(made.open(), folder)
    return made


def unreadable(made: MadeDataset) -> set[bytes]:
    """The files of the present state whose bytes can't be had, each tried."""
    dataset = made.open()
    found = set()
    for listing in dataset.namespace.walk():
        prefix = listing.path + b"/" if listing.path else b""
        for name in listing.file_names:
            try:
                with Client(dataset, snapshot_folder=Path("/nonexistent")) as client:
                    client.get(prefix + name)
            except ChunkStoreError:
                found.add(prefix + name)
    return found


def files_in(path: Path, key: str) -> int:
    """How many files of a snapshot lie in a chunk."""
    with Snapshot.open(path) as snapshot:
        chunks = [snapshot.extent(number).chunk.id for number in range(snapshot.file_count)]
        return sum(str(chunk) == key.rpartition("/")[2] for chunk in chunks)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_dataset_that_has_lived_is_clean(seed: int, tmp_path: Path) -> None:
    made = lived(seed, tmp_path)
    report = fsck(made.store, made.index, NAME, snapshot_folder=tmp_path)
    assert report.findings == ()
    assert scrub(made.store, made.index, NAME).verdict is Verdict.CLEAN
    assert content_of(made.open())


@pytest.mark.parametrize("seed", SEEDS)
def test_of_a_lost_chunk_exactly_what_can_not_be_read_is_listed(seed: int, tmp_path: Path) -> None:
    made = lived(seed, tmp_path)
    for key in made.objects():
        sound = made.replace(key, None)
        report = fsck(made.store, made.index, NAME)
        lost = {path for finding in report.findings for path in finding.files}
        assert lost == unreadable(made)
        for finding in report.findings:
            for hit in finding.snapshots:
                path = tmp_path / f"{NAME}-{hit.snapshot_id}.snapshot"
                assert hit.files == files_in(path, key)
        made.store.create(key, [sound])
    assert fsck(made.store, made.index, NAME).verdict is Verdict.CLEAN
