"""Which front a mount gets where something is missing or refused, and what it says of it; two
mounts; what strangers see."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.mount_table import entry_at, mount_entries
from dieselfs.fuse.mounts.mountpoint import unmount
from tests.mount.mounting import Mount, end, mounted, start
from tests.mount.packing import PackedDataset, random_bytes
from tests.mount.test_ordinary_user import NOBODY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="root chooses among several fronts")


@pytest.fixture
def own(small: PackedDataset, tmp_path: Path) -> PackedDataset:
    """`small` with a snapshot of its own, and no image beside it."""
    (tmp_path / "snapshots").mkdir()
    snapshot = Path(shutil.copy(small.snapshot, tmp_path / "snapshots"))
    return PackedDataset(snapshot, small.store, small.source)


def images(packed: PackedDataset) -> list[Path]:
    return sorted(packed.snapshot.parent.glob("*.erofs"))


def front_of(mount: Mount) -> dict[str, Any]:
    front: dict[str, Any] = mount.control("dataset.json")["front"]
    assert front == mount.statistics()["front"]
    return front


def check(mount: Mount) -> None:
    for n in range(100):
        assert (mount.path / f"d{n % 5}" / f"{n}").read_bytes() == random_bytes(2000 + n)
    assert (mount.path / "large").read_bytes() == random_bytes(3_000_000)


def warnings_in(log: str) -> list[str]:
    return [line for line in log.splitlines() if line.startswith("WARNING")]


@pytest.mark.parametrize("front", ["erofs", "erofs-loop", "fuse"])
def test_each_front_can_be_asked_for(own: PackedDataset, tmp_path: Path, front: str) -> None:
    with mounted(own, tmp_path, "--front", front) as mount:
        assert front_of(mount)["kind"] == front
        check(mount)
        unmount(mount.path)
        mount.wait_until_ended()
        assert warnings_in(mount.log) == []


@pytest.mark.parametrize("cache", ["buffered", "direct", "auto"])
def test_each_way_of_caching_gives_the_same_bytes(
    own: PackedDataset, tmp_path: Path, cache: str
) -> None:
    with mounted(own, tmp_path, "--front", "erofs", "--blob-cache", cache) as mount:
        table = Path("/proc/mounts").read_text(errors="replace")
        [line] = [line for line in table.splitlines() if f" {mount.path} " in line]
        assert ("directio" in line) == (cache == "direct"), "the median file is small"
        check(mount)


@pytest.mark.parametrize(
    ("broken", "front", "reason"),
    [
        ("no-erofs", "fuse", "this kernel has no EROFS, or its module cannot be loaded"),
        ("no-capability", "fuse", "EROFS needs CAP_SYS_ADMIN of the host"),
        ("old-kernel", "erofs-loop", "on Linux 5.19.0"),
        ("older-kernel", "fuse", "Linux 5.4.0 is too old for EROFS"),
        ("no-files", "erofs-loop", "EROFS cannot be mounted from files: "),
        ("refused", "fuse", "EROFS cannot be mounted: "),
        ("disk-full", "fuse", "cannot write the kernel image of sample"),
        ("not-shown", "fuse", "EROFS cannot be mounted: "),
    ],
)
def test_where_erofs_cannot_be_had_the_next_front_serves_and_says_why(
    own: PackedDataset, tmp_path: Path, broken: str, front: str, reason: str
) -> None:
    with mounted(own, tmp_path, "--front", "auto", "--broken", broken) as mount:
        found = front_of(mount)
        assert (found["kind"], reason in found["reason"]) == (front, True), found
        assert "\n" not in found["reason"]
        assert len(warnings_in(mount.log)) <= 2
        assert "Traceback" not in mount.log
        check(mount)
        if broken == "disk-full":
            assert images(own) == []
            assert sorted(os.listdir(own.snapshot.parent)) == [own.snapshot.name]


@pytest.mark.parametrize("broken", ["no-erofs", "refused", "disk-full", "no-capability"])
def test_where_erofs_is_demanded_and_cannot_be_had_there_is_no_mount(
    own: PackedDataset, tmp_path: Path, broken: str
) -> None:
    with pytest.raises(MountError, match="EROFS cannot be mounted") as raised:
        start(own, tmp_path, "--front", "erofs", "--broken", broken)
    assert "\n" not in str(raised.value)
    assert entry_at(tmp_path / "mnt") is None


def test_a_full_disk_under_the_image(small: PackedDataset, tmp_path: Path) -> None:
    """A real one: it has room for the snapshot and hardly for more."""
    disk = tmp_path / "disk"
    disk.mkdir()
    size = small.snapshot.stat().st_size + (8 << 10)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", disk], check=True)
    try:
        snapshot = Path(shutil.copy(small.snapshot, disk))
        packed = PackedDataset(snapshot, small.store, small.source)
        with mounted(packed, tmp_path, "--front", "auto") as mount:
            found = front_of(mount)
            assert found["kind"] == "fuse"
            assert "No space left on device" in found["reason"]
            assert os.listdir(disk) == [snapshot.name]
            check(mount)
    finally:
        subprocess.run(["umount", disk], check=True)


def cut_off(image: Path) -> None:
    os.truncate(image, image.stat().st_size // 2)


def overwrite(image: Path) -> None:
    content = bytearray(image.read_bytes())
    content[len(content) // 2] ^= 0xFF
    image.write_bytes(content)


def empty(image: Path) -> None:
    image.write_bytes(b"")


def zeros(image: Path) -> None:
    image.write_bytes(bytes(image.stat().st_size))


def make_a_link(image: Path) -> None:
    image.rename(image.with_name("elsewhere"))
    image.symlink_to("elsewhere")


@pytest.mark.parametrize("damage", [cut_off, overwrite, empty, zeros, make_a_link])
def test_an_image_that_was_damaged_is_built_again_before_the_kernel_sees_it(
    own: PackedDataset, tmp_path: Path, damage: Any
) -> None:
    with mounted(own, tmp_path):
        [image] = images(own)
        sound = image.read_bytes()
    damage(image)
    with mounted(own, tmp_path) as mount:
        assert front_of(mount)["kind"] == "erofs"
        [again] = images(own)
        assert not again.is_symlink()
        assert (again.name, again.read_bytes()) == (image.name, sound)
        assert "is built again" in mount.log
        check(mount)


def test_a_sound_image_is_used_again(own: PackedDataset, tmp_path: Path) -> None:
    with mounted(own, tmp_path):
        [image] = images(own)
        before = image.stat()
    with mounted(own, tmp_path) as mount:
        assert [image] == images(own)
        assert (image.stat().st_ino, image.stat().st_mtime_ns) == (
            before.st_ino,
            before.st_mtime_ns,
        )
        check(mount)


def test_another_owner_has_another_image(own: PackedDataset, tmp_path: Path) -> None:
    for options in ([], ["--uid", "7"], ["--uid", "7", "--gid", "8"], ["--allow-other"]):
        with mounted(own, tmp_path, *options) as mount:
            status = (mount.path / "large").stat()
            uid, gid = options[1::2] + ["0", "0"][len(options[1::2]) :] if options else ("0", "0")
            if options != ["--allow-other"]:
                assert (status.st_uid, status.st_gid) == (int(uid), int(gid))
    assert len(images(own)) == 4


def test_a_mount_goes_on_when_its_image_is_deleted(own: PackedDataset, tmp_path: Path) -> None:
    with mounted(own, tmp_path) as mount:
        [image] = images(own)
        image.unlink()
        subprocess.run(["ls", "-R", mount.path], check=True, stdout=subprocess.DEVNULL)
        check(mount)
        mount.kill_server()
        check(mount)


@pytest.mark.parametrize("fronts", [("erofs", "erofs"), ("erofs", "fuse"), ("erofs-loop", "erofs")])
def test_two_mounts_of_one_dataset(
    own: PackedDataset, tmp_path: Path, fronts: tuple[str, str]
) -> None:
    with mounted(own, tmp_path / "a", "--front", fronts[0]) as first:
        with mounted(own, tmp_path / "b", "--front", fronts[1]) as second:
            for mount, front in zip((first, second), fronts, strict=True):
                assert front_of(mount)["kind"] == front
                check(mount)
            first_pid = first.control("dataset.json")["pid"]
            assert first_pid != second.control("dataset.json")["pid"]
        check(first)


@pytest.mark.parametrize("below", ["erofs", "fuse"])
@pytest.mark.parametrize("above", ["erofs", "fuse"])
def test_two_mounts_over_one_place(
    own: PackedDataset, tmp_path: Path, below: str, above: str
) -> None:
    place = tmp_path / "first"
    with mounted(own, place, "--front", below) as first:
        with pytest.raises(MountError, match="already mounted"):
            start(own, place, "--front", above, "--nonempty")
        mountpoint = first.path
        hidden = tmp_path / "plain"
        hidden.mkdir()
        (hidden / "mnt").mkdir()
        (hidden / "mnt" / "mine").write_text("kept")
        with mounted(own, hidden, "--front", above, "--nonempty") as over:
            assert not (over.path / "mine").exists()
            check(over)
        assert (hidden / "mnt" / "mine").read_text() == "kept"
        check(first)
        assert entry_at(mountpoint) is not None


def as_stranger(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *map(str, command)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def open_place() -> Iterator[Path]:
    """A folder that everyone can reach, which pytest's own are not."""
    place = Path("/tmp", f"dieselfs-strangers-{os.getpid()}")
    place.mkdir(mode=0o755)
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("front", ["erofs", "erofs-loop", "fuse"])
def test_strangers_are_let_in_on_request_only(
    own: PackedDataset, open_place: Path, front: str
) -> None:
    with mounted(own, open_place, "--front", front) as mount:
        for what in (mount.path, mount.path / "large", mount.path / ".dieselfs" / "stats.json"):
            done = (
                as_stranger("head", "-c1", what) if what != mount.path else as_stranger("ls", what)
            )
            assert done.returncode != 0
            assert "Permission denied" in done.stderr
        check(mount)
    with mounted(own, open_place, "--front", front, "--allow-other", "--uid", "1234") as mount:
        assert "large" in as_stranger("ls", mount.path).stdout
        assert as_stranger("sha256sum", mount.path / "large").returncode == 0
        assert '"pid"' in as_stranger("cat", mount.path / ".dieselfs" / "dataset.json").stdout


