"""A mount that is told a reading order: what is stored, what is kept of a stored chunk, how far the readers are, and that pages behind them
can be dropped. Mounts with the fast path only.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from dieselfs.fuse.fast_path import MAX_STORED_FILE_BYTES
from dieselfs.fuse.inodes import FIRST_EPOCH
from dieselfs.fuse.kernel_pages import KernelPages
from dieselfs.fuse.mountpoint import unmount
from metadata.snapshot import Snapshot
from tests.mount import soak
from tests.mount.mounting import Mount, end, eventually, is_alive, mounted, start
from tests.mount.packing import PackedDataset, pack, random_bytes, write_file
from tests.mount.remote_fast_path import RemoteFastPath
from tests.mount.torture import tortured
from tests.mount.versions import Versions

FILES = 200
SIZE = 3000
LARGE = MAX_STORED_FILE_BYTES + 1
NOT_PLANNED = 0xFFFFFFFF
SOAKED_FILES = 5000

Inodes = npt.NDArray[np.uint32]

pytestmark = pytest.mark.parametrize("kind", ["fast"], indirect=True)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PackedDataset:
    """One chunk."""
    folder = tmp_path_factory.mktemp("one-chunk")
    for n in range(FILES):
        write_file(folder / "source" / "all" / f"{n:03}", random_bytes(SIZE, seed=n))
    write_file(folder / "source" / "empty", b"")
    write_file(folder / "source" / "large", random_bytes(LARGE))
    return pack(folder / "source", folder)


@dataclass(frozen=True)
class Planned:
    """A mount whose fast path is driven from here."""

    mount: Mount
    snapshot: Snapshot
    fast_path: RemoteFastPath
    pages: KernelPages
    small: Inodes
    """The files of `SIZE` bytes, in an order that is neither that of their names nor of their inodes."""
    baseline: dict[str, int] = field(default_factory=dict)

    def start_over(self) -> None:
        """As if nothing had been read or stored yet, but that the kernel knows all files."""
        self.mount.fail_with("")
        self.fast_path.clear_plan()
        self.fast_path.stored()
        self.fast_path.plan_progress()
        self.fast_path.discard(self.snapshot.chunk(0).id)
        everything = np.arange(self.snapshot.file_count, dtype=np.uint32)
        assert self.pages.drop(self.paths(everything))
        self.baseline.update(self.mount.statistics()["stored_ahead"])

    def set_plan(self, order: Inodes, sentinels: Iterable[int]) -> None:
        """`sentinels`: positions in the order."""
        position_of = np.full(self.snapshot.file_count, NOT_PLANNED, np.uint32)
        position_of[order] = np.arange(len(order), dtype=np.uint32)
        is_sentinel = np.zeros(self.snapshot.file_count, np.bool_)
        is_sentinel[order[list(sentinels)]] = True
        bits = np.packbits(is_sentinel, bitorder="little")
        self.fast_path.set_plan(FIRST_EPOCH, order, position_of, bits)

    def store(self, well: bool = True) -> None:
        """The chunk, until it is stored."""
        chunk = self.snapshot.chunk(0)
        self.fast_path.fetch(chunk)
        assert self.fast_path.store(chunk.id.value)
        found: list[tuple[bytes, bool]] = []
        eventually(lambda: found.extend(self.fast_path.stored()) or found, "a stored chunk")
        assert found == [(chunk.id.value, well)]

    def read(self, inodes: Iterable[int]) -> None:
        for inode in inodes:
            path = os.fsdecode(self.snapshot.path_of(int(inode)))
            expected = random_bytes(SIZE, seed=int(path[-3:]))
            assert (self.mount.path / path).read_bytes() == expected

    def requests(self, kind: str, whose: str) -> int:
        count: int = self.mount.statistics()[whose].get(kind, 0)
        return count

    def made_by(
        self, action: Callable[[], object], kind: str = "read", whose: str = "requests"
    ) -> int:
        """Requests of a kind, without those of looking at the statistics. `whose` may be `requests_in_python`."""
        first = self.requests(kind, whose)
        idle = self.requests(kind, whose) - first
        before = self.requests(kind, whose)
        action()
        return self.requests(kind, whose) - before - idle

    def paths(self, inodes: Inodes) -> bytes:
        return self.snapshot.paths_text(inodes, b"\0")

    def counted(self, what: str) -> int:
        """Since it started over."""
        count: int = self.mount.statistics()["stored_ahead"][what]
        return count - self.baseline.get(what, 0)

    @property
    def progress(self) -> tuple[int, int, int]:
        found: tuple[int, int, int] = self.fast_path.plan_progress()
        return found


@contextmanager
def planned_mount(dataset: PackedDataset, folder: Path) -> Iterator[Planned]:
    address = folder / "remote"
    with (
        mounted(dataset, folder, "--remote", str(address)) as mount,
        Snapshot.open(dataset.snapshot) as snapshot,
    ):
        assert snapshot.chunk_count == 1
        fast_path, pages = RemoteFastPath(address), KernelPages(mount.path)
        small = np.flatnonzero(snapshot.columns.length == SIZE).astype(np.uint32)
        small = np.random.default_rng(0).permutation(small)
        try:
            yield Planned(mount, snapshot, fast_path, pages, small)
        finally:
            pages.close()
            fast_path.close()


@pytest.fixture(scope="module")
def shared(
    kind: str, dataset: PackedDataset, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Planned]:
    with planned_mount(dataset, tmp_path_factory.mktemp("shared")) as planned:
        listed(planned.mount)
        yield planned


@pytest.fixture
def planned(shared: Planned) -> Planned:
    """A mount whose kernel knows all files. It must be left alive."""
    shared.start_over()
    return shared


@pytest.fixture
def own(dataset: PackedDataset, tmp_path: Path) -> Iterator[Planned]:
    """A mount for one test, whose kernel knows no files."""
    with planned_mount(dataset, tmp_path) as planned:
        yield planned


def listed(mount: Mount) -> None:
    """The kernel knows their inodes from then on."""
    with os.scandir(mount.path / "all") as entries:
        assert sum(entry.stat().st_size for entry in entries) == FILES * SIZE
    with os.scandir(mount.path) as entries:
        assert sum(entry.stat().st_size for entry in entries if entry.is_file()) == LARGE


# What is stored


def test_of_a_stored_chunk_only_the_sentinels_are_read(planned: Planned) -> None:
    planned.set_plan(planned.small, range(49, FILES, 50))
    planned.store()
    assert not planned.fast_path.store(planned.snapshot.chunk(0).id.value), "it is stored already"
    assert planned.counted("files") == planned.counted("plan_files_stored") == FILES - 4
    assert planned.counted("outstanding_bytes") == 0, "no budget is applied"
    assert planned.made_by(lambda: planned.read(planned.small)) == 4
    assert planned.counted("reads_of_stored") == 0
    assert planned.progress == (FILES, FILES, 0)


def test_a_read_does_not_store_its_chunk_as_long_as_there_is_a_plan(planned: Planned) -> None:
    planned.set_plan(planned.small, [FILES - 1])
    planned.fast_path.fetch(planned.snapshot.chunk(0))
    planned.read(planned.small[:3])
    assert planned.counted("files") == 0
    planned.fast_path.clear_plan()
    planned.read(planned.small[3:4])
    eventually(lambda: planned.counted("chunks"), "a chunk stored ahead")
    assert planned.counted("plan_files_stored") == 0


def test_what_is_not_held_is_not_stored(planned: Planned) -> None:
    chunk = planned.snapshot.chunk(0)
    planned.fast_path.fetch(chunk)
    assert not planned.fast_path.store(chunk.id.value), "there is no plan"
    planned.set_plan(planned.small, [])
    planned.fast_path.discard(chunk.id)
    assert not planned.fast_path.store(chunk.id.value)
    assert not planned.fast_path.store(bytes(16)), "there is no such chunk"


def test_only_small_files_to_come_that_nobody_has_read_are_stored(planned: Planned) -> None:
    others = np.setdiff1d(np.arange(planned.snapshot.file_count, dtype=np.uint32), planned.small)
    order = np.concatenate([planned.small[:100], others, planned.small[100:150]])
    planned.set_plan(order, [9])
    planned.read(planned.small[20:30])
    planned.fast_path.advance(10)
    planned.store()
    # Without the last file, which is a sentinel too.
    assert planned.counted("files") == (100 - 10 - 10) + 49
    (planned.mount.path / "empty").read_bytes()
    assert len((planned.mount.path / "large").read_bytes()) == LARGE
    planned.read(planned.small)


def test_files_that_the_kernel_does_not_know_are_stored_after_a_look_up(own: Planned) -> None:
    own.set_plan(own.small, range(49, FILES, 50))
    own.pages.look_up(own.paths(own.small[:10]))
    own.store(well=False)
    assert own.counted("skipped_unknown_inodes") > 0
    some = own.counted("files")
    assert some < FILES - 4
    asked = own.made_by(lambda: own.pages.look_up(own.paths(own.small)), "lookup")
    assert asked >= FILES - 10
    own.store()
    assert own.counted("files") == FILES - 4, "each once"
    assert own.made_by(lambda: own.read(own.small)) == 4


def test_a_chunk_that_is_released_before_its_turn_is_told_as_not_stored(planned: Planned) -> None:
    """The queue is short, so both may happen: it is told in any case."""
    chunk = planned.snapshot.chunk(0)
    for _ in range(5):
        planned.set_plan(planned.small, [])
        planned.fast_path.fetch(chunk)
        assert planned.fast_path.store(chunk.id.value)
        planned.fast_path.discard(chunk.id)
        found: list[tuple[bytes, bool]] = []
        eventually(lambda found=found: found.extend(planned.fast_path.stored()) or found, "an end")
        assert [chunk_id for chunk_id, _ in found] == [chunk.id.value]


# What is kept of a chunk that has left node memory


def test_sentinels_are_answered_when_the_chunk_has_left_memory(planned: Planned) -> None:
    planned.set_plan(planned.small, range(19, FILES, 20))
    planned.read(planned.small[39:40])  # the clock waits for the one before it
    planned.store()
    assert planned.counted("residue_bytes") == 9 * SIZE, "not of the one that was read"
    planned.fast_path.discard(planned.snapshot.chunk(0).id)
    assert planned.made_by(lambda: planned.read(planned.small), whose="requests_in_python") == 0
    assert planned.progress[0] == FILES
    planned.fast_path.drop_residue(planned.snapshot.chunk(0).id.value)
    assert planned.counted("residue_bytes") == 0


def test_without_its_residue_a_sentinel_is_asked_of_python(planned: Planned) -> None:
    planned.set_plan(planned.small, range(19, FILES, 20))
    planned.store()
    planned.fast_path.discard(planned.snapshot.chunk(0).id)
    planned.fast_path.drop_residue(planned.snapshot.chunk(0).id.value)
    made = planned.made_by(lambda: planned.read(planned.small[:20]), whose="requests_in_python")
    assert made == 1


@pytest.mark.parametrize("ending", ["next plan", "no plan"])
def test_residue_ends_with_its_plan(planned: Planned, ending: str) -> None:
    planned.set_plan(planned.small, range(19, FILES, 20))
    planned.store()
    assert planned.counted("residue_bytes") > 0
    if ending == "next plan":
        planned.set_plan(planned.small[::-1].copy(), [])
    else:
        planned.fast_path.clear_plan()
    assert planned.counted("residue_bytes") == 0


# The clock


def test_the_clock_follows_the_sentinels(planned: Planned) -> None:
    planned.set_plan(planned.small, [49, 99, 149])
    planned.store()
    assert planned.progress == (0, 0, 0)
    planned.read(planned.small[:49])
    assert planned.progress == (0, 0, 0), "nothing was asked"
    planned.read(planned.small[49:60])
    assert planned.progress == (50, 50, 0)
    planned.read(planned.small[149:150])
    assert planned.progress == (50, 150, 0), "the one before it is not read yet"
    planned.read(planned.small[99:100])
    assert planned.progress == (150, 150, 0)
    planned.read(planned.small)
    assert planned.progress == (FILES, FILES, 0), "the last file is a sentinel"


def test_a_sentinel_read_from_its_middle_counts(planned: Planned) -> None:
    planned.set_plan(planned.small[:100], [10])
    path = planned.mount.path / os.fsdecode(planned.snapshot.path_of(int(planned.small[10])))
    with path.open("rb") as file:
        file.seek(2500)
        assert len(file.read(10)) == 10
    assert planned.progress == (11, 11, 0)


def test_a_file_off_the_plan_is_served_and_counted(planned: Planned) -> None:
    planned.set_plan(planned.small[:100], [9])
    planned.read(planned.small[150:160])
    assert planned.progress == (0, 0, 10)
    planned.read(planned.small[9:10])
    planned.read(planned.small[:9])
    assert planned.progress == (10, 10, 19), "these come after their turn"


def test_the_clock_is_moved_by_force_and_never_back(planned: Planned) -> None:
    planned.set_plan(planned.small, [10, 20, 30])
    planned.read(planned.small[20:21])
    planned.fast_path.advance(15)
    assert planned.progress == (21, 21, 0), "and on to what was read already"
    planned.fast_path.advance(3)
    assert planned.progress == (21, 21, 0)
    planned.fast_path.advance(FILES)
    assert planned.progress == (FILES, 21, 0)
    with pytest.raises(ValueError, match="no plan, or it ends before that"):
        planned.fast_path.advance(FILES + 1)


def test_whoever_waits_is_told_once(planned: Planned) -> None:
    planned.set_plan(planned.small, [10])
    assert not planned.fast_path.has_news(0)
    planned.read(planned.small[10:11])
    assert planned.fast_path.has_news(0)
    planned.fast_path.plan_progress()
    assert not planned.fast_path.has_news(0)
    chunk = planned.snapshot.chunk(0)
    planned.fast_path.fetch(chunk)
    assert planned.fast_path.store(chunk.id.value)
    assert planned.fast_path.has_news(20)
    planned.fast_path.plan_progress()
    assert planned.fast_path.has_news(0), "nobody has asked what was stored"
    assert planned.fast_path.stored() == [(chunk.id.value, True)]
    planned.fast_path.plan_progress()
    assert not planned.fast_path.has_news(0)


# One plan after the other


def test_a_next_plan_starts_over(planned: Planned) -> None:
    planned.set_plan(planned.small, range(9, FILES, 10))
    planned.store()
    planned.read(planned.small)
    backwards = planned.small[::-1].copy()
    assert planned.pages.drop(planned.paths(backwards))
    planned.set_plan(backwards, range(49, FILES, 50))
    assert planned.progress == (0, 0, 0)
    planned.store()
    assert planned.made_by(lambda: planned.read(backwards)) == 4
    assert planned.progress == (FILES, FILES, 0)


def test_plans_that_replace_each_other_while_they_are_stored(planned: Planned) -> None:
    chunk = planned.snapshot.chunk(0)
    planned.fast_path.fetch(chunk)
    for n in range(200):
        order = np.roll(planned.small, n)
        planned.set_plan(order, range(n % 50, FILES, 50))
        assert planned.fast_path.store(chunk.id.value), "the one before may be under way"
    found: list[tuple[bytes, bool]] = []
    eventually(lambda: found.extend(planned.fast_path.stored()) or found, "a stored chunk")
    assert found == [(chunk.id.value, True)]
    assert not planned.fast_path.store(chunk.id.value)
    planned.read(order)
    assert planned.progress[2] == 0


# Dropping pages


def test_dropped_pages_make_one_read_a_file_and_no_other_request(planned: Planned) -> None:
    """Also of pages that were stored just now: they wait in a list of the processor that stored them."""
    planned.set_plan(planned.small, [FILES - 1])
    planned.store()
    assert planned.pages.drop(planned.paths(planned.small))
    before = planned.mount.statistics()["requests"]
    planned.read(planned.small)
    after = planned.mount.statistics()["requests"]
    planned.mount.statistics()
    again = planned.mount.statistics()["requests"]
    idle = {kind: again[kind] - after[kind] for kind in after}
    made = {kind: after[kind] - before.get(kind, 0) for kind in after}
    assert made["read"] - idle["read"] / 2 == pytest.approx(FILES, abs=2)
    assert made.get("getattr", 0) <= idle.get("getattr", 0) + 2
    assert made.get("lookup", 0) <= idle.get("lookup", 0) + 2
    assert planned.counted("reads_of_stored") == FILES - 1


def test_dropping_keeps_what_it_was_not_told_of(planned: Planned) -> None:
    planned.set_plan(planned.small, [FILES - 1])
    planned.store()
    assert planned.pages.drop(b"absent\0all/absent/x\0" + planned.paths(planned.small[:50]))
    assert planned.made_by(lambda: planned.read(planned.small[50:-1])) == 0
    assert planned.made_by(lambda: planned.read(planned.small[:50])) == 50


def test_a_long_list_from_several_threads(planned: Planned) -> None:
    text = planned.paths(np.tile(planned.small, 100))
    assert len(text) > 1 << 17
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda call=call: results.append(call(text)))
        for call in (planned.pages.drop, planned.pages.look_up) * 2
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == [True] * 4


def tender(mount: Mount) -> int:
    """The process that drops and looks up."""
    [found] = subprocess.run(
        ["pgrep", "-f", f"kernel_pages_process.py {mount.path}$"], capture_output=True, text=True
    ).stdout.split()
    return int(found)


def test_a_process_that_has_died_is_started_again(
    own: Planned, caplog: pytest.LogCaptureFixture
) -> None:
    paths = own.paths(own.small[:5])
    own.read(own.small)
    assert own.pages.drop(paths)
    pid = tender(own.mount)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not is_alive(pid), "its end")
    assert not own.pages.drop(paths)
    assert "the page cache is not tended this time" in caplog.text
    assert own.pages.drop(paths)
    again = tender(own.mount)
    own.pages.close()
    assert not is_alive(again)
    assert not own.pages.drop(paths)
    assert own.made_by(lambda: own.read(own.small)) == 5


def test_a_process_that_hangs_does_not_hang_the_end(own: Planned) -> None:
    assert own.pages.look_up(own.paths(own.small))
    pid = tender(own.mount)
    os.kill(pid, signal.SIGSTOP)
    results: list[bool] = []
    waiting = threading.Thread(target=lambda: results.append(own.pages.drop(own.paths(own.small))))
    waiting.start()
    own.pages.close()
    waiting.join(10)
    assert results == [False]
    assert not is_alive(pid)


def test_it_ends_with_the_process_that_started_it(own: Planned) -> None:
    program = f"""
