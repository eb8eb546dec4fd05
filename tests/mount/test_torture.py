"""Seconds of torture: readers of every kind under refreshes, kills, upgrades, evictions and
failures see no wrong byte, and nothing hangs.

The long version is `make soak`.
"""

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dieselfs.fuse.mounts.mount_table import entry_at
from dieselfs.fuse.mounts.mountpoint import unmount
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.mount import soak
from tests.mount.mounting import Mount, both_fronts, end, is_alive, start
from tests.mount.torture import MemoryGroup, tortured
from tests.mount.versions import Versions

SOAKED_FILES = 2000
SOAK_S = 2.0

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes control groups")


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return soak.pack_made_up(SOAKED_FILES, tmp_path_factory.mktemp("made-up"))


@pytest.mark.parametrize(
    ("kind", "may_fail"),
    [("erofs", False), ("erofs", True), ("erofs-loop", False), ("fuse", True)],
    indirect=["kind"],
)
def test_readers_in_every_way(made_up: Versions, tmp_path: Path, may_fail: bool) -> None:
    found = soak.soak(made_up, SOAKED_FILES, tmp_path, seconds=SOAK_S, phases=[may_fail], count=4)
    done = found["done"]
    assert min(done["refreshes"], done["kills"], done["upgrades"]) > 0
    assert done["reads"] > 200


@pytest.mark.long
@as_root
def test_readers_whose_page_cache_is_under_pressure(made_up: Versions, tmp_path: Path) -> None:
    try:
        group = MemoryGroup()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    with group:
        found = soak.soak(
            made_up, SOAKED_FILES, tmp_path, seconds=3, group=group, phases=[False], count=4
        )
        assert group.times_full > 0
    assert found["done"]["reads"] > 100


def detach(mount: Mount) -> None:
    unmount(mount.path, lazy=True)


def terminate(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGTERM)


def kill(mount: Mount) -> None:
    mount.kill()


@both_fronts
@pytest.mark.parametrize("ending", [terminate, detach, kill])
def test_a_mount_can_end_while_it_is_read_and_nobody_hangs(
    made_up: Versions, tmp_path: Path, ending: Callable[[Mount], None]
) -> None:
    mount = start(made_up.before, tmp_path, "--cache-bytes", str(soak.CACHE_BYTES))
    try:
        readers_folder = tmp_path / "readers"
        with tortured(
            mount, SOAKED_FILES, readers_folder, 2 * PATIENCE_S, may_end=True, count=4
        ) as readers:
            eventually(lambda: min(readers.beats) > 20, "readers that read")
            time.sleep(random.Random(ending.__name__).uniform(0, 0.2))
            began = time.monotonic()
            ending(mount)
            for process in readers.processes:
                process.join(PATIENCE_S)
            eventually(lambda: not is_alive(mount.pid), "the end of the daemon")
        assert time.monotonic() - began < scaled_by_load(20)
        assert "Traceback" not in mount.log
        assert ending is kill or entry_at(mount.path) is None
    finally:
        end(mount)
