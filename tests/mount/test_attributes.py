"""getattr, statfs, access: what `stat` and `df` show."""

import os
import stat
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_table import entry_at
from metadata.snapshot import Snapshot
from tests.mount.mounting import Mount, both_fronts, mounted
from tests.mount.packing import BASE_TIME_NS, PackedDataset

pytestmark = both_fronts


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o444, 0o600, 0o640, 0o644, 0o755, 0o777])
def test_modes_are_kept(sample_mount: Mount, mode: int) -> None:
    found = (sample_mount.path / "modes" / f"{mode:o}").stat()
    assert stat.S_ISREG(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == mode


def test_a_directory_keeps_its_mode_and_time(sample_mount: Mount) -> None:
    found = (sample_mount.path / "empty").stat()
    assert stat.S_ISDIR(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o750
    assert found.st_mtime_ns == BASE_TIME_NS + 42


def test_times_are_kept_to_the_nanosecond(sample_mount: Mount) -> None:
    found = (sample_mount.path / "nanoseconds").stat()
    assert found.st_mtime_ns == BASE_TIME_NS + 123_456_789
    assert found.st_atime_ns == found.st_ctime_ns == found.st_mtime_ns


def test_times_before_1970_are_kept(sample_mount: Mount) -> None:
    assert (sample_mount.path / "before1970").stat().st_mtime_ns == -1_234_567_890_123


def test_the_root_has_the_attributes_of_the_packed_directory(
    sample: PackedDataset, sample_mount: Mount
) -> None:
    found, packed = sample_mount.path.stat(), sample.source.stat()
    assert (found.st_mode, found.st_mtime_ns) == (packed.st_mode, packed.st_mtime_ns)


def test_the_root_of_a_private_mount_is_its_users_alone(
    kind: str, small: PackedDataset, small_mount: Mount
) -> None:
    """FUSE refuses others itself; EROFS knows no users, so the root's mode does it."""
    packed = stat.S_IMODE(small.source.stat().st_mode)
    wanted = packed if kind == "fuse" else packed & 0o700
    assert stat.S_IMODE(small_mount.path.stat().st_mode) == wanted


def test_links_blocks_and_sizes_make_sense(kind: str, sample_mount: Mount) -> None:
    assert (sample_mount.path / "class").stat().st_nlink == 2 + 7
    assert (sample_mount.path / "empty").stat().st_nlink == 2
    found = (sample_mount.path / "sizes" / "4097").stat()
    blocks = 9 if kind == "fuse" else 16  # EROFS counts blocks of 4 KiB
    assert (found.st_nlink, found.st_blocks, found.st_blksize) == (1, blocks, 4096)


def test_every_inode_is_different(sample_mount: Mount) -> None:
    seen: set[int] = set()
    for top, directories, files in os.walk(os.fsencode(sample_mount.path)):
        for name in (*directories, *files):
            inode = os.stat(os.path.join(top, name)).st_ino
            assert inode not in seen
            seen.add(inode)


def test_the_mounting_user_owns_everything(sample_mount: Mount) -> None:
    for path in (sample_mount.path, sample_mount.path / "empty", sample_mount.path / "nanoseconds"):
        assert (path.stat().st_uid, path.stat().st_gid) == (os.getuid(), os.getgid())


def test_another_owner_can_be_chosen(small: PackedDataset, tmp_path: Path) -> None:
    with mounted(small, tmp_path, "--uid", "1234", "--gid", "4321") as mount:
        for path in (mount.path, mount.path / "large", mount.path / ".dieselfs" / "stats.json"):
            assert (path.stat().st_uid, path.stat().st_gid) == (1234, 4321)


def test_statfs_shows_a_full_file_system_of_the_datasets_size(
    kind: str, sample: PackedDataset, sample_mount: Mount
) -> None:
    found = os.statvfs(sample_mount.path)
    with Snapshot.open(sample.snapshot) as snapshot:
        total_bytes, files = snapshot.total_bytes, snapshot.file_count
        nodes = files + snapshot.directory_count
    shown_bytes = found.f_blocks * found.f_frsize
    if kind == "fuse":
        assert 0 <= shown_bytes - total_bytes < found.f_frsize
        assert (found.f_files, found.f_ffree) == (nodes, 0)
    else:  # whole blocks for each file, and the image; the numbers of inodes are the kernel's own
        assert 0 < shown_bytes - total_bytes < (files + 64) * found.f_frsize
    assert (found.f_bfree, found.f_bavail, found.f_namemax) == (0, 0, 255)
    assert found.f_flag & os.ST_RDONLY


def test_access_is_by_mode_bits_and_never_for_writing(sample_mount: Mount) -> None:
    path = sample_mount.path / "modes" / "755"
    assert os.access(path, os.R_OK | os.X_OK)
    assert not os.access(path, os.W_OK)
    assert not os.access(sample_mount.path / "modes" / "644", os.X_OK)


def test_the_mount_table_names_dataset_and_snapshot(
    kind: str, sample: PackedDataset, sample_mount: Mount
) -> None:
    entry = entry_at(sample_mount.path)
    assert entry is not None
    assert entry.file_system_type == ("fuse.dieselfs" if kind == "fuse" else "erofs")
    with Snapshot.open(sample.snapshot) as snapshot:
        assert f"sample{'@' if kind == 'fuse' else '-'}{snapshot.id}" in entry.source
        assert entry.shown == f"sample@{snapshot.id}"


def test_the_mount_has_the_flags_of_what_is_not_trusted(sample_mount: Mount) -> None:
    wanted = os.ST_NOSUID | os.ST_NODEV
    control = sample_mount.path / ".dieselfs"  # readers write their plans there
    for path, flags in ((sample_mount.path, wanted | os.ST_RDONLY), (control, wanted)):
        assert os.statvfs(path).f_flag & flags == flags


def test_a_second_stat_makes_no_request(small_mount: Mount) -> None:
    path = small_mount.path / "d1" / "1"
    path.stat()
    before = small_mount.statistics()["requests"]
    for _ in range(1000):
        path.stat()
    after = small_mount.statistics()["requests"]
    assert sum(after.values()) - sum(before.values()) < 50, "a look at stats.json makes a few"
