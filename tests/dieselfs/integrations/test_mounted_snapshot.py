"""The snapshot of a mount whose files belong to another user, and of one that is refreshed.

A folder with the control documents of a mount takes its place.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import Conflict
from dieselfs.integrations.mounted_snapshot import mounted_snapshot
from dieselfs.integrations.torch_sampler import ChunkShuffleSampler
from dieselfs.integrations.torch_samples import SampleDataset
from metadata.snapshot import Snapshot
from tests.dieselfs.integrations.conftest import MadeDataset, content, make

PATHS = ["a/1.jpg", "a/2.jpg", "b/1.jpg"]


@pytest.fixture
def shown(tmp_path: Path) -> MadeDataset:
    return make(tmp_path / "shown", PATHS)


@pytest.fixture
def refreshed(tmp_path: Path) -> MadeDataset:
    return make(tmp_path / "refreshed", PATHS[1:])


@pytest.fixture
def mount(tmp_path: Path, shown: MadeDataset) -> Path:
    root = tmp_path / "mnt"
    for path in PATHS:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content(path))
    show(root, shown)
    return root


def show(root: Path, made: MadeDataset) -> None:
    """Show a snapshot whose file only the mount can open."""
    control = root / ".dieselfs"
    control.mkdir(exist_ok=True)
    (control / "snapshot").write_bytes(made.snapshot_file.read_bytes())
    document = {"snapshot": made.snapshot.id, "snapshot_file": "/nowhere/pets.snapshot"}
    (control / "dataset.json").write_text(json.dumps(document))


def copied(original: Any) -> Any:
    """Return what a spawned process gets."""
    return pickle.loads(pickle.dumps(original))


def test_another_users_mount_in_a_spawned_process(mount: Path) -> None:
    samples = SampleDataset(mount, parts="jpg")
    sampler = ChunkShuffleSampler(samples, seed=1)
    assert [copied(samples)[index] for index in range(3)] == list(samples)
    assert list(copied(sampler)) == list(sampler)
    assert copied(samples.snapshot).path == mount / ".dieselfs/snapshot"


def test_a_spawned_process_after_a_refresh(mount: Path, refreshed: MadeDataset) -> None:
    snapshot = mounted_snapshot(mount)
    state = pickle.dumps(snapshot)
    show(mount, refreshed)
    with pytest.raises(Conflict, match=f"{refreshed.snapshot.id} now.* are of {snapshot.id}"):
        pickle.loads(state)


def test_a_file_that_is_gone_after_a_refresh(mount: Path, refreshed: MadeDataset) -> None:
    samples = SampleDataset(mount, parts="jpg")
    (mount / PATHS[0]).unlink()
    with pytest.raises(FileNotFoundError):
        samples[0]
    show(mount, refreshed)
    with pytest.raises(
        Conflict, match=f"{refreshed.snapshot.id} now.* are of {samples.snapshot.id}"
    ):
        samples[0]
    assert samples[1] == SampleDataset(mount, parts="jpg")[0]


def test_the_snapshots_own_file_is_opened_if_it_can_be(mount: Path, shown: MadeDataset) -> None:
    document = {"snapshot": shown.snapshot.id, "snapshot_file": str(shown.snapshot_file)}
    (mount / ".dieselfs/dataset.json").write_text(json.dumps(document))
    found = mounted_snapshot(mount)
    assert type(found) is Snapshot
    assert copied(found).path == shown.snapshot_file
