"""A mount over a blob on the SSD: the kernel alone serves it, without a daemon and without the
store."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from chunkstore.chunk_reader import ChunkReader
from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.cache.ssd.blob import write_blob
from dieselfs.fuse.fronts.local_front import LocalMount, local_front, mount_local
from dieselfs.fuse.mounts.front_choice import Front
from dieselfs.fuse.mounts.mount_table import MountState
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.fuse.requests.attributes import Owner
from metadata.snapshot import Snapshot
from tests.dieselfs.dataset_content import tree_of
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import run_forked
from tests.mount.mounting import listed
from tests.mount.packing import PackedDataset, pack, random_bytes, write_file
from tests.mount.torture import forget_names

pytestmark = pytest.mark.skipif(local_front("auto") is None, reason="EROFS cannot be mounted here")


DLCMD = "-m", "dieselfs.cli"
PATIENT = f"""
from dieselfs.cli import main
from dieselfs.fuse.starting import store_probe
store_probe._STORE_ANSWERS_S = {PATIENCE_S}
main()
"""
"""`dlcmd` that waits longer for the store before it says nothing of newer commits."""


@dataclass(frozen=True)
class Node:
    """A machine with a dataset `pets`, an SSD, and two mountpoints."""

    source: Path
    store: Path
    ssd: Path
    mountpoint: Path
    other: Path
    environment: dict[str, str]

    def dlcmd(self, *arguments: str | Path, code: int = 0, program: tuple[str, str] = DLCMD) -> str:
        """What the command says, on both streams."""
        done = run_forked(
            [sys.executable, *program, *map(str, arguments)],
            env=self.environment,
            merges=True,
            timeout=PATIENCE_S,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    def put(self) -> None:
        self.dlcmd("put", "--links", f"{self.source}/", "pets", "-j", "1")
        self.dlcmd("snapshot", "create", "pets")

    def mounted(self) -> list[dict[str, Any]]:
        """Return how the list of mounts shows this node's, once all have answered in time."""
        found: list[dict[str, Any]] = []

        def is_answered() -> bool:
            all_mounts = map(json.loads, self.dlcmd("mounts", "--json").splitlines())
            own = [str(self.mountpoint), str(self.other)]
            found[:] = [of for of in all_mounts if of["mountpoint"] in own]
            return all(of["state"] != "hung" for of in found)

        eventually(is_answered, "answers of the mounts")
        return found


def make_node(folder: Path) -> Node:
    """A node without a mount, whose dataset is put."""
    source = folder / "source"
    for n in range(200):
        write_file(source / f"class{n % 3}" / f"{n}.bin", random_bytes(n * 97))
    write_file(source / "large", random_bytes(18_000_001), 0o600)
    environment = {
        **os.environ,
        "DIESELFS_STORE": f"file://{folder}/store",
        "DIESELFS_SSD_SIZE": "100MiB",
        "XDG_DATA_HOME": f"{folder}/data",
        "XDG_CONFIG_HOME": f"{folder}/config",
    }
    environment.pop("DIESELFS_INDEX", None)
    node = of_its_own(Node(source, folder / "store", folder, folder, folder, environment), folder)
    node.put()
    return node


def of_its_own(node: Node, folder: Path) -> Node:
    """The node with an SSD, mountpoints and a state of its own, below `folder`."""
    ssd, mountpoint, other = folder / "ssd", folder / "mnt", folder / "other"
    mountpoint.mkdir()
    other.mkdir()
    environment = {
        **node.environment,
        "DIESELFS_SSD": f"{ssd}",
        "XDG_STATE_HOME": f"{folder}/state",
    }
    return replace(node, ssd=ssd, mountpoint=mountpoint, other=other, environment=environment)


@contextmanager
def unmounted_afterwards(node: Node) -> Iterator[Node]:
    yield node
    for place in (node.mountpoint, node.other):
        subprocess.run(["umount", "-lR", place], check=False, stderr=subprocess.DEVNULL)


@pytest.fixture
def changing_node(tmp_path: Path) -> Iterator[Node]:
    """A node for a test that changes the dataset or its store."""
    with unmounted_afterwards(make_node(tmp_path)) as node:
        yield node


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Node:
    return make_node(tmp_path_factory.mktemp("node"))


