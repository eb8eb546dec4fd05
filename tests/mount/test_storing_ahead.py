"""Files stored into the page cache before they are read: which, when, how they are counted, and that nothing of it ever hangs a reader
or shows it a wrong byte. Mounts with the fast path only.
"""

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dieselfs.fuse.mount_table import entry_at
from dieselfs.fuse.mountpoint import unmount
from tests.mount import soak
from tests.mount.mounting import Mount, end, eventually, is_alive, mounted, start
from tests.mount.packing import PackedDataset, pack, random_bytes, write_file
from tests.mount.torture import MemoryGroup, forget_names, tortured
from tests.mount.versions import Versions

FILES = 256
"""In one chunk: a sentinel in each 64."""
SENTINELS = 4
SIZE = 3000
SOAKED_FILES = 5000

pytestmark = pytest.mark.parametrize("kind", ["fast"], indirect=True)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the kernel forget")


@pytest.fixture(scope="module")
def one_chunk(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("one-chunk")
    for n in range(FILES):
        write_file(folder / "source" / "all" / f"{n:03}", random_bytes(SIZE, seed=n))
    return pack(folder / "source", folder)


@pytest.fixture
def mount(one_chunk: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    with mounted(one_chunk, tmp_path) as mount:
        yield mount


def listed(mount: Mount) -> list[Path]:
    """The kernel knows their inodes from then on."""
    with os.scandir(mount.path / "all") as entries:
        return sorted(Path(entry.path) for entry in entries if entry.stat().st_size == SIZE)


def read(path: Path) -> None:
    assert path.read_bytes() == random_bytes(SIZE, seed=int(path.name))


def reads(mount: Mount) -> int:
    found: int = mount.statistics()["requests"].get("read", 0)
    return found


def stored(mount: Mount, what: str = "files") -> int:
    found: int = mount.statistics()["stored_ahead"][what]
    return found


def reads_made_by(mount: Mount, action: Callable[[], object]) -> int:
    """READ requests, without those of looking at the statistics."""
    first = reads(mount)
    idle = reads(mount) - first
    before = reads(mount)
    action()
    return reads(mount) - before - idle


def test_after_the_first_read_the_rest_of_the_chunk_makes_a_request_a_sentinel(
    mount: Mount,
) -> None:
    paths = listed(mount)
    assert len(paths) == FILES
    assert stored(mount) == 0
    read(paths[0])
    eventually(lambda: stored(mount, "chunks") == 1, "a chunk that is stored")
    found = mount.statistics()["stored_ahead"]
    assert found["files"] == FILES - SENTINELS - 1, "not the one that was read"
    assert found["bytes"] == found["outstanding_bytes"] == found["files"] * SIZE
    assert found["budget_bytes"] > found["bytes"]
    assert reads_made_by(mount, lambda: [read(path) for path in paths]) == SENTINELS
    assert reads_made_by(mount, lambda: [read(path) for path in paths]) == 0


def test_a_chunk_whose_sentinels_were_read_is_consumed_and_leaves_node_memory(mount: Mount) -> None:
    paths = listed(mount)
    read(paths[0])
    eventually(lambda: stored(mount, "chunks") == 1, "a chunk that is stored")
    held = mount.statistics()["cache"]["node"]["held_bytes"]
    for path in paths:
        read(path)
    eventually(
        lambda: not mount.statistics()["cache"]["node"]["held_bytes"], "a chunk that is let go"
    )
    assert held >= FILES * SIZE
    found = mount.statistics()
    assert found["stored_ahead"]["consumed_chunks"] == 1
    assert found["stored_ahead"]["read_without_request"] == found["stored_ahead"]["files"]
    assert found["stored_ahead"]["outstanding_bytes"] == 0
    assert found["cache"]["node"]["evictions"] == 1
    assert reads_made_by(mount, lambda: [read(path) for path in paths]) == 0


def test_files_that_were_read_before_are_not_stored(
    one_chunk: PackedDataset, tmp_path: Path
) -> None:
    with mounted(one_chunk, tmp_path) as mount:
        paths = [mount.path / "all" / f"{n:03}" for n in range(FILES)]
        for path in paths[:100]:  # the kernel knows no other: trying the rest is soon given up
            read(path)
        listed(mount)
        for path in paths[100:150]:
            read(path)
        eventually(lambda: stored(mount, "chunks"), "a chunk that is stored")
        assert 0 < stored(mount) <= FILES - 100 - SENTINELS // 2
        assert reads_made_by(mount, lambda: [read(path) for path in paths]) <= FILES - 150


def test_files_that_the_kernel_does_not_know_are_skipped_and_read_all_the_same(
    mount: Mount,
) -> None:
    paths = [mount.path / "all" / f"{n:03}" for n in range(FILES)]
    for path in paths:
        read(path)
    found = mount.statistics()["stored_ahead"]
    assert found["skipped_unknown_inodes"] > 0
    assert found["failed"] == 0
    assert found["files"] < 10, "at most one that was looked up at that moment"
    assert reads_made_by(mount, lambda: [read(path) for path in paths]) == 0


def test_a_budget_of_nothing_stores_nothing(one_chunk: PackedDataset, tmp_path: Path) -> None:
    with mounted(one_chunk, tmp_path, "--store-ahead-bytes", "0") as mount:
        paths = listed(mount)
        assert reads_made_by(mount, lambda: [read(path) for path in paths]) == FILES
        assert not any(mount.statistics()["stored_ahead"].values())


def test_a_chunk_above_the_budget_is_not_stored(one_chunk: PackedDataset, tmp_path: Path) -> None:
    with mounted(one_chunk, tmp_path, "--store-ahead-bytes", str(FILES * SIZE // 2)) as mount:
        paths = listed(mount)
        assert reads_made_by(mount, lambda: [read(path) for path in paths]) == FILES
        assert stored(mount) == stored(mount, "outstanding_bytes") == 0


@as_root
def test_a_chunk_whose_pages_were_dropped_is_stored_again(mount: Mount) -> None:
    paths = listed(mount)
    for path in paths:
        read(path)
    eventually(lambda: stored(mount, "consumed_chunks") == 1, "a chunk that is consumed")
    forget_names(mount.path)
    listed(mount)
    for path in paths[:30]:
        read(path)
    eventually(lambda: stored(mount, "chunks") == 2, "a chunk that is stored again")
    made = reads_made_by(mount, lambda: [read(path) for path in paths])
    assert made <= SENTINELS, "what was read before it began again was kept by the kernel"


def test_the_sums_in_the_statistics_are_right(mount: Mount) -> None:
    paths = listed(mount)
    for path in paths:
        read(path)
    assert not (mount.path / "all" / "absent").exists()
    found = mount.statistics()
    for request, count in found["requests"].items():
        assert count >= found["requests_in_python"].get(request, 0), request
    assert set(found["requests_in_python"]) <= set(found["requests"])
    assert found["fast_path"]["threads"] > 0
    # A file may be stored in the very moment in which it is read.
    assert 1 <= (found["bytes_read"] + found["stored_ahead"]["bytes"]) / (FILES * SIZE) < 1.05
    accounted = sum(found["hits"].values()) + sum(found["other_reads"].values())
    assert found["requests"]["read"] == accounted
    assert 0 < found["cache"]["misses"] == found["hits"]["store"] <= found["reads_through_threads"]


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return soak.pack_made_up(SOAKED_FILES, tmp_path_factory.mktemp("made-up"))


def test_eight_readers_while_chunks_are_stored_and_evicted_and_the_mount_is_refreshed(
    made_up: Versions, tmp_path: Path
) -> None:
    """The long version is `make soak`."""
    found = soak.soak(made_up, SOAKED_FILES, tmp_path, seconds=7)
    assert found["done"]["refreshes"] > 3
    assert found["done"]["reads"] > 500
    assert found["stored_ahead"]["files"] > 0
    assert found["cache"]["node"]["evictions"] > 0
    assert found["stored_ahead"]["failed"] == 0


@as_root
def test_readers_whose_page_cache_is_under_pressure(made_up: Versions, tmp_path: Path) -> None:
    try:
        group = MemoryGroup()
    except OSError as error:
        pytest.skip(f"no memory control group can be made here: {error}")
    with group:
        found = soak.soak(made_up, SOAKED_FILES, tmp_path, seconds=3, group=group)
        assert group.times_full > 0
    assert found["stored_ahead"]["files"] > 0
    assert found["done"]["reads"] > 100


def detach(mount: Mount) -> None:
    unmount(mount.path, lazy=True)


def terminate(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGTERM)


def kill(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGKILL)


@pytest.mark.parametrize("ending", [terminate, detach, kill])
@pytest.mark.parametrize("round_", range(2))
def test_a_mount_can_end_while_it_stores_and_nobody_hangs(
    made_up: Versions, tmp_path: Path, ending: Callable[[Mount], None], round_: int
) -> None:
    mount = start(made_up.before, tmp_path, "--cache-bytes", str(soak.CACHE_BYTES))
    try:
        readers_folder = tmp_path / "readers"
        with tortured(mount, SOAKED_FILES, readers_folder, 60, may_end=True, count=4) as readers:
            eventually(lambda: stored(mount), "files that are stored")
            time.sleep(random.Random(round_).uniform(0, 0.2))
            began = time.monotonic()
            ending(mount)
            for process in readers.processes:
                process.join(20)
            eventually(lambda: not is_alive(mount.pid), "the end of the daemon", timeout_s=20)
        assert time.monotonic() - began < 20
        assert "Traceback" not in mount.log
        assert ending is kill or entry_at(mount.path) is None
    finally:
        end(mount)
