"""What a reader sees when a source fails: EIO with the reason in the log, and a mount that goes
on."""

import errno
import os
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, both_fronts
from tests.mount.packing import random_bytes

pytestmark = both_fronts


def errno_of_read(path: Path) -> int | None:
    with pytest.raises(OSError) as raised:
        path.read_bytes()
    return raised.value.errno


@pytest.mark.parametrize(
    ("fault", "logged"),
    [
        ("corrupt", "Corrupt: corrupt, because the test says so"),
        ("unavailable", "Unavailable: unavailable, because the test says so"),
        ("missing", "NotFound: missing, because the test says so"),
        ("short", "bytes instead of"),
        ("bug", "ZeroDivisionError: a bug in read"),
        ("peek-bug", "ZeroDivisionError: a bug in peek"),
    ],
)
def test_a_failing_read_is_eio_until_the_source_recovers(
    small_mount: Mount, fault: str, logged: str
) -> None:
    path = small_mount.path / "large"
    small_mount.fail_with(fault)
    assert errno_of_read(path) == errno.EIO
    assert logged in small_mount.log
    assert ("Traceback" in small_mount.log) == fault.endswith("bug")
    small_mount.fail_with("")
    assert path.read_bytes() == random_bytes(3_000_000)


def test_each_failure_is_logged_once(kind: str, small_mount: Mount) -> None:
    small_mount.fail_with("corrupt")
    flags = os.O_DIRECT if kind == "fuse" else 0
    fd = os.open(small_mount.path / "d0" / "0", os.O_RDONLY | flags)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # no readahead, which would fail before
        with pytest.raises(OSError):
            os.pread(fd, 4096, 0)
    finally:
        os.close(fd)
    # EROFS and the blob below it have a readahead each, after whose failure they try the page
    # itself.
    most = 1 if kind == "fuse" else 4
    assert 1 <= small_mount.log.count("because the test says so") <= most


def test_what_needs_no_bytes_goes_on_while_the_store_is_away(small_mount: Mount) -> None:
    small_mount.fail_with("unavailable")
    assert sorted(os.listdir(small_mount.path / "d1")) == sorted(str(n) for n in range(1, 100, 5))
    assert (small_mount.path / "d1" / "1").stat().st_size == 2001


def test_pages_that_the_kernel_has_are_served_while_the_store_is_away(small_mount: Mount) -> None:
    path = small_mount.path / "d2" / "2"
    content = path.read_bytes()
    small_mount.fail_with("unavailable")
    assert path.read_bytes() == content
