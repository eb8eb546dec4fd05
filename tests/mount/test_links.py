"""Symbolic links: shown, read and followed like those of any file system, on each front."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from metadata.snapshot import Snapshot
from tests.dieselfs.dataset_content import tree_of
from tests.mount.mounting import Mount, both_fronts, mounted
from tests.mount.packing import PackedDataset, pack, random_bytes, write_file

pytestmark = both_fronts

LONG = "/".join(["x" * 254] * 16) + "/" + "y" * 15
"""As long as a target can be."""
LINKS = {
    "latest": "run/2",
    "to-file": "run/2/weights",
    "run/current": "2",
    "run/2/up": "../../readme",
    "run/2/root": "../..",
    "chain": "latest/up",
    "dangling": "no/such/thing",
    "circle": "circle",
    "long": LONG,
    os.fsdecode(b"\xff\n"): os.fsdecode(b"run/\xfe"),
}


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("linked")
    source = folder / "source"
    write_file(source / "readme", b"read me")
    write_file(source / "run/2/weights", random_bytes(100_000))
    for n in range(50):
        write_file(source / f"run/1/{n}", random_bytes(500 + n))
    (source / "only").mkdir()
    (source / "only/link").symlink_to("../readme")
    for name, target in LINKS.items():
        (source / name).symlink_to(target)
    for at, path in enumerate(sorted(source.rglob("*"))):
        os.utime(path, ns=(at, 1_600_000_000_123_456_789 + at), follow_symlinks=False)
    return pack(source, folder)


@pytest.fixture(scope="module")
def mount(
    linked: PackedDataset, kind: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    with mounted(linked, tmp_path_factory.mktemp("mount")) as mount:
        yield mount


def test_the_tree_is_the_one_that_was_put(linked: PackedDataset, mount: Mount) -> None:
    """Names, types, targets, modes, times and content."""
    found, expected = tree_of(mount.path, follow=False), tree_of(linked.source, follow=False)
    for tree in (found, expected):
        tree.pop(b"")
        for path in [path for path in tree if path.startswith(b".dieselfs")]:
            del tree[path]
    assert found == expected


def test_links_lead_where_they_led(mount: Mount) -> None:
    top = mount.path
    assert (top / "latest/weights").read_bytes() == random_bytes(100_000)
    assert (top / "to-file").read_bytes() == random_bytes(100_000)
    assert (top / "chain").read_bytes() == b"read me"
    assert (top / "run/current/root/only/link").read_bytes() == b"read me"
    assert os.path.realpath(top / "run/2/root") == str(top)
    assert (top / "latest").stat().st_mode == (top / "run/2").stat().st_mode
    assert {entry.name: entry.is_symlink() for entry in os.scandir(top / "run")} == {
        "1": False, "2": False, "current": True
    }  # fmt: skip
    for name, number in (("dangling", errno.ENOENT), ("circle", errno.ELOOP)):
        with pytest.raises(OSError) as raised:
            (top / name).read_bytes()
        assert raised.value.errno == number
    with pytest.raises(OSError) as raised:
        os.readlink(top / "readme")
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError) as raised:
        os.open(top / "latest", os.O_RDONLY | os.O_NOFOLLOW)
    assert raised.value.errno == errno.ELOOP


def test_links_cannot_be_changed(mount: Mount) -> None:
    for change in (
        lambda: os.unlink(mount.path / "latest"),
        lambda: os.rename(mount.path / "latest", mount.path / "other"),
        lambda: os.symlink("a", mount.path / "new"),
        lambda: os.utime(mount.path / "latest", ns=(0, 0), follow_symlinks=False),
    ):
        with pytest.raises(OSError) as raised:
            change()
        assert raised.value.errno == errno.EROFS


def test_find_and_copies_see_links(mount: Mount, tmp_path: Path) -> None:
    done = subprocess.run(
        ["find", mount.path, "-type", "l", "-printf", "%P\\0%l\\0"], capture_output=True, check=True
    )
    words = done.stdout.split(b"\0")[:-1]
    found = {os.fsdecode(a): os.fsdecode(b) for a, b in zip(words[::2], words[1::2], strict=True)}
    assert found == {**LINKS, "only/link": "../readme"}
    subprocess.run(["cp", "-a", mount.path / "run", tmp_path / "run"], check=True)
    assert tree_of(tmp_path / "run", follow=False) == tree_of(mount.path / "run", follow=False)


def test_an_order_has_no_links(linked: PackedDataset, mount: Mount) -> None:
    """Each file once, under its own path; what is filled and watched is no link either."""
    listed = (mount.path / ".dieselfs/shuffle/seed=1,group=2").read_bytes().splitlines()
    tree = tree_of(linked.source, follow=False)
    assert sorted(listed) == sorted(path for path, node in tree.items() if stat.S_ISREG(node.mode))
    for path in listed:
        assert (mount.path / os.fsdecode(path)).read_bytes() == tree[path].data


def test_a_target_that_cannot_be_read_is_an_error(
    linked: PackedDataset, kind: str, tmp_path: Path
) -> None:
    """The link is shown all the same, and can be read once its chunk can."""
    with mounted(linked, tmp_path) as mount:
        mount.fail_with("corrupt")
        with pytest.raises(OSError) as raised:
            os.readlink(mount.path / "latest")
        assert raised.value.errno == errno.EIO
        assert stat.S_ISLNK((mount.path / "latest").lstat().st_mode)
        mount.fail_with("")
        assert os.readlink(mount.path / "latest") == "run/2"


def test_a_refresh_may_turn_a_link_into_a_file(
    linked: PackedDataset, kind: str, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    write_file(source / "a", b"a file")
    (source / "b").symlink_to("a")
    before = pack(source, tmp_path / "packed")
    (source / "a").unlink()
    (source / "b").unlink()
    write_file(source / "b", b"b file")
    (source / "a").symlink_to("b")
    after = pack(source, tmp_path / "packed")
    with mounted(before, tmp_path) as mount:
        assert os.readlink(mount.path / "b") == "a"
        mount.refresh(after.snapshot)
        assert os.readlink(mount.path / "a") == "b"
        assert (mount.path / "b").read_bytes() == (mount.path / "a").read_bytes() == b"b file"


def test_the_snapshot_is_of_version_2(linked: PackedDataset) -> None:
    with Snapshot.open(linked.snapshot) as snapshot:
        assert snapshot.has_links
        Snapshot.verify(linked.snapshot)
