"""getxattr, listxattr: before EROFS there are none; with FUSE, where a file lies and what its
content hashes to."""

import errno
import os

import pytest
import xxhash

from metadata.snapshot import Snapshot
from tests.mount.mounting import Mount, both_fronts
from tests.mount.packing import PackedDataset

fuse = pytest.mark.parametrize("kind", ["fuse"], indirect=True)


@fuse
def test_a_file_names_its_chunk_and_its_hash(sample: PackedDataset, sample_mount: Mount) -> None:
    path = sample_mount.path / "sizes" / "5000000"
    assert sorted(os.listxattr(path)) == ["user.dieselfs.chunk", "user.dieselfs.xxh3"]
    digest = xxhash.xxh3_64_hexdigest(path.read_bytes())
    assert os.getxattr(path, "user.dieselfs.xxh3").decode() == digest
    with Snapshot.open(sample.snapshot) as snapshot:
        inode = snapshot.resolve("sizes/5000000")
        assert inode is not None
        chunk = str(snapshot.extent(inode).chunk.id)
    assert os.getxattr(path, "user.dieselfs.chunk").decode() == chunk


@fuse
def test_an_empty_file_has_them_too(sample_mount: Mount) -> None:
    path = sample_mount.path / "sizes" / "0"
    assert os.getxattr(path, "user.dieselfs.xxh3").decode() == xxhash.xxh3_64_hexdigest(b"")


@both_fronts
def test_erofs_has_none(kind: str, sample_mount: Mount) -> None:
    path = sample_mount.path / "sizes" / "5000000"
    if kind != "fuse":
        assert os.listxattr(path) == []


@both_fronts
@pytest.mark.parametrize("name", ["empty", ".dieselfs", ".dieselfs/stats.json", ""])
def test_directories_and_control_files_have_none(sample_mount: Mount, name: str) -> None:
    assert os.listxattr(sample_mount.path / name) == []


@both_fronts
@pytest.mark.parametrize(
    ("attribute", "number"),
    [
        ("system.posix_acl_access", errno.ENOTSUP),
        ("security.selinux", errno.ENOTSUP),
        ("security.capability", errno.ENOTSUP),
        ("user.other", errno.ENODATA),
        ("user.dieselfs.other", errno.ENODATA),
        ("trusted.overlay.opaque", errno.ENODATA),
    ],
)
@pytest.mark.parametrize("name", ["nanoseconds", "empty", ".dieselfs/stats.json"])
def test_other_attributes(
    kind: str, sample_mount: Mount, name: str, attribute: str, number: int
) -> None:
    if kind != "fuse" and not name.startswith(".dieselfs"):
        number = errno.ENODATA
    with pytest.raises(OSError) as raised:
        os.getxattr(sample_mount.path / name, attribute)
    assert raised.value.errno == number
