"""A mount's daemon and the mount service: `python -m tests.mount.as_user_of_daemon SNAPSHOT STORE
FOLDER`.

Run by test_mount_service as an ordinary user, with the service's socket in the environment.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dieselfs.errors import MountError
from dieselfs.fuse.mounts.mount_table import MountState, entry_at
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.prefetch.foreign_plan import ForeignPlanFile
from dieselfs.prefetch.plan_file import ReadingPlan
from metadata.snapshot import Snapshot
from tests.eventually import eventually
from tests.mount.mounting import Mount, end, listed, mounted, start
from tests.mount.packing import PackedDataset, random_bytes


def reads_all(mount: Mount) -> None:
    assert mount.control("dataset.json")["front"]["via_service"]
    assert (mount.path / "large").read_bytes() == random_bytes(3_000_000)
    assert (mount.path / "d0" / "0").read_bytes() == random_bytes(2000)


def takes_a_plan(mount: Mount, packed: PackedDataset) -> None:
    """The control directory that the service has mounted can be written, by a plan alone."""
    with Snapshot.open(packed.snapshot) as snapshot:
        order = np.arange(snapshot.file_count, dtype=np.uint32)
        plan = ReadingPlan(str(snapshot.id), order, np.array([0, len(order)]))
    control = mount.path / ".dieselfs"
    told = ForeignPlanFile(control / "plan", plan, "", lambda name: False)
    told.tell(0)
    assert told._write is os.pwrite
    assert json.loads((control / "plan" / told.name).read_bytes()) == {"accepted": True}
    assert mount.statistics()["plan_sources"]["mount"] == 1
    told.remove()
    eventually(lambda: not mount.statistics()["plan_sources"]["mount"], "the end of the plan")
    with pytest.raises(OSError, match="Read-only"):
        (control / "new").write_bytes(b"")


def survives_its_servers(packed: PackedDataset, folder: Path) -> None:
    with mounted(packed, folder) as mount:
        reads_all(mount)
        with subprocess.Popen(["sleep", "99"], cwd=mount.path) as user:
            with pytest.raises(MountError, match="in use"):
                unmount(mount.path)
            user.kill()
        reads_all(mount)
        takes_a_plan(mount, packed)
        mount.kill_server()
        reads_all(mount)
        takes_a_plan(mount, packed)
        mount.refresh(packed.snapshot)
        reads_all(mount)
        found = listed(mount.path)
        assert (found.state, found.pid) == (MountState.SERVING, mount.pid)
        unmount(mount.path)
        assert entry_at(mount.path) is None
        mount.wait_until_ended()


def takes_the_place_of_a_dead_mount(packed: PackedDataset, folder: Path) -> None:
    first = start(packed, folder)
    first.kill()
    try:
        with mounted(packed, folder) as second:
            reads_all(second)
    finally:
        end(first)


def main() -> None:
    snapshot, store, folder = (Path(argument) for argument in sys.argv[1:])
    packed = PackedDataset(snapshot, store, Path("/nowhere"))
    for scenario in (survives_its_servers, takes_the_place_of_a_dead_mount):
        scenario(packed, folder / scenario.__name__)
        print("passed", scenario.__name__)


if __name__ == "__main__":
    main()