@pytest.fixture
def node(shared_node: Node, tmp_path: Path) -> Iterator[Node]:
    """A node with a dataset that other tests read, too."""
    with unmounted_afterwards(of_its_own(shared_node, tmp_path)) as node:
        yield node


def require_tree(mountpoint: Path, source: Path) -> None:
    """Names, modes, times and bytes. The control directory is not listed as a directory."""
    found = tree_of(mountpoint, follow=False)
    found.pop(b".dieselfs", None)
    expected = tree_of(source, follow=False)
    found.pop(b""), expected.pop(b"")  # the root's time is that of the snapshot
    assert found.keys() == expected.keys()
    for path, node in expected.items():
        assert found[path].data == node.data, path
        if node.data is not None:
            assert found[path] == node, path


def test_a_local_mount_that_is_older_than_the_store_says_so(changing_node: Node) -> None:
    node = changing_node
    node.dlcmd("warmup", "--pin-mount", "pets")
    assert "later" not in node.dlcmd("mount", "--no-index", "pets", node.other)
    write_file(node.source / "new", b"new")
    node.dlcmd("put", "--no-publish", f"{node.source}/", "pets", "-j", "1")
    said = node.dlcmd("mount", "--no-index", "pets", node.mountpoint, program=("-c", PATIENT))
    assert "front: local" in said
    assert f"{node.mountpoint} shows generation 2 of pets, but the store is at 3, 1 commit" in said


@pytest.mark.parametrize("front", [[], ["--front", "erofs-loop"], ["--blob-cache", "buffered"]])
def test_a_mount_without_a_daemon_and_without_the_store(
    changing_node: Node, front: list[str]
) -> None:
    node = changing_node
    (node.source / "class0/link").symlink_to("../large")
    (node.source / "class").symlink_to("class1")
    node.put()
    node.dlcmd("warmup", "--pin-mount", "pets")
    shutil.rmtree(node.store)
    said = node.dlcmd("mount", "--no-index", "pets", node.mountpoint, *front)
    assert "front: local" in said
    assert "no daemon" in said
    require_tree(node.mountpoint, node.source)
    [shown] = node.mounted()
    assert (shown["dataset"], shown["state"], shown["pid"]) == ("pets", "local", None)
    assert "@" in shown["source"]
    assert "local mount" in node.dlcmd("stats", node.mountpoint, code=1)
    assert "nothing to upgrade" in node.dlcmd("mount", "--upgrade", "pets", node.mountpoint, code=1)
    with pytest.raises(OSError, match="Read-only"):
        (node.mountpoint / "new").touch()
    node.dlcmd("umount", node.mountpoint)
    assert node.mounted() == []
    assert list(node.mountpoint.iterdir()) == []


def test_owners_and_private_mounts(node: Node) -> None:
    node.dlcmd("warmup", "--pin-mount", "pets")
    node.dlcmd("mount", "pets", node.mountpoint, "--uid", "1234", "-o", "gid=99")
    node.dlcmd("mount", "pets", node.other, "--allow-other")
    for place, uid, mode in ((node.mountpoint, 1234, 0o700), (node.other, 0, None)):
        found = (place / "large").stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (uid, 0o600)
        if mode is not None:
            assert stat.S_IMODE(place.stat().st_mode) == mode
    assert stat.S_IMODE(node.other.stat().st_mode) & 0o005
    for place in (node.mountpoint, node.other):
        node.dlcmd("umount", place)


def test_two_places_share_pages_and_end_by_themselves(node: Node) -> None:
    node.dlcmd("warmup", "--pin-mount", "pets")
    node.dlcmd("mount", "pets", node.mountpoint)
    assert "shared" in node.dlcmd("mount", "pets", node.other)
    assert node.mountpoint.stat().st_dev == node.other.stat().st_dev
    assert [of["state"] for of in node.mounted()] == ["local", "local"]
    node.dlcmd("umount", node.mountpoint)
    require_tree(node.other, node.source)
    [left] = node.mounted()
    assert (left["mountpoint"], left["state"]) == (str(node.other), "local")
    node.dlcmd("umount", node.other)


