"""Loop devices, real ones where the tests run as root."""

import os
import subprocess
from pathlib import Path

import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts import loop_devices
from dieselfs.fuse.mounts.loop_devices import attach_loop, backing_file
from tests.eventually import eventually

needs_loops = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(loop_devices.CONTROL).exists(), reason="needs root and loop"
)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image"
    path.write_bytes(bytes(range(256)) * 64)
    return path


def numbers(device: int) -> tuple[int, int]:
    found = os.fstat(device).st_rdev
    return os.major(found), os.minor(found)


@needs_loops
@pytest.mark.parametrize("direct_io", [False, True])
def test_a_file_becomes_a_read_only_device(image: Path, direct_io: bool) -> None:
    with image.open("rb") as file:
        path, device = attach_loop(file.fileno(), direct_io=direct_io)
    try:
        major, minor = numbers(device)
        assert path == f"/dev/loop{minor}"
        assert os.pread(device, 512, 4096) == image.read_bytes()[4096:4608]
        assert os.lseek(device, 0, os.SEEK_END) == 16384
        assert backing_file(major, minor) == image
        flags = Path(f"/sys/dev/block/{major}:{minor}/loop")
        assert (flags / "autoclear").read_text() == "1\n"
        assert (flags / "dio").read_text() == f"{direct_io:d}\n"
        assert Path(f"/sys/dev/block/{major}:{minor}/ro").read_text() == "1\n"
        image.unlink()
        assert backing_file(major, minor) == image
    finally:
        os.close(device)
    wait_until_free(major, minor, image)


def wait_until_free(major: int, minor: int, image: Path) -> None:
    """Another process may take the device at once, for a file of its own."""
    eventually(lambda: backing_file(major, minor) != image, "a free device")


@needs_loops
def test_a_mount_keeps_its_device(tmp_path: Path) -> None:
    from dieselfs.fuse.mounts.mount_syscalls import attach, detach, new_mount

    source, image, mountpoint = (tmp_path / name for name in ("source", "image", "mnt"))
    source.mkdir()
    mountpoint.mkdir()
    (source / "file").write_bytes(b"content")
    subprocess.run(["mkfs.erofs", image, source], check=True, capture_output=True)
    with image.open("rb") as file:
        path, device = attach_loop(file.fileno(), direct_io=False)
    major, minor = numbers(device)
    try:
        mount = new_mount("erofs", [("source", path), ("ro", None)])
    finally:
        os.close(device)
    attach(mount, mountpoint)
    os.close(mount)
    try:
        assert (mountpoint / "file").read_bytes() == b"content"
        assert os.stat(mountpoint).st_dev == os.makedev(major, minor)
        assert backing_file(major, minor) == image
    finally:
        detach(mountpoint)
    wait_until_free(major, minor, image)


@needs_loops
def test_many_devices_at_a_time_do_not_collide(image: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with image.open("rb") as file, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda _: attach_loop(file.fileno(), direct_io=False), range(16)))
    found = [numbers(device) for _, device in made]
    for _, device in made:
        os.close(device)
    assert len(set(found)) == 16
    for major, minor in found:
        wait_until_free(major, minor, image)


def test_a_missing_control_device_is_told(image: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_devices, "CONTROL", "/dev/no-loop-control")
    with image.open("rb") as file, pytest.raises(MountError, match="no-loop-control") as error:
        attach_loop(file.fileno(), direct_io=False)
    assert "container" in str(error.value.hint)


def test_what_is_no_loop_device_has_no_backing_file() -> None:
    assert backing_file(1, 3) is None
    assert backing_file(4095, 77) is None
