"""Mounts that know what will be read: chunks are fetched and files stored before their reader
comes, within a budget of a few percent of the dataset; and whatever else happens meanwhile, every
byte is right.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from chunkstore.stores.local_directory import LocalDirectory
from dieselfs.client import Client
from dieselfs.fuse.mounts.mountpoint import unmount
from dieselfs.prefetch.announcement import announce
from dieselfs.prefetch.plan_file import PlanFile, ReadingPlan, write_plan
from dieselfs.prefetch.progress_probes import PROBE_FILES
from dieselfs.shuffle.order import shuffle_order
from metadata.kv.memory import MemoryStore
from metadata.snapshot import Snapshot
from tests.eventually import PATIENCE_S, eventually, scaled_by_load
from tests.mount.mounting import Mount, both_fronts, end, is_alive, mounted, start, state_of
from tests.mount.packing import PackedDataset, pack, write_file
from tests.mount.versions import Versions, pack_versions

FILES = 9000
FEW_FILES = 1200
CHUNK_BYTES = 128 << 10
BUDGET = 2_400_000
"""For some 36 MB: two copies of 256 files, and a few groups of chunks."""
AMPLE = 64 << 20
GROUP = 4
LARGEST_FILE = 5000
NOISE = random.Random(0).randbytes(1 << 20)
STEP_FILES, STEP_S = 64, 0.02
"""A reader that does something with what it reads, more slowly than a store on this machine sends
it, however busy that is."""
HELPERS_END_S = 5.0

pytestmark = both_fronts

WORKER = """
import sys, zlib
batch = []
for line in sys.stdin:
    if line != "\\n":
        batch.append(line[:-1])
        continue
    for path in batch:
        with open(path, "rb", buffering=0) as file:
            print(path, zlib.crc32(file.read()))
    print(flush=True)
    batch.clear()
"""
"""Reads batches of files, paths ended by an empty line, and says what it has read."""
BATCH_FILES = 16
BATCHES_AHEAD = 2
"""That each worker may be ahead of the training, as DataLoader's are."""


def content(path: str, version: int = 0) -> bytes:
    number = int(path.rpartition("/")[2]) + version * 1000
    size = 3000 + number * 37 % (LARGEST_FILE - 3000)
    place = number * 7919 % (len(NOISE) - LARGEST_FILE)
    return NOISE[place : place + size]


def paths(files: int) -> list[str]:
    return [f"c{n % 40:02}/{n:05}" for n in range(files)]


def pack_files(files: int, folder: Path) -> PackedDataset:
    client = Client.connect(
        "planned",
        store=LocalDirectory(folder / "store"),
        index=MemoryStore(),
        create=True,
        snapshot_folder=folder / "snapshots",
        target_bytes=CHUNK_BYTES,
    )
    with client:
        for path in paths(files):
            client.put(content(path), path)
        return PackedDataset(client.save_meta(), folder / "store", Path("/nowhere"))


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """What does not fit into the budget."""
    return pack_files(FILES, tmp_path_factory.mktemp("large"))


