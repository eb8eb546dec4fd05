"""Every request that would change something: EROFS, and nothing has changed."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.mounting import Mount, both_fronts

pytestmark = both_fronts

CHANGES: dict[str, Callable[[Path], object]] = {
    "create": lambda top: os.open(top / "new", os.O_WRONLY | os.O_CREAT),
    "create exclusively": lambda top: os.open(top / "new", os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "temporary file": lambda top: os.open(top, os.O_WRONLY | os.O_TMPFILE),
    "open to write": lambda top: os.open(top / "large", os.O_WRONLY),
    "open to read and write": lambda top: os.open(top / "large", os.O_RDWR),
    "open to append": lambda top: os.open(top / "large", os.O_WRONLY | os.O_APPEND),
    "open and truncate": lambda top: os.open(top / "large", os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda top: os.truncate(top / "large", 0),
    "mkdir": lambda top: os.mkdir(top / "new"),
    "mknod": lambda top: os.mknod(top / "new"),
    "fifo": lambda top: os.mkfifo(top / "new"),
    "unlink": lambda top: os.unlink(top / "large"),
    "rmdir": lambda top: os.rmdir(top / "d0"),
    "rename": lambda top: os.rename(top / "large", top / "renamed"),
    "rename over": lambda top: os.rename(top / "large", top / "d0" / "0"),
    "link": lambda top: os.link(top / "large", top / "new"),
    "symlink": lambda top: os.symlink("large", top / "new"),
    "chmod": lambda top: os.chmod(top / "large", 0o777),
    "chown": lambda top: os.chown(top / "large", 1, 1),
    "utime": lambda top: os.utime(top / "large"),
    "setxattr": lambda top: os.setxattr(top / "large", "user.x", b"y"),
    "removexattr": lambda top: os.removexattr(top / "large", "user.dieselfs.chunk"),
    "write to a control file": lambda top: os.open(top / ".dieselfs" / "stats.json", os.O_WRONLY),
    "create a control file": lambda top: os.open(top / ".dieselfs" / "x", os.O_WRONLY | os.O_CREAT),
    "mkdir in the control directory": lambda top: os.mkdir(top / ".dieselfs" / "x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_refused(small_mount_shared: Mount, change: str) -> None:
    with pytest.raises(OSError) as raised:
        CHANGES[change](small_mount_shared.path)
    assert raised.value.errno == errno.EROFS


def test_after_all_that_everything_is_as_before(small_mount_shared: Mount) -> None:
    names = sorted(os.listdir(small_mount_shared.path))
    assert [name for name in names if name != ".dieselfs"] == [
        "d0",
        "d1",
        "d2",
        "d3",
        "d4",
        "large",
    ]
    assert (small_mount_shared.path / "large").stat().st_size == 3_000_000
