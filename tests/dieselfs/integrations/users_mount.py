"""A mount as a user makes it, with `dlcmd mount` and node memory of its own."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dieselfs.fuse.supervision.daemonize import default_log_file
from tests.eventually import PATIENCE_S, eventually
from tests.forked_programs import run_forked
from tests.mount.mounting import is_alive

if TYPE_CHECKING:
    from tests.dieselfs.integrations.conftest import MadeDataset


def mounted_by_dlcmd(
    made: "MadeDataset", folder: Path, memory_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    places = {
        "DIESELFS_STORE": f"file://{made.folder}/store",
        "DIESELFS_INDEX": f"lmdb://{folder}/index",
        "DIESELFS_MEMORY_FOLDER": str(memory_folder),
        **{f"XDG_{name}_HOME": f"{folder}/{name}" for name in ("DATA", "STATE", "CACHE", "CONFIG")},
    }
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    mountpoint = folder / "mnt"
    mountpoint.mkdir()
    daemon = json.loads(dlcmd("mount", "--json", "--memory", "64MiB", "pets", str(mountpoint)))
    yield mountpoint
    dlcmd("umount", str(mountpoint))
    # It removes its folder in the node's memory, which the test removes too.
    eventually(lambda: not is_alive(daemon["pid"]), "the end of the mount")
    default_log_file(mountpoint).unlink()


def dlcmd(*arguments: str) -> str:
    command = [sys.executable, "-m", "dieselfs.cli", *arguments]
    done = run_forked(command, env=os.environ, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stdout
