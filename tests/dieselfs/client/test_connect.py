"""`dieselfs.connect`: a client with the settings that `dlcmd` finds."""

import time
from pathlib import Path

import pytest

import dieselfs
from chunkstore.errors import NoStoreYet
from chunkstore.stores.byte_rate import BURST_S
from dieselfs.allocation.directory.folder import FolderDirectory
from dieselfs.cache.node.task_folder import VARIABLE as MEMORY_VARIABLE
from dieselfs.errors import AddressError, ConfigError, SnapshotNotFound
from dieselfs.snapshots.tagging import tag_snapshot
from metadata.errors import DatasetNotFound

MIB = 1 << 20


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("STORE", "INDEX", "PROFILE", "SNAPSHOTS", "SSD", "CACHE_CLUSTER"):
        monkeypatch.delenv(f"DIESELFS_{name}", raising=False)
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))


def test_a_dataset_is_made_with_the_defaults_and_read_again() -> None:
    with dieselfs.connect("pets", create=True) as client:
        client.put(b"meow", "cat/1")
    with dieselfs.connect("pets") as client:
        assert client.get("cat/1") == b"meow"
        found = client.stat("cat/1")
    assert isinstance(found, dieselfs.FileStat)


def test_a_version_is_read_by_generation_tag_and_id() -> None:
    with dieselfs.connect("pets", create=True) as client:
        client.put(b"old", "cat")
        path = client.save_meta()
        old = str(client.dataset.namespace.state().generation)
        tagged = tag_snapshot(client.dataset.store, "pets", old, "v1", path.parent)
        client.put(b"new", "cat")
    with dieselfs.connect("pets") as client:
        assert client.get("cat") == b"new"
        client.load_meta(old)
        assert client.get("cat") == b"old"
    for which in (old, "v1", tagged.snapshot_id):
        with dieselfs.connect(f"pets@{which}") as client:
            assert client.get("cat") == b"old"
    with pytest.raises(SnapshotNotFound):
        dieselfs.connect("pets@nothing")
    with dieselfs.connect("pets@v1", create=True) as client:
        assert client.get("cat") == b"old"


def test_a_version_of_a_missing_dataset_makes_none() -> None:
    with pytest.raises(NoStoreYet):
        dieselfs.connect("pets@v1", create=True)
    dieselfs.connect("dogs", create=True).close()
    with pytest.raises(DatasetNotFound):
        dieselfs.connect("pets@v1", create=True)
    with pytest.raises(DatasetNotFound):
        dieselfs.connect("pets")


def test_urls_and_bad_settings(tmp_path: Path) -> None:
    places = {"store": f"file://{tmp_path}/s", "index": f"lmdb://{tmp_path}/i"}
    with dieselfs.connect("pets", create=True, **places) as client:  # type: ignore[arg-type]
        client.put(b"x", "x")
    assert (tmp_path / "s/datasets/pets").is_dir()
    with pytest.raises(DatasetNotFound):
        dieselfs.connect("cats", **places)  # type: ignore[arg-type]
    with pytest.raises(NoStoreYet):
        dieselfs.connect("pets")
    with pytest.raises(AddressError):
        dieselfs.connect("pets:cat")
    with pytest.raises(ConfigError):
        dieselfs.connect("pets", store="nowhere://x")


def test_the_public_names_are_there() -> None:
    assert all(getattr(dieselfs, name) is not None for name in dieselfs.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'conect'"):
        dieselfs.conect  # type: ignore[attr-defined]  # noqa: B018


def test_a_job_pays_without_node_memory(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MEMORY_VARIABLE, str(short_folder))
    monkeypatch.setenv("DIESELFS_JOB", "resnet")
    with dieselfs.connect("pets", create=True) as client:
        for number in range(8):
            client.put(bytes(MIB), str(number))
    directory = FolderDirectory()
    directory.allocate_remote_io("resnet", 4 * MIB, origin="hand")
    with dieselfs.connect("pets") as client:
        began = time.monotonic()
        for number in range(8):
            assert client.get(str(number)) == bytes(MIB)
        waited_s = time.monotonic() - began
        [lease] = directory.leases()
    assert (lease.job, lease.allowed_bytes_per_s) == ("resnet", 4 * MIB)
    assert lease.dataset_bytes == 8 * MIB
    assert waited_s >= (8 * MIB - MIB) / (4 * MIB) - 2 * BURST_S
    assert directory.leases() == []
