"""An ordinary user mounts through fusermount3, needs no privilege, and is told what he may not do.

Run by root, the scenarios of `as_ordinary_user` run as nobody in a mount namespace of their own.
There /dev/fuse is open to all, as udev makes it, and Python can be reached, also where it lies in
root's home.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.mounting import KIND
from tests.mount.packing import PackedDataset

NOBODY = 65534
ROOT_OF_CHECKOUT = Path(__file__).parents[2]

BECOME_NOBODY = """
set -e
staging=$1 base=$2 hidden=$3; shift 3
mknod -m 666 "$staging/fuse" c 10 229
mount --bind "$staging/fuse" /dev/fuse
if [ -n "$hidden" ]; then
    mkdir "$staging/python"
    mount --bind "$base" "$staging/python"
    mount -t tmpfs -o mode=755 tmpfs "$hidden"
    mkdir -p "$base"
    mount --bind "$staging/python" "$base"
fi
exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all -- "$@"
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everyone can reach, which pytest's own are not."""
    with tempfile.TemporaryDirectory(prefix="dieselfs-user-", dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def hidden_ancestor(path: Path) -> str:
    """The first folder on the way to `path` that others cannot pass through, or ''."""
    for folder in reversed(path.parents):
        if not folder.stat().st_mode & 0o001:
            return str(folder)
    return ""


def as_nobody(staging: Path, command: list[str]) -> list[str]:
    missing = [name for name in ("unshare", "setpriv", "fusermount3") if not shutil.which(name)]
    assert not missing, f"install {missing} (packages util-linux and fuse3)"
    python = Path(sys.base_prefix).resolve()
    arguments = [str(staging), str(python), hidden_ancestor(python / "bin")]
    enter = ["unshare", "--mount", "--propagation", "private", "sh", "-c", BECOME_NOBODY, "sh"]
    return [*enter, *arguments, *command]


def test_an_ordinary_user_mounts_and_unmounts(small: PackedDataset, open_folder: Path) -> None:
    store, snapshot = open_folder / "store", open_folder / small.snapshot.name
    shutil.copytree(small.store, store)
    shutil.copy(small.snapshot, snapshot)
    home, staging, memory = (open_folder / name for name in ("home", "staging", "memory"))
    for folder in (home, staging, memory):
        folder.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.mount.as_ordinary_user",
        *map(str, (snapshot, store, home)),
    ]
    if os.geteuid() == 0:
        for path in (home, memory, store, *store.rglob("*"), snapshot):
            os.chown(path, NOBODY, NOBODY)
        command = as_nobody(staging, command)
    done = subprocess.run(
        command,
        cwd=ROOT_OF_CHECKOUT,
        capture_output=True,
        text=True,
        env={
            **os.environ,
            KIND: "fuse",  # with the mount service: test_mount_service.py
            "HOME": str(home),
            "DIESELFS_MEMORY_FOLDER": str(memory),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("passed") == 7