def test_nothing_is_left_of_a_mount(own: PackedDataset, tmp_path: Path) -> None:
    def loops() -> set[str]:
        return {path.name for path in Path("/sys/block").glob("loop*/loop")}

    for front in ("erofs", "erofs-loop", "fuse"):
        with mounted(own, tmp_path, "--front", front) as mount:
            check(mount)
        assert not [entry for entry in mount_entries() if entry.mountpoint.is_relative_to(tmp_path)]
    backing = subprocess.run(
        ["losetup", "-l", "-n", "-O", "BACK-FILE"], capture_output=True, text=True, check=True
    )
    assert str(tmp_path) not in backing.stdout


def test_image_folder_sees_the_classes_alone(own: PackedDataset, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from torchvision.datasets import DatasetFolder

    with mounted(own, tmp_path) as mount:
        found = DatasetFolder(
            str(mount.path),
            loader=lambda path: Path(path).read_bytes(),
            is_valid_file=lambda _: True,
        )
        assert found.classes == [f"d{n}" for n in range(5)]
        assert len(found) == 100
        assert found[0][0] == random_bytes(2000)


def test_a_mount_whose_daemon_is_this_python(own: PackedDataset, tmp_path: Path) -> None:
    """Listing and unmounting load nothing that serves."""
    with mounted(own, tmp_path) as mount:
        program = (
            "import sys; from pathlib import Path; from dieselfs.fuse.mounts.mountpoint import unmount; "
            "unmount(Path(sys.argv[1])); sys.exit('dieselfs.fuse.requests.kernel_connection' in sys.modules)"
        )
        subprocess.run([sys.executable, "-c", program, mount.path], check=True)
        mount.wait_until_ended()
        end(mount)