@pytest.fixture(scope="session")
def few(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """What is read as a whole in a moment."""
    return pack_files(FEW_FILES, tmp_path_factory.mktemp("few"))


def order_of(mount: Mount, name: str) -> list[str]:
    """Reads a list, and so tells the mount that its order is read."""
    return (mount.path / ".dieselfs/shuffle" / name).read_text().splitlines()


def read(mount: Mount, order: Iterable[str], version: int = 0) -> None:
    for path in order:
        with open(mount.path / path, "rb", buffering=0) as file:
            assert file.read() == content(path, version), path


def read_by_steps(
    mount: Mount,
    order: Sequence[str],
    after_each: Callable[[dict[str, Any]], object] = lambda found: None,
) -> None:
    """`after_each` is given the statistics after each step."""

    def quiet() -> dict[str, Any] | None:
        found = mount.statistics()
        return None if found["plan"]["under_way"] else found

    for first in range(0, len(order), STEP_FILES):
        read(mount, order[first : first + STEP_FILES])
        time.sleep(STEP_S)
        found = eventually(quiet, "what is fetched ahead")
        assert found is not None
        after_each(found)


class Loader:
    """What a rank reads with: processes that read batches in turn, some of them ahead of the one
    that is asked for."""

    def __init__(self, mount: Mount, order: Sequence[str], workers: int) -> None:
        self._batches = [order[at : at + BATCH_FILES] for at in range(0, len(order), BATCH_FILES)]
        self._mount, self._sent, self._received = mount, 0, 0
        self._workers = [
            subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(workers)
        ]

    def next(self) -> bool:
        """The next batch, every byte of it; False at the end."""
        ahead = self._received + BATCHES_AHEAD * len(self._workers)
        while self._sent < min(ahead, len(self._batches)):
            lines = "".join(f"{self._mount.path / path}\n" for path in self._batches[self._sent])
            stdin = self._workers[self._sent % len(self._workers)].stdin
            assert stdin is not None
            stdin.write(f"{lines}\n")
            stdin.flush()
            self._sent += 1
        if self._received == len(self._batches):
            return False
        stdout = self._workers[self._received % len(self._workers)].stdout
        assert stdout is not None
        for path in self._batches[self._received]:
            said = stdout.readline()
            assert said == f"{self._mount.path / path} {zlib.crc32(content(path))}\n"
        assert stdout.readline() == "\n"
        self._received += 1
        return True

    def close(self) -> None:
        for worker in self._workers:
            with worker:
                worker.kill()


def killed(mount: Mount) -> None:
    mount.kill()


def terminated(mount: Mount) -> None:
    os.kill(mount.pid, signal.SIGTERM)


def plan_of(mount: Mount) -> dict[str, Any]:
    found: dict[str, Any] = mount.statistics()["plan"]
    return found


def planned_pages_of(mount: Mount) -> dict[str, Any]:
    found: dict[str, Any] = mount.statistics()["page_cache"]["planned"]
    return found


def memory_of(mount: Mount) -> dict[str, Any]:
    """Return the master's counts. A master of another process may be late for the statistics."""
    found: dict[str, Any] = eventually(
        lambda: mount.statistics()["cache"]["node"], "an answer of the master"
    )
    return found


def joins_of(mount: Mount) -> int:
    """How often it has joined a master. One that is late for statistics is joined again."""
    memory_of(mount)
    joins: int = mount.statistics()["cache"]["joins"]
    return joins


@contextmanager
def shown(mount: Mount) -> Iterator[None]:
    """Print what the mount counts if an assertion fails."""
    try:
        yield
    except AssertionError:
        print(json.dumps(mount.statistics(), indent=1))
        raise


def is_planned(mount: Mount) -> bool:
    return bool(plan_of(mount)["files"])


def chunks_of(mount: Mount) -> int:
    count: int = mount.control("dataset.json")["chunks"]
    return count


def filled_of(mount: Mount) -> dict[str, Any]:
    found: dict[str, Any] = mount.statistics()["page_cache"]["filled"]
    return found


def reads_of_files(mount: Mount, action: Callable[[], object]) -> int:
    """READ requests, without those of looking at the statistics.

    The mount's threads count without a lock, so a count may be lost.
    """

    def requests() -> int:
        found = mount.statistics()
        # With EROFS the control files have a connection of their own.
        of_control = found["other_reads"]["control"] if found["front"]["kind"] == "fuse" else 0
        return int(found["requests"]["read"]) - int(of_control)

    before = requests()
    action()
    return max(0, requests() - before)


def children_of(pid: int) -> list[int]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_text().rpartition(")")[2].split()[1]
        except OSError:
            continue
        if int(parent) == pid:
            found.append(int(process.name))
    return found


# An epoch with memory for a few percent


@pytest.fixture
def shuffled(large: PackedDataset, tmp_path: Path) -> Iterator[Mount]:
    options = ("--shuffle", f"seed=1,group={GROUP}", "--cache-bytes", str(BUDGET))
    with mounted(large, tmp_path, *options) as mount:
        yield mount


def test_an_epoch_and_the_next_with_memory_for_a_few_percent(shuffled: Mount) -> None:
    """No directory has ever been listed: the kernel is made to know the files."""
    chunks, sampled = chunks_of(shuffled), []
    order = order_of(shuffled, f"seed=1,group={GROUP}")

    def look(found: dict[str, Any]) -> None:
        sampled.append((found["plan"]["window_bytes"], found["cache"]["node"]["cached_bytes"]))
        # Chunks that arrive at once exceed it until the pages behind the reader are dropped.
        pages = found["page_cache"]["planned"]
        if pages["outside_bytes"] > BUDGET + CHUNK_BYTES:
            eventually(lambda: planned_pages_of(shuffled)["outside_bytes"] <= BUDGET + CHUNK_BYTES)

    total_bytes = sum(len(content(path)) for path in order)
    assert BUDGET / total_bytes < 0.07
    read_by_steps(shuffled, order[:-10], look)
    read(shuffled, order[-10:])  # how long before its end the next epoch is due depends on rates
    eventually(lambda: plan_of(shuffled)["position"] < FILES // 2, "the next epoch")

    window = max(window for window, _ in sampled)
    assert window <= BUDGET + 3 * CHUNK_BYTES, "what three threads fill or drop may count twice"
    assert max(held for _, held in sampled) <= BUDGET
    assert window > GROUP * CHUNK_BYTES
    found = shuffled.statistics()
    of_the_next = BUDGET // CHUNK_BYTES
    assert found["cache"]["node"]["fetches"] <= 1.1 * chunks + of_the_next
    filled, planned_pages = found["page_cache"]["filled"], found["page_cache"]["planned"]
    assert filled["filled_files"] > 0.9 * FILES
    # Readers that a busy machine lets overtake the filler have used up a chunk before its fill.
    assert filled["incomplete_fills"] <= 0.02 * chunks
    assert filled["dropped_files"] > 0.7 * FILES
    with shown(shuffled):
        eventually(  # the pages of the epoch before count until they are dropped
            lambda: planned_pages_of(shuffled)["outside_bytes"] <= BUDGET + CHUNK_BYTES,
            "pages in the budget",
        )
    assert planned_pages["closed_files"] > 0.7 * FILES / PROBE_FILES

    read_by_steps(shuffled, order_of(shuffled, f"seed=1,group={GROUP},epoch=1")[: FILES // 4])
    assert plan_of(shuffled)["position"] > FILES // 8
    # Readers that a busy machine lets overtake the prefetcher have fetched some of the first epoch.
    assert plan_of(shuffled)["fetched"] > chunks
    assert "Traceback" not in shuffled.log


def test_where_nothing_is_filled_chunks_are_fetched_ahead_too(
    large: PackedDataset, tmp_path: Path
) -> None:
    held: list[int] = []
    options = ("--shuffle", f"seed=1,group={GROUP}", "--cache-bytes", str(BUDGET))
    with mounted(large, tmp_path, *options, "--prefill-bytes", "0") as mount:
        order = order_of(mount, f"seed=1,group={GROUP}")[: FILES // 2]
        read_by_steps(
            mount, order, lambda found: held.append(found["cache"]["node"]["cached_bytes"])
        )
        assert max(held) <= BUDGET
        found, half = mount.statistics(), chunks_of(mount) / 2
        assert found["cache"]["node"]["prefetched"] >= 0.9 * half
        assert found["cache"]["node"]["fetches"] <= 1.1 * half + BUDGET // CHUNK_BYTES
        assert found["plan"]["late"] < half / 3
        assert not any(found["page_cache"]["filled"].values())
        assert "Traceback" not in mount.log


def test_chunks_whose_pages_the_kernel_drops_before_they_are_read_are_filled_again(
    shuffled: Mount,
) -> None:
    order = order_of(shuffled, f"seed=1,group={GROUP}")
    read_by_steps(shuffled, order[:PROBE_FILES])
    eventually(lambda: filled_of(shuffled)["filled_files"] > 2 * PROBE_FILES, "pages ahead")
    coming = order[PROBE_FILES : 10 * PROBE_FILES]
    before = planned_pages_of(shuffled)["lost_chunks"]  # the kernel may have dropped some by itself
    drop_pages(shuffled, coming)
    read_by_steps(shuffled, coming)
    # The kernel may drop more by itself while a busy machine reads slowly, but no chunk again and
    # again.
    assert before < planned_pages_of(shuffled)["lost_chunks"] < chunks_of(shuffled)
    eventually(  # chunks that arrive at once exceed it for a moment
        lambda: planned_pages_of(shuffled)["outside_bytes"] <= BUDGET + CHUNK_BYTES,
        "pages in the budget",
    )
    assert "Traceback" not in shuffled.log


def drop_pages(mount: Mount, paths: Iterable[str]) -> None:
    """Have the kernel drop files from the page cache, and all that was filled for EROFS."""
    opened = [os.open(mount.path / path, os.O_RDONLY) for path in paths]
    for pid in (mount.pid, *children_of(mount.pid)):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # the mount has closed it meanwhile
                if "blob" in os.readlink(link):
                    opened.append(os.open(link, os.O_RDONLY))
    for fd in opened:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def test_a_plan_goes_on_with_the_server_after_the_one_that_was_killed(shuffled: Mount) -> None:
    order = order_of(shuffled, f"seed=1,group={GROUP}")
    read_by_steps(shuffled, order[: FILES // 8])
    shuffled.kill_server()
    read(shuffled, order[FILES // 8 : FILES // 4])
    eventually(lambda: is_planned(shuffled), "a plan")
    read_by_steps(shuffled, order[FILES // 4 : FILES // 2])
    assert "Traceback" not in shuffled.log


def test_what_fits_is_fetched_once_and_kept(few: PackedDataset, tmp_path: Path) -> None:
    options = ("--shuffle", f"seed=1,group={GROUP}", "--cache-bytes", str(AMPLE))
    with mounted(few, tmp_path, *options) as mount:
        chunks = chunks_of(mount)
        read_by_steps(mount, order_of(mount, f"seed=1,group={GROUP}"))
        eventually(lambda: memory_of(mount)["fetches"] == chunks, "all chunks")
        second = order_of(mount, f"seed=1,group={GROUP},epoch=1")
        before = mount.statistics()["cache"]["fallbacks"]
        made = reads_of_files(mount, lambda: read(mount, second))
        # Some kernels drop clean pages though memory is free, the more the longer a test takes.
        assert made <= FEW_FILES // 4
        assert memory_of(mount)["fetches"] == chunks
        assert mount.statistics()["cache"]["fallbacks"] - before <= made


LARGE_FILES = 6
LARGE_BYTES = 17 << 20
"""A chunk of its own, which is fetched in blocks."""


@pytest.fixture(scope="session")
def large_samples(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    folder = tmp_path_factory.mktemp("large-samples")
    for number in range(LARGE_FILES):
        write_file(folder / "source" / f"{number}", large_sample(number))
    return pack(folder / "source", folder)


def large_sample(number: int) -> bytes:
    return bytes([number]) + NOISE * (LARGE_BYTES >> 20)


def test_large_samples_are_fetched_ahead_with_memory_for_two(
    large_samples: PackedDataset, tmp_path: Path
) -> None:
    budget = 2 * (LARGE_BYTES + 1)
    options = ("--shuffle", "seed=1,group=1", "--cache-bytes", str(budget))
    with mounted(large_samples, tmp_path, *options) as mount:
        order = order_of(mount, "seed=1,group=1")
        for at, path in enumerate(order[:-1]):
            eventually(lambda at=at: plan_of(mount)["fetched"] >= at + 1, "the file that is next")
            assert (mount.path / path).read_bytes() == large_sample(int(path))
            assert memory_of(mount)["cached_bytes"] <= budget
        found = mount.statistics()
        # Of each file that is not fetched ahead some READ waits; a busy machine evicts one early.
        assert found["reads_through_threads"] < LARGE_FILES - 1
        assert found["plan"]["skipped"] == 0
        assert found["cache"]["node"]["fetches"] <= 1.5 * LARGE_FILES * -(-LARGE_BYTES // (4 << 20))
        assert "Traceback" not in mount.log


# How a mount hears of an order


def planned(packed: PackedDataset, group: int, epoch: int = 0) -> tuple[ReadingPlan, list[str]]:
    """With the paths in the plan's order."""
    with Snapshot.open(packed.snapshot) as snapshot:
        order = shuffle_order(snapshot.chunk_first_inode, 5, epoch, group)
        plan = ReadingPlan(str(snapshot.id), order.inodes.copy(), order.group_start.copy())
        return plan, snapshot.paths_text(order.inodes).decode().splitlines()


@pytest.fixture(scope="module")
def untold(
    kind: str, large: PackedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mount]:
    """A mount that is told orders by its tests."""
    with mounted(large, tmp_path_factory.mktemp("untold"), "--cache-bytes", str(BUDGET)) as mount:
        yield mount


def test_who_reads_a_list_is_followed(large: PackedDataset, tmp_path: Path) -> None:
    with mounted(large, tmp_path, "--cache-bytes", str(BUDGET)) as mount:
        assert not is_planned(mount)
        order = order_of(mount, f"seed=7,group={GROUP}")
        eventually(lambda: plan_of(mount)["fetched"] > GROUP, "a plan")
        read_by_steps(mount, order[: FILES // 8])
        eventually(lambda: plan_of(mount)["position"] > FILES // 16, "a position")
        other = order_of(mount, f"seed=8,group={GROUP}")
        read_by_steps(mount, other[: FILES // 16])
        order_of(mount, "seed=9,group=1000")
        eventually(lambda: "is not prefetched" in mount.log, "a refusal")
        assert "Traceback" not in mount.log


def test_another_jobs_list_ends_the_plan_of_the_one_before(
    large: PackedDataset, tmp_path: Path
) -> None:
    with mounted(large, tmp_path, "--cache-bytes", str(BUDGET)) as mount:
        for seed in (1, 2):
            read_by_steps(mount, order_of(mount, f"seed={seed},group={GROUP}")[:FEW_FILES])
            eventually(lambda: mount.statistics()["plan"]["position"] > 0, "a plan is followed")
            assert mount.statistics()["plan"]["files"] == FILES, "one order, not two in turn"


def test_an_announced_plan_is_followed_from_its_position_on(
    large: PackedDataset, tmp_path: Path
) -> None:
    plan, order = planned(large, GROUP)
    start_at = FILES * 7 // 8
    with Snapshot.open(large.snapshot) as snapshot:
        needed = len(np.unique(snapshot.columns.chunk[plan.inodes[start_at:]]))
    with mounted(large, tmp_path, "--cache-bytes", str(BUDGET)) as mount:
        file = announce(mount.path, plan, start_at)
        assert file is not None
        eventually(lambda: plan_of(mount)["fetched"] > GROUP, "chunks that come next")
        assert plan_of(mount)["files"] == FILES - start_at
        read_by_steps(mount, order[start_at:])
        assert memory_of(mount)["fetches"] <= 2 * needed < chunks_of(mount) / 2
        following, next_order = planned(large, GROUP, epoch=1)
        file_after = announce(mount.path, following, after=file.id)
        assert file_after is not None
        file.remove()
        eventually(lambda: plan_of(mount)["files"] == FILES, "the next epoch")
        read_by_steps(mount, next_order[: FILES // 8])
        eventually(lambda: plan_of(mount)["position"] > FILES // 16, "a position")
        file_after.remove()
        eventually(lambda: not is_planned(mount), "the end of the plan")
        eventually(lambda: memory_of(mount)["budget_bytes"] == BUDGET, "all memory for chunks")
        assert "Traceback" not in mount.log


def answer_to(mount: Mount, name: str) -> dict[str, Any]:
    return mount.control(f"plan/{name}")


def task_folder(mount: Mount) -> Path:
    return Path(mount.control("dataset.json")["node_memory"])


def test_a_plan_above_the_memory_is_refused_with_what_would_fit(
    large: PackedDataset, untold: Mount
) -> None:
    plan, _ = planned(large, 50)
    with pytest.warns(
        RuntimeWarning, match=r"needs \d+ MiB .*the budget is 2 MiB.*group size of \d+"
    ):
        assert announce(untold.path, plan) is None
    assert os.listdir(task_folder(untold) / "plans") == []
    fits, _ = planned(large, 50)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        announce(untold.path, fits)
    assert said == [], "once in a process"
    assert not is_planned(untold)


@pytest.mark.parametrize("name", ["0123456789abcdef", "nonsense", "0" * 17])
def test_an_unknown_plan_is_refused(untold: Mount, name: str) -> None:
    answer = answer_to(untold, name)
    assert answer["accepted"] is False
    assert answer["error"]


def test_a_plan_of_another_snapshot_is_refused(
    large: PackedDataset, few: PackedDataset, untold: Mount
) -> None:
    plan, _ = planned(few, 1)
    with pytest.warns(RuntimeWarning, match=r"is mounted.*start again"):
        assert announce(untold.path, plan) is None


def damaged(file: PlanFile) -> Iterator[Callable[[], object]]:
    def overwrite(at: int, data: bytes) -> None:
        with file.path.open("r+b") as opened:
            opened.seek(at)
            opened.write(data)

    size = file.path.stat().st_size
    yield lambda: overwrite(size - 8, b"\xff" * 8)  # files that are not there
    yield lambda: overwrite(16, b"\xff" * 8)  # as many files as can be
    yield lambda: overwrite(0, b"x")
    yield lambda: os.truncate(file.path, 100)
    yield lambda: os.truncate(file.path, 0)


def test_a_damaged_plan_is_refused(large: PackedDataset, untold: Mount) -> None:
    plan, _ = planned(large, GROUP)
    file = write_plan(task_folder(untold), plan)
    try:
        for damage in damaged(file):
            damage()
            answer = answer_to(untold, file.id)
            assert (answer["accepted"], file.id in answer["error"]) == (False, True), answer
    finally:
        file.remove()
    assert not is_planned(untold)
    assert "Traceback" not in untold.log


# Several readers


def test_two_ranks_of_several_workers_and_a_reader_off_the_plan(
    large: PackedDataset, tmp_path: Path
) -> None:
    dice = random.Random(0)
    with mounted(large, tmp_path, "--cache-bytes", str(2 * BUDGET)) as mount:
        chunks = chunks_of(mount)
        ranks = [order_of(mount, f"seed=2,group={GROUP},rank={rank},world=2") for rank in (0, 1)]
        eventually(lambda: plan_of(mount)["files"] == FILES, "both orders")
        with (
            closing(Loader(mount, ranks[0], 4)) as first,
            closing(Loader(mount, ranks[1], 4)) as second,
        ):
            step = 0
            while first.next() and second.next():
                time.sleep(STEP_S / 2)
                step += 1
                if step % 8 == 0:
                    read(mount, dice.sample(ranks[0][-FILES // 8 :], 4))
        found = mount.statistics()
        assert found["cache"]["fallbacks"] > 0, "what is read off the plan displaces nothing of it"
        # On a busy machine more: what comes too late is read for each of its files.
        assert found["cache"]["node"]["fetches"] <= 2 * chunks + 2 * BUDGET // CHUNK_BYTES
        read(mount, order_of(mount, f"seed=2,group={GROUP},rank=0,world=2,epoch=1")[:500])
        assert "Traceback" not in mount.log


def test_two_mounts_of_a_task_fetch_once_and_one_outlives_the_other(
    few: PackedDataset, tmp_path: Path
) -> None:
    task = f"shared-{os.getpid()}-{tmp_path.name[-8:]}"
    options = ("--task", task, "--prefill-bytes", "0", "--cache-bytes", str(AMPLE))
    leading = start(few, tmp_path / "leading", *options)
    try:
        with mounted(few, tmp_path / "other", *options) as other:
            chunks, order = chunks_of(other), paths(FEW_FILES)
            read(leading, order[: FEW_FILES // 2])
            read(other, order)
            read(leading, order)
            assert memory_of(leading)["fetches"] == memory_of(other)["fetches"] == chunks
            assert memory_of(other)["members"] == 2
    finally:
        end(leading)


def test_a_mount_whose_master_is_killed_reads_on(large: PackedDataset, tmp_path: Path) -> None:
    task = f"killed-{os.getpid()}-{tmp_path.name[-8:]}"
    options = ("--task", task, "--cache-bytes", str(BUDGET))
    leading = start(large, tmp_path / "leading", *options)
    try:
        with mounted(large, tmp_path / "other", *options) as other:
            order = order_of(other, f"seed=3,group={GROUP}")
            with closing(Loader(other, order[: FILES // 4], 2)) as loader:
                for _ in range(10):
                    assert loader.next()
                joins = joins_of(other)
                killed(leading)
                while loader.next():
                    pass
            eventually(lambda: joins_of(other) > joins, "another master")
            assert joins_of(other) == joins + 1
            assert memory_of(other)["cached_bytes"] <= BUDGET
            assert "Traceback" not in other.log
    finally:
        end(leading)


# A mount that ends


def with_all_helpers(mount: Mount, order: Sequence[str]) -> list[int]:
    """Follow a plan and list directories; the processes of this mount."""
    read_by_steps(mount, order[: FILES // 8])
    for directory in sorted(entry.name for entry in os.scandir(mount.path))[:5]:
        list(os.scandir(mount.path / directory))
    server = mount.server_pid

    def names() -> set[str]:
        return {Path(f"/proc/{pid}/comm").read_text().strip() for pid in children_of(server)}

    eventually(lambda: "dlcmd-pages" in names(), "its helper")
    return [mount.pid, server, *children_of(server)]


def test_a_mount_that_is_killed_leaves_no_process_and_the_next_one_goes_on(
    large: PackedDataset, tmp_path: Path
) -> None:
    task = f"again-{os.getpid()}-{tmp_path.name[-8:]}"
    options = ("--task", task, "--cache-bytes", str(BUDGET))
    options += ("--shuffle", f"seed=1,group={GROUP}")
    first = start(large, tmp_path / "first", *options)
    try:
        order = order_of(first, f"seed=1,group={GROUP}")
        processes = with_all_helpers(first, order)
        killed(first)
        eventually(lambda: not any(map(is_alive, processes)), "the end of all processes")
        with mounted(large, tmp_path / "second", *options) as second:
            read_by_steps(second, order[: FILES // 8])
            eventually(lambda: plan_of(second)["position"] > FILES // 16, "a position")
            assert memory_of(second)["cached_bytes"] <= BUDGET
            folder = task_folder(second)
            assert folder.name == task
        assert not folder.exists()
    finally:
        end(first)


def test_all_processes_end_with_the_mount(shuffled: Mount, monkeypatch: pytest.MonkeyPatch) -> None:
    # A busy machine may pause the helper while it has a file of the mount open.
    patience_s = scaled_by_load(0.5)
    monkeypatch.setattr("dieselfs.fuse.mounts.mountpoint._HELPER_PATIENCE_S", patience_s)
    processes = with_all_helpers(shuffled, order_of(shuffled, f"seed=1,group={GROUP}"))
    folder = task_folder(shuffled)
    began = time.monotonic()
    unmount(shuffled.path)
    eventually(lambda: not any(map(is_alive, processes)), "the end of all processes")
    assert time.monotonic() - began < scaled_by_load(HELPERS_END_S)
    assert not folder.exists()


def test_they_end_while_the_store_hangs(large: PackedDataset, tmp_path: Path) -> None:
    mount = start(large, tmp_path, "--cache-bytes", str(BUDGET))
    try:
        processes = with_all_helpers(mount, order_of(mount, f"seed=1,group={GROUP}"))
        mount.fail_with("store-stuck")
        order = order_of(mount, f"seed=2,group={GROUP}")
        eventually(lambda: plan_of(mount)["under_way"] > 0, "a fetch that hangs")
        # Some of these files are in memory, and most are not.
        wanted = order[FILES // 2 :]
        found = tmp_path / "found"
        with (
            open(found, "wb") as output,
            subprocess.Popen(
                ["cat", *(mount.path / path for path in wanted)],
                stdout=output,
                stderr=subprocess.DEVNULL,
            ) as reader,
        ):
            try:
                eventually(lambda: state_of(reader.pid) == "D", "a read that hangs")
                began = time.monotonic()
                terminated(mount)
                eventually(lambda: not any(map(is_alive, processes[2:])), "the end of its helpers")
                assert reader.wait(PATIENCE_S) != 0
                assert time.monotonic() - began < scaled_by_load(HELPERS_END_S)
                eventually(lambda: not is_alive(mount.pid), "its own end")
                assert time.monotonic() - began < scaled_by_load(HELPERS_END_S + 1)
            finally:
                reader.kill()
        assert b"".join(map(content, wanted)).startswith(found.read_bytes())
    finally:
        end(mount)


# A newer snapshot


@pytest.fixture(scope="session")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    """The same paths with other bytes, and more of them."""
    before, after = paths(FEW_FILES), paths(FEW_FILES + 300)
    return pack_versions(
        {path: content(path) for path in before},
        {path: content(path, 1) for path in after},
        tmp_path_factory.mktemp("versions"),
        CHUNK_BYTES,
    )


def test_a_refresh_while_a_plan_is_followed(versions: Versions, tmp_path: Path) -> None:
    options = ("--shuffle", "seed=1,group=1", "--cache-bytes", str(8 * CHUNK_BYTES))
    with mounted(versions.before, tmp_path, *options) as mount:
        order = order_of(mount, "seed=1,group=1")
        read_by_steps(mount, order[: FEW_FILES // 2])
        with open(mount.path / order[-1], "rb") as kept:
            mount.refresh(versions.after.snapshot)
            eventually(lambda: plan_of(mount)["files"] == FEW_FILES + 300, "the new order")
            read(mount, order, version=1)
            assert kept.read() == content(order[-1])
        plan, _ = planned(versions.before, 1)
        with pytest.warns(RuntimeWarning, match="start again"):
            assert announce(mount.path, plan) is None
        following = order_of(mount, "seed=1,group=1,epoch=1")
        assert len(following) == FEW_FILES + 300
        read(mount, following, version=1)
        assert "Traceback" not in mount.log