from pathlib import Path
from dieselfs.fuse.kernel_pages import KernelPages
pages = KernelPages(Path({str(own.mount.path)!r}))
print(pages.drop(b"all/000\\0"), flush=True)
input()
"""
    starter = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"True\n"
        pid = tender(own.mount)
        starter.kill()
    eventually(lambda: not is_alive(pid), "its end")


def test_paths_without_an_end_are_refused(planned: Planned) -> None:
    with pytest.raises(ValueError, match="ended by a NUL"):
        planned.pages.drop(b"all/000")


def test_it_holds_nothing_in_the_mount_while_it_waits(own: Planned) -> None:
    assert own.pages.drop(own.paths(own.small))
    unmount(own.mount.path, lazy=False)
    own.mount.wait_until_ended()
    assert own.pages.drop(own.paths(own.small)), "there are no such files any more"


# How it ends


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Versions:
    return soak.pack_made_up(SOAKED_FILES, tmp_path_factory.mktemp("made-up"))


def store_over_and_over(address: Path, snapshot: Snapshot, ended: threading.Event) -> None:
    """One plan after the other, all chunks stored by each, without waiting."""
    try:
        fast_path = RemoteFastPath(address)
        files = np.arange(snapshot.file_count, dtype=np.uint32)
        sentinels = np.packbits(files % 64 == 0, bitorder="little")
        while not ended.is_set():
            fast_path.set_plan(FIRST_EPOCH, files, files, sentinels)
            for number in range(snapshot.chunk_count):
                chunk = snapshot.chunk(number)
                fast_path.fetch(chunk)
                fast_path.store(chunk.id.value)
            fast_path.stored()
            fast_path.plan_progress()
    except (OSError, EOFError):
        pass  # the daemon has ended


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_a_mount_can_end_while_it_stores_by_plan(
    made_up: Versions, tmp_path: Path, ending: signal.Signals
) -> None:
    address, ended = tmp_path / "remote", threading.Event()
    options = ("--cache-bytes", str(soak.CACHE_BYTES), "--remote", str(address))
    mount = start(made_up.before, tmp_path, *options)
    with Snapshot.open(made_up.before.snapshot) as snapshot:
        storing = threading.Thread(target=store_over_and_over, args=(address, snapshot, ended))
        try:
            folder = tmp_path / "readers"
            with tortured(mount, SOAKED_FILES, folder, 60, may_end=True, count=4) as readers:
                storing.start()
                eventually(
                    lambda: mount.statistics()["stored_ahead"]["plan_files_stored"] > 1000,
                    "files that are stored",
                )
                began = time.monotonic()
                os.kill(mount.pid, ending)
                for process in readers.processes:
                    process.join(20)
                eventually(lambda: not is_alive(mount.pid), "the end of the daemon", timeout_s=20)
            assert time.monotonic() - began < 20
            assert "Traceback" not in mount.log
        finally:
            ended.set()
            end(mount)
            storing.join(20)


def test_a_read_that_python_never_answers_delays_storing_and_not_the_end(own: Planned) -> None:
    listed(own.mount)
    own.mount.fail_with("stuck")
    stuck = own.mount.path / os.fsdecode(own.snapshot.path_of(int(own.small[5])))
    reader = subprocess.Popen(
        [sys.executable, "-c", f"open({str(stuck)!r}, 'rb').read()"], stderr=subprocess.DEVNULL
    )
    try:
        eventually(lambda: own.mount.statistics()["reads_through_threads"], "a READ in Python")
        own.set_plan(own.small, [FILES - 1])  # forgets that it is being READ
        chunk = own.snapshot.chunk(0)
        own.fast_path.fetch(chunk)
        assert own.fast_path.store(chunk.id.value)
        own.read(own.small[:5])
        assert own.fast_path.stored() == [], "it waits for the page"
        began = time.monotonic()
        os.kill(own.mount.pid, signal.SIGTERM)
        own.mount.wait_until_ended()
        assert time.monotonic() - began < 15
    finally:
        reader.kill()
        reader.wait(20)