def test_a_newer_snapshot_takes_its_place(changing_node: Node) -> None:
    node = changing_node
    node.dlcmd("warmup", "--pin-mount", "pets")
    node.dlcmd("mount", "pets", node.mountpoint)
    assert "already shows" in node.dlcmd("mount", "--refresh", "pets", node.mountpoint)
    with open(node.mountpoint / "large", "rb") as old:
        (node.source / "large").write_bytes(b"another")
        node.put()
        refused = node.dlcmd("mount", "--refresh", "pets", node.mountpoint, code=8)
        assert "dlcmd warmup --pin-mount pets@" in refused
        assert "dlcmd umount" in refused
        node.dlcmd("warmup", "--pin-mount", "pets")
        assert "refreshed" in node.dlcmd("mount", "--refresh", "pets", node.mountpoint)
        require_tree(node.mountpoint, node.source)
        assert old.read() == random_bytes(18_000_001)
    [shown] = node.mounted()
    assert shown["state"] == "local"
    node.dlcmd("umount", node.mountpoint)
    assert node.mounted() == []


def test_what_is_unpinned_stays_as_long_as_it_is_mounted(node: Node) -> None:
    node.dlcmd("warmup", "--pin-mount", "pets")
    node.dlcmd("mount", "pets", node.mountpoint)
    node.dlcmd("warmup", "--unpin-mount", "pets")
    assert list((node.ssd / "blobs").iterdir()) == []
    forget_names(node.mountpoint)
    require_tree(node.mountpoint, node.source)
    node.dlcmd("umount", node.mountpoint)


@pytest.mark.parametrize("why", ["none", "asked", "cut off", "others", "no SSD"])
def test_else_a_daemon_serves(node: Node, why: str) -> None:
    options: list[str] = []
    if why != "none":
        node.dlcmd("warmup", "--pin-mount", "pets")
        [blob] = (node.ssd / "blobs").glob("*.blob")
    if why == "asked":
        options = ["--front", "fuse"]
    elif why == "cut off":
        os.truncate(blob, blob.stat().st_size - 4096)
    elif why == "others":
        os.chown(blob, 1234, 1234)
    elif why == "no SSD":
        options = ["--ssd", "none"]
    node.dlcmd("mount", "pets", node.mountpoint, *options)
    [shown] = node.mounted()
    assert shown["state"] == "serving"
    require_tree(node.mountpoint, node.source)
    node.dlcmd("umount", node.mountpoint)


def test_a_mount_that_the_kernel_refuses_is_made_by_a_daemon(node: Node) -> None:
    node.dlcmd("warmup", "--pin-mount", "pets")
    [blob] = (node.ssd / "blobs").glob("*.blob")
    record = Path(f"{blob}.json")
    assert json.loads(record.read_text())["bytes"] == [blob.stat().st_size]
    record.unlink()  # without its record a blob is not complete
    said = node.dlcmd("mount", "pets", node.mountpoint)
    assert "front: local" not in said
    node.dlcmd("umount", node.mountpoint)


def test_a_sampler_works_without_a_plan(node: Node) -> None:
    sampler = pytest.importorskip("dieselfs.integrations.torch_sampler")
    node.dlcmd("warmup", "--pin-mount", "pets")
    node.dlcmd("mount", "pets", node.mountpoint)
    paths = sorted(
        str(path) for path in node.mountpoint.glob("class*/*.bin") if path.stat().st_size
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = list(sampler.ChunkShuffleSampler(paths, seed=1))
    assert sorted(order) == list(range(len(paths)))
    for index in order:
        path = Path(paths[index])
        assert path.read_bytes() == (node.source / path.relative_to(node.mountpoint)).read_bytes()
    node.dlcmd("umount", node.mountpoint)


@pytest.mark.parametrize("front", ["erofs", "erofs-loop"])
def test_several_devices(tmp_path: Path, front: Any) -> None:
    for n in range(40):
        write_file(tmp_path / "source" / f"{n:02}", random_bytes(200_000 + n))
    packed: PackedDataset = pack(tmp_path / "source", tmp_path)
    mountpoint = tmp_path / "mnt"
    mountpoint.mkdir()
    with Snapshot.open(packed.snapshot) as snapshot:
        source = ChunkReader(LocalDirectory(packed.store), snapshot.dataset)
        blobs = write_blob(snapshot, source, tmp_path / "ssd", device_blocks=600).paths
        assert len(blobs) > 2
        wanted = LocalMount(mountpoint, Owner(0, 0), front=front)
        assert mount_local(snapshot, blobs, wanted, device_blocks=600) is Front(front)
    try:
        require_tree(mountpoint, packed.source)
        assert listed(mountpoint).state is MountState.LOCAL
    finally:
        unmount(mountpoint)
